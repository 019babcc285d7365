#!/usr/bin/env python3
"""check.py FOLDER PUBLIC_KEY: what `./run release` made fits together, as who takes it would check it.

The signature is that key's and of these checksums; provenance and bills of materials name each artefact with its digest; a bill of
materials says which OpenSSL, zlib and libmicrohttpd are inside, and the bytes of the library say the same. Nothing tells the folder in
which it was made: made in another, it would have other bytes.
"""
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import case_report  # noqa: E402

FOLDER, KEY = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
ARTEFACTS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".whl", ".gz"))
SUMS = dict(reversed(line.split("  ")) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())


def verified(signed):
    """Whether SHA256SUMS.sig is that key's signature of these bytes."""
    with tempfile.NamedTemporaryFile("w") as signers:
        signers.write(f"us {KEY.read_text()}")
        signers.flush()
        return subprocess.run(["ssh-keygen", "-Y", "verify", "-f", signers.name, "-I", "us", "-n", "tryst-release", "-s",
                               FOLDER / "SHA256SUMS.sig"], input=signed, capture_output=True).returncode == 0


def contents(path):
    """(name, bytes) of each file of a wheel or an archive."""
    if path.suffix == ".whl":
        archive = zipfile.ZipFile(path)
        return [(name, archive.read(name)) for name in archive.namelist()]
    archive = tarfile.open(path)
    return [(member.name, archive.extractfile(member).read()) for member in archive if member.isfile()]


class Release(unittest.TestCase):
    def test_every_file_has_its_checksum(self):
        self.assertGreaterEqual(len(ARTEFACTS), 5)
        names = {path.name for path in FOLDER.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"}
        self.assertEqual(names, set(SUMS))
        for name in names:
            self.assertEqual(hashlib.sha256((FOLDER / name).read_bytes()).hexdigest(), SUMS[name], name)

    def test_the_signature_is_of_these_checksums(self):
        sums = (FOLDER / "SHA256SUMS").read_bytes()
        self.assertTrue(verified(sums))
        self.assertFalse(verified(sums.replace(b"0", b"1", 1)))

    def test_provenance_names_every_artefact(self):
        said = json.loads((FOLDER / "provenance.json").read_text())
        self.assertEqual({one["name"]: one["digest"]["sha256"] for one in said["subject"]},
                         {path.name: SUMS[path.name] for path in ARTEFACTS})
        self.assertRegex(said["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"], "^[0-9a-f]{40}$")

    def test_the_bill_of_materials_says_what_the_bytes_say(self):
        bills = sorted(FOLDER.glob("*.spdx.json"))
        self.assertTrue(bills)
        for path in bills:
            bill = json.loads(path.read_text())
            processor = bill["name"].rpartition("-")[2]
            sums = {file["fileName"][2:]: file["checksums"][1]["checksumValue"] for file in bill["files"]}
            for artefact in ARTEFACTS:
                if processor in artefact.name:
                    self.assertEqual(sums[artefact.name], SUMS[artefact.name])
            versions = {package["name"]: package["versionInfo"] for package in bill["packages"]}
            archive = tarfile.open(FOLDER / f"tryst-c-{versions['tryst']}-linux-{processor}.tar.gz")
            library = archive.extractfile(next(name for name in archive.getnames() if name.endswith("libtryst.so.1"))).read()
            self.assertEqual(hashlib.sha256(library).hexdigest(), sums["linked/libtryst.so.1"])
            for package, text in ("libssl-dev", "\0{}\0"), ("zlib1g-dev", "inflate {} "), ("libmicrohttpd", "\0{}\0"):
                upstream = re.sub(r"^\d+:|(\.dfsg)?-[^-]*$", "", versions[package])
                self.assertTrue(text.format(upstream).encode() in library, f"{package} {upstream} is not what is inside")
            into = {}
            for relation in bill["relationships"]:
                into.setdefault(relation["relationshipType"], []).append((relation["spdxElementId"], relation["relatedSpdxElement"]))
            linked = {one for _, one in into["STATIC_LINK"]}
            self.assertGreater(len(linked), 40)
            owned = {one for kind in ("GENERATED_FROM", "EXPANDED_FROM_ARCHIVE") for one, _ in into[kind]}
            self.assertLessEqual(linked, owned, "an archive belongs to no package")

    def test_licences_go_with_what_is_inside(self):
        for path in ARTEFACTS:
            names = [name for name, _ in contents(path)]
            self.assertTrue(any(name.endswith("/LICENSE") for name in names), path.name)
            if not re.search("docs|cpp", path.name):  # These have nothing of others inside.
                self.assertTrue(any(name.endswith("/THIRD_PARTY") for name in names), path.name)

    def test_nothing_tells_where_it_was_made(self):
        folders = [str(path).encode() for path in {ROOT, pathlib.Path.home() / ".cache", pathlib.Path(tempfile.gettempdir()) / "tmp."}]
        for path in ARTEFACTS:
            for name, data in contents(path):
                for folder in folders + [b"/execroot/", b"/sandbox/"]:
                    self.assertFalse(folder in data, f"{path.name}: {name} has {folder}")

    def test_no_library_asks_for_a_glibc_after_2_28(self):
        looked = 0
        for path in ARTEFACTS:
            for name, data in contents(path) if "-cpp-" not in path.name else []:  # That one is for the system that made it.
                if re.search(r"\.so(\.\d)?$", name):
                    with tempfile.NamedTemporaryFile() as file:
                        file.write(data)
                        file.flush()
                        said = subprocess.run(["readelf", "-VW", file.name], check=True, capture_output=True, text=True).stdout
                    versions = [tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([0-9.]+)", said)]
                    self.assertTrue(versions, name)
                    self.assertLessEqual(max(versions), (2, 28), f"{path.name}: {name}")
                    looked += 1
        self.assertEqual(looked, 5 * sum(path.suffix == ".whl" for path in ARTEFACTS))  # Three in a wheel, an SDK's, a plug-in.

    def test_a_wheel_has_9500_kb_at_most(self):
        for path in ARTEFACTS:
            if path.suffix == ".whl":
                self.assertLessEqual(path.stat().st_size, 9_500_000, path.name)
                self.assertIn("manylinux_2_28", path.name)

    def test_the_notes_are_the_changelogs(self):
        notes = (FOLDER / "NOTES.md").read_text().splitlines()
        self.assertGreater(len(notes), 10)
        self.assertLessEqual(set(notes[2:]), set((ROOT / "CHANGELOG.md").read_text().splitlines()))


case_report.main()
