#!/usr/bin/env python3
"""bench/python_blocking.py [--busy] [shm|soft|nixl ...]: blocking receives from Python, beside NIXL's reads.

A producer has sent before the clock starts; the consumer receives into arrays of its own, one after the other. NIXL reads
registered memory of its peer, by a handle that is used again, which is the best that it does. Medians, 99th percentiles and
processor time of both processes, what a send took, a thousand arrays of 4 KiB by one call, and what both processes burn while
nothing happens. --busy: another process spins on each core meanwhile.
"""
import multiprocessing
import os
import sys
import time

import numpy

SIZES = [(8, 3000), (64 << 10, 2000), (1 << 20, 600), (16 << 20, 40), (256 << 20, 6)]  # Bytes, receives.
MANY = 1000
IDLE_S = 3
BURN_S = 600
COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
PATHS = {"shm": dict(shm_bytes="3GiB"), "soft": dict(shm="off")}


def processor_s(pid):
    """The processor time of a process, in seconds: clock_getcpuclockid(3) makes this number of it."""
    return time.clock_gettime(~pid << 3 | 2)


class Clock:
    def __init__(self, peer):
        self.times, self.pids = [], (os.getpid(), peer)
        self.began = [processor_s(pid) for pid in self.pids]

    def spent_us(self, count):
        return ["%.1f" % ((processor_s(pid) - began) / count * 1e6) for pid, began in zip(self.pids, self.began)]

    def time(self, call):
        began = time.perf_counter()
        result = call()
        self.times.append(time.perf_counter() - began)
        return result

    def show(self, system, size, note=""):
        spent = self.spent_us(len(self.times))
        times = sorted(self.times)
        median = times[len(times) // 2]
        print("%-6s %11s B  p50 %9.1f us  p99 %9.1f us  %7.2f GiB/s  cpu %9s us, peer %9s us%s" %
              (system, "{:,}".format(size), median * 1e6, times[len(times) * 99 // 100] * 1e6, size / median / 2**30, *spent, note), flush=True)

    def show_many(self, system, what):
        print("%-6s %s of %d x 4 KiB: %.2f ms" % (system, what, MANY, sorted(self.times)[len(self.times) // 2] * 1e3), flush=True)

    def show_idle(self, system):
        time.sleep(IDLE_S)
        print("%-6s idle: of a second %s us here, %s us in the peer" % (system, *self.spent_us(IDLE_S)), flush=True)


def produce(pipe, settings):
    import tryst

    with tryst.Server(job="producer", **COMMON, **settings) as server:
        pipe.send("%s@%s" % (server.worker, server.address))
        for number, size, count in iter(pipe.recv, None):
            array, step = numpy.full(size, number % 251, "u1"), server.step(number)
            began = time.perf_counter()
            for i in range(count):
                step.send("k%d" % i, array, to="/job:consumer/task:0")
            pipe.send((time.perf_counter() - began) / count)


def over_tryst(name):
    import tryst

    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=produce, args=(theirs, PATHS[name]), daemon=True)
    child.start()

    def sent(number, size, count):
        ours.send((number, size, count))
        return server.step(number), ours.recv()

    with tryst.Server(job="consumer", join=ours.recv(), **COMMON, **PATHS[name]) as server:
        for number, (size, count) in enumerate([(8, 200)] + SIZES, 1):
            (step, send_s), into, clock = sent(number, size, count), numpy.zeros(size, "u1"), Clock(child.pid)
            for i in range(count):
                clock.time(lambda i=i: step.recv("k%d" % i, frm="/job:producer/task:0", timeout=60, into=into))
            if not (into == number % 251).all():
                sys.exit("wrong bytes came")
            if number > 1:  # The first connects.
                clock.show(name, size, "  a send %.1f us" % (send_s * 1e6))
        many, clock = {"k%d" % i: numpy.zeros(4096, "u1") for i in range(MANY)}, Clock(child.pid)
        for number in range(50, 55):
            step, _ = sent(number, 4096, MANY)
            clock.time(lambda: step.recv_many(list(many), frm="/job:producer/task:0", timeout=60, into=list(many.values())).result())
            if not all((into == number % 251).all() for into in many.values()):
                sys.exit("wrong bytes came")
        clock.show_many(name, "recv_many(into=)")
        clock = Clock(child.pid)
        for number in range(60, 65):
            clock.time(lambda: server.step(number).send_many(many, to="/job:producer/task:0"))
        clock.show_many(name, "send_many")
        time.sleep(1)  # Until nobody looks for more any longer.
        Clock(child.pid).show_idle(name)
        ours.send(None)


def nixl_agent(name):
    import nixl_cu12._api as api

    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=[]))
    agent.create_backend("UCX", {})
    memory = numpy.zeros(SIZES[-1][0], "u1")
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, name)], "DRAM")
    return agent, memory


def nixl_target(pipe):
    agent, memory = nixl_agent("target")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    agent.add_remote_agent(pipe.recv())
    pipe.send(None)
    pipe.recv()


def over_nixl():
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=nixl_target, args=(theirs,), daemon=True)
    child.start()
    agent, memory = nixl_agent("reader")
    metadata, there = ours.recv()
    peer = agent.add_remote_agent(metadata)
    ours.send(agent.get_agent_metadata())
    ours.recv()

    def handle(size, count):
        pieces = [[(at + 2 * size * i, size, 0) for i in range(count)] for at in (memory.ctypes.data, there)]
        return agent.initialize_xfer("READ", *(agent.get_xfer_descs(piece, "DRAM") for piece in pieces), peer, b"")

    def read(transfer):
        state = agent.transfer(transfer)
        while state == "PROC":
            state = agent.check_xfer_state(transfer)

    for size, count in SIZES:
        transfer = handle(size, 1)
        read(transfer)
        clock = Clock(child.pid)
        for _ in range(count):
            clock.time(lambda: read(transfer))
        clock.show("nixl", size)
    transfer, clock = handle(4096, MANY), Clock(child.pid)
    for _ in range(20):
        clock.time(lambda: read(transfer))
    clock.show_many("nixl", "one READ")
    Clock(child.pid).show_idle("nixl")


def burn():
    until = time.monotonic() + BURN_S
    while os.getppid() != 1 and time.monotonic() < until:
        pass


def main():
    multiprocessing.set_start_method("spawn")
    systems = sys.argv[1:]
    if "--busy" in systems:
        systems.remove("--busy")
        for _ in range(os.cpu_count()):
            multiprocessing.Process(target=burn, daemon=True).start()
        print("with another process that spins on each of %d cores" % os.cpu_count(), flush=True)
    for system in systems or ["shm", "nixl", "soft"]:
        if system != "nixl":
            over_tryst(system)
            continue
        try:
            over_nixl()
        except ImportError as error:
            print("nixl is left out: %s" % error, flush=True)
    sys.stdout.flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # An agent's threads would not end.


if __name__ == "__main__":
    main()
