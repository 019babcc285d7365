#!/usr/bin/env python3
"""What compiling takes: ./run sizes --build [--all] [--check DOC]

For the source of each room that takes longest to read: its own lines, the lines that the preprocessor makes of them, the processor
time of its compilation, and what GCC says it went to. --all: all compilations of a cold `./run test`, summed by room (build all of
them first). --check: fails where a source has become more than 5 % longer, with what it includes, than the table in DOC says.
"""
import collections
import json
import os
import re
import resource
import subprocess
import sys

# The largest of ten rooms, as they are compiled: joined where they are joined.
SAMPLE = ["base/clock.cc", "rendezvous/local_rendezvous_joined.cc", "channel/ops/ops_joined.cc", "channel/rdma/rdma_joined.cc",
          "channel/shm/shm_joined.cc", "channel/compat/fetch_server_joined.cc", "verbs/soft/soft_nic_joined.cc", "gpu/gpu_joined.cc",
          "server/server_joined.cc", "rendezvous/step_tests_joined_test.cc"]
SLACK = 1.05
HEAD = "| source | lines | with what it includes | processor s | parsing | templates | code |"


def bazel(*words):
    root = os.environ.get("TRYST_OUTPUT_USER_ROOT")
    start = ["bazel"] + (["--output_user_root=" + root] if root else [])
    return subprocess.run([*start, *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).stdout.decode()


def compilations():
    """{source without its output folder: (path, command)}; position-independent ones, of which each source has one."""
    graph = json.loads(bazel("aquery", "--output=jsonproto", "--include_artifacts=false", 'mnemonic("CppCompile", deps(//...))'))
    found = {}
    for action in graph["actions"]:
        command = action["arguments"]
        source = command[command.index("-c") + 1]
        if "k8-opt-exec" not in source and not source.startswith("external/"):
            found.setdefault(re.sub(r"^bazel-out/[^/]+/bin/", "", source), (source, command))
    return found


def run(command, root, **pipes):
    """(processor seconds, what it wrote)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.run(command, cwd=root, check=False, **pipes)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode != 0:
        sys.exit("build first: %s failed" % " ".join(command[-3:]))
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, child


def variant(command, *more):
    """The command without its outputs."""
    kept, skip = [], False
    for word in command:
        if skip or word in ("-MD",):
            skip = False
        elif word in ("-o", "-MF"):
            skip = True
        else:
            kept.append(word)
    return kept + list(more)


def lines_of(source, command, root):
    path = os.path.join(root, source)
    with open(path, "rb") as file:
        own = file.read().count(b"\n")
    _, child = run(variant([w for w in command if w != "-c"], "-E", "-P"), root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return own, child.stdout.count(b"\n")


def shares(report):
    """Percent of GCC's own times: parsing, template instantiation, and the rest of the compiler."""
    def wall(name):
        match = re.search(r"^ %s +:.*?\(\s*\d+%%\).*?\(\s*\d+%%\) +([\d.]+) \(\s*(\d+)%%\)" % re.escape(name), report, re.MULTILINE)
        return int(match[2]) if match else 0
    templates = wall("template instantiation") + wall("phase deferred")
    return wall("phase parsing") + wall("phase lang. deferred") - wall("template instantiation"), templates, wall("phase opt and generate")


def table(found, root):
    rows = []
    for name in SAMPLE:
        if name not in found:
            sys.exit("nothing compiles %s any more: name another source of its room in build_costs.py" % name)
        source, command = found[name]
        own, read = lines_of(source, command, root)
        seconds, child = run(variant(command, "-o", "/dev/null", "-ftime-report"), root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        rows.append((name, own, read, seconds) + shares(child.stderr.decode(errors="replace")))
        print("| %s | %s | %s | %.1f | %d %% | %d %% | %d %% |" % (name, "{:,}".format(own), "{:,}".format(read), *rows[-1][3:]), flush=True)
    return rows


def by_room(found, root):
    sums = collections.defaultdict(lambda: [0, 0.0])
    for name, (_, command) in sorted(found.items()):
        seconds, _ = run(variant(command, "-o", "/dev/null"), root, stderr=subprocess.DEVNULL)
        tests = re.search(r"_test\.cc$", name) or name.startswith(("tests/", "bench/", "examples/"))
        for room in (("tests, " if tests else "") + name.split("/")[0], "all tests" if tests else "all that ships"):
            sums[room][0] += 1
            sums[room][1] += seconds
    print("| room | compilations | processor s |\n| --- | --- | --- |")
    for room, (count, seconds) in sorted(sums.items(), key=lambda one: -one[1][1]):
        print("| %s | %d | %.0f |" % (room, count, seconds))


def check(doc, found, root):
    with open(doc, encoding="utf-8") as file:
        said = dict(re.findall(r"^\| ([\w/]+\.cc) \| [\d,]+ \| ([\d,]+) \|", file.read(), re.MULTILINE))
    longer = 0
    for name in SAMPLE:
        _, read = lines_of(*found[name], root)
        most = int(said[name].replace(",", "")) * SLACK
        if read > most:
            print("%s has %d lines with what it includes, and had %s: include less, or run ./run sizes --build and say why" % (name, read, said[name]))
            longer += 1
    print("%d sources, %d passed, %d failed, 0 skipped" % (len(SAMPLE), len(SAMPLE) - longer, longer))
    return 1 if longer else 0


def main():
    root = bazel("info", "execution_root").strip()
    bazel("build", *(re.sub(r"(.*)/(\w+?)(_joined)?(_test)?\.cc", r"//\1:\2", source) for source in SAMPLE))
    found = compilations()
    if "--check" in sys.argv:
        return check(sys.argv[sys.argv.index("--check") + 1], found, root)
    if "--all" in sys.argv:
        return by_room(found, root)
    print(HEAD + "\n" + "| --- " * 7 + "|", flush=True)
    table(found, root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
