#!/usr/bin/env python3
"""What documents say of the archive: documents.py INCLUDE FOLDER DOCUMENT...

Writes each program in them, a block of C or C++, into FOLDER, and fails when a document names a
header that is not under INCLUDE. Of the documents of the source tree only the rooms that the
archive has are looked at."""
import os
import re
import sys

BLOCK = re.compile(r"^```(c|cpp)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADER = re.compile(r"\b((?:rendezvous|server)/[a-z_/]+\.h)\b")
INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
INSTALLED = ("absl/",)


def main():
    include, folder, documents = sys.argv[1], sys.argv[2], sys.argv[3:]
    programs = 0
    missing = []
    for document in documents:
        name = os.path.basename(document)
        with open(document, encoding="utf-8") as text:
            said = text.read()
        headers = set(HEADER.findall(said))
        for language, program in BLOCK.findall(said):
            programs += 1
            headers |= {h for h in INCLUDED.findall(program) if not h.startswith(INSTALLED)}
            suffix = "c" if language == "c" else "cc"
            path = "%s_%d.%s" % (os.path.splitext(name)[0], programs, suffix)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as out:
                out.write(program)
                if "int main(" not in program:
                    out.write("int main() { return 0; }\n")
        # The guide to the sources may name headers that are not for users.
        of_tree = {h for h in headers if name == "ARCHITECTURE.md" and h.startswith("server/")}
        missing += ["%s names %s, which the archive lacks" % (name, header)
                    for header in sorted(headers - of_tree)
                    if not os.path.exists(os.path.join(include, header))]
    if missing or programs == 0:
        sys.exit("\n".join(missing) or "no document has a program")


main()
