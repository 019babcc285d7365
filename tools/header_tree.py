#!/usr/bin/env python3
"""Copies headers and those of ours that they include, transitively: header_tree.py FOLDER HEADER..."""
import os
import re
import shutil
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def main():
    folder, waiting = sys.argv[1], sys.argv[2:]
    done = set()
    while waiting:
        header = waiting.pop()
        if header in done or not os.path.exists(header):
            # What is not there is of an installed library, by quotes.
            if header in sys.argv[2:] and header not in done:
                sys.exit("no header %s" % header)
            continue
        done.add(header)
        target = os.path.join(folder, header)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(header, target)
        with open(header, encoding="utf-8") as text:
            waiting += INCLUDE.findall(text.read())


main()
