#!/usr/bin/env python3
"""Keeps the tables of documents equal to what programs print.

  doc_table.py check DOC LABEL PROGRAM    fails unless DOC's tables of LABEL are PROGRAM's output
  doc_table.py list DOC...                the labels that the documents name
  doc_table.py write BIN_DIR DOC...       rewrites every table; programs lie under BIN_DIR
"""
import difflib
import os
import re
import subprocess
import sys

TABLE = re.compile(
    r"^(?P<head><!-- table: (?P<label>//\S*:\S+)(?P<args>[^\n]*?) -->\n)(?P<body>.*?)(?P<tail><!-- end table -->)",
    re.DOTALL | re.MULTILINE)


def printed(program, args):
    run = subprocess.run([os.path.abspath(program), *args.split()], stdout=subprocess.PIPE, check=True)
    return run.stdout.decode()


def check(doc, label, program):
    with open(doc) as f:
        tables = [m for m in TABLE.finditer(f.read()) if m["label"] == label]
    if not tables:
        sys.exit("%s has no <!-- table: %s -->" % (doc, label))
    different = False
    for table in tables:
        want = printed(program, table["args"])
        if table["body"] != want:
            different = True
            sys.stdout.writelines(difflib.unified_diff(
                table["body"].splitlines(True), want.splitlines(True), doc, label + table["args"]))
    if different:
        sys.exit("%s does not say what %s prints: ./run docs" % (doc, label))


def labels(docs):
    found = set()
    for doc in docs:
        with open(doc) as f:
            found.update(m["label"] for m in TABLE.finditer(f.read()))
    return sorted(found)


def write(bin_dir, docs):
    def replace(match):
        program = os.path.join(bin_dir, match["label"][2:].replace(":", "/"))
        return match["head"] + printed(program, match["args"]) + match["tail"]

    for doc in docs:
        with open(doc) as f:
            old = f.read()
        new = TABLE.sub(replace, old)
        if new != old:
            with open(doc, "w") as f:
                f.write(new)
            print("rewrote", doc)


def main(argv):
    if len(argv) == 5 and argv[1] == "check":
        check(*argv[2:])
    elif len(argv) > 2 and argv[1] == "list":
        print("\n".join(labels(argv[2:])))
    elif len(argv) > 3 and argv[1] == "write":
        write(argv[2], argv[3:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv)
