#!/usr/bin/env python3
"""bench/python_all_to_all.py [--ranks N] [--mib N] [--rounds N] [--cpu]: every GPU sends a part to every other at once.

Needs torch and the wheel. Starts a process for each rank, on a GPU of its own where there are so many, and takes turns
between Tryst and all_to_all_single of torch.distributed over NCCL, which wants a GPU for each rank: where there are
fewer, Tryst is measured alone. A round is from the moment that all are ready to the moment that the last rank has every
part; every element of every round is compared. JSON lines on stdout. --cpu: the same in host memory, Tryst alone, to
try the program.
"""
import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import tryst

from python_gpus import COMMON, Device, say

ELEMENTS_A_MIB = (1 << 20) // 4


def worker(rank):
    return f"/job:rank/task:{rank}"


class Rank:
    """One process of the exchange: its parts for the others, and room for theirs."""

    def __init__(self, options):
        self.rank, self.ranks = options.rank, options.ranks
        self.others = [peer for peer in range(self.ranks) if peer != self.rank]
        gpus = 0 if options.cpu else torch.cuda.device_count()
        self.device = Device(self.rank % max(gpus, 1), cpu=gpus == 0)
        self.has_peer = gpus >= self.ranks
        shape = (self.ranks, options.mib * ELEMENTS_A_MIB)
        self.parts = torch.empty(shape, device=self.device.name)
        self.room = torch.empty(shape, device=self.device.name)
        self.number = 0

    def fill(self):
        """Parts that no other rank and no other round has."""
        self.number += 1
        for peer in range(self.ranks):
            self.parts[peer] = self.value(self.rank, peer)
        self.room.fill_(-1.0)
        self.device.wait()

    def value(self, producer, consumer):
        return float((self.number * self.ranks + producer) * self.ranks + consumer)

    def check(self):
        for peer in self.others:
            if not torch.all(self.room[peer] == self.value(peer, self.rank)).item():
                raise AssertionError(f"rank {self.rank} has other bytes from rank {peer} in round {self.number}")

    def meet(self, server, name):
        """Returns when every rank has come here."""
        step = server.step(10**6 + self.number)
        for peer in self.others:
            step.send(f"{name}{peer}", b"1", to=worker(peer))
        for peer in self.others:
            step.recv(f"{name}{self.rank}", frm=worker(peer), timeout=120)

    def exchange(self, server):
        step = server.step(self.number)
        for peer in self.others:
            step.send(f"part{peer}", self.parts[peer], to=worker(peer))
        coming = [
            step.recv_many([f"part{self.rank}"], frm=worker(peer), timeout=120, into=[self.room[peer]])
            for peer in self.others
        ]
        for each in coming:
            each.result()
        self.device.wait()

    def timed(self, server, body):
        self.fill()
        self.meet(server, "begin")
        began = time.perf_counter()
        body()
        self.meet(server, "end")
        took = time.perf_counter() - began
        self.check()
        if self.number > 1:
            for step in (self.number - 1, 10**6 + self.number - 1):
                server.step(step).cleanup()
        return took


def run_rank(options):
    rank = Rank(options)
    settings = dict(rank.device.settings)
    if options.join:
        settings["join"] = options.join
    with tryst.Server(job="rank", task=options.rank, **COMMON, **settings) as server:
        if options.rank == 0:
            print(f"{server.worker}@{server.address}", flush=True)
        for peer in rank.others:
            server.wait_for(worker(peer))
        took = {"tryst": []}
        bodies = {"tryst": lambda: rank.exchange(server)}
        if rank.has_peer:
            import torch.distributed as dist
            dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{options.port}", rank=options.rank,
                                    world_size=options.ranks)

            def by_nccl():
                dist.all_to_all_single(rank.room, rank.parts)
                rank.device.wait()

            took["nccl"] = []
            bodies["nccl"] = by_nccl
        for body in bodies.values():  # Paths are found, memory is mapped.
            rank.timed(server, body)
        for turn in range(options.rounds):
            for name in sorted(bodies, reverse=turn % 2 == 1):
                took[name].append(rank.timed(server, bodies[name]))
        if options.rank == 0:
            bytes_a_rank = options.mib * 2**20 * (options.ranks - 1)
            gbps = {name: bytes_a_rank / statistics.median(times) / 1e9 for name, times in took.items()}
            say(what="all to all", mib=options.mib, ranks=options.ranks, rounds=options.rounds, gbps_a_rank=gbps,
                ratio=gbps["tryst"] / gbps["nccl"] if rank.has_peer else None, wrong=0,
                paths={peer: server.explain(worker(peer)).splitlines()[:4] for peer in rank.others[:1]})
        print("done", flush=True)
        sys.stdin.read()  # Who leaves while others still receive takes what they wait for along.
        if rank.has_peer:
            dist.destroy_process_group()


def wait_for(child):
    """Prints what the child has measured; returns when it is done."""
    for line in child.stdout:
        if line == "done\n":
            return
        print(line, end="", flush=True)
    raise SystemExit(f"a rank ended with status {child.wait(60)}")


def start_all(options):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    say(what="machine", torch=torch.__version__, cpus=os.cpu_count(),
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])
    children = []
    try:
        join = []
        for rank in range(options.ranks):
            words = [sys.executable, __file__, *sys.argv[1:], f"--rank={rank}", f"--port={port}", *join]
            children.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            if rank == 0:
                join = [f"--join={children[0].stdout.readline().strip()}"]
        for child in children:
            wait_for(child)
        for child in children:
            child.stdin.close()
        return max(child.wait(60) for child in children)
    finally:
        for child in children:
            child.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64, help="that each sends to each other")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cpu", action="store_true")
    for name, kind in (("--rank", int), ("--port", int), ("--join", str)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error("--ranks must be 2 or more")
    return start_all(options) if options.rank is None else run_rank(options)


sys.exit(main())
