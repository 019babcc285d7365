#!/usr/bin/env python3
"""tried_test.py TRIED CHANGELOG VERBS...: the rows of docs/COMPATIBILITY.md are such as the tests write, of tests that there are, and whatever the
page is to speak of has one; the last release is CHANGELOG.md's.
"""
import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import case_report  # noqa: E402

TRIED, CHANGELOG, *VERBS = (pathlib.Path(argument).read_text() for argument in sys.argv[1:5])
RUN = "\n".join(VERBS)
ROWS = json.loads(TRIED)
# What any machine can try: CPython 3.12 is in no Debian, and NCCL needs two GPUs.
PYTHONS = ["3.11", "3.13", "3.14"]
PACKAGES = ["numpy", "torch", "jax", "ray", "tensorflow-cpu"]


def versions(what):
    return [row["version"] for row in ROWS if row["what"] == what]


class Tried(unittest.TestCase):
    def test_rows_are_such_as_tests_write(self):
        for row in ROWS:
            self.assertEqual(list(row), ["what", "version", "test", "on"])
            self.assertRegex(row["on"], r"^20\d\d-\d\d-\d\d$")
            self.assertRegex(row["version"], r"^\d[\w.+]*$")
        keys = [(row["what"], row["version"], row["test"]) for row in ROWS]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(TRIED, "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n")

    def test_each_row_names_a_test_that_there_is(self):
        for row in ROWS:
            verb = re.match(r"`\./run (test|bench) (?:--)?([a-z]+)", row["test"])
            if verb:
                self.assertRegex(RUN, rf"(?m)^    --{verb[2]}\)$" if verb[1] == "test" else rf"(?m)^#: bench {verb[2]}\b", row["test"])
            else:
                self.assertRegex(row["test"], r"^`tests/[a-z_/]+\.sh` on ")

    def test_the_last_release_was_met(self):
        last = re.search(r"(?m)^## (\S+)\n\nCommit [0-9a-f]{40}\.$", CHANGELOG)[1]
        self.assertIn(last, versions("workers of Tryst"))
        self.assertIn(last, versions("libtryst.so.1 of Tryst"))

    def test_each_python_was_tried(self):
        self.assertEqual({".".join(version.split(".")[:2]) for version in versions("CPython")} & set(PYTHONS), set(PYTHONS))

    def test_each_package_was_tried(self):
        for package in PACKAGES:
            self.assertTrue(versions(package), package)


case_report.main()
