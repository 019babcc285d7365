#!/usr/bin/env python3
"""vtable.py LIBRARY: the virtual functions of NIXL's own back end for UCX stand where plugins/nixl/abi.h says, and there are no more.

LIBRARY is the libplugin_UCX.so of NIXL's package. Its table of virtual functions names each of them, and an agent calls by the place alone.
How many the interface has says the table of its base; what UCX has of its own comes behind.
"""
import pathlib
import re
import subprocess
import sys

ABI = pathlib.Path(__file__).resolve().parents[3] / "plugins/nixl/abi.h"
# Theirs by our names, which do not follow from each other.
THEIRS = {"SupportsNotifications": "supportsNotif", "SupportedMemories": "getSupportedMems", "Register": "registerMem",
          "Deregister": "deregisterMem", "Unload": "unloadMD", "Prepare": "prepXfer", "Post": "postXfer", "Check": "checkXfer",
          "Release": "releaseReqH", "PrepareRemoteView": "prepMemView", "PrepareView": "prepMemView", "ReleaseView": "releaseMemView",
          "PublicData": "getPublicData", "ConnectionInfo": "getConnInfo", "LoadConnectionInfo": "loadRemoteConnInfo",
          "LoadRemote": "loadRemoteMD", "LoadOwn": "loadLocalMD", "TakeNotifications": "getNotifs", "Notify": "genNotif",
          "Query": "queryMem", "EstimateCost": "estimateXferCost"}
# What tells the two of one name apart.
FIRST = {"PrepareRemoteView": "nixlRemoteMetaDesc", "PrepareView": "nixlMetaDesc"}


def read(*words):
    return subprocess.run(["readelf", "-W", *words], stdout=subprocess.PIPE, check=True).stdout.decode()


def place_of(library, kind):
    """Where the table of a class is, and its slots: an offset, the type, two of the destructor, and then the others."""
    found = re.search(rf"([0-9a-f]+) +(\d+) OBJECT .* _ZTV{len(kind)}{kind}$", read("--dyn-syms", library), re.M)
    if not found:
        sys.exit("%s has no table of %s" % (library, kind))
    return int(found[1], 16), int(found[2]) // 8


def table_of(library, kind):
    """The symbols of the virtual functions in their order, without the two of the destructor."""
    at, count = place_of(library, kind)
    names = {}
    for line in read("-r", library).splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch("[0-9a-f]+", words[0]) and at <= int(words[0], 16) < at + 8 * count:
            names[(int(words[0], 16) - at) // 8] = words[4]
    slots = [names.get(i, "") for i in range(2, count)]
    if not all(re.search(r"D[01]Ev$", name) for name in slots[:2]):
        sys.exit("it does not begin with a destructor: %s" % ", ".join(slots[:2]))
    return slots[2:]


def main():
    ours = re.findall(r"^  virtual (?:[\w:]+) (\w+)\(", ABI.read_text().partition("class Engine {")[2].partition("\n};")[0], re.M)
    slots = table_of(sys.argv[1], "nixlUcxEngine")
    wrong = []
    for i, mine in enumerate(ours):
        theirs = THEIRS.get(mine, mine[0].lower() + mine[1:])
        there = slots[i] if i < len(slots) else ""
        if "%d%s" % (len(theirs), theirs) not in there or (mine in FIRST and "%d%s" % (len(FIRST[mine]), FIRST[mine]) not in there):
            wrong.append("at %d abi.h has %s, and NIXL has %s" % (i, mine, there or "nothing"))
    there = place_of(sys.argv[1], "nixlBackendEngine")[1] - 4
    if there != len(ours):
        wrong.append("NIXL's interface has %d" % there)
    print("\n".join(wrong + ["%d virtual functions, %d differences" % (len(ours), len(wrong))]))
    sys.exit(bool(wrong or not ours))


if __name__ == "__main__":
    main()
