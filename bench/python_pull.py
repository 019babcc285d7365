#!/usr/bin/env python3
"""bench/python_pull.py PROGRAM: what Python adds to the C interface, in turns with PROGRAM, which is bench/pull.c.

8 B that are there already, waited for and awaited; 256 MiB into memory of the receiver's; and tensors of growing size by
reference between two processes. Medians, and the smallest.
"""
import asyncio
import statistics
import subprocess
import sys
import time

import numpy
import tryst

COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True, shm_bytes="3GiB")
COUNT, MIB = 2000, 256
numbers = iter(range(1, 10**9))


def own(worker, _):
    names = [f"k{i}" for i in range(COUNT)]
    with worker.step(next(numbers)) as step:
        step.send_many(dict.fromkeys(names, tryst.tensor(bytes(8))), to=worker.worker)
        recv, me = step.recv, worker.worker
        began = time.perf_counter()
        for name in names:
            recv(name, me, 60.0)
        return (time.perf_counter() - began) / COUNT


def awaited(worker, _):
    names = [f"k{i}" for i in range(COUNT)]

    async def body(step):
        began = time.perf_counter()
        for name in names:
            await step.arecv(name, frm=worker.worker, timeout=60.0)
        return (time.perf_counter() - began) / COUNT

    with worker.step(next(numbers)) as step:
        step.send_many(dict.fromkeys(names, tryst.tensor(bytes(8))), to=worker.worker)
        return asyncio.run(body(step))


def copied(worker, ps, source=numpy.full(MIB << 18, 7, "f"), into=numpy.zeros(MIB << 18, "f")):
    number = next(numbers)
    with ps.step(number) as out, worker.step(number) as back:
        out.send("x", source, to="/job:worker/task:0")
        began = time.perf_counter()
        back.recv("x", "/job:ps/task:0", 60.0, into)
        return time.perf_counter() - began


def by_reference():
    """Another process has the tensors ready in memory that it shares."""
    with tryst.Server(job="here", **COMMON) as server:
        child = subprocess.Popen([sys.executable, __file__, "--produce", f"{server.worker}@{server.address}"])
        server.step(1).recv("ready", "/job:there/task:0", 60.0)
        for mib in 1, 16, 256:
            took = []
            for i in range(20):
                began = time.perf_counter()
                got = server.step(2).recv(f"{mib} {i}", "/job:there/task:0", 60.0, by_reference=True)
                took.append(time.perf_counter() - began)
                assert got.readonly and got.nbytes == mib << 20 and got.numpy()[-1] == mib, got
                del got
            print(f"{mib} MiB by reference: {statistics.median(took) * 1e6:.0f} us ({min(took) * 1e6:.0f})")
        server.step(3).send("over", b"", to="/job:there/task:0")
        child.wait(60)


def produce(join):
    with tryst.Server(job="there", join=join, **COMMON) as server:
        for mib in 1, 16, 256:
            array = server.empty((mib << 18,), "float32")
            numpy.asarray(array)[:] = mib
            server.step(2).send_many({f"{mib} {i}": array for i in range(20)}, to="/job:here/task:0")
        server.step(1).send("ready", b"", to="/job:here/task:0")
        server.step(3).recv("over", "/job:here/task:0", 120.0)


def main():
    if sys.argv[1] == "--produce":
        return produce(sys.argv[2])
    by_reference()
    program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.DEVNULL)

    def ask(what, number, divide):
        program.stdin.write(f"{what} {number}\n")
        program.stdin.flush()
        return int(program.stdout.readline()) / 1e9 / divide

    took = {}
    with tryst.Server(job="ps", **COMMON) as ps, \
            tryst.Server(job="worker", join=f"{ps.worker}@{ps.address}", **COMMON) as worker:
        for turn in range(int(sys.argv[2]) if len(sys.argv) > 2 else 31):
            took.setdefault("8 B, C", []).append(ask("own", COUNT, COUNT))
            took.setdefault("8 B, Python", []).append(own(worker, ps))
            took.setdefault("8 B, asyncio", []).append(awaited(worker, ps))
        for turn in range(int(sys.argv[2]) if len(sys.argv) > 2 else 11):
            took.setdefault("256 MiB copied, C", []).append(ask("copy", MIB, 1))
            took.setdefault("256 MiB copied, Python", []).append(copied(worker, ps))
    program.stdin.close()
    for name, times in took.items():
        print(f"{name}: {statistics.median(times[1:]) * 1e6:.2f} us ({min(times[1:]) * 1e6:.2f})")
    c, python = (statistics.median(took[f"256 MiB copied, {who}"][1:]) for who in ("C", "Python"))
    print(f"copied: {c / python:.3f} of C")
    return None


main()
