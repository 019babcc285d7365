#!/usr/bin/env python3
"""wheel.py EXTENSION FOLDER: makes the wheel of the package `tryst` in FOLDER and prints its path.

Always the same bytes of the same input. Needs Python, and `strip`, alone.
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


def main():
    extension, folder = map(pathlib.Path, sys.argv[1:])
    version = re.search(r'__version__ = "(.*)"', (HERE / "tryst/__init__.py").read_text())[1]
    info = f"tryst-{version}.dist-info"
    with tempfile.TemporaryDirectory() as work:
        stripped = pathlib.Path(work, "_tryst.abi3.so")
        subprocess.run(["strip", "--strip-unneeded", "-o", stripped, extension], check=True)
        files = {"tryst/_tryst.abi3.so": stripped.read_bytes()}
    for path in sorted((HERE / "tryst").iterdir()):
        if path.suffix in (".py", ".pyi", ".typed"):
            files[f"tryst/{path.name}"] = path.read_bytes()
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
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


main()
