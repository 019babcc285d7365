#!/usr/bin/env python3
"""older_glibc.py LIBC FOLDER: makes, in FOLDER, what a shared library is linked with so that it runs on glibc 2.28.

glibc keeps each version of a symbol that a release of it ever had, and the linker takes the newest. LIBC is a libc.so.6, with
libm.so.6 and the dynamic linker beside it. FOLDER gets libraries without code that name each symbol once, at its newest
version that is not newer than 2.28, and in the library that had it then; what is newer altogether is not there, and
older_glibc.cc stands in for it. `gcc -LFOLDER` finds them first. Needs readelf, as, and ld: CROSS, in the environment, is put
before their names (aarch64-linux-gnu-).
"""
import os
import pathlib
import re
import subprocess
import sys

NEWEST = (2, 28)
# Which of the symbols that are in libc.so.6 now were in another library before glibc 2.34.
MOVED = {
    "libpthread.so.0": r"_*pthread_|sem_|(tss|mtx|cnd)_|thrd_(create|join|exit|detach)$|call_once$",
    "libdl.so.2": r"dl(addr1?|close|error|info|mopen|open|sym|vsym)$",
    "librt.so.1": r"(__)?(aio|lio|mq|shm|timer)_",
    "libutil.so.1": r"(fork|open)pty$|log(in|out|wtmp)$|login_tty$",
    "libresolv.so.2": r"ns_name_|__dn_|__res_(\w+ok|n?mkquery|n?query(domain)?|n?search|n?send)$",
    "libanl.so.1": r"getaddrinfo_a$|gai_(cancel|error|suspend)$",
}


def symbols(library):
    """{name: {version: (kind, size)}} of what it exports in a version of GLIBC's."""
    found = {}
    text = subprocess.run([os.environ.get("CROSS", "") + "readelf", "--dyn-syms", "-W", library], check=True, capture_output=True,
                          text=True).stdout
    for size, kind, index, name, version in re.findall(
            r"^ +\d+: \S+ +(\S+) (\w+) +\w+ +\w+ +(\w+) (\w+)@@?GLIBC_([\d.]+)$", text, re.M):
        if index != "UND" and kind != "TLS":
            version = tuple(map(int, version.split(".")))
            found.setdefault(name, {})[version] = (kind, int(size, 0))
    return found


def home(name, library):
    return next((moved for moved, names in MOVED.items() if library == "libc.so.6" and re.match(names, name)), library)


def make(soname, chosen, folder):
    """A shared library that exports `chosen`, [(name, version, kind, size)]."""
    nodes, code = {}, []
    for name, version, kind, size in sorted(chosen):
        nodes.setdefault("GLIBC_" + ".".join(map(str, version)), []).append(name)
        code += [".data" if kind == "OBJECT" else ".text", f".globl {name}", f".size {name}, {size}",
                 f".type {name}, %{'object' if kind == 'OBJECT' else 'function'}", f"{name}: .space {max(size, 1)}"]
    made = folder / soname
    parts = {end: made.with_name(made.name + end) for end in (".s", ".o", ".lds")}
    parts[".s"].write_text("\n".join(code) + "\n")
    parts[".lds"].write_text("".join(f"{node} {{ {' '.join(name + ';' for name in names)} }};\n" for node, names in nodes.items()))
    cross = os.environ.get("CROSS", "")
    subprocess.run([cross + "as", "-o", parts[".o"], parts[".s"]], check=True)
    subprocess.run([cross + "ld", "-shared", "-soname", soname, "--version-script", parts[".lds"], "-o", made, parts[".o"]], check=True)
    for path in parts.values():
        path.unlink()


def main():
    libc, folder = map(pathlib.Path, sys.argv[1:])
    loader = next(libc.parent.glob("ld-linux-*.so.*"))
    libraries = {}
    for library in (libc, libc.with_name("libm.so.6"), loader):
        for name, versions in symbols(library).items():
            old = [version for version in versions if version <= NEWEST]
            if old:
                libraries.setdefault(home(name, library.name), []).append((name, max(old), *versions[max(old)]))
    for soname, chosen in libraries.items():
        make(soname, chosen, folder)
    # By -lc and -lm gcc finds these. What a library asks of the others, it finds with libc.
    rest = " ".join(sorted(set(libraries) - {"libc.so.6", "libm.so.6"}))
    (folder / "libc.so").write_text(f"GROUP ( libc.so.6 -lc_nonshared AS_NEEDED ( {rest} ) )\n")
    (folder / "libm.so").write_text("GROUP ( libm.so.6 )\n")



main()
