"""Runs a file's unittest cases and names each of them to whoever counts:

  case_report.main()    in place of unittest.main()

Writes XML_OUTPUT_FILE, which Bazel sets, as GoogleTest does: a testcase each, with `failure`
or with `skipped` and why. Without it Bazel sees one script that passed, and a case that was
skipped counts as passed. A case that neither ran nor was skipped fails.
"""
import os
import sys
import unittest
import xml.etree.ElementTree as ET


def cases_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = set()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.add(test.id())

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.passed.add(test.id())

    def ends(self):
        """{case's id: ("failure" or "skipped", why)} of those that did not pass."""
        ends = {}
        for test, why in self.skipped:
            ends[self._owner(test)] = ("skipped", why)
        for test, why in self.failures + self.errors:
            ends[self._owner(test)] = ("failure", why)
        for test in self.unexpectedSuccesses:
            ends[self._owner(test)] = ("failure", "was expected to fail")
        return ends

    @staticmethod
    def _owner(test):
        """A part of a case (subTest) ends for the case."""
        return getattr(test, "test_case", test).id()


def of_class(ends, ident):
    """How a whole class or file ended: "setUpClass (module.Class)"."""
    for holder, end in ends.items():
        for kind in ("setUpClass (", "setUpModule ("):
            if holder.startswith(kind) and ident.startswith(holder[len(kind):-1] + "."):
                return end
    return None


def report(idents, result):
    """The XML, and whether each case ran or was skipped."""
    ends = result.ends()
    suites = ET.Element("testsuites", tests=str(len(idents)))
    suite = ET.SubElement(suites, "testsuite", name=os.path.basename(sys.argv[0]), tests=str(len(idents)))
    complete = True
    for ident in idents:
        name = ident.split(".")
        case = ET.SubElement(suite, "testcase", classname=".".join(name[1:-1]), name=name[-1], status="run")
        end = ends.get(ident) or of_class(ends, ident)
        if end is None and ident not in result.passed:
            complete = False
            end = ("failure", "neither ran nor was skipped")
        if end is not None:
            ET.SubElement(case, end[0], message=end[1])
    return ET.ElementTree(suites), complete


def main(module="__main__"):
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module])
    idents = [case.id() for case in cases_of(suite)]  # The run empties the suite.
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    xml, complete = report(idents, result)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        xml.write(path, encoding="utf-8", xml_declaration=True)
    ended = [case.find("failure") is not None for case in xml.iter("testcase")]
    skipped = sum(case.find("skipped") is not None and case.find("failure") is None for case in xml.iter("testcase"))
    print("%d passed, %d failed, %d skipped" % (len(ended) - sum(ended) - skipped, sum(ended), skipped), flush=True)
    if not complete:
        print("FAILED: a case neither ran nor was skipped", file=sys.stderr)
    sys.exit(0 if complete and idents and result.wasSuccessful() else 1)
