#!/usr/bin/env python3
"""bench/kv.py [--c=PROGRAM] [--quick] [--abort] [--spans=64,4096,40000x8192] [--turns=1] [--json=FILE] [SYSTEM ...]: many spans under one key.

Blocks that lie anywhere in a pool of another process of the host come into blocks that lie anywhere in ours, from Python: fetched from a
region ("region"), and sent and gathered ("send", the gather alone, as the send came before; its time stands beside it), over
shared memory and the software NIC; "checked" is a fetch from a region with digests. NIXL reads them by a handle that is used again,
its best, and by one made anew; Mooncake over TCP, which its "shm" is, too, by lists that are used again, and by lists made anew.
"c" is bench/kv.c: the fetch from a region by the C interface, over shared memory, from memory that both map, without grants, and over
the software NIC.
"agent" has both ends in NIXL's own agent, whose back end is ours or UCX, in turns: the wheel has ours.
--spans: what sizes, of 1,000 spans or as many as stand before an x. --turns: all systems so often in turns. Medians and 99th percentiles of a fetch, in us a span, processor time of both processes, and how much
of a core each takes with nothing to do.
--abort: how long after a cancel the memory is ours again, and how many bytes came later than that; of NIXL, after a release of its handle,
also over TCP, and through its agent. Mooncake has no such call.
--json: each row is appended there as a line.
"""
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time

import figures
import numpy

COUNT = 1000
TILE = numpy.random.default_rng(7).integers(0, 256, 1_048_583, "u1")  # What a pool has, again and again.
COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
PATHS = {"shm": dict(shm_bytes="3GiB"), "soft": dict(shm="off")}
PRODUCER, CONSUMER = "/job:producer/task:0", "/job:consumer/task:0"
LATE_S = 0.02
MOONCAKE_BATCH = 1000  # It refuses some tens of thousands at once.
IDLE_S, SETTLES_S = 1.0, 0.3
STORM_BYTES = 40 << 30  # So many are looked at for late ones, at most.


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


def record(system, spans, size, **figures_of_it):
    """A row for --json, which processes that were started here have in their environment."""
    if os.environ.get("TRYST_KV_JSON"):
        with open(os.environ["TRYST_KV_JSON"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"figure": "kv", "system": system, "spans": spans, "size_bytes": size,
                                   **{name: round(value, 4) for name, value in figures_of_it.items()},
                                   "machine": figures.machine(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}) + "\n")


def show(system, spans, size, median, late, spent, idle, note="", **more):
    """Seconds of a fetch; of processor in it, here and there; shares of a core that both take with nothing to do."""
    each = 1e6 / spans
    print("%-14s %6d x %6d B  p50 %8.3f us a span  p99 %8.3f  %6.2f GiB/s  cpu %6.3f, peer %6.3f  idle %.2f, %.2f of a core%s" %
          (system, spans, size, median * each, late * each, spans * size / median / 2**30, spent[0] * each, spent[1] * each, *idle, note),
          flush=True)
    record(system, spans, size, p50_us_span=median * each, p99_us_span=late * each, cpu_us_span=spent[0] * each, peer_cpu_us_span=spent[1] * each,
           idle_cores=idle[0], peer_idle_cores=idle[1], **more)


def show_storm(system, spans, size, waits, late, ended, refused=0):
    """Seconds from each cancel until the memory was ours."""
    waits.sort()
    median, most = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    print("%-14s %6d x %6d B  cancelled: ours again after p50 %.1f us, p99 %.1f, at most %.1f; %d of %d had ended%s; %d bytes came late" %
          (system, spans, size, median * 1e6, most * 1e6, waits[-1] * 1e6, ended, len(waits),
           ", %d were refused at first" % refused if refused else "", late), flush=True)
    record(system, spans, size, cancel_p50_us=median * 1e6, cancel_p99_us=most * 1e6, cancel_most_us=waits[-1] * 1e6, cancels=len(waits),
           ended=ended, refused=refused, late_bytes=late)


def idle_of(pids):
    time.sleep(SETTLES_S)
    began = [processor_s(pid) for pid in pids]
    time.sleep(IDLE_S)
    return [(processor_s(pid) - at) / IDLE_S for pid, at in zip(pids, began)]


class Clock:
    def __init__(self, peer, idle=None):
        self.times, self.pids = [], (os.getpid(), peer)
        self.idle = idle or idle_of(self.pids)
        self.began = [processor_s(pid) for pid in self.pids]

    def time(self, call):
        began = time.perf_counter()
        call()
        self.times.append(time.perf_counter() - began)

    def show(self, system, spans, size, note="", **more):
        spent = [(processor_s(pid) - began) / len(self.times) for pid, began in zip(self.pids, self.began)]
        times = sorted(self.times)
        show(system, spans, size, times[len(times) // 2], times[len(times) * 99 // 100], spent, self.idle, note, **more)


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
                    pipe.send(took / max(1, sends))
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
            sends = 0 if abort else min(rounds, max(3, (1 << 29) // (spans * size)))
            ours.send((number, spans, size, sends))
            ours.recv()
            mine = pool_of(spans, size)
            fill(mine)
            mine ^= 0xff
            land = ids_of(10**6, spans)
            select = tryst.Blocks(land, size)

            def fetch(wanted, group=None, digests=False):
                return server.fetch_region("pool", frm=PRODUCER, wanted=wanted, into=mine, select=select, timeout=60, group=group,
                                           digests=digests)

            wants = [tryst.Blocks(ids_of(i, spans), size) for i in range(3)]
            for want in wants:
                fetch(want).result()
            check(mine, land, ids_of(2, spans), size)
            if abort:
                storm(tryst, server, fetch, wants, mine, path, spans, size, rounds)
                ours.send(None)
                ours.recv()
                ours.send(None)
                ours.recv()
                continue
            clock = Clock(child.pid)
            for i in range(rounds):
                clock.time(lambda i=i: fetch(wants[i % 3]).result())
            clock.show("%s region" % path, spans, size)
            fetch(wants[0], digests=True).result()
            clock = Clock(child.pid, clock.idle)
            for i in range(rounds):
                clock.time(lambda i=i: fetch(wants[i % 3], digests=True).result())
            clock.show("%s checked" % path, spans, size)
            step = server.step(number)

            def gather(i):
                step.gather("k%d" % i, frm=PRODUCER, into=mine, select=select, timeout=60).result()

            for i in range(sends):
                gather(i)
            ours.send(None)
            send_s, clock = ours.recv(), Clock(child.pid, clock.idle)
            for i in range(sends):
                clock.time(lambda i=i: gather(i))
            check(mine, land, ids_of(sends - 1, spans), size)
            clock.show("%s send" % path, spans, size, "  a send %.3f us a span" % (send_s / spans * 1e6),
                       send_us_span=send_s / spans * 1e6)
            step.cleanup()
            ours.send(None)
            ours.recv()
        ours.send(None)


def storm(tryst, server, fetch, wants, mine, path, spans, size, rounds):
    """Cancels fetches at random moments, and writes over where they land."""
    waits, late, ended = [], 0, 0
    whole = sorted(Timed(lambda: fetch(wants[0]).result()) for _ in range(5))[2]
    for i in range(rounds_of(rounds, mine)):
        with server.group() as group:
            got = fetch(wants[i % 3], group)
            until = time.perf_counter() + random.random() * 1.2 * whole
            while time.perf_counter() < until:
                pass
            waits.append(Timed(lambda group=group: group.cancel().wait()))
        mine[:] = 0x5a
        time.sleep(LATE_S if i % 10 == 0 else 0)
        late += int((mine != 0x5a).sum())
        try:
            got.result()
            ended += 1
        except tryst.Cancelled:
            pass
    show_storm(path, spans, size, waits, late, ended)


def rounds_of(rounds, mine):
    return max(5, min(rounds, STORM_BYTES // len(mine)))


def Timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def storm_of_nixl(name, agent, mine, handle, read, spans, size, rounds):
    """The same by releases of its handles, as kit.py's `late` has them: another read then makes its agent go on."""
    waits, late, ended, refused, last = [], 0, 0, 0, len(mine) - size
    first = handle(0)
    whole = sorted(Timed(lambda: read(first)) for _ in range(5))[2]
    agent.release_xfer_handle(first)
    for i in range(rounds_of(rounds, mine)):
        transfer = handle(i % 3)
        state = agent.transfer(transfer)
        until = time.perf_counter() + random.random() * 1.2 * whole
        while time.perf_counter() < until and state == "PROC":
            state = agent.check_xfer_state(transfer)
        ended += state != "PROC"
        began = time.perf_counter()
        for attempt in range(10**6):
            try:
                agent.release_xfer_handle(transfer)
                break
            except Exception:  # It is refused until nothing lands.
                refused += attempt == 0
        waits.append(time.perf_counter() - began)
        mine[:] = 0x5a
        other = handle(1, 1)
        read(other)
        agent.release_xfer_handle(other)
        until = time.perf_counter() + (LATE_S if i % 10 == 0 else 0)
        while time.perf_counter() < until:
            agent.get_new_notifs()
        late += int((mine[:last] != 0x5a).sum())
    show_storm(name, spans, size, waits, late, ended, refused)


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

    def handle(seed, into_last=0):
        """Into the last block alone, where so many are wanted."""
        blocks = (numpy.array([4 * spans - 1]), ids_of(seed, spans)[:1]) if into_last else (land, ids_of(seed, spans))
        rows = [numpy.column_stack([(at + ids.astype("uint64") * size), numpy.full(len(ids), size, "uint64"), numpy.zeros(len(ids), "uint64")])
                for at, ids in zip((mine.ctypes.data, there), blocks)]
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


def used_and_anew(name, child, place, made, read, anew, rounds):
    """Three prepared reads, used again in turn, and then each made anew. What the last of them read is checked first."""
    mine, land, spans, size = place
    for one in made:
        read(one)
    check(mine, land, ids_of(2, spans), size)
    clock = Clock(child.pid)
    for i in range(rounds):
        clock.time(lambda i=i: read(made[i % 3]))
    clock.show(name, spans, size)
    clock = Clock(child.pid, clock.idle)
    for i in range(min(rounds, 20)):
        clock.time(lambda i=i: anew(i))
    clock.show(name + " anew", spans, size)
    child.kill()


def by_c(program, sizes, rounds, abort):
    if not program:
        raise ImportError("there is no program (--c)")
    for spans, size in sizes + ([] if abort else [(1, 8), (16, 4096)]):
        for name, setting in ("shm", "--shm=auto"), ("arena", "--shm=auto"), ("asked", "--shm=no_grants"), ("soft", "--shm=off"):
            if abort and name == "arena":
                continue
            mode = "abort" if abort else "arena" if name == "arena" else "gather"
            got = subprocess.run([program, str(spans), str(size), str(rounds), mode, setting],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout.split()
            median, last, own, peer, late, idle, peer_idle = [int(word) / 1e9 for word in got]
            if abort:
                late = round(late * 1e9)
                print("c %-12s %6d x %6d B  cancelled: ours again after p50 %.1f us, p99 %.1f; %d bytes came late" %
                      (name, spans, size, median * 1e6, last * 1e6, late), flush=True)
                record("c " + name, spans, size, cancel_p50_us=median * 1e6, cancel_p99_us=last * 1e6, cancels=rounds, late_bytes=late)
            else:
                show("c " + name, spans, size, median, last, (own, peer), (idle, peer_idle))


def over_nixl(sizes, most, abort, tcp=False):
    name = "nixl tcp" if tcp else "nixl"
    if tcp:
        os.environ["UCX_TLS"] = "tcp"
    try:
        for spans, size in sizes:
            rounds = min(most, 2_000_000 // spans)
            child, agent, mine, land, handle, read = nixl_pair(spans, size)

            def anew(seed):
                transfer = handle(seed)
                read(transfer)
                agent.release_xfer_handle(transfer)

            if abort:
                storm_of_nixl(name, agent, mine, handle, read, spans, size, rounds)
                child.kill()
            else:
                used_and_anew(name, child, (mine, land, spans, size), [handle(seed) for seed in range(3)], read, anew, rounds)
    finally:
        os.environ.pop("UCX_TLS", None)


def mooncake_engine(memory):
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0 or engine.register_memory(memory.ctypes.data, memory.nbytes) != 0:
        sys.exit("mooncake: its engine does not start")
    return engine


def mooncake_target(pipe, spans, size):
    pool = pool_of(spans, size)
    fill(pool)
    engine = mooncake_engine(pool)
    pipe.send(("127.0.0.1:%d" % engine.get_rpc_port(), pool.ctypes.data))
    pipe.recv()


def over_mooncake(sizes, most):
    import mooncake.engine  # noqa: F401

    for spans, size in sizes:
        rounds = min(most, 200_000 // spans)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=mooncake_target, args=(theirs, spans, size), daemon=True)
        child.start()
        mine = pool_of(spans, size)
        fill(mine)
        mine ^= 0xff
        engine = mooncake_engine(mine)
        peer, there = ours.recv()
        land = ids_of(10**6, spans)

        def lists(seed):
            pairs = [(at + ids.astype("uint64") * size).tolist() for at, ids in ((mine.ctypes.data, land), (there, ids_of(seed, spans)))]
            return [[each[i:i + MOONCAKE_BATCH] for each in (*pairs, [size] * spans)] for i in range(0, spans, MOONCAKE_BATCH)]

        def read(batches):
            for batch in batches:
                if engine.batch_transfer_sync_read(peer, *batch) != 0:
                    sys.exit("mooncake: a read failed")

        used_and_anew("mooncake", child, (mine, land, spans, size), [lists(seed) for seed in range(3)], read,
                      lambda seed: read(lists(seed)), rounds)


def by_agent(backend, sizes, rounds, abort, plugins):
    os.environ["NIXL_LOG_LEVEL"] = "FATAL"
    if backend == "TRYST":
        os.environ["NIXL_PLUGIN_DIR"] = plugins
    for spans, size in sizes:
        child, agent, mine, land, handle, read = nixl_pair(spans, size, backend)
        if abort:
            storm_of_nixl("agent " + backend, agent, mine, handle, read, spans, size, rounds)
            child.kill()
            continue
        transfer = handle(1)
        read(transfer)
        check(mine, land, ids_of(1, spans), size)
        clock = Clock(child.pid)
        for _ in range(min(10 * rounds if spans == 1 and size < 1 << 20 else rounds, max(5, (1 << 34) // (spans * size)))):
            clock.time(lambda: read(transfer))
        clock.show("agent " + backend, spans, size)
        child.kill()
    sys.stdout.flush()
    os._exit(0)


def over_agent(rounds, abort, sizes):
    import nixl_cu12  # noqa: F401

    import tryst.nixl

    plugins = tryst.nixl.PLUGINS
    for _ in range(1 if abort else 2):
        for backend in "TRYST", "UCX":
            sizes = sizes if abort else [(1, 8), (COUNT, 4096), (1, 256 << 20)]
            child = multiprocessing.Process(target=by_agent, args=(backend, sizes, rounds, abort, plugins))
            child.start()  # NIXL looks for its plug-ins once in a process.
            child.join()


def main():
    multiprocessing.set_start_method("spawn")
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--")}
    abort = "--abort" in flags
    if flags.get("--json"):
        os.environ["TRYST_KV_JSON"] = os.path.abspath(flags["--json"])
    systems = [word for word in sys.argv[1:] if not word.startswith("--")]
    systems = systems or (["c", "shm", "nixl", "nixl_tcp", "soft", "agent"] if abort else ["c", "shm", "nixl", "mooncake", "soft", "agent"])
    sizes = []
    for word in (flags.get("--spans") or "64,4096,8192").split(","):
        count, _, size = word.rpartition("x")
        sizes.append((int(count or COUNT), int(size)))
    rounds = 20 if "--quick" in flags else 200
    if "--quick" not in flags and "--spans" not in flags:
        sizes.append((40_000, 8192))
    for system in systems * int(flags.get("--turns") or 1):
        try:
            if system == "c":
                by_c(flags.get("--c"), sizes, rounds, abort)
            elif system in ("nixl", "nixl_tcp"):
                over_nixl(sizes, rounds, abort, system == "nixl_tcp")
            elif system == "mooncake" and abort:
                print("mooncake is left out: its reads cannot be cancelled", flush=True)
            elif system == "mooncake":
                over_mooncake(sizes, rounds)
            elif system == "agent":
                over_agent(rounds, abort, sizes)
            elif system in PATHS:
                over_tryst(system, sizes, rounds, abort)
            else:
                sys.exit("there is no system %s" % system)
        except ImportError as error:
            print("%s is left out: %s" % (system, error), flush=True)
    sys.stdout.flush()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # An agent's threads would not end.


if __name__ == "__main__":
    main()
