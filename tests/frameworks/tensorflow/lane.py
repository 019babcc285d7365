"""Runs every *_test.py of this folder, each in a process of its own with a limit, and counts cases.

    lane.py [NAME...]          all, or rendezvous_test and so on

Those that take a protocol run over TensorFlow's gRPC, too, and a table says how each case ended over both.
"""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

LIMIT_S = 240
# For all tests together; on a slow machine those that do not fit are skipped.
LANE_S = float(os.environ.get("TRYST_TENSORFLOW_SECONDS", "480"))
PROTOCOLS = ["grpc", "grpc+verbs"]


def run_alone(command, environment, limit_s):
    """Leaves no process of the command's behind."""
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(path, arguments, left_s):
    """Returns [(case, "passed" or "failed" or "skipped", why)]."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as xml:
        environment = dict(os.environ, XML_OUTPUT_FILE=xml.name)
        name = " ".join([os.path.basename(path)] + arguments)
        print("=== " + name, flush=True)
        if left_s < 20:
            return [(name, "skipped", "the %d s of all are over" % LANE_S)]
        try:
            run_alone([sys.executable, path] + arguments, environment, min(LIMIT_S, left_s))
        except subprocess.TimeoutExpired:
            if left_s < LIMIT_S:
                return [(name, "skipped", "cut off: the %d s of all are over" % LANE_S)]
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


def takes_protocol(path):
    with open(path, encoding="utf-8") as file:
        return "take_protocol(" in file.read()


def show(ends):
    """Case by case, beside gRPC."""
    table = {}
    for ident, end, _ in ends:
        name, _, case = ident.partition(": ")
        test, _, protocol = name.partition(" ")
        if protocol:
            table.setdefault((test, case), {})[protocol] = end
    print("%-22s %-46s %-9s %s" % ("", "", *PROTOCOLS))
    for (test, case), by in table.items():
        print("%-22s %-46s %-9s %s" % (test, case, *(by.get(protocol, "-") for protocol in PROTOCOLS)))


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    ends, start = [], time.time()
    for path in sorted(glob.glob(os.path.join(folder, "*_test.py"))):
        if sys.argv[1:] and os.path.basename(path)[:-3] not in sys.argv[1:]:
            continue
        for arguments in [[protocol] for protocol in PROTOCOLS] if takes_protocol(path) else [[]]:
            began = time.time()
            ends += run(path, arguments, start + LANE_S - began)
            print("=== %.0f s" % (time.time() - began), flush=True)
    show(ends)
    for ident, end, why in ends:
        if end != "passed":
            print("%s  %s%s" % (end.upper(), ident, ": " + why if why else ""))
    count = {end: sum(e == end for _, e, _ in ends) for end in ("passed", "failed", "skipped")}
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % count)
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
