#!/usr/bin/env python3
"""Instructions of a pull of 8 bytes by both ends, or of a span of 64 that is gathered, stage by stage, counted under callgrind.

  bench/instructions.py PROGRAM [--json FILE] [--check] [--files] [--lines]      PROGRAM is //bench:instructions

The same on a machine that is busy and on one that is not. Of rdma, what the NIC does is not counted.
Without --json what was counted goes to the end of bench/history.jsonl; with --check nothing does,
and a count that is 5 % over its last one there fails, and so does a stage, but where its pull takes less. --files prints which files a
pull passes instead, --lines how many cache lines of data it touches.
"""
import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import cache_lines  # noqa: E402
import callgrind  # noqa: E402
import figures  # noqa: E402
import passed  # noqa: E402

HERE = os.path.dirname(os.path.realpath(__file__))
GROWTH = 1.05
LITTLE = 10  # By so many instructions a stage may grow: some have two.
TURNED = [("send", r"^tryst::TurnedPair::Send(Many|Selected)?\("), ("ask", r"^tryst::TurnedPair::Ask(Many|Selected)?\("),
          ("answer", r"^tryst::TurnedPair::Answer\("), ("deliver", None)]
BY_GRPC = [("send", r"^tryst::RoutingRendezvous::Send\("), ("ask", r"^tryst::GrpcChannel::Ask\("),
           ("answer", r"^tryst::GrpcStep<tryst::FetchServerStream>::OnEvent\("),
           ("deliver", r"^tryst::GrpcStep<tryst::FetchStream>::OnEvent\(")]
Path = collections.namedtuple("Path", "system pulls stages")
PATHS = collections.OrderedDict([
    ("shm", Path("tryst_shm", 6400, TURNED)), ("shm_early", Path("tryst_shm_early", 6400, TURNED)),
    ("shm_many", Path("tryst_shm_many", 6400, TURNED)), ("shm_all_many", Path("tryst_shm_all_many", 6400, TURNED)),
    ("rdma", Path("tryst_rdma", 6400, TURNED)), ("rdma_early", Path("tryst_rdma_early", 6400, TURNED)),
    ("rdma_many", Path("tryst_rdma_many", 6400, TURNED)),
    ("gather", Path("tryst_gather", 100_000, TURNED)),
    ("grpc", Path("tryst_grpc", 200, BY_GRPC)),
    ("grpc_stream", Path("tryst_grpc_stream", 200, BY_GRPC[:1])),
])
STAGES = ("send", "ask", "answer", "deliver", "rest", "pull")


def count(program, path, pulls):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        subprocess.run(["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + out,
                        "--zero-before=CountFromHere", "--dump-before=CountToHere",
                        # Collects nothing where the NIC is at work: entering it turns collecting off.
                        # (Of several patterns that begin alike callgrind heeds one.)
                        "--toggle-collect=*NicAtWork*", "--collect-atstart=yes",
                        program, path, str(pulls)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return callgrind.read(out + ".1")


def stages(functions, pulls, patterns):
    """Instructions a pull of each stage, of the rest (gRPC's own threads), and of all. Without a
    pattern a stage is what the others leave."""
    each = collections.OrderedDict()
    for stage, pattern in patterns:
        each[stage] = sum(f.inclusive for name, f in functions.items() if pattern and re.search(pattern, name)) / pulls
    whole = sum(f.alone for f in functions.values()) / pulls
    left = whole - sum(each.values())
    each["rest"] = 0.0
    each["rest" if patterns[-1][1] else patterns[-1][0]] += left
    each["pull"] = whole
    return each


def table(counted, what="instructions", columns=STAGES):
    print("| %s | %s |\n| --- |%s" % (what, " | ".join(columns), " ---: |" * len(columns)))
    for system, each in counted.items():
        print("| %s | %s |" % (system, " | ".join("%.0f" % each.get(stage, 0) for stage in columns)))


def lines(counted):
    return [{"figure": "instructions_" + stage, "system": system, "size_bytes": 64 if system == "tryst_gather" else 8, "value": round(value, 1),
             "unit": "instructions", "runs": 1} for system, each in counted.items() for stage, value in each.items()]


def grown(new, history):
    """(those that grew: (line, its last value), how many were compared, how many have no history). A stage may grow by what
    others lose."""
    last = {(line["figure"], line["system"]): line["value"] for line in history
            if line["figure"].startswith("instructions_")}
    known = [line for line in new if (line["figure"], line["system"]) in last]
    less = {line["system"] for line in known
            if line["figure"] == "instructions_pull" and line["value"] < last[line["figure"], line["system"]]}
    more = [(line, last[line["figure"], line["system"]]) for line in known
            if line["value"] > GROWTH * last[line["figure"], line["system"]]
            and (line["figure"] == "instructions_pull" or line["system"] not in less
                 and line["value"] > LITTLE + last[line["figure"], line["system"]])]
    return more, len(known), len(new) - len(known)


def judged(line):
    """Threads of gRPC's own divide their work by time."""
    return not line["system"].startswith("tryst_grpc") and line["figure"] != "instructions_rest"


def print_files(program):
    for name in ("rdma", "shm", "grpc"):
        functions, _ = count(program, name, PATHS[name].pulls)
        found = passed.files(functions, os.path.dirname(HERE))
        print("%s: %d files" % (name, len(found)))
        for path, names in found.items():
            print("  %s: %s" % (path, ", ".join(sorted(names))))


def print_lines(program):
    stages = TURNED[:-1] + [("deliver", r"^tryst::TurnedPair::Deliver\(")]
    counted = {PATHS[name].system: cache_lines.count(program, name, stages) for name in ("shm", "rdma")}
    table(counted, "cache lines of data", [stage for stage in STAGES if stage != "rest"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--lines", action="store_true")
    options = parser.parse_args()
    if options.files:
        print_files(options.program)
        return 0
    if options.lines:
        print_lines(options.program)
        return 0
    counted = collections.OrderedDict()
    for name, path in PATHS.items():
        functions, _ = count(options.program, name, path.pulls)
        counted[path.system] = stages(functions, path.pulls, path.stages)
    table(counted)
    new = lines(counted)
    history = os.path.join(HERE, "history.jsonl")
    if options.json or not options.check:
        figures.write(new, options.json, history, os.path.dirname(HERE))
    if not options.check:
        return 0
    more, known, unknown = grown([line for line in new if judged(line)], figures.read(history))
    for line, before in more:
        print("GREW  %s %s: %.0f, was %.0f" % (line["system"], line["figure"], line["value"], before))
    print("%d passed, %d failed, %d skipped" % (known - len(more), len(more), unknown))
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
