#!/usr/bin/env python3
"""figures.py HISTORY COMMIT: README.md's table of figures, out of bench/history.jsonl, from the run of that commit."""
import json
import sys

ROWS = [
    ("shared memory, by reference", "tryst_shm_ref"),
    ("shared memory, copied", "tryst_shm_copy"),
    ("UCX over shared memory", "ucx_shm"),
    ("software NIC over TCP", "tryst_soft"),
    ("UCX over TCP", "ucx_tcp"),
    ("gRPC path", "tryst_grpc"),
    ("gRPC, tuned", "grpc_tuned_tcp"),
]
COLUMNS = [
    ("pull 8 B, us", ("pull_p50", 8), "%.1f"),
    ("pull 64 KiB, us", ("pull_p50", 65536), "%.1f"),
    ("deliver 16 MiB, GiB/s", ("delivery", 16777216), "%.1f"),
    ("steps/s of a parameter server", ("ps_steps_per_s", 20778168), "%.0f"),
]
# Where a figure would not mean anything, this text stands in its place.
INSTEAD = {("delivery", "tryst_shm_ref"): "no byte moves"}


def main():
    history, commit = sys.argv[1:]
    found, machine = {}, None
    with open(history) as f:
        for line in f:
            figure = json.loads(line)
            if figure["commit"].startswith(commit):
                found[figure["figure"], figure.get("size_bytes"), figure["system"]] = figure["value"]
                machine, day = figure["machine"], figure["at"][:10]
    if not found:
        sys.exit("%s has no run of commit %s" % (history, commit))
    print("| | %s |" % " | ".join(name for name, _, _ in COLUMNS))
    print("| --- |%s" % (" ---: |" * len(COLUMNS)))
    for name, system in ROWS:
        cells = [INSTEAD.get((key[0], system)) or layout % found[(*key, system)] for _, key, layout in COLUMNS]
        print("| %s | %s |" % (name, " | ".join(cells)))
    print("\nMachine: a virtual one, %s; commit %s, %s, medians." % (machine, commit, day))


main()
