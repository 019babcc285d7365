#!/usr/bin/env python3
"""Prints the tables of figures that documents have, out of bench/history.jsonl.

  tables.py HISTORY readme COMMIT     README.md's few figures, of the run of that commit
  tables.py HISTORY host COMMIT       docs/BENCHMARKS.md: every system of that run
  tables.py HISTORY instructions      docs/BENCHMARKS.md: the last counts of a pull, stage by stage
"""
import json
import sys

README_ROWS = [
    ("shared memory, by reference", "tryst_shm_ref"),
    ("shared memory, copied", "tryst_shm_copy"),
    ("UCX over shared memory", "ucx_shm"),
    ("software NIC over TCP", "tryst_soft"),
    ("UCX over TCP", "ucx_tcp"),
    ("gRPC, a call each", "tryst_grpc"),
    ("gRPC, tuned", "grpc_tuned_tcp"),
]
README_COLUMNS = [
    ("pull 8 B, us", ("pull_p50", 8), "%.1f"),
    ("pull 64 KiB, us", ("pull_p50", 65536), "%.1f"),
    ("deliver 16 MiB, GiB/s", ("delivery", 16777216), "%.1f"),
    ("steps/s of a parameter server", ("ps_steps_per_s", 20778168), "%.0f"),
]
# Where a figure would not mean anything, this text stands in its place.
INSTEAD = {("delivery", "tryst_shm_ref"): "no byte moves"}

HOST_COLUMNS = [
    ("pull 8 B", ("pull_p50", 8)),
    ("4 KiB", ("pull_p50", 4096)),
    ("64 KiB", ("pull_p50", 65536)),
    ("deliver 64 KiB", ("delivery", 65536)),
    ("1 MiB", ("delivery", 1048576)),
    ("16 MiB", ("delivery", 16777216)),
    ("256 MiB", ("delivery", 268435456)),
    ("64 B tensors/s", ("tensors_per_s", 64)),
    ("steps/s, 1 worker", ("ps_steps_per_s", 20778168)),
    ("3 workers", ("ps_steps_per_s_3_workers", 20778168)),
    ("first", ("first_tensor_ms", 8)),
]
STAGES = ("send", "ask", "answer", "deliver", "rest", "pull")


def number(value):
    if value >= 1e4:
        return "%.2gM" % (value / 1e6)
    return "%.2g" % value if value < 10 else "%.0f" % value


def of_run(history, commit):
    """The figures of that commit's run, by (figure, bytes, system), and its last line."""
    run = [line for line in history if line["commit"].startswith(commit)]
    if not run:
        sys.exit("the history has no run of commit %s" % commit)
    return {(line["figure"], line.get("size_bytes"), line["system"]): line["value"] for line in run}, run[-1]


def kind(system):
    """Where a system stands in the table: limits of the machine, shared memory, sockets, gRPC."""
    if system.startswith("limit"):
        return 0
    if "grpc" in system:
        return 3
    return 1 if "shm" in system or system.endswith("_ipc") else 2


def origin(line):
    return "%s; commit %s, %s" % (line["machine"], line["commit"][:7], line["at"][:10])


def head(first, names):
    print("| %s| %s |\n| --- |%s" % (first + " " if first else "", " | ".join(names), " ---: |" * len(names)))


def readme(history, commit):
    found, last = of_run(history, commit)
    head("", [name for name, _, _ in README_COLUMNS])
    for name, system in README_ROWS:
        cells = [INSTEAD.get((key[0], system)) or layout % found[(*key, system)] for _, key, layout in README_COLUMNS]
        print("| %s | %s |" % (name, " | ".join(cells)))
    print("\nMachine: a virtual one, %s, medians." % origin(last))


def host(history, commit):
    found, last = of_run(history, commit)
    head("system", [name for name, _ in HOST_COLUMNS])
    for system in sorted(dict.fromkeys(system for _, _, system in found), key=kind):
        cells = [INSTEAD.get((key[0], system)) or number(found[(*key, system)]) if (*key, system) in found else ""
                 for _, key in HOST_COLUMNS]
        if any(cells):
            print("| %s | %s |" % ("**%s**" % system if system.startswith("tryst") else system, " | ".join(cells)))
    print("\nMedians; %s." % origin(last))


def instructions(history):
    last = {}
    for line in history:
        if line["figure"].startswith("instructions_"):
            last[line["system"], line["figure"][len("instructions_"):]] = line
    head("instructions, 8 B", STAGES)
    for system in dict.fromkeys(system for system, _ in last):
        values = [last.get((system, stage), {"value": 0})["value"] for stage in STAGES]
        print("| %s | %s |" % (system, " | ".join("{:,.0f}".format(v) if v else "" for v in values)))
    print("\n%s." % origin(max(last.values(), key=lambda line: line["at"])))


def main():
    with open(sys.argv[1]) as f:
        history = [json.loads(line) for line in f]
    {"readme": readme, "host": host, "instructions": instructions}[sys.argv[2]](history, *sys.argv[3:])


main()
