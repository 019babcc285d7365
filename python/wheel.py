#!/usr/bin/env python3
"""wheel.py EXTENSION LIBRARY TERMS FOLDER [PLUGIN]: makes the wheel of the package `tryst` in FOLDER and prints its path.

LIBRARY is libtryst.so.1, which EXTENSION calls, as do PLUGIN, NIXL's back end, and the bridge of `tryst.tensorflow`; the sources of that
are in the wheel, too, for it is built where it is used. TERMS has the licences of what is linked into all three. Always the same bytes of the same input. Needs Python and binutils alone;
CROSS, in the environment, is put before their names, as in aarch64-linux-gnu-.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CROSS = os.environ.get("CROSS", "")
GLIBC = (2, 28)


def tag(library):
    """Of the processor that it is for."""
    machine = {62: "x86_64", 183: "aarch64"}[int.from_bytes(library.read_bytes()[18:20], "little")]
    return f"cp311-abi3-manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"


def check(library):
    """Ends the program if the loader would miss something: what is newer than GLIBC, or neither glibc's nor Python's nor LIBRARY's."""
    symbols = subprocess.run([CROSS + "readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    for symbol in re.findall(r" GLOBAL +DEFAULT +UND (\S+)", symbols):
        name, _, version = symbol.partition("@GLIBC_")
        if tuple(map(int, version.split("."))) > GLIBC if version else not name.startswith(("Py", "_Py")) and "@TRYST_" not in symbol:
            sys.exit(f"wheel.py: {library.name} needs {symbol}, which glibc {GLIBC[0]}.{GLIBC[1]}, Python and libtryst.so.1 have not")


def stripped(library):
    check(library)
    with tempfile.TemporaryDirectory() as work:
        made = pathlib.Path(work, "stripped")
        subprocess.run([CROSS + "strip", "--strip-unneeded", "-o", made, library], check=True)
        return made.read_bytes()


def bridge():
    """tryst.tensorflow, and what its build.py compiles, by their names in the wheel."""
    here = HERE / "tryst/tensorflow"
    files = {f"tryst/tensorflow/{path.name}": path for path in here.glob("*.py")}
    root = HERE.parent
    sources = [path for path in (root / "plugins/tensorflow").glob("*.[ch]*") if not path.name.endswith("_test.cc")]
    for path in sources + [root / "server/c/tryst.h", root / "server/c/tryst_v1.h"]:
        files[f"tryst/tensorflow/source/{path.relative_to(root)}"] = path
    return {name: files[name].read_bytes() for name in sorted(files)}


def main():
    extension, library, terms, folder, *plugins = map(pathlib.Path, sys.argv[1:])
    version = re.search(r'__version__ = "(.*)"', (HERE / "tryst/__init__.py").read_text())[1]
    info = f"tryst-{version}.dist-info"
    files = {"tryst/_tryst.abi3.so": stripped(extension), "tryst/libtryst.so.1": stripped(library)}
    files.update((f"tryst/plugins/{plugin.name}", stripped(plugin)) for plugin in plugins)
    for path in sorted((HERE / "tryst").iterdir()):
        if path.suffix in (".py", ".pyi", ".typed"):
            files[f"tryst/{path.name}"] = path.read_bytes()
    files.update(bridge())
    readme = (HERE / "README.md").read_text()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: tryst\nVersion: {version}\n"
        "Summary: Tensors move between processes by name, the fastest way their machines share\n"
        "License: Apache-2.0\nRequires-Python: >=3.11\nDescription-Content-Type: text/markdown\n"
        f"\n{readme}").encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tryst\nRoot-Is-Purelib: false\nTag: {tag(extension)}\n".encode()
    # vLLM calls it in each of its processes.
    files[f"{info}/entry_points.txt"] = b"[vllm.general_plugins]\ntryst = tryst.adapters:register_vllm\n"
    files[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    files[f"{info}/licenses/THIRD_PARTY"] = terms.read_bytes()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"tryst-{version}-{tag(extension)}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


main()
