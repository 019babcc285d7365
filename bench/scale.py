#!/usr/bin/env python3
"""How Tryst grows with the number of peers, and a job that no machine at hand could run.

  bench/scale.py --programs FOLDER [--quick] [--json FILE]

FOLDER holds scale_bench, peers_bench and peers/tryst. Over simulated NICs and virtual time the
channels that ship meet 1 to 1,024 peers; over the soft NIC and gRPC as many servers as there
is memory for, in two processes. What a tensor costs a processor is measured, and a model of a
parameter-server job is fed with it (bench/ps_model.h).
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import figures  # noqa: E402
import systems  # noqa: E402

SIM_PEERS, SOFT_PEERS = (1, 16, 128, 1024), (16, 64, 256, 1024)
# What peers_bench prints; the rest are sums and ratios of these.
SOFT_FIGURES = ("connect", "idle_peer_resident", "fetch_one_peer", "fetch_one_among_idle", "fetch_few_in_turn",
                "fetch_each_in_turn")
# A pull costs three times a message's overhead: to ask, to answer, to take what has landed.
OVERHEADS_OF_A_PULL = 3


def run_json(command, timeout):
    with tempfile.NamedTemporaryFile() as file:
        try:
            subprocess.run(command + ["--json", file.name], check=True, timeout=timeout, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            print("bench: %s" % error, file=sys.stderr)
            return []
        return figures.read(file.name)


def message_ns(tryst):
    """What one message costs one processor, at most: the soft NIC's system calls are in it."""
    one = systems.System("tryst_soft", "tryst", "soft", (), True, True, (), False)
    costs = []
    for _ in range(3):
        rows, why = systems.run(one, tryst, "rate", 64, 0.5)
        if why:
            print("bench: %s" % why, file=sys.stderr)
        costs += [value for figure, _, value, _ in rows if figure == "cpu_per_million"]
    return int(min(costs) * 1e3 / OVERHEADS_OF_A_PULL) if costs else 500


def labels(line):
    return ", ".join("%s %s" % (key, line[key]) for key in line
                     if key not in ("figure", "system", "value", "unit", "runs", "min", "max", "size_bytes"))


def table(title, lines):
    print("\n%s\n\n| figure | system | | value |\n| --- | --- | --- | ---: |" % title)
    for line in lines:
        print("| %s | %s | %s | %s %s |" % (line["figure"], line["system"], labels(line),
                                            figures.number(line["value"]), line["unit"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="up to 128 and 16 peers, a tenth of the job")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    scale, peers = [os.path.join(options.programs, n) for n in ("scale_bench", "peers_bench")]

    simulated, real = [], []
    for count in SIM_PEERS[:3] if options.quick else SIM_PEERS:
        simulated += run_json([scale, "--peers", str(count)], 300)
    table("Simulated NICs, virtual time; memory is that of both ends", simulated)
    for count in SOFT_PEERS[:1] if options.quick else SOFT_PEERS:
        for protocol in ("grpc+verbs", "grpc"):
            lines = run_json([peers, "--peers", str(count), "--protocol", protocol, "--settle-ms", "1500"], 300)
            real += [line for line in lines if line["figure"] in SOFT_FIGURES]
    table("Servers in two processes of this machine", real)
    cost = message_ns(os.path.join(options.programs, "peers/tryst"))
    size = ["--workers", "100", "--servers", "10"] if options.quick else []
    model = run_json([scale, "--model", "--message-ns", str(cost)] + size, 600)
    table("A parameter-server job in the model; a message costs %d ns of a processor, as measured" % cost, model)

    lines = simulated + real + [dict(line, message_ns=cost) for line in model]
    figures.write(lines, options.json, os.path.join(ROOT, "bench/history.jsonl"), ROOT)
    return 0 if simulated and real and model else 1


if __name__ == "__main__":
    sys.exit(main())
