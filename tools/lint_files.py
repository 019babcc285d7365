#!/usr/bin/env python3
"""Prints the translation units for clang-tidy to read, with NUL after each.

  lint_files.py [--all] COMPILE_COMMANDS

Without --all, those that differ from where this branch left origin/main (or, on that
very commit, from its parent), and those that include a header that differs.
"""
import json
import os
import re
import subprocess
import sys


def git(*args):
    run = subprocess.run(["git", *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    return run.stdout.split() if run.returncode == 0 else []


def changed():
    base = git("merge-base", "HEAD", "origin/main")
    if base in ([], git("rev-parse", "HEAD")):
        base = git("rev-parse", "HEAD^")
    return set(git("diff", "--name-only", "--diff-filter=d", *base) + git("ls-files", "-o", "--exclude-standard"))


def includes(path):
    with open(path, errors="replace") as f:
        return set(re.findall(r'#include "([^"]+)"', f.read()))


def main():
    everything = "--all" in sys.argv
    with open(sys.argv[-1]) as f:
        units = [entry["file"] for entry in json.load(f)]
    if not everything:
        differ = changed()
        units = [u for u in units if u in differ or (os.path.exists(u) and includes(u) & differ)]
    sys.stdout.write("".join(u + "\0" for u in sorted(units)))


if __name__ == "__main__":
    main()
