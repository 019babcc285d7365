"""Draws generated faults, builds them into the copy of the tree, and judges each by the tests that pass it."""
import concurrent.futures
import collections
import functools
import glob
import os
import re
import subprocess

import cpp_source
import generate
import judging
import planting

CONTRACT = re.compile(r"//tests/contract:(channel|nic)_contract_\w+_test")
# All of its cases take minutes in one process, which are more on a busy machine than a test may take.
LONG = "//tests/sim:channel_sim_test"
FIRST = 10000  # Described faults have the numbers below.
ROUNDS = 8
ERROR = re.compile(r"^(?:\./)?([\w./-]+\.(?:cc|h)):(\d+):\d+: (?:fatal )?error:", re.MULTILINE)


def sources(root, rooms):
    """The sources and headers of the rooms, without those of tests."""
    for room in rooms:
        with open(os.path.join(root, room, "BUILD"), encoding="utf-8") as file:
            of_tests = set(re.findall(r'name = "(\w+)",\s*testonly = True', file.read()))
        for path in sorted(glob.glob(os.path.join(root, room, "*.cc")) + glob.glob(os.path.join(root, room, "*.h"))):
            name = os.path.splitext(os.path.basename(path))[0]
            if not name.endswith("_test") and name not in of_tests:
                yield os.path.relpath(path, root)


@functools.lru_cache(maxsize=None)
def text_of(root, path):
    """As it was first read: the tree may be edited while its copy is built, in rounds."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def every(root, paths):
    faults = []
    for path in paths:
        try:
            faults += generate.faults_of(path, text_of(root, path))
        except cpp_source.Unreadable as why:
            print("no faults in %s: %s" % (path, why))
    return faults


def constant_functions(root, paths):
    """How many functions of these are left out, since they are constexpr."""
    return sum(cpp_source.Source(text_of(root, path)).constant_functions for path in paths)


def listed(folder, name):
    """equivalents.txt: faults that change nothing that is promised. survivors.txt: those that lack a test."""
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return generate.blocks_of(file.read())


def draw(root, paths, seed, size, leave_out):
    """{number: fault}, of more than `size`: some will not compile. What is left out keeps its number, so that the others do, too, and
    their sources need not be compiled again."""
    drawn = generate.drawn(every(root, paths), seed)[:size + size // 4 + len(leave_out) // 8 + 8]
    return {FIRST + i: generate.numbered(fault, FIRST + i) for i, fault in enumerate(drawn) if fault.name not in leave_out}


def named(root, paths, names):
    """{number: fault} of these, of which there may be none."""
    return {FIRST + i: generate.numbered(fault, FIRST + i)
            for i, fault in enumerate(fault for fault in every(root, paths) if fault.name in names)}


def plant_all(root, tree, described, faults, also=()):
    """Writes every file that has a fault, and those of `also`. {name: why} of those that do not apply."""
    refused = {}
    for path in sorted({fault.path for fault in faults} | {mutant.path for mutant in described} | set(also)):
        if not os.path.exists(os.path.join(root, path)):
            refused.update({mutant.name: "there is no %s" % path for mutant in described if mutant.path == path})
            continue
        planted, not_here = planting.plant(text_of(root, path), [mutant for mutant in described if mutant.path == path],
                                           [fault for fault in faults if fault.path == path], path.endswith(".h"))
        refused.update(not_here)
        if tree:
            with open(os.path.join(tree, path), "w", encoding="utf-8") as file:
                file.write(planted)
    return refused


def blamed(errors, tree):
    """The numbers of the faults at which the compiler found errors: of that line, else of the nearest one with a fault."""
    numbers = set()
    for path, line in set(ERROR.findall(errors)):
        if not os.path.exists(os.path.join(tree, path)):
            continue
        with open(os.path.join(tree, path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        at = int(line) - 1
        for near in sorted(range(max(0, at - 40), min(len(lines), at + 10)), key=lambda i: (abs(i - at), i)):
            found = re.findall(r"TrystMutant\((\d+)\)", lines[near])
            if found:
                numbers.update(int(number) for number in found)
                break
    return numbers


def build(root, tree, described, drawn, size, compile_all, refused_file):
    """Leaves out what does not compile, until all does. ({number: fault}, of no more than `size`, and {name: why} of those refused)."""
    refused = {}
    by_number = dict(drawn)
    # One that is left without a fault has to lose those that it had.
    paths = {fault.path for fault in drawn.values()} | {mutant.path for mutant in described}
    for _ in range(ROUNDS):
        not_here = plant_all(root, tree, described, by_number.values(), paths)
        refused.update(not_here)
        by_number = {number: fault for number, fault in by_number.items() if fault.name not in not_here}
        errors = compile_all(sorted(paths))
        if not errors:
            kept = dict(list(by_number.items())[:size])
            return kept, refused
        at = blamed(errors, tree)
        bad, wrong = at & set(by_number), [mutant for mutant in described if mutant.number in at]
        if not bad and not wrong:
            raise cpp_source.Unreadable("the copy in %s does not build, by no planted fault" % tree)
        for mutant in wrong:
            print("%s does not compile" % mutant.name, flush=True)
            refused[mutant.name] = "it does not compile"
        described = [mutant for mutant in described if mutant not in wrong]
        if bad:
            print("%d faults do not compile, and are left out" % len(bad), flush=True)
        with open(refused_file, "a", encoding="utf-8") as file:
            for number in sorted(bad):
                file.write(by_number[number].name + "\n")
        by_number = {number: fault for number, fault in by_number.items() if number not in bad}
    raise cpp_source.Unreadable("after %d rounds the copy in %s still does not build" % (ROUNDS, tree))


def is_thorough(test):
    """Each fault that the simulator or a contract passes is judged by it, too, although it is slower than others: many faults are found
    by nothing else."""
    return test[0] == planting.SIM or CONTRACT.fullmatch(test[0]) is not None


def listed_tests(program):
    return subprocess.run([program, "--gtest_list_tests"], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()


def cases(listing):
    suite = ""
    for line in listing.splitlines():
        if line.startswith("  "):
            yield suite + line.split()[0]
        elif line.endswith(".") or ".  #" in line:
            suite = line.split()[0]


def tests_of(programs, list_tests=listed_tests):
    """A test of each target; of a contract one of each instance, which takes seconds where all take a minute, and one of what has none; of
    LONG one of each case; of the simulator's program, one with faults and one of storms. `programs` is {target: program}."""
    tests = []
    for target, program in sorted(programs.items()):
        if target == planting.SIM:
            tests += [[target] + seeds for seeds in planting.SEEDS.values()]
        elif CONTRACT.fullmatch(target):
            listing = list_tests(program)
            tests += [[target, "--gtest_filter=*/" + name] for name in sorted(set(re.findall(r"^  \w+/(\w+)", listing, re.MULTILINE)))]
            if re.search(r"^  \w+$", listing, re.MULTILINE):
                tests.append([target, "--gtest_filter=-*/*"])
        elif target == LONG:
            tests += [[target, "--gtest_filter=" + name] for name in cases(list_tests(program))]
        else:
            tests.append([target])
    return tests


def told(fault):
    return "%s %s:%d %s: %s: %s" % (fault.name, fault.path, fault.line, fault.function, fault.rule, fault.text[:150])


def judge_all(judge, tests, faults, known, args):
    """Says what became of each. (The share that was found, how many of those that are known to lack a test were found.)"""
    passed_by = {}

    def note(test, run):
        here = run.passed & set(faults)
        print("without a fault: %s %s, %.1f s, passes by %d faults" %
              (" ".join(test), "passes" if run.code == 0 else "FAILS, and judges none", run.seconds, len(here)), flush=True)
        if run.code == 0:
            passed_by[tuple(test)] = here
        else:
            print(run.text)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        failed = []
        for test, run in zip(tests, pool.map(lambda test: judge.control(test, "all"), tests)):
            if run.code == 0:
                note(test, run)
            else:
                failed.append(test)
        for test in failed:  # Once more, and alone: beside others some fail by chance.
            note(test, judge.control(test, "all"))
        chosen = {}
        for number, those in judging.reaching(passed_by, judge.seconds).items():
            most = judging.how_many(those, judge.seconds, args.most, args.seconds)
            # A test that passes by few faults was written for a place.
            own = sorted(those, key=lambda test: len(passed_by[tuple(test)]))[:args.most]
            chosen[number] = those[:most] + [test for test in those[most:] if is_thorough(test) or test in own]
        counts, survivors, mended = collections.Counter(), [], 0
        asked = {pool.submit(judge.judge, chosen.get(number, []), number): fault for number, fault in faults.items()}
        for future in concurrent.futures.as_completed(asked):
            fault, (verdict, details, _) = asked[future], future.result()
            counts[verdict] += 1
            note = " KNOWN TO LACK A TEST" if fault.name in known else ""
            mended += bool(note) and verdict == "found"
            print("%-9s%s %s (%s)" % (verdict, note, told(fault), details), flush=True)
            if verdict != "found" and not note:
                survivors.append((verdict, fault, details))
    print("\nNot found, and in no list:")
    for verdict, fault, details in sorted(survivors, key=lambda one: one[1][1:3]):
        print("%s\nin %s\nfunction %s\nrule %s\ntext %s\nwhy %s, line %d: %s\n" %
              (fault.name, fault.path, fault.function, fault.rule, fault.text, verdict, fault.line, details))
    reached = len(faults) - counts["unreached"]
    print("%d generated faults: %d found, %s; %.3f of all, %.3f of those that a test passes by" %
          (len(faults), counts["found"], ", ".join("%d %s" % (counts[one], one) for one in ("survived", "unreached", "flaky")),
           counts["found"] / max(1, len(faults)), counts["found"] / max(1, reached)))
    return counts["found"] / max(1, len(faults)), mended
