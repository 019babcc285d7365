"""Wakes one fault at a time, runs its tests, and says what came of it.

A test finds a fault if it reaches it and fails, and passes where nothing is awake, run again just then: a test that fails by itself
finds nothing. With several runs a test is run until it fails, and then has to pass as often without the fault.
"""
import collections
import mmap
import os
import signal
import subprocess
import tempfile
import time

LEAST_SECONDS = 30  # A test with a fault may take so long, and three times what it takes without.
MOST_SECONDS = 400

# `code` is None where it was cut off; `passed` has the numbers of the faults that it went by.
Run = collections.namedtuple("Run", "code passed seconds text")
# `verdict`: found, survived (some test gets there), unreached, or flaky (whoever fails also fails without the fault).
Verdict = collections.namedtuple("Verdict", "verdict details text")


def passed_in(path):
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return frozenset()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        numbers, at = [], data.find(b"\1")
        while at >= 0:
            numbers.append(at)
            at = data.find(b"\1", at + 1)
        return frozenset(numbers)


class Judge:
    """`programs` has the command of each target, `more` what each is given as arguments beside those of the test."""

    def __init__(self, programs, tree, runs=1, more=lambda target: []):
        self.programs = programs
        self.tree = tree
        self.runs = runs
        self.more = more
        self.seconds = {}  # What each test takes without a fault.

    def run(self, test, awake, limit=None):
        """`awake` is the number of a fault, 0, or "all": every fault says that it was passed, none is awake."""
        if limit is None:
            limit = min(MOST_SECONDS, LEAST_SECONDS + 3 * self.seconds.get(tuple(test), MOST_SECONDS))
        program = self.programs[test[0]]
        with tempfile.TemporaryDirectory() as scratch:
            passed = os.path.join(scratch, "passed")
            environment = dict(os.environ, TRYST_MUTANT=str(awake), TRYST_MUTANT_PASSED=passed, TEST_TMPDIR=scratch,
                               GTEST_FAIL_FAST="1", MALLOC_PERTURB_="165")
            runfiles = os.path.join(program[-1] + ".runfiles", "tryst")
            began = time.monotonic()
            with open(os.path.join(scratch, "output"), "wb") as output:
                child = subprocess.Popen(program + test[1:] + self.more(test[0]), env=environment,
                                         cwd=runfiles if os.path.isdir(runfiles) else self.tree, stdin=subprocess.DEVNULL,
                                         stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
                try:
                    code = child.wait(limit)
                except subprocess.TimeoutExpired:
                    code = None
                try:
                    os.killpg(child.pid, signal.SIGKILL)  # With what it has started.
                except ProcessLookupError:
                    pass
                child.wait()
            seconds = time.monotonic() - began
            with open(os.path.join(scratch, "output"), "rb") as output:
                output.seek(max(0, os.path.getsize(output.name) - 3000))
                text = output.read().decode(errors="replace")
            return Run(code, passed_in(passed), seconds, text)

    def control(self, test, awake=0):
        """Without a fault it has to pass, or it can find nothing."""
        run = self.run(test, awake, MOST_SECONDS)
        self.seconds[tuple(test)] = run.seconds
        return run

    def judge(self, tests, number):
        reached, flaky, text = [], [], ""
        for test in tests:
            for turn in range(self.runs):
                run = self.run(test, number)
                text = run.text
                if number in run.passed:
                    reached.append(test)
                if run.code == 0:
                    continue
                how = "hangs" if run.code is None else "exit %d" % run.code
                how = "%s, %s, %.0f s%s" % (" ".join(test), how, run.seconds, ", in run %d" % (turn + 1) if turn else "")
                if number in run.passed and all(self.run(test, 0).code == 0 for _ in range(self.runs)):
                    return Verdict("found", how, text)
                flaky.append(how)
                break
        if flaky:
            return Verdict("flaky", "; ".join(flaky) + ": so it does where no fault is passed", text)
        if not reached:
            return Verdict("unreached", "no test gets there", text)
        return Verdict("survived", "by " + ", ".join(sorted({" ".join(test) for test in reached})), text)


def copy_is_its_own(tree, programs, out):
    """Why not, or "". Links that lead into another build would have another build's programs judged."""
    link = os.path.join(tree, "out", "bin")
    if os.path.realpath(link) != os.path.realpath(out):
        return "%s leads to %s, and Bazel has built into %s" % (link, os.path.realpath(link), out)
    for program in programs:
        if not os.path.realpath(program).startswith(os.path.realpath(out) + "/"):
            return "%s leads to %s, out of the build with the faults" % (program, os.path.realpath(program))
        for folder, _, files in os.walk(program + ".runfiles/tryst"):
            for name in files:
                file = os.path.realpath(os.path.join(folder, name))
                if not file.startswith((os.path.realpath(tree) + "/", os.path.realpath(out).split("/bazel-out/")[0] + "/")):
                    return "%s leads to %s, out of the build with the faults" % (os.path.join(folder, name), file)
    return ""


def reaching(passed_by, seconds):
    """{number: [test, ...]}, the fastest first, from {test: the numbers that it passes}."""
    tests = collections.defaultdict(list)
    for test in sorted(passed_by, key=lambda test: (seconds[test], test)):
        for number in passed_by[test]:
            tests[number].append(list(test))
    return tests


def how_many(tests, seconds, least, budget):
    """Of `tests`, the fastest first: `least` of them, and more as long as all of them take `budget` seconds without a fault."""
    taken = 0
    for i, test in enumerate(tests):
        taken += seconds[tuple(test)]
        if i >= least and taken > budget:
            return i
    return len(tests)
