#!/usr/bin/env python3
"""Shows functions of the example programs, as the tutorials do.

  excerpt.py make FILE...    prints this program with the files inside, for a doc_table_test
  excerpt.py NAME FUNCTION   of a program that was made so: that function of the file called NAME, as a block of code
"""
import os
import re
import sys

FILES = {}  # The first line of a program that was made sets it.


def function(text, name):
    """From the line in the first column that names it to the last one of its body."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if re.match(r"[^\s#/*].*\b%s\(.*[:{]$" % name, line))
    end = begin + 1
    while end < len(lines) and (not lines[end] or lines[end][0] == " "):
        end += 1
    if end < len(lines) and lines[end] == "}":
        end += 1
    return "\n".join(lines[begin:end]).rstrip()


def main(words):
    if words[0] == "make":
        files = {}
        for path in words[1:]:
            with open(path, encoding="utf-8") as file:
                files[os.path.basename(path)] = file.read()
        with open(__file__, encoding="utf-8") as file:
            print(re.sub(r"^FILES = \{\}.*$", lambda _: "FILES = %r" % files, file.read(), flags=re.MULTILINE), end="")
        return
    name, wanted = words
    print("```%s\n%s\n```" % ("python" if name.endswith(".py") else "cpp", function(FILES[name], wanted)))


if __name__ == "__main__":
    main(sys.argv[1:])
