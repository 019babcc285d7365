#!/usr/bin/env python3
"""Sizes against the aims of docs/ARCHITECTURE.md: reported, never failed.

  tests/tidy/sizes.py [ROOT]     beside those of code that is loved for being read
"""
import os
import re
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import tree as trees  # noqa: E402

SHIPPED = ("base", "rendezvous", "weights", "verbs", "channel", "gpu", "server", "plugins", "python")
HEADER_LINES, SOURCE_LINES, FUNCTION_LINES = 120, 300, 30
SHOWN = 8
WORDS_IN_DOCS = 42000
PRINTED = re.compile(r"<!-- table: .*?<!-- end table -->|\A<!-- Made by .*", re.DOTALL)


def long_files(tree):
    for path in tree.cpp():
        lines = tree.read(path).count("\n")
        if lines > (HEADER_LINES if path.endswith(".h") else SOURCE_LINES):
            yield lines, path


def functions(tree, paths):
    """(lines, where, parameters), by layout, which clang-format makes certain: from 'name(...) {' to its '}'."""
    for path in paths:
        lines = tree.code(path).splitlines()
        for start, line in enumerate(lines):
            if not line.endswith("{") or not re.match(r"( {0,2})[\w~:<>*&\[\]].*\)[\w &]*\{$|( {0,2})\S.*: .*\{$", line):
                continue
            indent = re.match(r" *", line)[0]
            if re.match(r"\s*(class|struct|union|enum|namespace|extern|if|for|while|switch|TEST)\b", line):
                continue
            end = next((n for n in range(start, len(lines)) if lines[n].startswith(indent + "}")), start)
            yield end - start - 1, "%s:%d" % (path, start + 1), parameters(lines, start)


def parameters(lines, start):
    """How many the signature that ends in `start` takes: commas outside of every bracket but its own."""
    text = lines[start]
    while text.count("(") < text.count(")") and start > 0:
        start -= 1
        text = lines[start] + " " + text
    begin = text.find("(")
    if begin < 0:
        return 0
    depth, commas, some = 0, 0, False
    for c in text[begin:]:
        depth += (c in "(<[{") - (c in ")>]}")
        if depth == 0:
            break
        some = some or not (c.isspace() or c == "(")
        commas += c == "," and depth == 1
    return commas + 1 if some else 0


def long_functions(tree):
    return [(count, where) for count, where, _ in functions(tree, tree.cpp()) if count > FUNCTION_LINES]


def members(tree, paths):
    """(members, where) of each class: the statements of its body, and not those of what is in it."""
    for path in paths:
        code = tree.code(path)
        for head in re.finditer(r"^( *)(?:class|struct) (\w+)[^;{()]*\{$", code, re.MULTILINE):
            count, depth = 0, 1
            end = head.end()
            for end in range(head.end(), len(code)):
                c = code[end]
                if c == "{":
                    depth += 1
                elif c == "}":
                    depth -= 1
                    if depth == 0:
                        break
                    # A method with its body. "};" and "{};" count at their semicolon.
                    count += depth == 1 and code[end + 1:end + 2] not in (";", ",", ")")
                elif c == ";" and depth == 1:
                    count += 1
            yield count, "%s:%d %s" % (path, code.count("\n", 0, head.start()) + 1, head[2])


# The sizes of other projects' code, without their tests, counted about as this script counts ours: the
# lines of a file and those of a function, each as the median, the 90th percentile and the largest.
OTHERS = (
    ("LevelDB", (104, 380, 1578), (5, 26, 160)),
    ("TensorPipe", (97, 305, 1318), (7, 29, 172)),
    ("KJ", (332, 1691, 3356), (4, 16, 205)),
    ("eRPC", (98, 245, 1110), (6, 33, 128)),
    ("UCX, uct/ib", (476, 1619, 3475), (17, 52, 388)),
    ("TensorFlow's verbs", (67, 302, 1675), (8, 36, 91)),
    ("NCCL, host", (123, 913, 3522), (12, 59, 756)),
)


def spread(values):
    values = sorted(values) or [0]
    return statistics.median_low(values), values[int(0.9 * (len(values) - 1))], values[-1]


def compare(tree):
    """Production code beside others', and what is largest."""
    ours = [p for p in tree.cpp() if p.split("/")[0] in SHIPPED and not re.search(r"_test\.", p)]
    by_function = list(functions(tree, ours))
    table = [("Tryst", spread(tree.read(p).count("\n") for p in ours), spread(n for n, *_ in by_function))] + list(OTHERS)
    print("%-20s %21s %21s" % ("", "lines of a file", "of a function"))
    for name, *columns in table:
        print("%-20s" % name + "".join("%9d /%4d /%5d" % column for column in columns))
    print("\n%d lines in %d files, %d functions" % (sum(tree.read(p).count("\n") for p in ours), len(ours), len(by_function)))
    classes = sorted(members(tree, ours), reverse=True)
    most = sorted(((count, where) for _, where, count in by_function), reverse=True)
    for what, found in (("members of a class", classes), ("parameters", most),
                        ("lines in a function", sorted((f[:2] for f in by_function), reverse=True))):
        print("\n%s: %d / %d / %d" % ((what,) + spread(count for count, _ in found)))
        for count, where in found[:SHOWN]:
            print("  %4d  %s" % (count, where))


def words_in_docs(tree):
    """Words with a letter in them, without what programs print: tables, and pages as a whole."""
    texts = (PRINTED.sub("", tree.read(p)) for p in tree.of(".md") if p.startswith("docs/"))
    return sum(bool(re.search("[A-Za-z]", word)) for text in texts for word in text.split())


def report(tree):
    files = sorted(long_files(tree), reverse=True)
    long = sorted(long_functions(tree), reverse=True)
    print("sizes (aims, not gates): %d of %d files and %d functions are over" % (
        len(files), len(tree.cpp()), len(long)))
    for what, found in (("lines", files), ("lines in one function", long)):
        for count, where in found[:SHOWN]:
            print("  %4d %s, %s" % (count, what, where))
    print("  %d words in docs/ without what programs print; the aim is %d" % (words_in_docs(tree), WORDS_IN_DOCS))


if __name__ == "__main__":
    compare(trees.Tree(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../.."))))
