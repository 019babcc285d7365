#!/usr/bin/env python3
"""Draws comments of the tree at random, to be read by somebody who did not write them.

  draw_comments.py [--seed N] [--count N] [FOLDER...]     FOLDER is by default the whole tree

The same seed draws the same comments from the same tree. Each is printed with what stands below it.
CONTRIBUTING.md says how a round goes.
"""
import argparse
import os
import random
import re

SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".c", ".py", ".sh")
LINES_BELOW = 3


def files(folders):
    for top in folders:
        for folder, below, names in os.walk(top):
            below[:] = sorted(b for b in below if b not in ("out", "__pycache__") and not b.startswith((".", "bazel-")) and
                              not os.path.islink(os.path.join(folder, b)))
            yield from (os.path.normpath(os.path.join(folder, n)) for n in sorted(names) if n.endswith(SUFFIXES))


def comments(path, lines):
    """(line number, lines, lines below) of each run of comment lines that has words in it."""
    mark = r"\s*#(?!!)" if path.endswith((".py", ".sh")) else r"\s*//"
    start = None
    for number, line in enumerate(lines + [""]):
        if re.match(mark, line):
            start = number if start is None else start
        elif start is not None:
            text = lines[start:number]
            # What clang-format and linters read is not for people.
            if not re.search(r"clang-format|NOLINT|shellcheck", "".join(text)):
                yield start + 1, text, lines[number:number + LINES_BELOW]
            start = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("folders", nargs="*", default=["."])
    options = parser.parse_args()
    found = []
    for path in files(options.folders):
        with open(path, encoding="utf-8", errors="replace") as f:
            found += [(path, *comment) for comment in comments(path, f.read().splitlines())]
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for index, (path, number, text, below) in enumerate(drawn, 1):
        print("--- %d  %s:%d" % (index, path, number))
        print("\n".join(text + below))
    print("=== %d of %d comments, seed %d" % (len(drawn), len(found), options.seed))


if __name__ == "__main__":
    main()
