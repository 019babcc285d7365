"""Sizes against the aims of docs/ARCHITECTURE.md: reported, never failed."""
import re

HEADER_LINES, SOURCE_LINES, FUNCTION_LINES = 120, 300, 30
SHOWN = 8


def long_files(tree):
    for path in tree.cpp():
        lines = tree.read(path).count("\n")
        if lines > (HEADER_LINES if path.endswith(".h") else SOURCE_LINES):
            yield lines, path


def long_functions(tree):
    """Counts by layout, which clang-format makes certain: from 'name(...) {' to its '}'."""
    for path in tree.cpp():
        lines = tree.code(path).splitlines()
        for start, line in enumerate(lines):
            if not line.endswith("{") or not re.match(r"( {0,2})[\w~:<>*&\[\]].*\)[\w &]*\{$|( {0,2})\S.*: .*\{$", line):
                continue
            indent = re.match(r" *", line)[0]
            if re.match(r"\s*(class|struct|union|enum|namespace|extern|if|for|while|switch|TEST)\b", line):
                continue
            end = next((n for n in range(start, len(lines)) if lines[n].startswith(indent + "}")), start)
            if end - start - 1 > FUNCTION_LINES:
                yield end - start - 1, "%s:%d" % (path, start + 1)


def report(tree):
    files = sorted(long_files(tree), reverse=True)
    functions = sorted(long_functions(tree), reverse=True)
    print("sizes (aims, not gates): %d of %d files and %d functions are over" % (
        len(files), len(tree.cpp()), len(functions)))
    for what, found in (("lines", files), ("lines in one function", functions)):
        for count, where in found[:SHOWN]:
            print("  %4d %s, %s" % (count, what, where))
