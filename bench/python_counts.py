#!/usr/bin/env python3
"""bench/python_counts.py [--check] [WORK...]: instructions that the Python package takes for an array, by callgrind.

The same on a machine that is busy and on one that is not. Each work runs twice, the second time with more turns;
what the second one takes more is divided by the turns. --check fails where one is over its limit, which is what it
took when the limit was written and 5 % more. Needs valgrind; a work whose library is not installed is left out.
"torch" counts only where it is named, and has no limit: importing it under valgrind takes minutes.
"""
import argparse
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile

LIMITS = {
    "numpy": 2740,
    "bfloat16": 2740,
}
NEEDS = {"bfloat16": "ml_dtypes", "torch": "torch"}
TURNS = 6000


def convert(array, turns):
    import tryst

    for _ in itertools.repeat(None, turns):
        tryst.tensor(array)


def child(work, turns):
    import numpy

    if work == "numpy":
        return convert(numpy.ones((4, 256), "f"), turns)
    if work == "bfloat16":
        import ml_dtypes

        return convert(numpy.ones((4, 256), ml_dtypes.bfloat16), turns)
    if work == "torch":
        import torch

        return convert(torch.ones(4, 256), turns)
    return None


def count(work, turns):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        ended = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, __file__,
                                "--child", work, str(turns)], capture_output=True, text=True, timeout=900,
                               env={**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
        found = re.search(r"Collected : (\d+)", ended.stderr)
        if ended.returncode != 0 or not found:
            raise RuntimeError(f"{work} under valgrind ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return int(found[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("works", nargs="*")
    options = parser.parse_args()
    if options.child:
        return child(options.child[0], int(options.child[1]))
    over = done = left_out = 0
    for work in options.works or LIMITS:
        if importlib.util.find_spec(NEEDS.get(work, "numpy")) is None:
            print(f"{work}: left out: no {NEEDS.get(work, 'numpy')}")
            left_out += 1
            continue
        each = (count(work, 2 * TURNS) - count(work, TURNS)) / TURNS
        done += 1
        too_many = options.check and work in LIMITS and each > LIMITS[work]
        over += too_many
        print(f"{work}: {each:.0f} instructions an array" + (f", OVER its limit of {LIMITS[work]}" if too_many else ""),
              flush=True)
    print(f"{done - over} passed, {over} failed, {left_out} skipped")
    return 1 if over or done == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
