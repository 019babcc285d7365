#!/usr/bin/env python3
"""release.py FOLDER VERSION COMMIT PARTS...: writes beside the artefacts in FOLDER what tells them apart and what they are made of.

PARTS are PROCESSOR=LINKED_FROM=LIBRARY,...: the folder that tools/system/static_libraries.sh made for that processor, and the
libraries as they were linked, with their symbols. Written are a bill of materials for each processor (SPDX 2.3), provenance (in-toto,
SLSA 1), notes out of CHANGELOG.md, and SHA256SUMS of all. Always the same bytes of the same input: each date is the commit's.
"""
import collections
import hashlib
import json
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENSES = {  # What is linked from a source package of Debian's; the whole texts are in THIRD_PARTY.
    "abseil": "Apache-2.0", "grpc": "Apache-2.0 AND BSD-3-Clause", "protobuf": "BSD-3-Clause", "re2": "BSD-3-Clause",
    "openssl": "Apache-2.0", "c-ares": "MIT", "zlib": "Zlib", "libmicrohttpd": "LGPL-2.1-or-later", "xxhash": "BSD-2-Clause",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1", "gcc-12-cross": "GPL-3.0-or-later WITH GCC-exception-3.1"}
SOURCES = {"libabsl": "abseil", "libgrpc": "grpc", "libprotobuf": "protobuf", "libre2": "re2", "libssl": "openssl", "libc-ares": "c-ares",
           "zlib1g": "zlib", "libmicrohttpd": "libmicrohttpd", "libxxhash": "xxhash", "libgcc": "gcc-12", "libstdc++": "gcc-12"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def digest(path, algorithm="sha256"):
    return hashlib.new(algorithm, path.read_bytes()).hexdigest()


def names(path, kinds="[A-Za-z]"):
    """Symbols of these kinds, by nm's letters, that an archive, an object or a library defines."""
    text = subprocess.run(["nm", "--defined-only", "--format=posix", path], capture_output=True, text=True).stdout
    return set(re.findall(rf"^(\S+) {kinds} ", text, re.M))


def linked(linked_from, libraries):
    """{archive or object: libraries that have a function or variable of it}. What several archives define tells nothing."""
    objects, archives = sorted((linked_from / "objects").glob("*.o")), sorted((linked_from / "lib").glob("*.a"))
    has = {library: names(library) for library in libraries}
    defines = {part: names(part, "[TDBR]") for part in objects + archives}  # Not what templates make, which may be anybody's.
    ours = set().union(*(defines[part] for part in objects))  # An object stands for the same member of an archive.
    times = collections.Counter(symbol for part in archives for symbol in defines[part])
    for part in archives:
        defines[part] = {symbol for symbol in defines[part] - ours if times[symbol] == 1}
    found = {part: [library for library in libraries if symbols & has[library]] for part, symbols in defines.items()}
    return {part: where for part, where in found.items() if where}


def spdx_id(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def bill_of_materials(version, commit, date, processor, linked_from, libraries, artefacts):
    """Which artefact has which library, and which archives of which packages were linked into that library."""
    debian = {"x86_64": "amd64", "aarch64": "arm64"}[processor]
    owners, sources = [], {}
    for line in (linked_from / "made_of").read_text().splitlines():
        name, package, package_version = line.split()
        if name == "source":
            sources[package] = package_version
        else:
            owners.append((re.escape(name).replace(r"\*", ".*"), package, package_version))
    packages, files, relations = {}, [], []

    def package(name, package_version, source, is_source):
        ref = spdx_id(f"{name}-{package_version}")
        arch = "source" if is_source else debian
        packages.setdefault(ref, {
            "SPDXID": ref, "name": name, "versionInfo": package_version, "supplier": "Organization: Debian", "filesAnalyzed": False,
            "downloadLocation": f"http://deb.debian.org/debian/pool/main/{source[:4] if source.startswith('lib') else source[0]}/{source}/",
            "licenseConcluded": "NOASSERTION", "licenseDeclared": LICENSES.get(source, "NOASSERTION"), "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator":
                              f"pkg:deb/debian/{name.replace('+', '%2B')}@{package_version.replace('+', '%2B').replace(':', '%3A')}?arch={arch}"}]})
        return ref

    def file(path, name):
        ref = spdx_id("file-" + name)
        files.append({"SPDXID": ref, "fileName": "./" + name, "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
                      "checksums": [{"algorithm": kind, "checksumValue": digest(path, kind.lower())} for kind in ("SHA1", "SHA256")]})
        return ref

    def relate(one, kind, other):
        relations.append({"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other})

    tryst = spdx_id(f"tryst-{version}")
    packages[tryst] = {
        "SPDXID": tryst, "name": "tryst", "versionInfo": version, "filesAnalyzed": False, "downloadLocation": "NOASSERTION",
        "supplier": "NOASSERTION", "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
        "sourceInfo": f"git commit {commit}"}
    relate("SPDXRef-DOCUMENT", "DESCRIBES", tryst)
    for name, header_of, its_version in owners:
        if name.endswith(r"\.h"):  # Compiled into what includes it: no archive and no symbol tells of it.
            relate(tryst, "CONTAINS", package(header_of, its_version, next(s for start, s in SOURCES.items() if header_of.startswith(start)), False))
    library_ref = {library: file(library, f"linked/{library.name}") for library in libraries}
    for artefact in artefacts:
        ref = file(artefact, artefact.name)
        relate("SPDXRef-DOCUMENT", "DESCRIBES", ref)
        relate(ref, "GENERATED_FROM", tryst)
        for library in libraries:
            if any(part in artefact.name for part in {"_tryst.abi3.so": [".whl"], "libtryst.so.1": [".whl", "tryst-c-"],
                                                      "libnccl-net-tryst.so": ["nccl"]}[library.name]):
                relate(ref, "CONTAINS", library_ref[library])
    for part, where in linked(linked_from, libraries).items():
        ref = file(part, f"{part.parent.name}/{part.name}")
        project = part.name.split("_")[0]
        how = "GENERATED_FROM"
        if part.name == "older_glibc.pic.o":
            owner = tryst
        elif part.suffix == ".o" or part.name == "libmicrohttpd.a":  # Compiled from Debian's source package.
            project = "libmicrohttpd" if part.suffix == ".a" else project
            owner = package(project, sources[project], project, True)
        else:
            how = "EXPANDED_FROM_ARCHIVE"
            name, package_version = next((name, v) for pattern, name, v in owners if re.fullmatch(pattern, part.name))
            owner = package(name, package_version, next(s for start, s in SOURCES.items() if name.startswith(start)), False)
        relate(ref, how, owner)
        for library in where:
            relate(library_ref[library], "STATIC_LINK", ref)
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"tryst-{version}-{processor}",
            "documentNamespace": f"https://tryst.invalid/spdx/{version}/{processor}/{commit}",
            "creationInfo": {"created": date, "creators": ["Tool: tools/release.py"]},
            "packages": list(packages.values()), "files": files, "relationships": relations}


def provenance(version, commit, date, artefacts, processors):
    """What the artefacts were made from, and with: the packages of this machine that the build names."""
    tools = run("bash", "-c", 'source <(sed -n "/^build_packages=/,/^)/p" run); dpkg-query -Wf \'${Package} ${Version} ${Architecture}\\n\' '
                              '"${build_packages[@]}" binutils 2>/dev/null || true').splitlines()
    depends = [{"uri": "git+file:tryst", "digest": {"gitCommit": commit}}]
    depends += [{"uri": "pkg:deb/debian/{}@{}?arch={}".format(*line.split())} for line in sorted(set(tools))]
    return {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
            "subject": [{"name": path.name, "digest": {"sha256": digest(path)}} for path in artefacts],
            "predicate": {
                "buildDefinition": {
                    "buildType": "https://tryst.invalid/run-release/v1",
                    "externalParameters": {"version": version, "processors": processors, "command": "./run release"},
                    "internalParameters": {"system": platform.freedesktop_os_release()["PRETTY_NAME"]},
                    "resolvedDependencies": depends},
                "runDetails": {"builder": {"id": "https://tryst.invalid/run-release/by-hand"}, "metadata": {"startedOn": date}}}}


def notes(version):
    """The part of CHANGELOG.md about that version, or what is in none yet: then this is a trial."""
    parts = re.split(r"^## (.*)\n", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2]))
    return f"# Tryst {version}\n\n{sections.get('Unreleased', sections.get(version, '')).strip()}\n"


def main():
    folder, version, commit, *parts = sys.argv[1:]
    folder = pathlib.Path(folder)
    date = run("git", "show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", commit)
    artefacts = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    processors = []
    for part in parts:
        processor, linked_from, libraries = part.split("=")
        processors.append(processor)
        bill = bill_of_materials(version, commit, date, processor, pathlib.Path(linked_from), [pathlib.Path(l) for l in libraries.split(",")],
                                 [path for path in artefacts if processor in path.name])
        (folder / f"tryst-{version}-{processor}.spdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    (folder / "provenance.json").write_text(json.dumps(provenance(version, commit, date, artefacts, processors), indent=1) + "\n")
    (folder / "NOTES.md").write_text(notes(version))
    listed = sorted(path for path in folder.iterdir() if not path.name.startswith("SHA256SUMS"))
    (folder / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in listed))


main()
