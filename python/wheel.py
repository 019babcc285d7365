#!/usr/bin/env python3
"""wheel.py EXTENSION LIBRARY FOLDER: makes the wheel of the package `tryst` in FOLDER and prints its path.

LIBRARY is libtryst.so.1, which programs beside Python's load, as the bridge of `tryst.tensorflow` does; the sources of that
are in the wheel, too, for it is built where it is used. Always the same bytes of the same input. Needs Python, and `strip`, alone.
"""
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TAG = "cp311-abi3-manylinux_2_36_x86_64"


def stripped(library):
    with tempfile.TemporaryDirectory() as work:
        made = pathlib.Path(work, "stripped")
        subprocess.run(["strip", "--strip-unneeded", "-o", made, library], check=True)
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
    extension, library, folder = map(pathlib.Path, sys.argv[1:])
    version = re.search(r'__version__ = "(.*)"', (HERE / "tryst/__init__.py").read_text())[1]
    info = f"tryst-{version}.dist-info"
    files = {"tryst/_tryst.abi3.so": stripped(extension), "tryst/libtryst.so.1": stripped(library)}
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
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tryst\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
    files[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"tryst-{version}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


main()
