#!/usr/bin/env python3
"""documents.py FILE...: runs the whole programs in Python that the files show: blocks that begin with an import."""
import re
import sys

ran = 0
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        text = file.read()
    for block in re.findall(r"^```python\n(import .*?)^```", text, re.M | re.S):
        exec(compile(block, name, "exec"), {"__name__": "__main__"})
        ran += 1
print(f"{ran} programs of {len(sys.argv) - 1} files")
sys.exit(0 if ran >= len(sys.argv) - 1 else 1)
