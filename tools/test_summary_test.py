#!/usr/bin/env python3
"""What test_summary.py says of each way in which a test can end."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "test_summary.py")
GTEST = """<testsuites><testsuite name="A">
<testcase name="Ok" classname="A" status="run" result="completed" />
<testcase name="Bad" classname="A" status="run"><failure message="x.cc:4"/></testcase>
<testcase name="Skip" classname="A" status="run" result="skipped"><skipped message="x.cc:2&#x0A;needs a NIC"/></testcase>
<testcase name="DISABLED_Off" classname="A" status="notrun" />
</testsuite></testsuites>"""
MENDED = """<testsuites><testsuite name="A">
<testcase name="Ok" classname="A" status="run"/><testcase name="Bad" classname="A" status="run"/></testsuite></testsuites>"""
SCRIPT = """<testsuites><testsuite name="s"><testcase name="s" status="run"></testcase>
<system-out>Executing\n%s</system-out></testsuite></testsuites>"""


UNITTEST = """<testsuites tests="2"><testsuite name="s"><testcase classname="A" name="a" status="run"/>
<testcase classname="A" name="b" status="run"><skipped message="needs chromium"/></testcase></testsuite></testsuites>"""

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import case_report  # noqa: E402


class TestSummaryTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def ended(self, label, status, xml=None, attempt=2):
        outputs = []
        if xml is not None:
            path = os.path.join(self.folder.name, label.strip("/").replace("/", "_") + "_%d.xml" % attempt)
            with open(path, "w") as f:
                f.write(xml)
            outputs = [{"name": "test.xml", "uri": "file://" + path}]
        return {"id": {"testResult": {"label": label}}, "testResult": {"status": status, "testActionOutput": outputs}}

    def summarise(self, events, *flags):
        path = os.path.join(self.folder.name, "events")
        with open(path, "w") as f:
            f.writelines(json.dumps(e) + "\n" for e in events)
        run = subprocess.run([sys.executable, PROGRAM, *flags, path], stdout=subprocess.PIPE, universal_newlines=True)
        lines = run.stdout.splitlines()
        self.assertEqual(run.returncode == 0, ", 0 failed," in lines[-1], run.stdout)
        return lines

    def test_counts_cases(self):
        lines = self.summarise([self.ended("//a:t", "FAILED", GTEST)], "--exit=3")
        self.assertEqual(lines, ["FAILED  //a:t A.Bad", "skipped //a:t: DISABLED_ or filtered out",
                                 "skipped //a:t: needs a NIC", "1 passed, 1 failed, 2 skipped"])

    def test_a_green_run(self):
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", SCRIPT % "fine")]),
                         ["1 passed, 0 failed, 0 skipped"])

    def test_a_script_says_why_it_skips(self):
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", SCRIPT % "SKIPPED: no QEMU")], "--step=tidy=passed"),
                         ["skipped //a:s: no QEMU", "1 passed, 0 failed, 1 skipped"])

    def test_a_skip_is_heard_wherever_it_stands_in_a_line(self):
        log = "test_page (__main__.A) ... SKIPPED: no QEMU\nok"
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", SCRIPT % log)], "--step=tidy=passed"),
                         ["skipped //a:s: no QEMU", "1 passed, 0 failed, 1 skipped"])

    def test_python_cases_are_told_apart(self):
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", UNITTEST)]),
                         ["skipped //a:s: needs chromium", "1 passed, 0 failed, 1 skipped"])

    def test_what_neither_ran_nor_was_skipped_fails(self):
        unittest_log = "test_page (__main__.A) ... skipped 'no page'\nRan 6 tests in 7.3s\n\nOK (skipped=1)"
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", SCRIPT % unittest_log)])[0],
                         "FAILED  //a:s: Python cases that nobody counts: end the file with case_report.main()")
        # GoogleTest writes its XML at the end, so a program that exits in a case leaves only
        # Bazel's.
        gtest_log = "[ RUN      ] A.Ok\n[       OK ] A.Ok (0 ms)\n[ RUN      ] A.Leaves\n"
        self.assertEqual(self.summarise([self.ended("//a:t", "PASSED", SCRIPT % gtest_log)])[0],
                         "FAILED  //a:t: A.Leaves began and never ended")
        fewer = UNITTEST.replace('tests="2"', 'tests="3"')
        self.assertEqual(self.summarise([self.ended("//a:t", "PASSED", fewer)])[0],
                         "FAILED  //a:t: 3 cases, and only 2 have ended")

    def test_a_target_that_neither_ran_nor_was_skipped_fails(self):
        ran = self.ended("//a:s", "PASSED", SCRIPT % "fine")
        asked = "--asked=//a:s\n//a:slow\n//a:by_hand"
        self.assertEqual(self.summarise([ran], asked, "--tagged=//a:by_hand"),
                         ["FAILED  //a:slow: neither ran nor was skipped",
                          "skipped //a:by_hand: its tag keeps it out of this run (docs/TESTING.md)",
                          "1 passed, 1 failed, 1 skipped"])
        chosen = {"id": {"optionsParsed": {}}, "optionsParsed": {"explicitCmdLine": ["--test_size_filters=small"]}}
        self.assertEqual(self.summarise([chosen, ran], asked, "--tagged=//a:by_hand")[0],
                         "skipped //a:by_hand: its tag keeps it out of this run (docs/TESTING.md)")
        self.assertEqual(self.summarise([chosen, ran], "--asked=//a:s\n//a:slow"),
                         ["skipped //a:slow: left out by a filter of this run", "1 passed, 0 failed, 1 skipped"])
        # A target that did not build was reported already.
        broken = {"id": {"targetCompleted": {"label": "//a:slow"}}, "completed": {}}
        self.assertEqual(self.summarise([ran, broken], "--asked=//a:s\n//a:slow", "--exit=1"),
                         ["FAILED  //a:slow: did not build", "1 passed, 1 failed, 0 skipped"])

    def again(self, label, status, xml, log):
        """A first attempt, after which there was another."""
        event = self.ended(label, status, xml, attempt=1)
        path = os.path.join(self.folder.name, "attempt_1.log")
        with open(path, "w") as f:
            f.write(log)
        event["testResult"]["testActionOutput"].append({"name": "test.log", "uri": "file://" + path})
        event["children"] = [{"testResult": {"label": label, "attempt": 2}}]
        return event

    def test_what_passes_when_it_runs_again_is_unstable(self):
        lines = self.summarise([self.again("//a:t", "FAILED", GTEST, "x.cc:4: Failure"), self.ended("//a:t", "PASSED", MENDED)])
        self.assertEqual(lines, ["UNSTABLE  //a:t A.Bad: failed, and passed when it ran again", "2 passed, 0 failed, 0 skipped"])

    def test_few_may_be_unstable(self):
        def lines(targets):
            events = [(self.again("//a:%d" % i, "FAILED", GTEST, ""), self.ended("//a:%d" % i, "PASSED", MENDED)) for i in range(targets)]
            return self.summarise([event for pair in events for event in pair])
        self.assertEqual(lines(2)[-1], "4 passed, 0 failed, 0 skipped")
        self.assertEqual((lines(3)[0], lines(3)[-1]), ("FAILED  3 targets were unstable, which is more than 2", "6 passed, 1 failed, 0 skipped"))

    def test_no_second_attempt_mends_a_crash_a_hang_or_a_report(self):
        for status, xml, log in (("FAILED", None, ""), ("TIMEOUT", GTEST, ""), ("FAILED", SCRIPT % "no", ""),
                                 ("FAILED", GTEST, "WARNING: ThreadSanitizer: data race (pid=1)"),
                                 ("FAILED", GTEST, "CRASHED by signal 11, and said last: "),
                                 ("FAILED", GTEST, "terminate called after throwing"),
                                 ("FAILED", GTEST, "said: F1130 15:21:47.668074 12 pool.cc:144] Check failed: x")):
            lines = self.summarise([self.again("//a:t", status, xml, log), self.ended("//a:t", "PASSED", MENDED)])
            self.assertEqual(lines, ["FAILED  //a:t: %s at first" % status.lower(), "2 passed, 1 failed, 0 skipped"])

    def test_what_fails_twice_has_failed(self):
        lines = self.summarise([self.again("//a:t", "FAILED", GTEST, ""), self.ended("//a:t", "FAILED", GTEST)], "--exit=3")
        self.assertEqual((lines[0], lines[-1]), ("FAILED  //a:t A.Bad", "1 passed, 1 failed, 2 skipped"))

    def test_what_is_skipped_when_it_runs_again_has_failed(self):
        skips = MENDED.replace("<testcase name=\"Bad\" classname=\"A\" status=\"run\"/>",
                               "<testcase name=\"Bad\" classname=\"A\"><skipped message=\"x&#x0A;busy\"/></testcase>")
        lines = self.summarise([self.again("//a:t", "FAILED", GTEST, ""), self.ended("//a:t", "PASSED", skips)])
        self.assertEqual((lines[0], lines[-1]),
                         ("FAILED  //a:t A.Bad: failed, and did not pass when its target ran again", "1 passed, 1 failed, 1 skipped"))

    def test_what_was_unstable_once_is_no_pass_of_a_later_run(self):
        lines = self.summarise([self.ended("//a:t", "FLAKY", MENDED)])
        self.assertEqual(lines[0], "FAILED  //a:t: was unstable in an earlier run; look with --nocache_test_results")

    def test_a_step_may_be_skipped(self):
        self.assertEqual(self.summarise([self.ended("//a:s", "PASSED", SCRIPT % "fine")],
                                        "--step=format=skipped:another clang-format"),
                         ["skipped ./run test: the format step: another clang-format", "1 passed, 0 failed, 1 skipped"])

    def test_a_crash_or_time_out_is_one_failure(self):
        lines = self.summarise([self.ended("//a:t", "TIMEOUT"), self.ended("//a:u", "FAILED", "")], "--exit=3")
        self.assertEqual(lines, ["FAILED  //a:t: timeout", "FAILED  //a:u: failed", "0 passed, 2 failed, 0 skipped"])

    def test_what_does_not_build_fails(self):
        lines = self.summarise([
            {"id": {"targetCompleted": {"label": "//a:lib"}}, "completed": {}},
            {"id": {"targetCompleted": {"label": "//a:lib"}}, "aborted": {}},
            {"id": {"targetCompleted": {"label": "//a:bad"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}},
            {"id": {"pattern": {"pattern": ["//gone/..."]}}, "aborted": {"reason": "LOADING_FAILURE"}},
        ], "--exit=1")
        self.assertEqual(lines, ["FAILED  //a:lib: did not build", "FAILED  //a:bad: analysis failure",
                                 "FAILED  //gone/...: loading failure", "0 passed, 3 failed, 0 skipped"])

    def test_what_this_machine_lacks(self):
        def events(name, kind):
            return [{"id": {"targetConfigured": {"label": name}}, "configured": {"targetKind": kind}},
                    {"id": {"targetCompleted": {"label": name}}, "aborted": {"reason": "SKIPPED"}}]
        lines = self.summarise(events("//a:t", "cc_test rule") + events("//a:lib", "cc_library rule"),
                               "--step=format=passed", "--tagged=//a:x\n//a:y")
        self.assertEqual(lines[0], "not built //a:lib: needs a library that this machine lacks")
        self.assertEqual(lines[-1], "1 passed, 0 failed, 3 skipped")

    def test_is_never_green_for_nothing(self):
        empty = self.ended("//a:t", "PASSED", "<testsuites/>")
        self.assertEqual(self.summarise([])[-1], "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.summarise([empty])[0], "FAILED  //a:t passed without a single case")
        self.assertEqual(self.summarise([], "--exit=37")[0], "FAILED  bazel test exited with 37")
        self.assertEqual(self.summarise([], "--step=format=failed")[0], "FAILED  ./run test: the format step")

    def test_a_person_may_filter(self):
        filtered = {"id": {"optionsParsed": {}}, "optionsParsed": {"explicitCmdLine": ["--test_filter=A.*"]}}
        lines = self.summarise([filtered, self.ended("//a:t", "PASSED", "<testsuites/>")], "--step=x=passed")
        self.assertEqual(lines, ["1 passed, 0 failed, 0 skipped"])


if __name__ == "__main__":
    case_report.main()
