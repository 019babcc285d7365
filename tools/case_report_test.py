#!/usr/bin/env python3
"""What case_report.py tells of each way in which a case can end."""
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import case_report  # noqa: E402

FILE = """
import os, sys, unittest
sys.path.insert(0, %r)
import case_report
class A(unittest.TestCase):
%s
case_report.main()
"""


class CaseReportTest(unittest.TestCase):
    def ended(self, body):
        """{case: (how it ended, why)}, and the exit status."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a_test.py")
            with open(path, "w") as f:
                f.write(FILE % (os.path.dirname(os.path.abspath(__file__)), body))
            xml = os.path.join(folder, "test.xml")
            run = subprocess.run([sys.executable, path], env={**os.environ, "XML_OUTPUT_FILE": xml},
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            ends = {}
            for case in ET.parse(xml).getroot().iter("testcase"):
                why = [(child.tag, child.get("message").strip().splitlines()[-1]) for child in case]
                ends["%s.%s" % (case.get("classname"), case.get("name"))] = why[0] if why else "passed"
            return ends, run.returncode

    def test_every_case_is_named(self):
        self.assertEqual(self.ended("""
  def test_a(self): pass
  def test_b(self): self.skipTest("needs a browser")
  @unittest.skip("on no machine")
  def test_c(self): pass
  def test_d(self):
    with self.subTest(1): self.skipTest("half of it")
  @unittest.expectedFailure
  def test_e(self): self.fail()
"""), ({"A.test_a": "passed", "A.test_b": ("skipped", "needs a browser"), "A.test_c": ("skipped", "on no machine"),
        "A.test_d": ("skipped", "half of it"), "A.test_e": "passed"}, 0))

    def test_failures(self):
        self.assertEqual(self.ended("""
  def test_a(self): self.fail("bad")
  def test_b(self): raise KeyError("no key")
  def test_c(self):
    with self.subTest(1): self.fail("a part")
    with self.subTest(2): self.skipTest("another")
  @unittest.expectedFailure
  def test_d(self): pass
"""), ({"A.test_a": ("failure", "AssertionError: bad"), "A.test_b": ("failure", "KeyError: 'no key'"),
        "A.test_c": ("failure", "AssertionError: a part"),
        "A.test_d": ("failure", "was expected to fail")}, 1))

    def test_a_class_that_is_skipped_or_does_not_begin(self):
        self.assertEqual(self.ended("""
  @classmethod
  def setUpClass(cls): raise unittest.SkipTest("no root")
  def test_a(self): pass
"""), ({"A.test_a": ("skipped", "no root")}, 0))
        self.assertEqual(self.ended("""
  @classmethod
  def setUpClass(cls): raise OSError("no disk")
  def test_a(self): pass
"""), ({"A.test_a": ("failure", "OSError: no disk")}, 1))

    def test_what_neither_ran_nor_was_skipped_fails(self):
        self.assertEqual(self.ended("""
  def run(self, result):
    if self.id().endswith("b"): return  # A runner that leaves one out.
    super().run(result)
  def test_a(self): pass
  def test_b(self): pass
"""), ({"A.test_a": "passed", "A.test_b": ("failure", "neither ran nor was skipped")}, 1))

    def test_a_file_without_cases_fails(self):
        self.assertEqual(self.ended("  pass"), ({}, 1))


if __name__ == "__main__":
    case_report.main()
