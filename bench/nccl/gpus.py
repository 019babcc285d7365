#!/usr/bin/env python3
"""NCCL over Tryst's plugin beside NCCL's own sockets, on the GPUs of this machine.

    bench/nccl/gpus.py --plugin out/plugins/libnccl-net-tryst.so [--rounds 3] [--json FILE]

Needs PyTorch with CUDA and two GPUs or more. P2P and shared memory are switched off, so that
every byte goes through the network that is measured. The ranks of all networks start together,
once; then the networks take turns in each round. One JSON line a round, network and figure.

--check compares every dtype and the sizes around NCCL's slices with what a processor computes.
--kill N kills a rank N times and tells when another heard of it, and what it was told.
--variant NAME:VARIABLE=VALUE,... measures Tryst once more with other settings.
"""
import argparse
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
PAIR_SIZES = [8, 1 << 20, 256 << 20]
CHECK_BYTES = [1, 8, 4095, 4096, 4097, 131071, 131072, 131073, 524287, 524288, 524289, 4 << 20, (4 << 20) + 8]
COMMON = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "WARN"}


def networks(arguments):
    sockets = dict(COMMON, NCCL_NET_PLUGIN="none", NCCL_NET="Socket")
    tryst = dict(COMMON, NCCL_NET_PLUGIN=os.path.abspath(arguments.plugin), NCCL_NET="Tryst")
    found = {
        "sockets": sockets,
        "sockets tuned": dict(sockets, NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD="4"),
        "tryst": tryst,
    }
    for variant in arguments.variant:
        name, _, settings = variant.partition(":")
        found["tryst " + name] = dict(tryst, **dict(one.split("=", 1) for one in settings.split(",")))
    return {name: found[name] for name in found if not arguments.networks or name in arguments.networks}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    """The ranks of one network, which do what they are told by a line each."""

    def __init__(self, name, environment, ranks, job):
        port = str(free_port())
        self.name = name
        self.ranks = []
        for rank in range(ranks):
            own = dict(os.environ, **environment)
            own.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(ranks))
            self.ranks.append(subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--rank-of", name, "--job", job], env=own,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if job != "kill" else subprocess.STDOUT,
                universal_newlines=True, bufsize=1))

    def lines(self, limit_s, rank=0):
        """What a rank says until it has done what it was told, with the time of each line."""
        late = threading.Timer(limit_s, self.kill)
        late.start()
        try:
            for line in self.ranks[rank].stdout:
                if line.startswith("done"):
                    return
                yield time.monotonic(), line
            raise RuntimeError("%s: a rank ended, or took more than %d s" % (self.name, limit_s))
        finally:
            late.cancel()

    def tell(self, word):
        for rank in self.ranks:
            rank.stdin.write(word + "\n")
            rank.stdin.flush()

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rank.kill()


def say(**line):
    print(json.dumps(line), flush=True)


def timed(torch, turns, operation):
    for _ in range(2):
        operation()
    torch.cuda.synchronize()
    used = processor_s()
    began = time.monotonic()
    for _ in range(turns):
        operation()
    torch.cuda.synchronize()
    return (time.monotonic() - began) / turns, (processor_s() - used) / turns


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

        took_s, used_s = timed(torch, 500 if size < 4096 else 20 if size < (64 << 20) else 5, there_and_back)
        if rank == 0:
            say(network=name, ranks=ranks, what="sendrecv", bytes=size, half_us=took_s / 2 * 1e6,
                gbs=size / took_s * 2 / 1e9, processor_s_a_gib=used_s / (2 * size / (1 << 30)))
    for size in SIZES:
        data = torch.ones(size // 4, dtype=torch.float32, device="cuda")
        took_s, used_s = timed(torch, 20 if size < (64 << 20) else 3, lambda: dist.all_reduce(data))
        if rank == 0:
            say(network=name, ranks=ranks, what="all_reduce", bytes=size,
                busbw_gbs=size / took_s / 1e9 * 2 * (ranks - 1) / ranks, processor_s_a_gib=used_s / (size / (1 << 30)))


def check(torch, dist, name, rank, ranks):
    everything = 0
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64):
        wrong = compared = 0
        for size in CHECK_BYTES:
            count = max(1, size // torch.empty((), dtype=dtype).element_size())
            base = torch.arange(count) % 7
            data = (base + rank).to(dtype).cuda()
            dist.all_reduce(data)
            wrong += int(not torch.equal(data.cpu(), (base * ranks + ranks * (ranks - 1) // 2).to(dtype)))
            if rank == 0:
                dist.send(base.to(dtype).cuda(), 1)
            elif rank == 1:
                got = torch.empty(count, dtype=dtype, device="cuda")
                dist.recv(got, 0)
                wrong += int(not torch.equal(got.cpu(), base.to(dtype)))
            compared += 1
        total = torch.tensor([wrong], device="cuda")
        dist.all_reduce(total)
        everything += int(total.item())
        if rank == 0:
            say(network=name, ranks=ranks, what="check", dtype=str(dtype), sizes=compared, wrong=int(total.item()))
    return everything


def reduce_until_it_fails(torch, dist):
    data = torch.ones(8 << 20, dtype=torch.float32, device="cuda")
    print("reducing", flush=True)
    try:
        while True:
            dist.all_reduce(data, async_op=True).wait()
    except Exception as error:  # The type differs between releases of PyTorch.
        print("the rank's own error: " + str(error).replace("\n", " "), flush=True)
    os._exit(0)


def rank_main(arguments):
    import torch
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    print("done connecting", flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            reduce_until_it_fails(torch, dist)
        (check if line.strip() == "check" else measure)(torch, dist, arguments.rank_of, rank, ranks)
        print("done", flush=True)
    dist.destroy_process_group()


def turns(arguments, ranks, word, rounds):
    """Every network in turn, so often; returns how much was wrong."""
    jobs = [Job(name, environment, ranks, word) for name, environment in networks(arguments).items()]
    bad = 0
    try:
        for job in list(jobs):
            try:
                list(job.lines(120))
            except RuntimeError as error:
                print(json.dumps({"network": job.name, "failed": str(error)}), flush=True)
                jobs.remove(job)
                bad += 1
        for turn in range(rounds):
            # None is always the first after another.
            for job in jobs[turn % max(len(jobs), 1):] + jobs[:turn % max(len(jobs), 1)]:
                job.tell(word)
                for _, text in job.lines(arguments.limit):
                    if not text.startswith("{"):
                        continue
                    line = dict(json.loads(text), round=turn)
                    print(json.dumps(line), flush=True)
                    bad += line.get("wrong", 0)
                    if arguments.json:
                        with open(arguments.json, "a") as out:
                            out.write(json.dumps(line) + "\n")
    finally:
        for job in jobs:
            job.end()
    return bad


def kill_once(environment, ranks):
    """Kills rank 1 amid all_reduces; true when rank 0 had an error that names it within a second."""
    job = Job("tryst", dict(environment, TORCH_NCCL_BLOCKING_WAIT="1"), ranks, "kill")
    try:
        list(job.lines(120))
        job.tell("kill")
        victim = job.ranks[1]
        killed = threading.Timer(1e9, lambda: None)
        at = {}

        def strike():
            at["killed"] = time.monotonic()
            victim.send_signal(signal.SIGKILL)

        for when, text in job.lines(60):
            if "reducing" in text:
                killed = threading.Timer(1.0, strike)
                killed.start()
            if "NET/Tryst" in text and re.search(r"process %d\b" % victim.pid, text):
                at.setdefault("named", when)
                at.setdefault("warning", text.strip())
            if "own error" in text:
                at["raised"] = when
                at["error"] = text.strip()[:400]
                break
        killed.cancel()
    except RuntimeError as error:
        at = {"failed": str(error)}
    finally:
        job.kill()
    line = {"what": "kill", "warning": at.get("warning"), "error": at.get("error"), "failed": at.get("failed")}
    for name in ("named", "raised"):
        line[name + "_after_ms"] = round((at[name] - at["killed"]) * 1e3, 1) if name in at else None
    print(json.dumps(line), flush=True)
    return line["named_after_ms"] is not None and line["named_after_ms"] < 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", default="out/plugins/libnccl-net-tryst.so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, help="default: 2, and 4 where there are so many GPUs")
    parser.add_argument("--json", help="appends the lines to this file")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--kill", type=int, default=0, metavar="N")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:VARIABLE=VALUE,...")
    parser.add_argument("--networks", action="append", help="these alone; default: all")
    parser.add_argument("--limit", type=int, default=300, help="seconds that a turn may take")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        return rank_main(arguments)
    import torch
    gpus = torch.cuda.device_count()
    if gpus < 2:
        sys.exit("not measured: it takes two GPUs, and this machine has %d" % gpus)
    bad = 0
    for ranks in [arguments.ranks] if arguments.ranks else [n for n in (2, 4) if n <= gpus]:
        if arguments.kill:
            bad += sum(not kill_once(networks(arguments)["tryst"], ranks) for _ in range(arguments.kill))
        else:
            bad += turns(arguments, ranks, "check" if arguments.check else "measure",
                         1 if arguments.check else arguments.rounds)
    if arguments.check and not bad:
        tried = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/release/tried.py")
        version = ".".join(map(str, torch.cuda.nccl.version()))
        subprocess.run([tried, "note", "NCCL", version, "`./run bench nccl --check`"], check=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
