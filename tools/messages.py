#!/usr/bin/env python3
"""Lists the texts that a user can meet, or draws some at random, to be read by somebody who did not write them.

  messages.py [--kind status|log|help|text] [--seed N [--count N]] [FOLDER...]

  status  what a Status (C++) or an exception (Python) says
  log     what a log line says
  help    what a setting does
  text    every other literal of several words: what doctor, the command line and the pages print

Without --seed all of them, with it --count (40) of them; the same seed draws the same from the same tree. `...` stands for
what the program fills in, `a | b` for one of two. It reads the sources roughly, and the shipped rooms alone.
CONTRIBUTING.md says what a message has to say.
"""
import argparse
import os
import random
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/tidy"))
from rules import SHIPPED  # noqa: E402
from tree import Tree, line_of  # noqa: E402

TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:\\.|[^"\\\n])*)"|"""
                   r"""(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""", re.DOTALL)
# What makes a Status, also where a function of the file adds words of its own.
MAKES_STATUS = re.compile(r"\b(?:\w+Error|absl::Status)\(|\b(?:Malformed|Refuse\w*|Wrong|Fail|Bad\w*|Broken|Lost|Break|Nonsense|PyErr_SetString|PyErr_Format)\((?=[^)])")
MAKES_LOG = re.compile(r"\bTRYST_LOG\((\w+)\)")
NOT_SAID = re.compile(r"\bTRYST_(REACHED\(|D?CHECK\([^;]*)\s*$")
SETTING = re.compile(r'\{"[\w ]+", "(\w+)", K::')
PYTHON_MESSAGE = re.compile(r"\b(raise [\w.]+|warnings\.warn|\w*log\w*\.(?:info|warning|error))\(")


def literals(source):
    """[(begin, end, text)]; adjacent literals are one. Comments are not literals."""
    found = []
    for match in TOKEN.finditer(source):
        if match["comment"] is not None or (match["text"] is None and match["raw"] is None):
            continue
        text = match["raw"] if match["text"] is None else match["text"]
        if found and not source[found[-1][1]:match.start()].strip():
            found[-1] = (found[-1][0], match.end(), found[-1][2] + text)
        else:
            found.append((match.start(), match.end(), text))
    return found


def blanked(source):
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)


def end_of_call(code, opened):
    depth = 0
    for at in range(opened, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at
    return len(code)


def joined(source, code, pieces, begin, end):
    """The pieces between `begin` and `end` as one text."""
    out, last = "", begin
    for left, right, text in pieces:
        between = code[last:left]
        words = re.sub(r"absl::(StrCat|\w+Error|StrFormat)|TRYST_LOG|std::move|\?", "", between)
        if out and ":" in re.sub("::", "", words) and not re.search(r"<<|,", words):
            out += " | "
        elif re.search(r"\w", words):
            out += "..."
        out, last = out + text, right
    return out + ("..." if re.search(r"\w", re.sub(r"\.ok\(\)", "", code[last:end])) else "")


def of_cpp(source):
    """(kind, offset, text) of each message in a C++ source."""
    code, pieces = blanked(source), literals(source)
    taken = set()

    def within(begin, end):
        return [p for p in pieces if begin <= p[0] and p[1] <= end and p not in taken]

    for match in SETTING.finditer(source):
        inside = within(match.start(), end_of_call(code, match.start()))
        taken.update(inside)
        yield "help", match.start(), "%s: %s" % (match[1], inside[-1][2])
    for match in MAKES_LOG.finditer(code):
        end = code.find(";", match.end())
        inside = within(match.end(), end)
        taken.update(inside)
        if inside:
            yield "log", match.start(), "[%s] %s" % (match[1].lower(), joined(source, code, inside, match.end(), end))
    for match in MAKES_STATUS.finditer(code):
        end = end_of_call(code, match.end() - 1)
        inside = within(match.end(), end)
        taken.update(inside)
        if inside:
            yield "status", match.start(), joined(source, code, inside, match.end(), end)
    for piece in pieces:
        if NOT_SAID.search(code[:piece[0]]):
            continue
        if piece not in taken and len(re.findall(r"[A-Za-z]{2,}", piece[2])) > 1 and " " in piece[2].strip() and \
                not re.search(r"#include|^\s*<|static_assert", piece[2]):
            yield "text", piece[0], piece[2]


def of_python(source):
    for match in PYTHON_MESSAGE.finditer(source):
        end = end_of_call(source, match.end() - 1)
        text = " ".join(re.findall(r'f?"((?:\\.|[^"\\])*)"', source[match.end():end]))
        if text:
            yield "log" if "log" in match[1] or "warn" in match[1] else "status", match.start(), text


def messages(tree, folders):
    for path in tree.files:
        if path in tree.test_files() or "_test." in path:
            continue
        if folders and not any(path.startswith(f.rstrip("/") + "/") or path == f for f in folders):
            continue
        room = path.split("/", 1)[0]
        if path.endswith((".cc", ".h", ".cu")) and room in SHIPPED + ("python",):
            found = of_cpp(tree.read(path))
        elif path.startswith("python/tryst/") and path.endswith(".py"):
            found = of_python(tree.read(path))
        else:
            continue
        for kind, offset, text in sorted(found, key=lambda m: m[1]):
            yield kind, path, line_of(tree.read(path), offset), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("status", "log", "help", "text"), action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    found = [m for m in messages(Tree(ROOT), options.folders) if not options.kind or m[0] in options.kind]
    drawn = found
    if options.seed is not None:
        drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for index, (kind, path, line, text) in enumerate(drawn, 1):
        print("%4d  %-6s  %s:%d\n        %s" % (index, kind, path, line, text))
    print("=== %d of %d messages%s" % (len(drawn), len(found), "" if options.seed is None else ", seed %d" % options.seed))


if __name__ == "__main__":
    main()
