#!/usr/bin/env python3
"""Makes docs/drawings/NAME.svg of each docs/drawings/NAME.dot, by Graphviz: ./run drawings.

The SVG names the hash of its source, by which the tidy test knows that the two belong together.
"""
import glob
import hashlib
import os
import subprocess

FOLDER = "docs/drawings"


def stamp(source):
    return "<!-- made by ./run drawings of a source with SHA-256 %s -->\n" % hashlib.sha256(source).hexdigest()


def main():
    for path in sorted(glob.glob(os.path.join(FOLDER, "*.dot"))):
        with open(path, "rb") as f:
            source = f.read()
        svg = subprocess.run(["dot", "-Tsvg"], input=source, stdout=subprocess.PIPE, check=True).stdout
        target = path[:-len(".dot")] + ".svg"
        with open(target, "wb") as f:
            f.write(svg + stamp(source).encode())
        print("made", target)


if __name__ == "__main__":
    main()
