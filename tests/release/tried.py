#!/usr/bin/env python3
"""tried.py: prints what this tree was tried with, as the table of docs/COMPATIBILITY.md, from tried.json beside it.

  tried.py note WHAT VERSION TEST    said by a test that has passed: kept where TRYST_NOTE=1, for `./run docs` and a commit
"""
import datetime
import json
import os
import pathlib
import sys

FILE = pathlib.Path(__file__).resolve().with_name("tried.json")


def main():
    rows = json.loads(FILE.read_text())
    if sys.argv[1:2] == ["note"]:
        if os.environ.get("TRYST_NOTE") != "1":
            return
        what, version, test = sys.argv[2:]
        rows = [row for row in rows if (row["what"], row["version"], row["test"]) != (what, version, test)]
        rows.append({"what": what, "version": version, "test": test, "on": datetime.date.today().isoformat()})
        rows.sort(key=lambda row: (row["what"].lower(), [int(part) if part.isdigit() else 0 for part in row["version"].split(".")], row["test"]))
        FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        return
    print("| what | version | tried by | last on |\n| --- | --- | --- | --- |")
    for row in rows:
        print("| {what} | {version} | {test} | {on} |".format(**row))


main()
