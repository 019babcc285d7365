#!/usr/bin/env python3
"""Plants faults into a copy of this tree, and sees which of them the tests find.

  ./run mutants                              the faults that *.mutants describe, each by the tests that are named there
  ./run mutants --sample 100 --from SEED     faults that generate.py makes by rule, each by the tests that pass it
  ./run mutants --quick                      some of either, of the day
  ./run mutants --sample 1000 --pack FOLDER  builds, and puts programs and this command into a folder for a larger machine

planting.py says what a described fault is. It fails where one survives that is not known to, where one that is known to survive is
found, and where one no longer applies or does not compile; of generated ones, where a smaller share than --at-least is found, or one of survivors.txt.
"""
import argparse
import collections
import concurrent.futures
import datetime
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)

import generate  # noqa: E402
import judging  # noqa: E402
import planting  # noqa: E402
import sample  # noqa: E402

# These have few sources, no gRPC and no simulator.
QUICK_SAMPLE = 24
# What belongs to the loader of the machine where a program was built.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|pthread|dl|rt|resolv|util|anl|nss_\w+))\.so\.\d+")
QUICK = {
    "//channel/ops:fetch_keys_test",
    "//channel/ops:takes_test",
    "//channel/pool:peer_paths_test",
    "//rendezvous:held_bytes_test",
    "//rendezvous:local_rendezvous_test",
    "//rendezvous:routing_rendezvous_test",
    "//rendezvous:step_registry_test",
    "//rendezvous:throwing_callbacks_test",
    "//verbs/soft:frame_test",
    "//verbs/soft:handshake_test",
    "//verbs/soft:soft_region_table_test",
}


LISTS = ("equivalents.txt", "survivors.txt")
NOT_FOUND = ("survived", "unreached", "flaky")


def chosen(mutants, args):
    if args.only:
        return [mutant for mutant in mutants if mutant.name in args.only]
    if args.quick:
        mutants = [mutant._replace(tests=[test for test in mutant.tests if test[0] in QUICK]) for mutant in mutants]
        mutants = [mutant for mutant in mutants if mutant.tests]
    if args.some and args.some < len(mutants):
        # Spread over all files; as many seeds in a row as there are strides take every fault once.
        stride = -(-len(mutants) // args.some)
        return mutants[args.seed % stride::stride]
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


def bazel(*words):
    root = os.environ.get("TRYST_OUTPUT_USER_ROOT")
    flags = os.environ.get("TRYST_BAZEL_FLAGS", "").split() if words[0] in ("build", "info") else []
    return ["bazel"] + (["--output_user_root=" + root] if root else []) + [words[0]] + flags + list(words[1:])


def quiet_flag(planted):
    """A fault may leave a variable unused, and what stands on one line looks misleading to a compiler. What is unbalanced has no end of
    errors, and Bazel shows none of a megabyte."""
    joined = "bazel-out/[^/]+/bin/(%s)/[^/]*_joined[.]cc" % "|".join(sorted({os.path.dirname(path) for path in planted}))
    return "--per_file_copt=^(%s|%s)$@-w,-fmax-errors=200" % ("|".join(path.replace(".", "[.]") for path in planted), joined)


def build(tree, targets, planted):
    """What the compiler says, or "" where all is built."""
    child = subprocess.Popen(bazel("build", "-k", quiet_flag(planted), *targets), cwd=tree, stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
    said = []
    for line in child.stderr:
        said.append(line.decode(errors="replace"))
        sys.stderr.write(said[-1])
    return "" if child.wait() == 0 else "".join(said)


def programs_of(tree, targets):
    """{target: program}."""
    bin_folder = subprocess.run(bazel("info", "bazel-bin"), cwd=tree, check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()
    subprocess.run(bazel("shutdown"), cwd=tree, stderr=subprocess.DEVNULL)
    programs = {target: os.path.join(bin_folder, target[2:].replace(":", "/")) for target in targets}
    why = judging.copy_is_its_own(tree, programs.values(), bin_folder)
    if why:
        sys.exit(why)
    return programs


def targets_of(rooms):
    """The tests that are linked with one of the rooms, and the simulator."""
    libraries = " ".join("//%s:all" % room for room in rooms)
    asked = "kind('(cc|_source)_test', rdeps(//..., set(%s))) except attr(tags, '\\b(manual|requires-.*)\\b', //...)" % libraries
    found = subprocess.run(bazel("query", asked), cwd=ROOT, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return sorted(set(found.stdout.decode().split()) | {planting.SIM})


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


def copy_stripped(program, to):
    shutil.copy2(os.path.realpath(program), to)
    os.chmod(to, 0o755)
    subprocess.run(["strip", to], stderr=subprocess.DEVNULL)


def pack(folder, programs, tree, packed):
    """Programs, what they are linked with, what they read, and this command."""
    if os.path.exists(folder):
        sys.exit("there is a %s already" % folder)
    for made in ("bin", "lib", "glibc", "tests/mutants"):
        os.makedirs(os.path.join(folder, made))
    libraries = {}
    for target, program in programs.items():
        copy_stripped(program, os.path.join(folder, "bin", target[2:].replace("/", "_").replace(":", "__")))
        runfiles = program + ".runfiles/tryst"
        for found, _, files in os.walk(runfiles):
            inside = os.path.relpath(found, runfiles)
            for name in files:
                data = os.path.join(folder, inside, name)
                if inside.startswith("_solib") or os.path.join(found, name) == os.path.join(runfiles, target[2:].replace(":", "/")):
                    continue
                os.makedirs(os.path.dirname(data), exist_ok=True)
                copy_stripped(os.path.join(found, name), data)
        listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True).stdout.decode()
        for word in (word for line in listed.splitlines() for word in line.split() if word.startswith("/")):
            libraries[os.path.basename(word)] = word
    for name, library in libraries.items():
        copy_stripped(library, os.path.join(folder, "glibc" if GLIBC.fullmatch(name) else "lib", name))
    shutil.copytree(os.path.join(tree, "tests/fuzz/corpus"), os.path.join(folder, "tests/fuzz/corpus"), dirs_exist_ok=True)
    for name in os.listdir(HERE):
        if name.endswith((".py", ".mutants", ".txt")):
            shutil.copy2(os.path.join(HERE, name), os.path.join(folder, "tests/mutants", name))
    with open(os.path.join(folder, "packed.json"), "w", encoding="utf-8") as file:
        json.dump(dict(packed, targets=sorted(programs)), file)
    archive = folder.rstrip("/") + ".tar.xz"
    # The programs have most of their code in common, which a large dictionary finds.
    subprocess.run(["tar", "-C", os.path.dirname(os.path.abspath(folder)), "--sort=name", "-cJf", archive, os.path.basename(folder.rstrip("/"))],
                   check=True, env=dict(os.environ, XZ_OPT="--x86 --lzma2=preset=3,dict=256MiB"))
    print("%s has %.0f MB: there, tar -xf %s && python3 %s/tests/mutants/mutants.py --packed" %
          (archive, os.path.getsize(archive) / 1e6, os.path.basename(archive), os.path.basename(folder.rstrip("/"))))


def unpacked():
    with open(os.path.join(ROOT, "packed.json"), encoding="utf-8") as file:
        packed = json.load(file)
    programs = {target: [os.path.join(ROOT, "bin", target[2:].replace("/", "_").replace(":", "__"))] for target in packed["targets"]}
    os.environ["LD_LIBRARY_PATH"] = os.path.join(ROOT, "lib")
    probe = next(program for target, program in programs.items() if target.endswith("_test"))
    if subprocess.run(probe + ["--gtest_list_tests"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        # An older system. What starts itself again, or another program, cannot do so through a loader, and judges none.
        loader = [os.path.join(ROOT, "glibc/ld-linux-x86-64.so.2"), "--library-path", "%s/glibc:%s/lib" % (ROOT, ROOT)]
        programs = {target: loader + program for target, program in programs.items()}
    return programs, packed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="those that a test finds which is built in seconds and runs in one")
    parser.add_argument("--some", type=int, default=0, help="at most so many of the described faults, others with each seed")
    parser.add_argument("--only", default="", help="these faults, by name, also those of survivors.txt (`survivors`: all of them)")
    parser.add_argument("--sample", type=int, default=0, help="so many generated faults (with --quick: beside those described)")
    parser.add_argument("--from", dest="seed", type=int, default=datetime.date.today().toordinal(), help="the seed that draws them; else the day")
    parser.add_argument("--rooms", default=",".join(generate.ROOMS), help="of the generated faults")
    parser.add_argument("--files", default="", help="of the rooms, whose names a pattern of the shell fits: '*.h', 'channel/ops/fetch_*'")
    parser.add_argument("--targets", default="", help="the tests that judge them; else all that are linked with the rooms")
    parser.add_argument("--most", type=int, default=6, help="tests that a generated fault is judged by at least, the fastest, and the simulator and contracts")
    parser.add_argument("--seconds", type=float, default=10, help="and more of them that take no longer together, without a fault")
    parser.add_argument("--at-least", type=float, default=0, help="fails where a smaller share of the generated faults is found")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=1, help="of each test, until it fails: for races")
    parser.add_argument("--list", action="store_true", help="the described faults, and whether each still applies")
    parser.add_argument("--pack", default="", help="builds, and puts programs and this command into a folder for another machine")
    parser.add_argument("--packed", action="store_true", help="runs from within such a folder")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of what found each")
    args = parser.parse_args()
    if args.quick and not args.sample:
        args.sample = QUICK_SAMPLE
    survivors = sorted(sample.listed(HERE, "survivors.txt"))
    if args.only == "survivors" and not survivors:
        print("survivors.txt lists no fault")
        sys.exit(0)
    args.only = survivors if args.only == "survivors" else list(filter(None, args.only.split(",")))
    args.rooms = args.rooms.split(",")
    args.files = args.files or "*"
    unknown = set(args.rooms) - set(generate.ROOMS)
    if unknown:
        parser.error("no room is called %s" % ", ".join(sorted(unknown)))
    return args


def list_all(described):
    refused = sample.plant_all(ROOT, None, described, [])
    for mutant in described:
        print("%4d %-52s %-40s %s" % (mutant.number, mutant.name, mutant.path, refused.get(mutant.name, "")))
    paths = list(sample.sources(ROOT, generate.ROOMS))
    every = sample.every(ROOT, paths)
    names = {fault.name for fault in every}
    gone = [(file, name) for file in LISTS for name in sorted(set(sample.listed(HERE, file)) - names)]
    for file, name in gone:
        print("%s: no fault is generated any more that is %s" % (file, name))
    print("%d faults, %d of them no longer apply; %d are generated, %d of them in headers, %d that are listed are not; none in %d functions that are constexpr" %
          (len(described), len(refused), len(names), sum(fault.path.endswith(".h") for fault in every), len(gone),
           sample.constant_functions(ROOT, paths)))
    return 1 if refused or gone else 0


def main():
    args = arguments()
    described = planting.read(HERE)
    if args.list:
        return list_all(described)
    if args.packed:
        tree = ROOT
        programs, packed = unpacked()
    else:
        tree = own_tree()
        programs, packed = make(described, args, tree)
        if args.pack:
            pack(args.pack, programs, tree, packed)
            return 0
        programs = {target: [program] for target, program in programs.items()}
    judge = judging.Judge(programs, tree, args.runs, lambda target: corpus_of(target, tree))
    code = 0
    if packed["chosen"]:
        mutants = [mutant._replace(tests=[test for test in mutant.tests if test[0] in programs])
                   for mutant in described if mutant.name in packed["chosen"]]
        code = judge_all(judge, mutants, packed["refused"], args)
    if packed["generated"]:
        faults = {int(number): generate.Fault(*fields) for number, fields in packed["generated"].items()}
        share, mended = sample.judge_all(judge, packed["tests"], faults, sample.listed(HERE, "survivors.txt"), args)
        if share < args.at_least or mended:
            code = 1
    return code


def make(described, args, tree):
    """Builds a tree with the faults. ({target: program}, what is to be judged)."""
    copy_tree(tree)
    mutants = [] if args.sample and not args.quick else chosen(described, args)
    if args.sample and not args.quick:
        described = []
    here = sample.plant_all(ROOT, None, described, [])
    targets = {test[0] for mutant in mutants if mutant.name not in here for test in mutant.tests}
    judges, drawn, known = [], {}, os.path.join(tree + ".refused")
    if args.only:
        drawn = sample.named(ROOT, sample.sources(ROOT, args.rooms), args.only)
        unknown = set(args.only) - {fault.name for fault in drawn.values()} - {mutant.name for mutant in mutants}
        if unknown:
            sys.exit("no fault is called %s" % ", ".join(sorted(unknown)))
        args.sample = len(drawn)
        if drawn:
            judges = args.targets.split(",") if args.targets else targets_of(sorted({os.path.dirname(fault.path) for fault in drawn.values()}))
    elif args.sample:
        judges = sorted(QUICK) if args.quick else args.targets.split(",") if args.targets else targets_of(args.rooms)
        leave_out = set(sample.listed(HERE, "equivalents.txt"))
        if os.path.exists(known):
            with open(known, encoding="utf-8") as file:
                leave_out |= set(file.read().split())
        # A quick test judges the source and the header that it is named for, where it is named for one.
        named = {target[2:-5].replace(":", "/") for target in judges}
        paths = [path for path in sample.sources(ROOT, args.rooms)
                 if fnmatch.fnmatch(path, args.files) and (not args.quick or os.path.splitext(path)[0] in named)]
        drawn = sample.draw(ROOT, paths, args.seed, args.sample, leave_out)
        print("%d generated faults of the seed %s; none in %d functions that are constexpr" %
              (args.sample, args.seed, sample.constant_functions(ROOT, paths)), flush=True)
    targets = sorted(targets | set(judges))
    # Also those that are not judged now: so the next build finds this one's objects.
    generated, refused = sample.build(ROOT, tree, described, drawn, args.sample, lambda planted: build(tree, targets, planted), known)
    names = {mutant.name for mutant in described}
    programs = programs_of(tree, targets)
    return programs, {
        "chosen": [mutant.name for mutant in mutants], "refused": {name: why for name, why in refused.items() if name in names},
        "generated": generated, "tests": sample.tests_of({target: programs[target] for target in judges})}


def judge_all(judge, mutants, refused, args):
    applied = [mutant for mutant in mutants if mutant.name not in refused and mutant.tests]
    tests = {tuple(test) for mutant in applied for test in mutant.tests}
    wrong = len(refused)
    for name, why in refused.items():
        print("not planted: %s: %s" % (name, why))
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
