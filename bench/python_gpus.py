#!/usr/bin/env python3
"""bench/python_gpus.py [--rounds N] [--odd N] [--cpu]: torch's CUDA tensors from one Python process to another, on two GPUs.

Needs torch and the wheel, and two GPUs (with one, both use it). Measures the bandwidth of large tensors beside the peer
copy of the same bytes, in turns, and then sends tensors whose contents change from round to round, without ever
waiting for a stream: each is filled, sent, received and looked at in the order of the callers' own streams, and every
element of every round is compared. Then come tensors of 61 to 130 MiB that begin at odd addresses and whose memory is
given back and made anew between them: with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True they lie in several chunks
of a range that grows and shrinks. JSON lines on stdout. --cpu: the same in host memory, to try the program.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import tryst

RING = 8  # Buffers of the producer that are on their way.
SIZES = (256, 16 << 10, 256 << 10, 1 << 20)  # Floats, by turns.
COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
PRODUCER, CONSUMER = "/job:producer/task:0", "/job:consumer/task:0"


class Device:
    """A GPU, or the host that stands in for one."""

    def __init__(self, number, cpu):
        self.cpu = cpu
        self.name = "cpu" if cpu else f"cuda:{number}"
        self.settings = {} if cpu else {"gpus": str(number)}
        if not cpu:
            torch.cuda.set_device(number)

    def stream(self):
        """A stream of the caller's own, as the current one of a `with`."""
        return contextlib.nullcontext() if self.cpu else torch.cuda.stream(torch.cuda.Stream())

    def work(self, microseconds):
        """The stream is busy for about so long."""
        if not self.cpu:
            torch.cuda._sleep(int(microseconds * 1500))

    def wait(self):
        if not self.cpu:
            torch.cuda.synchronize()


def say(**what):
    print(json.dumps(what), flush=True)


# ---- The producer ----


def produce(options):
    gpu = Device(0, options.cpu)
    with tryst.Server(job="producer", **COMMON, **gpu.settings) as server:
        print(f"{server.worker}@{server.address}", flush=True)
        server.wait_for(CONSUMER)
        produce_large(server, gpu, options)
        with gpu.stream():
            produce_rounds(server, gpu, options)
            produce_odd(server, gpu, options)
        server.step(2).recv("over", frm=CONSUMER, timeout=600)


def produce_large(server, gpu, options):
    """Every key names the same bytes: the consumer takes them when it wants."""
    source = torch.arange(options.mib << 18, dtype=torch.float32, device=gpu.name)
    step = server.step(1)
    for i in range(options.turns * (options.flight + 1) + options.flight):
        step.send(f"large{i}", source, to=CONSUMER)
    server.step(3).recv("next", frm=CONSUMER, timeout=600)
    step.cleanup()


def produce_rounds(server, gpu, options):
    ring = [[torch.full((size,), -1.0, device=gpu.name) for size in SIZES] for _ in range(RING)]
    for i in range(options.rounds):
        if i >= RING:  # The consumer has had what was in this buffer.
            before = server.step(100 + i - RING)
            if before.recv("had", frm=CONSUMER, timeout=120).nbytes == 2:
                return
            before.cleanup()
        buffer = ring[i % RING][i % len(SIZES)]
        gpu.work(5)  # What the tensor waits for: it is sent before it is filled.
        buffer.fill_(float(i))
        server.step(100 + i).send("tensor", buffer, to=CONSUMER)


def odd_bytes(number, gpu):
    """A different size each time, and bytes that are unlike their neighbours'."""
    count = ((61 + number * 23 % 70) << 20) + 2 * number + 1
    return ((torch.arange(count, dtype=torch.int64, device=gpu.name) * 31 + number * 7919) % 251).to(torch.uint8)


def produce_odd(server, gpu, options):
    for i in range(options.odd):
        whole = odd_bytes(i, gpu)
        step = server.step(10**8 + i)
        step.send("odd", whole[2 * (i % 8) + 1:], to=CONSUMER)
        step.recv("had", frm=CONSUMER, timeout=120)
        step.cleanup()
        del whole
        if i % 3 == 2 and not gpu.cpu:
            gpu.wait()
            torch.cuda.empty_cache()


# ---- The consumer ----


def consume(options):
    child = subprocess.Popen([sys.executable, __file__, "--produce", *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    try:
        join = child.stdout.readline().strip()
        count = 1 if options.cpu else torch.cuda.device_count()
        gpu = Device(min(1, count - 1), options.cpu)
        with tryst.Server(job="consumer", join=join, **COMMON, **gpu.settings) as server:
            server.wait_for(PRODUCER)
            consume_large(server, gpu, options)
            server.step(3).send("next", b"1", to=PRODUCER)
            with gpu.stream():
                consume_rounds(server, gpu, options)
                consume_odd(server, gpu, options)
            say(what="paths", text=server.explain("/job:producer/task:0"))
            server.step(2).send("over", b"1", to=PRODUCER)
            child.wait(60)
    finally:
        child.kill()


def consume_large(server, gpu, options):
    count = options.mib << 18
    step = server.step(1)
    beside = torch.arange(count, dtype=torch.float32, device="cpu" if gpu.cpu else "cuda:0")
    into = [torch.zeros(count, device=gpu.name) for _ in range(options.flight)]
    gpu.wait()
    if not gpu.cpu:
        torch.cuda.synchronize(0)
    expected = beside.to(gpu.name)
    key = iter(range(10**9))
    took = {"one": [], "one, peer copy": [], "many": [], "many, peer copy": []}

    def timed(what, body):
        for one in into:
            one.zero_()
        gpu.wait()
        began = time.perf_counter()
        body()
        took[what].append(time.perf_counter() - began)

    def receive(number):
        step.recv_many([f"large{next(key)}" for _ in range(number)], frm=PRODUCER, timeout=120,
                       into=into[:number]).result()

    def copy(number):
        for one in into[:number]:
            one.copy_(beside, non_blocking=True)
        gpu.wait()

    receive(options.flight)  # Paths are found, memory is mapped.
    copy(options.flight)
    for turn in range(options.turns):
        pairs = [("one", lambda: receive(1)), ("one, peer copy", lambda: copy(1)),
                 ("many", lambda: receive(options.flight)), ("many, peer copy", lambda: copy(options.flight))]
        for what, body in pairs if turn % 2 else pairs[::-1]:
            timed(what, body)
            filled = into if "many" in what else into[:1]
            assert all(torch.equal(one, expected) for one in filled), "the bytes are not those"
    gbps = {what: options.mib * 2**20 * (options.flight if "many" in what else 1) / statistics.median(times) / 1e9
            for what, times in took.items()}
    say(what="bandwidth", mib=options.mib, flight=options.flight, turns=options.turns, gbps=gbps,
        ratio_one=gbps["one"] / gbps["one, peer copy"], ratio_many=gbps["many"] / gbps["many, peer copy"])


def consume_rounds(server, gpu, options):
    into = [torch.full((size,), -2.0, device=gpu.name) for size in SIZES]
    wrong = torch.zeros((), dtype=torch.int64, device=gpu.name)
    began = time.perf_counter()
    done = 0
    for i in range(options.rounds):
        step = server.step(100 + i)
        buffer = into[i % len(SIZES)]
        step.recv("tensor", frm=PRODUCER, timeout=120, into=buffer)
        gpu.work(5)  # The look at it comes late: it must not be overwritten before.
        wrong += (buffer != float(i)).any()
        done += 1
        late = time.perf_counter() - began > options.seconds
        step.send("had", b"12" if late else b"1", to=PRODUCER)
        if late:
            break
        if i >= RING:
            server.step(100 + i - RING).cleanup()
    gpu.wait()
    say(what="rounds", done=done, wrong=int(wrong.item()), seconds=time.perf_counter() - began)
    assert wrong.item() == 0, "tensors arrived that were not those of their round"


def consume_odd(server, gpu, options):
    wrong = 0
    for i in range(options.odd):
        expected = odd_bytes(i, gpu)[2 * (i % 8) + 1:]
        into = torch.zeros(expected.numel() + 3, dtype=torch.uint8, device=gpu.name)[3:]
        step = server.step(10**8 + i)
        step.recv("odd", frm=PRODUCER, timeout=120, into=into)
        wrong += not torch.equal(into, expected)
        step.send("had", b"1", to=PRODUCER)
        if i >= 1:
            server.step(10**8 + i - 1).cleanup()
    say(what="odd", done=options.odd, wrong=wrong)
    assert wrong == 0, "tensors at odd addresses arrived with other bytes"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--odd", type=int, default=20, help="large tensors at odd addresses")
    parser.add_argument("--seconds", type=float, default=120, help="of rounds at most")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--flight", type=int, default=4, help="large tensors at once, beside one at a time")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--produce", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        return produce(options)
    say(what="machine", python=sys.version.split()[0], torch=torch.__version__, cpus=os.cpu_count(),
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])
    return consume(options)


if __name__ == "__main__":
    main()
