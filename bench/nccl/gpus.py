#!/usr/bin/env python3
"""NCCL over Tryst's plugin beside NCCL's own sockets, on the GPUs of this machine.

    bench/nccl/gpus.py --plugin out/plugins/libnccl-net-tryst.so [--rounds 3] [--json FILE]

Needs PyTorch with CUDA and two GPUs or more. P2P and shared memory are switched off, so that
every byte goes through the network that is measured; the networks take turns in each round.
One JSON line a round, network and figure. --check compares every dtype and the sizes around
NCCL's slices with what a processor computes, instead of measuring.
"""
import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time

SIZES = [8, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
PAIR_SIZES = [8, 1 << 20, 256 << 20]
CHECK_BYTES = [1, 8, 4095, 4096, 4097, 131071, 131072, 131073, 524287, 524288, 524289, 4 << 20, (4 << 20) + 8]
COMMON = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "WARN"}


def networks(plugin):
    sockets = dict(COMMON, NCCL_NET_PLUGIN="none", NCCL_NET="Socket")
    return {
        "sockets": sockets,
        "sockets tuned": dict(sockets, NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD="4"),
        "tryst": dict(COMMON, NCCL_NET_PLUGIN=os.path.abspath(plugin), NCCL_NET="Tryst"),
    }


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(name, environment, ranks, arguments):
    """Every rank a process; returns the lines that rank 0 printed."""
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        own = dict(os.environ, **environment)
        own.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(ranks))
        processes.append(subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--rank-of", name] + arguments,
            env=own, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, universal_newlines=True))
    out, _ = processes[0].communicate(timeout=1200)
    codes = [process.wait(timeout=60) for process in processes]
    if any(codes):
        raise RuntimeError("%s: ranks ended with %s" % (name, codes))
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def say(**line):
    print(json.dumps(line), flush=True)


def timed(torch, turns, operation):
    for _ in range(3):
        operation()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(turns):
        operation()
    torch.cuda.synchronize()
    return (time.monotonic() - began) / turns


def processor_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(torch, dist, name, rank, ranks):
    for size in PAIR_SIZES:
        data = torch.ones(size, dtype=torch.uint8, device="cuda")

        def there_and_back():
            if rank == 0:
                dist.send(data, 1)
                dist.recv(data, 1)
            elif rank == 1:
                dist.recv(data, 0)
                dist.send(data, 0)

        used = processor_s()
        turns = 500 if size < 4096 else 20
        half_s = timed(torch, turns, there_and_back) / 2
        if rank == 0:
            say(network=name, ranks=ranks, what="sendrecv", bytes=size, half_us=half_s * 1e6,
                gbs=size / half_s / 1e9,
                processor_s_a_gib=(processor_s() - used) / max(2 * (turns + 3) * size / (1 << 30), 1e-9))
    for size in SIZES[1:]:
        data = torch.ones(size // 4, dtype=torch.float32, device="cuda")
        took_s = timed(torch, 20 if size < (256 << 20) else 5, lambda: dist.all_reduce(data))
        if rank == 0:
            say(network=name, ranks=ranks, what="all_reduce", bytes=size,
                busbw_gbs=size / took_s / 1e9 * 2 * (ranks - 1) / ranks)


def check(torch, dist, name, rank, ranks):
    wrong = 0
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64):
        for size in CHECK_BYTES:
            count = max(1, size // torch.empty((), dtype=dtype).element_size())
            mine = (torch.arange(count) % 7 + rank).to(dtype)
            want = sum((torch.arange(count) % 7 + other) for other in range(ranks)).to(dtype)
            data = mine.cuda()
            dist.all_reduce(data)
            wrong += int(not torch.equal(data.cpu(), want))
            if rank == 0:
                dist.send(mine.cuda(), 1)
            elif rank == 1:
                got = torch.empty(count, dtype=dtype, device="cuda")
                dist.recv(got, 0)
                wrong += int(not torch.equal(got.cpu(), (torch.arange(count) % 7).to(dtype)))
    total = torch.tensor([wrong], device="cuda")
    dist.all_reduce(total)
    if rank == 0:
        say(network=name, ranks=ranks, what="check", wrong=int(total.item()))


def rank_main(arguments):
    import torch
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    (check if arguments.check else measure)(torch, dist, arguments.rank_of, rank, ranks)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", default="out/plugins/libnccl-net-tryst.so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, help="default: 2, and 4 where there are so many GPUs")
    parser.add_argument("--json", help="appends the lines to this file")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        return rank_main(arguments)
    import torch
    gpus = torch.cuda.device_count()
    if gpus < 2:
        sys.exit("not measured: it takes two GPUs, and this machine has %d" % gpus)
    counts = [arguments.ranks] if arguments.ranks else [n for n in (2, 4) if n <= gpus]
    passed = ["--check"] if arguments.check else []
    bad = 0
    for _ in range(1 if arguments.check else arguments.rounds):
        for ranks in counts:
            for name, environment in networks(arguments.plugin).items():
                for line in run(name, environment, ranks, passed):
                    text = json.dumps(line)
                    print(text, flush=True)
                    bad += line.get("wrong", 0)
                    if arguments.json:
                        with open(arguments.json, "a") as out:
                            out.write(text + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
