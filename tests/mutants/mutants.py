#!/usr/bin/env python3
"""Plants faults into a copy of this tree, and sees which of them the tests find.

  tests/mutants/mutants.py [--quick] [--some N] [--only NAME,...] [--jobs N] [--runs N] [--verbose]
  tests/mutants/mutants.py --list          the faults, and whether each still applies
  tests/mutants/mutants.py --pack FOLDER   builds, and puts programs and this command into a folder for another machine
  tests/mutants/mutants.py --packed        runs from within such a folder

planting.py says what a fault is. --quick takes those that a test finds which is built in seconds and runs in one; --some takes
that many, others each day. It fails where a fault survives that is not known to,
where one that is known to survive is found, and where one no longer applies.
"""
import argparse
import collections
import concurrent.futures
import datetime
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

import judging  # noqa: E402
import planting  # noqa: E402

# Of few sources, without gRPC, without a simulator.
QUICK = {
    "//channel/ops:fetch_keys_test",
    "//channel/ops:takes_test",
    "//channel/pool:peer_paths_test",
    "//rendezvous:held_bytes_test",
    "//rendezvous:local_rendezvous_test",
    "//rendezvous:routing_rendezvous_test",
    "//rendezvous:step_registry_test",
    "//verbs/soft:frame_test",
    "//verbs/soft:handshake_test",
    "//verbs/soft:soft_region_table_test",
}


NOT_FOUND = ("survived", "unreached", "flaky")


def chosen(mutants, args):
    if args.only:
        names = args.only.split(",")
        unknown = set(names) - {mutant.name for mutant in mutants}
        if unknown:
            sys.exit("no fault is called %s" % ", ".join(sorted(unknown)))
        return [mutant for mutant in mutants if mutant.name in names]
    if args.quick:
        mutants = [mutant._replace(tests=[test for test in mutant.tests if test[0] in QUICK]) for mutant in mutants]
        mutants = [mutant for mutant in mutants if mutant.tests]
    if args.some and args.some < len(mutants):
        # A stride that spreads them over all files; the start moves on each day.
        start = datetime.date.today().toordinal() * args.some
        stride = len(mutants) // args.some
        return [mutants[(start + i * stride) % len(mutants)] for i in range(args.some)]
    return mutants


def copy_tree(to):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            stdout=subprocess.PIPE).stdout.decode().split("\0")
    kept = set()
    for path in filter(None, listed):
        source, copy = os.path.join(ROOT, path), os.path.join(to, path)
        if not os.path.lexists(source):
            continue
        kept.add(path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.lexists(copy):
            os.remove(copy)
        shutil.copy2(source, copy, follow_symlinks=False)
    for folder, names, files in os.walk(to):
        names[:] = [name for name in names if not os.path.islink(os.path.join(folder, name)) and name != "out"]
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), to)
            if path not in kept:
                os.remove(os.path.join(to, path))


def plant_all(mutants, tree):
    """{name: why} of those that do not apply."""
    refused = {}
    for path in sorted({mutant.path for mutant in mutants}):
        here = [mutant for mutant in mutants if mutant.path == path]
        if not os.path.exists(os.path.join(ROOT, path)):
            refused.update({mutant.name: "there is no %s" % path for mutant in here})
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text, not_here = planting.plant(file.read(), here)
        refused.update(not_here)
        if tree:
            with open(os.path.join(tree, path), "w", encoding="utf-8") as file:
                file.write(text)
    return refused


def build(tree, targets, planted):
    """{target: program}. A fault may leave a variable unused."""
    bazel = ["bazel"]
    if os.environ.get("TRYST_OUTPUT_USER_ROOT"):
        bazel.append("--output_user_root=" + os.environ["TRYST_OUTPUT_USER_ROOT"])
    flags = os.environ.get("TRYST_BAZEL_FLAGS", "").split()
    flags.append("--per_file_copt=^(%s)$@-Wno-error" % "|".join(path.replace(".", "[.]") for path in planted))
    built = subprocess.run(bazel + ["build"] + flags + targets, cwd=tree, stdin=subprocess.DEVNULL)
    if built.returncode:
        sys.exit("the copy in %s does not build" % tree)
    bin_folder = subprocess.run(bazel + ["info"] + flags + ["bazel-bin"], cwd=tree, check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    subprocess.run(bazel + ["shutdown"], cwd=tree, stderr=subprocess.DEVNULL)
    programs = {target: os.path.join(bin_folder, target[2:].replace(":", "/")) for target in targets}
    why = judging.copy_is_its_own(tree, programs.values(), bin_folder)
    if why:
        sys.exit(why)
    return programs


def own_tree():
    """The copy of this checkout, and of no other: two that shared one would judge each other's sources. Held until we end."""
    root = os.environ.get("TRYST_OUTPUT_USER_ROOT") or os.path.expanduser("~/.cache/tryst")
    tree = os.path.join(root, "mutants", hashlib.sha256(ROOT.encode()).hexdigest()[:12])
    os.makedirs(tree, exist_ok=True)
    lock = os.open(tree + ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("another ./run mutants of this checkout is under way (%s.lock)" % tree)
    return tree


def corpus_of(target, tree):
    """What a cc_fuzz_test has as its arguments."""
    if not target.startswith("//tests/fuzz:"):
        return []
    folder = os.path.join(tree, "tests/fuzz/corpus", target.split(":")[1].replace("_fuzz", ""))
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)) if os.path.isdir(folder) else []


def pack(folder, programs, mutants, tree, refused):
    os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
    libraries = set()
    for target, program in programs.items():
        name = target[2:].replace("/", "_").replace(":", "__")
        copy = os.path.join(folder, "bin", name)
        shutil.copy2(program, copy)
        os.chmod(copy, 0o755)
        subprocess.run(["strip", copy], check=True)
        for found, _, files in os.walk(program + ".runfiles/tryst"):
            for name in filter(lambda name: name.endswith(".so"), files):  # What it loads itself, by this path.
                data = os.path.join(folder, os.path.relpath(found, program + ".runfiles/tryst"))
                os.makedirs(data, exist_ok=True)
                shutil.copy2(os.path.join(found, name), os.path.join(data, name))
        listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True).stdout.decode()
        libraries |= {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    os.makedirs(os.path.join(folder, "lib"), exist_ok=True)
    for library in libraries:
        shutil.copy2(os.path.realpath(library), os.path.join(folder, "lib", os.path.basename(library)))
    for path in ("tests/fuzz/corpus",):
        shutil.copytree(os.path.join(tree, path), os.path.join(folder, path), dirs_exist_ok=True)
    os.makedirs(os.path.join(folder, "tests/mutants"), exist_ok=True)
    for name in os.listdir(HERE):
        if name.endswith((".py", ".mutants")):
            shutil.copy2(os.path.join(HERE, name), os.path.join(folder, "tests/mutants", name))
    with open(os.path.join(folder, "packed.json"), "w", encoding="utf-8") as file:
        json.dump({"refused": refused, "targets": sorted(programs)}, file)


def unpacked():
    with open(os.path.join(ROOT, "packed.json"), encoding="utf-8") as file:
        packed = json.load(file)
    loader = [os.path.join(ROOT, "lib/ld-linux-x86-64.so.2"), "--library-path", os.path.join(ROOT, "lib")]
    programs = {target: loader + [os.path.join(ROOT, "bin", target[2:].replace("/", "_").replace(":", "__"))]
                for target in packed["targets"]}
    return programs, packed["refused"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--some", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=1, help="of each test, until it fails: for races")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--pack", default="")
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of what found each")
    args = parser.parse_args()
    every = planting.read(HERE)
    mutants = chosen(every, args)
    if args.list:
        refused = plant_all(every, None)
        for mutant in every:
            print("%4d %-52s %-40s %s" % (mutant.number, mutant.name, mutant.path, refused.get(mutant.name, "")))
        print("%d faults, %d of them no longer apply" % (len(every), len(refused)))
        return 1 if refused else 0
    if args.packed:
        tree = ROOT
        programs, refused = unpacked()
        mutants = [mutant._replace(tests=[test for test in mutant.tests if test[0] in programs]) for mutant in mutants]
    else:
        tree = own_tree()
        copy_tree(tree)
        refused = plant_all(every, tree)  # Also those that are not judged now: so the next build finds this one's objects.
        targets = sorted({test[0] for mutant in mutants if mutant.name not in refused for test in mutant.tests})
        built = build(tree, targets, sorted({mutant.path for mutant in every}))
        if args.pack:
            pack(args.pack, built, mutants, tree, refused)
            return 0
        programs = {target: [program] for target, program in built.items()}
    judge = judging.Judge(programs, tree, args.runs, lambda target: corpus_of(target, tree))
    return judge_all(judge, mutants, refused, args)


def judge_all(judge, mutants, refused, args):
    applied = [mutant for mutant in mutants if mutant.name not in refused]
    tests = {tuple(test) for mutant in applied for test in mutant.tests}
    wrong = len(refused)
    for name, why in refused.items():
        print("no longer applies: %s: %s" % (name, why))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for test, run in zip(tests, pool.map(lambda test: judge.control(list(test)), tests)):
            passed = run.code == 0
            print("without a fault: %s %s, %.0f s" % (" ".join(test), "passes" if passed else "FAILS", run.seconds), flush=True)
            if not passed:
                print(run.text)
                wrong += 1
                applied = [mutant for mutant in applied if list(test) not in mutant.tests]
        counts = collections.Counter()
        verdicts = pool.map(lambda mutant: judge.judge(mutant.tests, mutant.number), applied)
        for mutant, (verdict, details, text) in zip(applied, verdicts):
            counts[verdict] += 1
            note = mutant.survives if verdict != "found" and mutant.survives else details
            expected = (verdict != "found") == bool(mutant.survives)
            wrong += not expected
            print("%-9s %s%s (%s)" % (verdict, mutant.name, "" if expected else " UNEXPECTED", note), flush=True)
            if args.verbose and verdict == "found":
                print("    " + "\n    ".join(text.splitlines()[-8:]))
    print("%d faults: %d found, %s, %d do not apply" %
          (len(mutants), counts["found"], ", ".join("%d %s" % (counts[verdict], verdict) for verdict in NOT_FOUND), len(refused)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
