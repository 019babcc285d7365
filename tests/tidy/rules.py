"""The rules. Each takes a Tree and yields one line per breach: 'path:line: what and why'."""
import hashlib
import os
import re
import subprocess

from documents import documents
from links import index, links, said_twice
from tree import line_of, lines, speaks_of_rules

LEAVES = {"rendezvous", "verbs", "gpu", "proto"}
# docs/ARCHITECTURE.md: which folder may use which. All may use themselves, tools/ and docs/.
LAW = {
    "base": set(),
    "rendezvous": {"base"},
    "verbs": {"base"},
    "gpu": {"base"},
    "proto": {"base"},
    "weights": {"base", "rendezvous", "proto"},
    "channel": {"base"} | LEAVES,
    "server": {"base", "channel", "weights"} | LEAVES,
    "tests": {"base", "channel", "weights", "server", "plugins", "python", "bench", "examples"} | LEAVES,
    "bench": {"base", "channel", "weights", "server", "tests"} | LEAVES,
    "examples": {"base", "channel", "server"} | LEAVES,
    "plugins": {"base", "verbs", "gpu", "server"},
    "python": {"rendezvous", "server", "plugins"},
    "docs": set(),
    "tools": {"tests"},  # Macros bring in the mains of tests.
    ".ci": set(),
}
SHIPPED = ("base", "rendezvous", "verbs", "gpu", "proto", "weights", "channel", "server", "plugins")
# Back ends of one interface: they share only the interface.
BACK_ENDS = [{"verbs/ibv", "verbs/ofi", "verbs/soft"},
             {"channel/rdma", "channel/shm", "channel/compat", "channel/device"}]
# Foreign headers, and the only shipped folders that may include them.
FOREIGN = [
    (re.compile(r"infiniband/|rdma/rdma_"), ("verbs/ibv",)),
    (re.compile(r"rdma/fi_|rdma/fabric"), ("verbs/ofi",)),
    (re.compile(r"cuda(_runtime\w*|_fp\w*|)\.h|driver_types\.h"), ("gpu",)),
    (re.compile(r"xxhash"), ("weights",)),
    (re.compile(r"grpcpp/|grpc/|google/protobuf/"), ("channel", "server", "proto")),
]


def top(path):
    return path.split("/", 1)[0] if "/" in path else ""


def edge_breach(source, target, for_tests):
    """Why `source` (a folder path) may not use `target`, or None. for_tests: it is not shipped."""
    here, there = top(source + "/"), top(target + "/")
    if for_tests and (target + "/").startswith("tests/doubles/"):
        return None
    if here == there:
        for ends in BACK_ENDS:
            mine = [e for e in ends if (source + "/").startswith(e + "/")]
            other = [e for e in ends if (target + "/").startswith(e + "/")]
            if mine and other and mine != other:
                return "back ends of one interface do not use each other"
        return None
    if here == "" or there in ("docs", "tools") or there not in LAW:
        return None
    if there not in LAW.get(here, ()):
        return "%s may use %s" % (here, ", ".join(sorted(LAW.get(here, ()))) or "nothing")
    return None


def layering(tree):
    """A folder uses only the folders that the law of docs/ARCHITECTURE.md lets it, in BUILD edges and #include lines."""
    for target in tree.targets():
        for label in target.labels:
            why = edge_breach(target.package, label.split(":")[0], target.for_tests)
            if why:
                yield "%s:%d: %s -> %s: %s" % (target.build, target.line, target, label, why)
    for path in tree.cpp():
        for number, what, quoted in tree.includes(path):
            why = edge_breach(os.path.dirname(path), os.path.dirname(what), path.endswith("_test.cc")) if quoted else None
            if why:
                yield "%s:%d: %s -> %s: %s" % (path, number, path, what, why)


def foreign_headers(tree):
    """libibverbs, libfabric, CUDA and gRPC are included only by the rooms that are there for them."""
    for path in tree.cpp():
        if top(path) not in SHIPPED:
            continue
        for number, what, _ in tree.includes(path):
            for pattern, folders in FOREIGN:
                if pattern.match(what) and not path.startswith(tuple(f + "/" for f in folders)):
                    yield "%s:%d: includes %s, which only %s may" % (path, number, what, " and ".join(folders))


def folders(tree):
    """There is no room that the house does not have."""
    for folder in sorted({top(f) for f in tree.files} - set(LAW) - {""}):
        yield "%s: no such room in the house (docs/ARCHITECTURE.md)" % folder


def rooms(tree):
    """Each folder of two levels that is built from is in the table of rooms, and each row is there."""
    path = "docs/ARCHITECTURE.md"
    text = tree.read(path) if path in tree.files else ""
    rows = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("| `") and "/` " in line:
            for room in re.findall(r"`([\w/.]+)/`", line.split("|")[1]):
                rows[room] = number
    if not rows:
        return
    folders_there = {os.path.dirname(f) for f in tree.files}
    for room, number in rows.items():
        if not any(f == room or f.startswith(room + "/") for f in folders_there):
            yield "%s:%d: there is no room %s" % (path, number, room)
    for build in tree.of("BUILD"):
        folder = os.path.dirname(build)
        if top(build) in SHIPPED and folder.count("/") <= 1 and folder not in rows:
            yield "%s: the room is in no row of the table of rooms in %s" % (folder, path)


# Libraries that only tests use although they are meant to ship, and why.
ONLY_TESTS_YET = {
    "verbs:interval_tree": "of the registration cache",
    "plugins/tensorflow:asks": "the plug-in is built with TensorFlow's own headers, by no BUILD file",
    "plugins/tensorflow:links": "likewise",
    "server/weights:etcd_decider": "an option of the first owner is to choose it",
    "verbs:registration_cache": "what registers the caller's memory is to use it",
}


def for_tests_alone(tree):
    """A library of a shipped room that no program is built from is testonly."""
    known = {}
    for target in tree.targets():
        known.setdefault(str(target), []).append(target)
    waiting = [t for t in tree.targets() if not t.for_tests and t.kind != "cc_library"]
    needed = set(map(id, waiting))
    while waiting:
        for label in waiting.pop().labels:
            for target in known.get(label, []):
                if id(target) not in needed:
                    needed.add(id(target))
                    waiting.append(target)
    for target in tree.targets():
        if (target.kind == "cc_library" and top(target.build) in SHIPPED and not target.for_tests and
                id(target) not in needed and str(target) not in ONLY_TESTS_YET):
            yield "%s:%d: only tests use %s: say testonly, or let go of it" % (target.build, target.line, target)


STATION = re.compile(r"^\|[^|]+\| `([\w/.]+)` \| `([\w:]+)` \|$")
MOST_LINES_OF_A_TRANSPORT = 250


def defines(tree, path, function):
    """Whether `path` has the function or the type: a method by its class there, or in its header."""
    code = tree.code(path)
    *scopes, name = function.split("::")
    scope = scopes[-1] if scopes else None
    if scope and re.search(r"\b%s(<[^>]*>)?::%s\s*(\(|[^;(]*\{)" % (scope, name), code):
        return True
    if scope:
        return bool(re.search(r"\b(class|struct)\s+%s\b" % scope, code) and re.search(r"\b%s\s*\(" % name, code))
    return bool(re.search(r"\b(class|struct)\s+%s\b[^;]*\{" % name, code))


def walks(tree):
    """docs/WALKS.md leads to what is there, and counts the files that a walk and the parts it links to make one open."""
    path = "docs/WALKS.md"
    if path not in tree.files:
        return
    opened, stated, parts, section = {}, {}, {}, ""
    for number, line in enumerate(tree.read(path).splitlines(), 1):
        if line.startswith("## "):
            section = line[3:].strip().lower().replace(" ", "-")
        count = re.match(r"Files to open: (\d+)$", line)
        if count:
            stated[section] = number, int(count[1])
        parts.setdefault(section, []).extend(re.findall(r"\]\(#([\w-]+)\)", line))
        station = STATION.match(line)
        if not station:
            continue
        opened.setdefault(section, set()).add(station[1])
        if station[1] in tree.files and defines(tree, station[1], station[2]):
            continue
        now = [f for f in tree.cpp() if top(f) in SHIPPED and defines(tree, f, station[2])]
        yield "%s:%d: %s is not in %s%s" % (path, number, station[2], station[1],
                                             "; it is in " + ", ".join(now) if now else ", nor anywhere: what does it now?")
    for section, (number, said) in stated.items():
        there = set().union(*(opened.get(part, set()) for part in [section] + parts[section]))
        if len(there) != said:
            yield "%s:%d: the walk opens %d files, and says %d" % (path, number, len(there), said)


def glossary(tree):
    """Each term of docs/GLOSSARY.md stands once, in order, beside a header that speaks of it."""
    path, before = "docs/GLOSSARY.md", ""
    if path not in tree.files:
        return
    for number, line in enumerate(tree.read(path).splitlines(), 1):
        row = re.match(r"\| ([A-Z][\w ]*) \| .* \| `([\w/.]+)` \|$", line)
        if not row:
            continue
        term, header = row.groups()
        if term.lower() <= before:
            yield "%s:%d: %s stands after %s" % (path, number, term, before)
        before = term.lower()
        # "Ack page" may be ack_page, AckPage or "ack page" in code.
        word = re.sub(r" ", r"[ _]?", term)
        if header not in tree.files:
            yield "%s:%d: there is no %s" % (path, number, header)
        elif not re.search(word, tree.read(header), re.IGNORECASE):
            yield "%s:%d: %s does not speak of %s" % (path, number, header, term)


def measure_of_a_transport(tree):
    """The transport for tests, which is all that a new one has to write, has at most 250 lines."""
    toy = [f for f in tree.files if f.startswith("tests/contract/toy/")]
    total = sum(len(tree.read(f).splitlines()) for f in toy)
    if total > MOST_LINES_OF_A_TRANSPORT:
        yield "tests/contract/toy: %d lines, and a transport for tests is to need at most %d" % (
            total, MOST_LINES_OF_A_TRANSPORT)


def visibility(tree):
    """Packages are private by default."""
    for target in tree.targets():
        if target.kind == "package" and top(target.build) in set(SHIPPED) - {"base"}:
            if "//visibility:public" in tree.read(target.build).split("default_visibility", 1)[-1].split("]")[0]:
                yield "%s:%d: packages are private by default; open a target to who needs it" % (
                    target.build, target.line)


BANNED_WORDS = {"manager", "mgr", "util", "utils", "utility", "utilities", "helper", "helpers",
                "misc", "info", "infos", "common", "internal"}
ALLOWED_NAMES = {
    "log_internal": "base/log.h: the macros' own types, which must be reachable and not be used",
}
DECLARED = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+class)?|namespace|using|message|service|rpc|package)\s+"
    r"(?:(?:ABSL_[A-Z_]+(?:\([^)]*\))?|\[\[\w+\]\]|alignas\([^)]*\))\s+)*([A-Za-z_][\w:.]*)"
    r"(?!\s*::)|#\s*define\s+(\w+)")


def words(name):
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def banned(name):
    return name not in ALLOWED_NAMES and BANNED_WORDS.intersection(words(name))


def names(tree):
    """No Manager, Util, Helper, Info, Common ... in the names of files, targets, types and macros."""
    reason = "says nothing: name it for what it does"
    for path in tree.files:
        for part in path.split("/"):
            if banned(part):
                yield "%s: the name %s %s" % (path, part, reason)
    for target in tree.targets():
        if banned(target.name):
            yield "%s:%d: the target %s %s" % (target.build, target.line, target, reason)
    for path in tree.cpp() + tree.of(".proto"):
        code = tree.code(path)
        for match in DECLARED.finditer(code):
            name = match[1] or match[2]
            if code[match.start():].startswith("using") and "=" not in code[match.end():match.end() + 3]:
                continue  # A using-declaration names another library's type.
            if any(banned(part) for part in re.split(r"::|\.", name)):
                yield "%s:%d: the name %s %s" % (path, line_of(code, match.start()), name, reason)


# Words for which docs/GLOSSARY.md has another.
GIVEN_UP = {
    "way": "path", "ways": "paths", "rail": "path", "rails": "paths",
    "piece": "part", "pieces": "parts", "chunk": "part", "chunks": "parts",
    "stripe": "part", "stripes": "parts", "striped": "cut",
    "look": "turn", "looks": "turns", "glance": "turn", "glances": "turns",
}
# In these idioms the words do not mean a path, a part or a turn.
IDIOMS = re.compile(r"under_?way|make_?way|both_?ways|one_?way|on_?its_?way|looks?_?(up|like)", re.IGNORECASE)
GIVEN_UP_NAMES = "tests/tidy/given_up_names.txt"
MOST_GIVEN_UP_NAMES = 137  # Lower it whenever the list has become shorter.
# CUDA's own word for the physical memory behind an address.
CHUNKS_OF_CUDA = re.compile(r"gpu/|channel/device/|tests/doubles/cuda/|(tests|bench)/.*device")


def given_up_in(tree):
    """{name: where it is first} of each identifier in our code that has a word which was given up."""
    found = {}
    for path in tree.cpp():
        for match in re.finditer(r"[A-Za-z_]\w*", tree.code(path)):
            name = match[0]
            if name in found or speaks_of_rules(path) or name.startswith("GRPC_"):
                continue
            bad = set(GIVEN_UP).intersection(words(IDIOMS.sub("", name)))
            if CHUNKS_OF_CUDA.match(path):
                bad -= {"chunk", "chunks"}
            if bad:
                found[name] = (path, line_of(tree.code(path), match.start()))
    return found


def given_up(tree):
    """No new name has a word that was given up, and the list of those that have one only shrinks."""
    text = tree.read(GIVEN_UP_NAMES) if GIVEN_UP_NAMES in tree.files else ""
    known = {line: number for number, line in enumerate(text.splitlines(), 1) if line and not line.startswith("#")}
    found = given_up_in(tree)
    for name, (path, line) in found.items():
        if name not in known:
            word = next(w for w in words(IDIOMS.sub("", name)) if w in GIVEN_UP)
            yield "%s:%d: %s: the word is %s, not %s (docs/GLOSSARY.md)" % (path, line, name, GIVEN_UP[word], word)
    if len(known) > MOST_GIVEN_UP_NAMES:
        yield "%s: %d names, and it had %d: rename instead" % (GIVEN_UP_NAMES, len(known), MOST_GIVEN_UP_NAMES)


def forget(tree):
    """Takes what is gone off the lists of exceptions."""
    for path, found in ((GIVEN_UP_NAMES, given_up_in(tree)),
                        (WITHOUT_SUBJECT_LIST, {"%s: %s" % (p, said) for p, _, said in without_subject_in(tree)})):
        kept = [line for line in tree.read(path).splitlines(True) if line.startswith("#") or line.strip() in found]
        with open(os.path.join(tree.root, path), "w") as f:
            f.writelines(kept)


# A comment that begins so has no subject: the reader has to guess of what, and as what.
WITHOUT_SUBJECT = re.compile(r"(Of|The same)\b")
WITHOUT_SUBJECT_LIST = "tests/tidy/comments_without_subject.txt"
MOST_WITHOUT_SUBJECT = 10  # Lower it whenever the list has become shorter.


def comment_beginnings(text, mark):
    """(line, text) of each comment's first line: of a block of them, or behind code."""
    before = False
    for number, line in enumerate(text.splitlines(), 1):
        alone = re.match(r"\s*%s+(?!!)\s*(.*)" % mark, line)
        behind = None if alone else re.search(r"\s%s\s+([A-Z].*)" % mark, line)
        if alone and not before or behind:
            yield number, (alone or behind)[1]
        before = bool(alone)


def without_subject_in(tree):
    """(path, line, text) of each comment that begins so."""
    slashes = tree.cpp() + tree.of(".proto")
    for path in slashes + tree.of(".py", ".sh", ".bzl", "BUILD", "run"):
        if speaks_of_rules(path) and path.endswith(".py"):
            continue
        for line, said in comment_beginnings(tree.read(path), "//" if path in slashes else "#"):
            if WITHOUT_SUBJECT.match(said):
                yield path, line, said


def comment_subjects(tree):
    """No comment begins with "Of" or "The same", and the list of those that do only shrinks."""
    text = tree.read(WITHOUT_SUBJECT_LIST) if WITHOUT_SUBJECT_LIST in tree.files else ""
    known = {line for line in text.splitlines() if line and not line.startswith("#")}
    for path, line, said in without_subject_in(tree):
        if "%s: %s" % (path, said) not in known:
            yield "%s:%d: a comment is a sentence with a subject: %s" % (path, line, said)
    if len(known) > MOST_WITHOUT_SUBJECT:
        yield "%s: %d comments, and it had %d: write a sentence instead" % (
            WITHOUT_SUBJECT_LIST, len(known), MOST_WITHOUT_SUBJECT)


# These files are found by their place, not through a BUILD file.
ALIVE_BY_PLACE = re.compile(
    r"[^/]+|.*/(BUILD|WORKSPACE)|docs/.*\.md|.*\.bzl|.*/README\.md|tools/shims/.*|\.ci/run")


def dead_files(tree):
    """Every file is in a BUILD target, or a script calls it."""
    mentioned = set()
    for target in tree.targets():
        mentioned.update(target.files)
        mentioned.update(label.replace(":", "/").lstrip("/") for label in target.labels)
    scripts = {f: tree.read(f) for f in tree.of(".sh", ".py", "/run", "/vm-run", "/vm-build") + ["run"]
               if f in tree.files}
    for path in tree.files:
        if ALIVE_BY_PLACE.fullmatch(path) or path in mentioned:
            continue
        name = os.path.basename(path)
        if any(path in text or (os.path.dirname(path) == os.path.dirname(script) and name in text)
               for script, text in scripts.items() if script != path):
            continue
        yield "%s: dead: no BUILD target and no script names it" % path


def guards(tree):
    """The include guard of base/x.h is TRYST_BASE_X_H_."""
    for path in tree.of(".h", ".cuh"):
        guard = "TRYST_%s_" % re.sub(r"\W", "_", path).upper()
        if not re.search(r"^#ifndef %s\n#define %s\n" % (guard, guard), tree.read(path), re.MULTILINE):
            yield "%s:1: the include guard is %s" % (path, guard)


CLOCKS = (r"steady_clock::now|system_clock::now|high_resolution_clock|\bclock_gettime\b|absl::Now\b|"
          r"\bgettimeofday\b|\btime\((NULL|nullptr|0)\)")
# Each row: the pattern, where it is forbidden ("." is everywhere, tests too), where it is still
# allowed, and why it is forbidden.
FORBIDDEN = [
    (r"absl::(Mutex|MutexLock|CondVar|ReaderMutexLock)\b", ".", r"$^",
     "ThreadSanitizer cannot see it: base/mutex.h (docs/decisions/0001-mutex.md)"),
    (r"absl::(Notification|BlockingCounter|Barrier)\b", ".",
     r"(server|examples|tests/release/versions)/.*",  # Beside gRPC, which ThreadSanitizer cannot judge.
     "ThreadSanitizer cannot see it: tests/process/pair/moment.h"),
    (r"std::(mutex|lock_guard|unique_lock|scoped_lock|shared_mutex|condition_variable\w*)\b", ".",
     r"plugins/tensorflow/.*",  # Built with TensorFlow's Abseil, not with ours.
     "clang cannot prove it: base/mutex.h (docs/decisions/0001-mutex.md)"),
    (r"std::string_view\b", ".", r"plugins/tensorflow/.*", "Debian's Abseil does not take it: absl::string_view"),
    (r"\bthrow\b(?! std::bad_alloc)", "|".join(SHIPPED), r"$^",
     "errors are absl::Status (only memory may run out as the language says)"),
    (r"\bassert\s*\(", "|".join(SHIPPED), r"$^", "gone from the build that ships: TRYST_CHECK"),
    (r"\.detach\s*\(\s*\)", ".", r"server/(server|security/why_unreachable)\.cc",
     "a detached thread has no owner (docs/decisions/0028-destroyed-in-a-callback.md)"),
    (CLOCKS, "rendezvous|weights|verbs|gpu|channel", r"channel/(compat|grpc|signing)/.*",  # RPCs carry wall time.
     "time comes in through base/clock.h"),
    (r"#\s*(el)?if(?!ndef TRYST_\w+_H_).*(CUDA|NVCC|GPU)", "|".join(SHIPPED), r".*\.cuh?", "CUDA is chosen by BUILD, never by #if"),
]


def forbidden_code(tree):
    """No locks, clocks, threads, exceptions and preprocessor choices but those that the house has."""
    for pattern, where, allowed, why in FORBIDDEN:
        for path in tree.cpp():
            if not re.match(where, top(path)) or re.fullmatch(allowed, path):
                continue
            if where != "." and path in tree.test_files():
                continue
            code = tree.code(path)
            for match in re.finditer(pattern, code):
                yield "%s:%d: %s: %s" % (path, line_of(code, match.start()), match[0], why)


def machine_paths(tree):
    """No path of one machine."""
    for path, number, line in lines(tree, r"(?<![\w.$}/-])/(work|home|root|Users|mnt)/\w"):
        if path.startswith("tests/hardware/guest/"):
            continue  # The guest has those folders to itself.
        yield "%s:%d: a path of one machine: %s" % (path, number, line)


def todos(tree):
    """A TODO has a name."""
    for path, number, line in lines(tree, r"\b(TODO|FIXME|XXX|HACK)\b(?!\([a-z][\w.-]*\):)"):
        yield "%s:%d: nobody owns it; write TODO(name): %s" % (path, number, line)


def licence(tree):
    """LICENSE covers every file."""
    if "LICENSE" not in tree.files or "Apache License" not in tree.read("LICENSE"):
        yield "LICENSE: must be the Apache License 2.0"
    for path, number, line in lines(tree, r"(?i)copyright (\(c\)|©|\d{4})|SPDX-License-Identifier: (?!Apache-2\.0)"):
        yield "%s:%d: LICENSE covers every file; code of others stays out: %s" % (path, number, line)


DECISIONS = "docs/decisions/README.md"


MOST_LINES_OF_A_DECISION = 60
SUPERSEDED = re.compile(r"superseded by \[(\d{4})\]", re.IGNORECASE)


def decisions_row(tree, path, row):
    """The index and the record agree whether the record was superseded, and by which."""
    line = next((a for a in tree.read(DECISIONS).splitlines() if a.startswith("| " + row)), "")
    by_index = re.search(r"\| no: \[(\d{4})\]", line)
    by_record = SUPERSEDED.search(tree.read(path))
    if (by_index and by_index[1]) != (by_record and by_record[1]):
        yield "%s: superseded by %s, and %s says %s" % (
            path, by_record[1] if by_record else "none", DECISIONS, by_index[1] if by_index else "that it holds")


def decisions_without_record(tree):
    """The numbers below the last that have no record, as the index lists them."""
    listed = set()
    for begin, end in re.findall(r"\b(\d{4})(?: to (\d{4}))?\b", tree.read(DECISIONS).split("Numbers without a record:")[-1]):
        listed.update(range(int(begin), int(end or begin) + 1))
    return listed


def decisions(tree):
    """One number, one record, with the four parts that make it one while it holds."""
    seen = {}
    for path in tree.files:
        match = re.fullmatch(r"docs/decisions/(\d{4})-[a-z0-9-]+\.md", path)
        if not match:
            if path.startswith("docs/decisions/") and path != DECISIONS:
                yield "%s: a decision is called NNNN-title.md" % path
            continue
        row = "[%s](%s)" % (match[1], os.path.basename(path))
        if DECISIONS in tree.files and row not in tree.read(DECISIONS):
            yield "%s: is not in %s" % (path, DECISIONS)
        if match[1] in seen:
            yield "%s: has the number of %s" % (path, seen[match[1]])
        seen[match[1]] = path
        lines_of_it = tree.read(path).count("\n")
        if lines_of_it > MOST_LINES_OF_A_DECISION:
            yield "%s: %d lines, and a decision fits on a screen (%d): move what is not the choice to another document" % (
                path, lines_of_it, MOST_LINES_OF_A_DECISION)
        if DECISIONS in tree.files:
            yield from decisions_row(tree, path, row)
        if SUPERSEDED.search(tree.read(path)):
            continue  # Two lines are enough: what was chosen then, and what holds now.
        for part in ("Context", "Choice", "Rejected", "Consequence"):
            if not re.search(r"(?im)^#+ %s" % part, tree.read(path)):
                yield "%s: has no part called %s" % (path, part)
    if DECISIONS in tree.files and "Numbers without a record:" in tree.read(DECISIONS):
        holes = set(range(1, max(map(int, seen), default=0))) - set(map(int, seen))
        # A number that is reserved may be above the last record.
        listed = {n for n in decisions_without_record(tree) if n < max(map(int, seen), default=0)}
        for number in sorted(holes ^ listed):
            yield "%s: says nothing true of the number %04d" % (DECISIONS, number)


DRAWINGS = "docs/drawings/"


def drawings(tree):
    """Each drawing was made of the source beside it, and the source names rooms and types that are there."""
    folders_there = {os.path.dirname(f) for f in tree.files}
    types = set()
    for path in tree.cpp():
        types.update(re.findall(r"\b(?:class|struct) (\w+)\b", tree.code(path)))
    for path in tree.files:
        if not path.startswith(DRAWINGS):
            continue
        if path.endswith(".svg"):
            source = path[:-len(".svg")] + ".dot"
            stamp = hashlib.sha256(tree.read(source).encode()).hexdigest() if source in tree.files else "no source"
            if stamp not in tree.read(path):
                yield "%s: not made of %s as it is: ./run drawings" % (path, source)
        elif path[:-len(".dot")] + ".svg" not in tree.files:
            yield "%s: nobody has drawn it: ./run drawings" % path
        else:
            text = tree.read(path)
            # A comment in the source names documents; the rule `links` checks those.
            for number, line in enumerate(text.splitlines(), 1):
                for label in re.findall(r'label="([^"]*)"', line):
                    for room in re.findall(r"(?:^|\\n|\s)((?:[a-z]+/)+)(?=\\n|\s|$)", label):
                        if not any((f + "/").startswith(room) for f in folders_there):
                            yield "%s:%d: there is no room %s" % (path, number, room)
                    for name in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", label):
                        if name not in types and name not in NAMES_IN_DRAWINGS:
                            yield "%s:%d: there is no type %s" % (path, number, name)


NAMES_IN_DRAWINGS = {"RecvAsync", "TensorFlow"}  # A function; a product.


def doc_tables(tree):
    """A table that a program prints is compared with that program in a test."""
    tested = {tuple(sorted(t.labels)) for t in tree.targets() if t.kind == "doc_table_test"}
    for path in tree.of(".md"):
        text = tree.read(path)
        for match in re.finditer(r"^<!-- table: (//\S+)", text, re.MULTILINE):
            doc = "%s:%s" % os.path.split(path)
            if tuple(sorted([doc, match[1][2:]])) not in tested:
                yield "%s:%d: no doc_table_test compares it with %s" % (path, line_of(text, match.start()), match[1])


def quoted_messages(tree):
    """A message that a document quotes ("> ...") is one that the code has."""
    path = "docs/TROUBLESHOOTING.md"
    if path not in tree.files:
        return
    # A literal that continues on the next line is joined.
    code = "\n".join(re.sub(r'"\s*\n\s*"', "", tree.read(f)) for f in tree.of(".cc")
                     if top(f) in SHIPPED and not f.endswith("_test.cc"))
    for number, line in enumerate(tree.read(path).splitlines(), 1):
        if not line.startswith("> "):
            continue
        for part in line[2:].split("..."):
            if part.strip() and part.strip() not in code:
                yield "%s:%d: no source says '%s'" % (path, number, part.strip())


def script_syntax(tree):
    """Python and shell parse."""
    for path in tree.files:
        if path.endswith(".py"):
            try:
                compile(tree.read(path), path, "exec")
            except SyntaxError as error:
                yield "%s:%d: %s" % (path, error.lineno or 1, error.msg)
        elif path.endswith(".sh") or re.match(r"#!.*\b(ba)?sh\b", tree.read(path)[:80]):
            check = subprocess.run(["bash", "-n", os.path.join(tree.root, path)],
                                   stderr=subprocess.PIPE, universal_newlines=True)
            if check.returncode:
                yield "%s: %s" % (path, check.stderr.strip().splitlines()[0])


RULES = [layering, foreign_headers, folders, rooms, for_tests_alone, walks, glossary, measure_of_a_transport, visibility, names,
         given_up, comment_subjects, dead_files, guards, forbidden_code, machine_paths, todos, licence, links, index, said_twice,
         decisions, drawings, documents, doc_tables, quoted_messages, script_syntax]
