#!/usr/bin/env python3
"""bench/kv.py [--quick] [--abort] [--spans=64,4096,8192] [--peers=nixl] [SYSTEM ...]: many spans under one key, from Python.

Blocks that lie anywhere in a pool of another process of the host come into blocks that lie anywhere in ours: fetched from a
region ("region"), and sent and gathered ("send", the gather alone, as the send came before; its time stands beside it), over
shared memory and the software NIC. NIXL reads them by a handle that is used again, its best, and by one made anew. Medians and
99th percentiles of a fetch, in us a span, and processor time of both processes. --abort: how long after a cancel the memory is
ours again, and how many bytes came later than that. "agent" has both ends in NIXL's own agent, whose back end is ours or UCX, in turns:
TRYST_NIXL_PLUGINS names the folder of ./run plugin nixl.
"""
import multiprocessing
import os
import random
import sys
import time

import numpy

COUNT = 1000
TILE = numpy.random.default_rng(7).integers(0, 256, 1_048_583, "u1")  # What a pool has, again and again.
COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
PATHS = {"shm": dict(shm_bytes="3GiB"), "soft": dict(shm="off")}
PRODUCER, CONSUMER = "/job:producer/task:0", "/job:consumer/task:0"
LATE_S = 0.02


def processor_s(pid):
    """The processor time of a process, in seconds: clock_getcpuclockid(3) makes this number of it."""
    return time.clock_gettime(~pid << 3 | 2)


def pool_of(spans, size):
    """Four times what is fetched."""
    return numpy.empty(4 * spans * size, "u1")


def fill(pool):
    for at in range(0, len(pool), len(TILE)):
        part = pool[at:at + len(TILE)]
        part[:] = TILE[:len(part)]


def ids_of(seed, spans):
    return numpy.random.default_rng(seed).permutation(4 * spans)[:spans].astype("uint32")


class Clock:
    def __init__(self, peer):
        self.times, self.pids = [], (os.getpid(), peer)
        self.began = [processor_s(pid) for pid in self.pids]

    def time(self, call):
        began = time.perf_counter()
        call()
        self.times.append(time.perf_counter() - began)

    def show(self, system, spans, size, note=""):
        spent = [(processor_s(pid) - began) / len(self.times) / spans * 1e6 for pid, began in zip(self.pids, self.began)]
        times = sorted(self.times)
        median, late = times[len(times) // 2], times[len(times) * 99 // 100]
        print("%-12s %6d x %6d B  p50 %8.3f us a span  p99 %8.3f  %6.2f GiB/s  cpu %6.3f, peer %6.3f%s" %
              (system, spans, size, median / spans * 1e6, late / spans * 1e6, spans * size / median / 2**30, *spent, note), flush=True)


def check(mine, ours, theirs, size):
    for i in range(0, len(ours), max(1, len(ours) // 500)):
        there = (int(theirs[i]) * size + numpy.arange(size)) % len(TILE)
        if not (mine[int(ours[i]) * size:][:size] == TILE[there]).all():
            sys.exit("wrong bytes came")


def produce(pipe, settings):
    import tryst

    with tryst.Server(job="producer", **COMMON, **settings) as server:
        pipe.send("%s@%s" % (server.worker, server.address))
        for number, spans, size, sends in iter(pipe.recv, None):
            pool = pool_of(spans, size)
            fill(pool)
            step, took = server.step(number), 0.0
            with server.region("pool", pool):
                for timed in False, True:  # The first time its memory is new.
                    for i in range(sends):
                        select = tryst.Blocks(ids_of(i, spans), size)
                        began = time.perf_counter()
                        step.send("k%d" % i, pool, to=CONSUMER, select=select)
                        took += time.perf_counter() - began if timed else 0
                    pipe.send(took / sends)
                    pipe.recv()
            step.cleanup()
            pipe.send(None)


def over_tryst(path, sizes, rounds, abort):
    import tryst

    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=produce, args=(theirs, PATHS[path]), daemon=True)
    child.start()
    with tryst.Server(job="consumer", join=ours.recv(), **COMMON, **PATHS[path]) as server:
        for number, (spans, size) in enumerate(sizes, 1):
            sends = min(rounds, max(3, (1 << 29) // (spans * size)))
            ours.send((number, spans, size, sends))
            ours.recv()
            mine = pool_of(spans, size)
            fill(mine)
            mine ^= 0xff
            land = ids_of(10**6, spans)
            select = tryst.Blocks(land, size)

            def fetch(wanted, group=None):
                return server.fetch_region("pool", frm=PRODUCER, wanted=wanted, into=mine, select=select, timeout=60, group=group)

            wants = [tryst.Blocks(ids_of(i, spans), size) for i in range(3)]
            for want in wants:
                fetch(want).result()
            check(mine, land, ids_of(2, spans), size)
            if abort:
                storm(tryst, server, fetch, wants, mine, path, spans, size, rounds)
            clock = Clock(child.pid)
            for i in range(rounds):
                clock.time(lambda i=i: fetch(wants[i % 3]).result())
            clock.show("%s region" % path, spans, size)
            step = server.step(number)

            def gather(i):
                step.gather("k%d" % i, frm=PRODUCER, into=mine, select=select, timeout=60).result()

            for i in range(sends):
                gather(i)
            ours.send(None)
            send_s, clock = ours.recv(), Clock(child.pid)
            for i in range(sends):
                clock.time(lambda i=i: gather(i))
            check(mine, land, ids_of(sends - 1, spans), size)
            clock.show("%s send" % path, spans, size, "  a send %.3f us a span" % (send_s / spans * 1e6))
            step.cleanup()
            ours.send(None)
            ours.recv()
        ours.send(None)


def storm(tryst, server, fetch, wants, mine, path, spans, size, rounds):
    """Cancels fetches at random moments, and writes over where they land."""
    waits, late, ended = [], 0, 0
    whole = sorted(Timed(fetch, wants[0]) for _ in range(5))[2]
    for i in range(rounds):
        with server.group() as group:
            got = fetch(wants[i % 3], group)
            until = time.perf_counter() + random.random() * 1.2 * whole
            while time.perf_counter() < until:
                pass
            began = time.perf_counter()
            group.cancel().wait()
            waits.append(time.perf_counter() - began)
        mine[:] = 0x5a
        time.sleep(LATE_S if i % 10 == 0 else 0)
        late += int((mine != 0x5a).sum())
        try:
            got.result()
            ended += 1
        except tryst.Cancelled:
            pass
    waits.sort()
    print("%-12s %6d x %6d B  cancelled: ours again after p50 %.1f us, p99 %.1f, at most %.1f; %d of %d had ended; %d bytes came late" %
          (path, spans, size, waits[len(waits) // 2] * 1e6, waits[len(waits) * 99 // 100] * 1e6, waits[-1] * 1e6, ended, rounds, late), flush=True)


def Timed(fetch, want):
    began = time.perf_counter()
    fetch(want).result()
    return time.perf_counter() - began


def nixl_agent(name, memory, backend="UCX"):
    import nixl_cu12._api as api

    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=[]))
    agent.create_backend(backend, {})
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, name)], "DRAM")
    return agent


def nixl_target(pipe, spans, size, backend="UCX"):
    pool = pool_of(spans, size)
    fill(pool)
    agent = nixl_agent("target", pool, backend)
    pipe.send((agent.get_agent_metadata(), pool.ctypes.data))
    agent.add_remote_agent(pipe.recv())
    pipe.send(None)
    pipe.recv()


def nixl_pair(spans, size, backend="UCX"):
    """The process of a target, an agent that reads of it, its memory, a maker of handles, and what waits for one."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=nixl_target, args=(theirs, spans, size, backend), daemon=True)
    child.start()
    mine = pool_of(spans, size)
    fill(mine)
    mine ^= 0xff
    agent = nixl_agent("reader", mine, backend)
    metadata, there = ours.recv()
    peer = agent.add_remote_agent(metadata)
    ours.send(agent.get_agent_metadata())
    ours.recv()
    land = ids_of(10**6, spans)

    def handle(seed):
        rows = [numpy.column_stack([(at + ids.astype("uint64") * size), numpy.full(spans, size, "uint64"), numpy.zeros(spans, "uint64")])
                for at, ids in ((mine.ctypes.data, land), (there, ids_of(seed, spans)))]
        try:
            lists = [agent.get_xfer_descs(each, "DRAM") for each in rows]
        except Exception:  # An older interface takes tuples alone.
            lists = [agent.get_xfer_descs([tuple(int(n) for n in row) for row in each], "DRAM") for each in rows]
        return agent.initialize_xfer("READ", *lists, peer, b"")

    def read(transfer):
        state = agent.transfer(transfer)
        while state == "PROC":
            state = agent.check_xfer_state(transfer)
        if state != "DONE":
            sys.exit("nixl: %s" % state)

    child.pipe = ours  # It lives as long as this.
    return child, agent, mine, land, handle, read


def over_nixl(sizes, rounds):
    for spans, size in sizes:
        child, agent, mine, land, handle, read = nixl_pair(spans, size)
        handles = [handle(seed) for seed in range(3)]
        for transfer in handles:
            read(transfer)
        check(mine, land, ids_of(2, spans), size)
        clock = Clock(child.pid)
        for i in range(rounds):
            clock.time(lambda i=i: read(handles[i % 3]))
        clock.show("nixl", spans, size)
        clock = Clock(child.pid)

        def anew(seed):
            transfer = handle(seed)
            read(transfer)
            agent.release_xfer_handle(transfer)

        for i in range(min(rounds, 20)):
            clock.time(lambda i=i: anew(i))
        clock.show("nixl anew", spans, size)
        child.kill()


def by_agent(backend, sizes, rounds, plugins):
    os.environ["NIXL_LOG_LEVEL"] = "FATAL"
    if backend == "TRYST":
        os.environ["NIXL_PLUGIN_DIR"] = plugins
    for spans, size in sizes:
        child, agent, mine, land, handle, read = nixl_pair(spans, size, backend)
        transfer = handle(1)
        read(transfer)
        check(mine, land, ids_of(1, spans), size)
        time.sleep(0.5)
        began = processor_s(child.pid)
        time.sleep(2)
        idle = (processor_s(child.pid) - began) / 2
        clock = Clock(child.pid)
        for _ in range(min(10 * rounds if spans == 1 and size < 1 << 20 else rounds, max(5, (1 << 34) // (spans * size)))):
            clock.time(lambda: read(transfer))
        clock.show("agent " + backend, spans, size, "  idle target %.2f of a core" % idle)
        child.kill()
    sys.stdout.flush()
    os._exit(0)


def over_agent(rounds):
    import nixl_cu12  # noqa: F401

    plugins = os.environ.get("TRYST_NIXL_PLUGINS", "")
    if not os.path.exists(os.path.join(plugins, "libplugin_TRYST.so")):
        raise ImportError("TRYST_NIXL_PLUGINS names no folder with libplugin_TRYST.so: ./run plugin nixl")
    for _ in range(2):
        for backend in "TRYST", "UCX":
            child = multiprocessing.Process(target=by_agent, args=(backend, [(1, 8), (COUNT, 4096), (1, 256 << 20)], rounds, plugins))
            child.start()  # NIXL looks for its plug-ins once in a process.
            child.join()


def main():
    multiprocessing.set_start_method("spawn")
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--")}
    systems = [word for word in sys.argv[1:] if not word.startswith("--")] or ["shm", "nixl", "soft", "agent"]
    sizes = [(COUNT, int(size)) for size in (flags.get("--spans") or "64,4096,8192").split(",")]
    rounds = 20 if "--quick" in flags else 200
    if "--quick" not in flags and "--spans" not in flags:
        sizes.append((40_000, 8192))
    for system in systems:
        try:
            if system == "nixl":
                over_nixl(sizes, rounds)
            elif system == "agent":
                over_agent(rounds)
            else:
                over_tryst(system, sizes, rounds, "--abort" in flags)
        except ImportError as error:
            print("%s is left out: %s" % (system, error), flush=True)
    sys.stdout.flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # An agent's threads would not end.


if __name__ == "__main__":
    main()
