#!/usr/bin/env python3
"""Copies headers and those of ours that they include, transitively, and fails at one that is in
no room of those given: header_tree.py FOLDER ROOM,ROOM... HEADER..."""
import os
import re
import shutil
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def main():
    folder, rooms, roots = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
    by = {header: "it is asked for" for header in roots}  # Why each header is taken.
    waiting = list(by)
    while waiting:
        header = waiting.pop()
        room = header.split("/")[0]
        if not os.path.exists(header):
            # Headers in quotes that are in no folder of ours belong to an installed library.
            if header in roots or os.path.isdir(room):
                sys.exit("no header %s: %s" % (header, by[header]))
            continue
        if room not in rooms:
            sys.exit("%s is not for users, who get %s: %s" % (header, ", ".join(rooms), by[header]))
        target = os.path.join(folder, header)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(header, target)
        with open(header, encoding="utf-8") as text:
            for included in INCLUDE.findall(text.read()):
                if included not in by:
                    by[included] = "%s includes it" % header
                    waiting.append(included)


main()
