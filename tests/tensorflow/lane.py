"""Runs every *_test.py of this folder, each in a process of its own with a limit, and counts cases."""

import glob
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

LIMIT_S = 300


def run(path, arguments):
    """Returns [(case, "passed" or "failed" or "skipped", why)]."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as xml:
        environment = dict(os.environ, XML_OUTPUT_FILE=xml.name)
        name = " ".join([os.path.basename(path)] + arguments)
        print("=== " + name, flush=True)
        try:
            subprocess.run([sys.executable, path] + arguments, env=environment, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return [(name, "failed", "it took longer than %d s" % LIMIT_S)]
        try:
            cases = list(ET.parse(xml.name).iter("testcase"))
        except ET.ParseError:
            return [(name, "failed", "it did not end")]
    ends = []
    for case in cases:
        ident = "%s: %s" % (name, case.get("name"))
        failure, skipped = case.find("failure"), case.find("skipped")
        if failure is not None:
            ends.append((ident, "failed", ""))
        elif skipped is not None:
            ends.append((ident, "skipped", skipped.get("message") or ""))
        else:
            ends.append((ident, "passed", ""))
    return ends or [(name, "failed", "it ran no case")]


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    ends = []
    for path in sorted(glob.glob(os.path.join(folder, "*_test.py"))):
        both = [["grpc"], ["grpc+verbs"]] if path.endswith("rendezvous_test.py") else [[]]
        for arguments in both:
            ends += run(path, arguments)
    for ident, end, why in ends:
        if end != "passed":
            print("%s  %s%s" % (end.upper(), ident, ": " + why if why else ""))
    count = {end: sum(e == end for _, e, _ in ends) for end in ("passed", "failed", "skipped")}
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % count)
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
