#!/usr/bin/env python3
"""Tryst over Soft-RoCE beside perftest, turn by turn in one QEMU guest, and libfabric's fi_pingpong.

  bench/guest.py [--json FILE] [flags of tests/hardware/guest/run.sh]
"""
import os
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import figures  # noqa: E402

# tests/hardware/guest/lane.sh's figure: "pair write_lat 8 B, 7 rounds, ours and perftest's in us: ... [1 2 | 3 4]"
LINE = re.compile(r"(one|pair) (\w+) (\d+) B, \d+ rounds, ours and perftest's .*\[([-0-9. e]*)\|([-0-9. e]*)\]")
# "pair fabric_lat 8 B, 7 rounds, fi_pingpong's in us: median 3 [3 4]": one message at a time.
FABRIC_LINE = re.compile(r"(one|pair) (fabric_\w+) (\d+) B, \d+ rounds, fi_pingpong's .*\[([-0-9. e]*)\]")
GIB_PER_MB = 1e6 / (1 << 30)
# Our name of the figure, its unit, and the factors by which our value and perftest's are
# multiplied: perftest halves a round trip, and a pull is a whole one.
MEANING = {
    "channel_pull": ("pull_p50", "us", 1, 2),
    "channel_bw": ("delivery", "GiB/s", GIB_PER_MB, GIB_PER_MB),
    "write_lat": ("write_latency", "us", 1, 1),
    "write_bw": ("write_bandwidth", "GiB/s", GIB_PER_MB, GIB_PER_MB),
}


def line_of(figure, unit, system, setup, size, numbers, factor):
    values = [float(v) * factor for v in numbers.split()]
    return [{"figure": figure, "system": system, "size_bytes": int(size), "guest": setup,
             "value": figures.rounded(statistics.median(values)), "unit": unit, "min": figures.rounded(min(values)),
             "max": figures.rounded(max(values)), "runs": len(values)}] if values else []


def lines_of(text):
    out = []
    for setup, what, size, theirs in FABRIC_LINE.findall(text):
        figure, unit, factor = ("pull_p50", "us", 2) if what == "fabric_lat" else ("delivery", "GiB/s", GIB_PER_MB)
        out += line_of(figure, unit, "libfabric_verbs", setup, size, theirs, factor)
    for setup, what, size, ours, theirs in LINE.findall(text):
        if what not in MEANING:
            continue
        figure, unit, our_factor, their_factor = MEANING[what]
        for system, numbers, factor in (("tryst_rxe", ours, our_factor), ("limit_perftest", theirs, their_factor)):
            out += line_of(figure, unit, system, setup, size, numbers, factor)
    return out


def main(arguments):
    json_file = None
    if arguments[:1] == ["--json"] and len(arguments) > 1:
        json_file, arguments = arguments[1], arguments[2:]
    process = subprocess.Popen([os.path.join(ROOT, "tests/hardware/guest/run.sh"), "--figures", *arguments],
                               stdout=subprocess.PIPE, text=True)
    text = ""
    for line in process.stdout:
        sys.stdout.write(line)
        text += line
    code = process.wait()
    lines = lines_of(text)
    for setup in ("one", "pair"):
        of_setup = [line for line in lines if line["guest"] == setup]
        if of_setup:
            print("\nguest '%s'" % setup + figures.markdown(of_setup))
    if lines:
        figures.write(lines, json_file, os.path.join(ROOT, "bench/history.jsonl"), ROOT)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
