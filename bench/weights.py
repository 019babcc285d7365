#!/usr/bin/env python3
"""bench/weights.py: 256 MiB of weights from two processes that have their rows to two that want their columns.

  weights.py [--quick] [--path shm|soft] [--peers gloo,nixl,mooncake,ray] [--pause] [--rounds 5] [--json FILE]

The weights are 64 tensors of 1,024 rows of 4 KiB. A round has a turn of each system, in fresh processes: one sync that
warms up, then three of which the median counts; a figure is the median of the rounds. The members' memory is cleared
before each sync, and every byte of it is compared after each. "ready" is what owners do before anybody can take anything
(Tryst copies, digests and seals; Ray puts; some pack), and "taken" is from then on until both members have their columns in
arrays of their own. Of a peer's ways the fastest stands for it.

--pause: two members generate while versions are activated; how long they stand. --quick: 32 MiB, few rounds, both paths.
It fails where bytes or counts are wrong, and not by how long anything took; a peer that is not here counts as skipped.
"""
import argparse
import collections
import contextlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time

import figures
import numpy

OWNERS, MEMBERS = (0, 1), (2, 3)
ROWS, COLUMNS = 1024, 1024  # The elements are float32, so a row has 4 KiB.
HALF = 512  # Rows of an owner, columns of a member.
WARMING, SYNCS = 4, 3  # Owners of Tryst take new memory until they have kept as many versions as they keep.
GOALS = {("tryst shm", "nixl"): 0.35, ("tryst shm", "mooncake"): 0.2, ("tryst shm", "gloo"): 0.15, ("tryst shm", "ray"): 0.1,
         ("tryst soft", "gloo"): 0.6, ("tryst soft", "nixl tcp"): 0.7}
MOST_BYTES_OUT, ACTIVATION_MS, PAUSE_MS = 1.001, 5.0, 2.0
PATIENCE_S = 120
PATHS = {"shm": "shm", "soft": "rdma/soft"}  # As Server.paths() names them.
now = time.perf_counter  # All processes of the machine have the same.


def columns_of(member):
    return slice(member % 2 * HALF, (member % 2 + 1) * HALF)


def rows_of(owner):
    return slice(owner * HALF, (owner + 1) * HALF)


class End:
    """One of the processes. An owner has its `rows` of all tensors, a member wants its columns of them `into`."""

    package, ways, processes = "", ("",), 4

    def __init__(self, rank, exchange, path, tensors, permit=None):
        self.rank, self.exchange, self.path, self.tensors, self.permit = rank, exchange, path, tensors, permit
        self.owns = rank in OWNERS
        element = numpy.arange(ROWS * COLUMNS, dtype="f").reshape(ROWS, COLUMNS)
        if self.owns:
            self.base, self.rows = element[rows_of(rank)], self.room(HALF, COLUMNS)
        else:
            self.base, self.into = element[:, columns_of(rank)].copy(), self.room(ROWS, HALF)
        self.open()

    def room(self, rows, columns):
        return numpy.zeros((self.tensors, rows, columns), "f")

    def value(self, turn, number):
        """What is added to an element's place, which tells them apart: all are below 2^24, and exact."""
        return numpy.float32(turn * self.tensors + number)

    def fill(self, turn):
        if not self.owns:
            return self.into.fill(-1)
        for number, rows in enumerate(self.rows):
            numpy.add(self.base, self.value(turn, number), out=rows)
        return None

    def check(self, turn):
        if not self.owns:
            for number, into in enumerate(self.into):
                if not numpy.array_equal(into, self.base + self.value(turn, number)):
                    raise AssertionError(f"tensor {number} of turn {turn} has wrong bytes")

    def place(self, owner, rows):
        """What a member takes of whole rows."""
        self.into[:, rows_of(owner)] = rows[:, :, columns_of(self.rank)]

    def ready(self, way, turn):
        """Of owners. What it returns, members get."""

    def take(self, way, turn, offers):
        """Of all four."""

    def counts(self):
        return None

    def close(self):
        self.exchange(None)


class Tryst(End):
    """Publish and seal; fetch of a box into the member's arrays."""

    package, role, hold = "tryst", "observer", None

    def open(self):
        import tryst

        job, task = ("trainer", self.rank) if self.owns else ("engine", self.rank - 2)
        settings = dict(job=job, task=task, listen="127.0.0.1:0", insecure=True, open_cluster=True, shm_bytes="3GiB",
                        shm="off" if self.path == "soft" and not self.owns else "auto")  # As if between hosts.
        if self.rank == 0:
            self.server = tryst.Server(**settings).start()
        first = self.exchange(self.rank == 0 and f"{self.server.worker}@{self.server.address}")[0]
        if self.rank != 0:
            self.server = tryst.Server(join=first, **settings).start()
        self.exchange(None)
        self.end, self.sealed = self.joined("policy", self.role, self.tensors, (ROWS, COLUMNS)), 0
        if not self.owns:
            self.items = self.boxes(self.into)

    def joined(self, name, role, tensors, shape):
        from tryst.weights import Layout, Shard

        owners = [f"/job:trainer/task:{owner}" for owner in OWNERS]
        end = self.server.weights(name, role="owner" if self.owns else role, owners=owners, permit=self.permit,
                                  hold_bytes=None if self.owns else self.hold)
        if self.owns:
            end.declare([Layout(f"w{number}", "float32", shape, placements=[Shard(0)]) for number in range(tensors)])
        self.exchange(None)
        return end

    def boxes(self, arrays):
        return {f"w{number}": (numpy.s_[:, columns_of(self.rank)], array) for number, array in enumerate(arrays)}

    def ready(self, way, turn):
        with self.end.version(turn) as version:
            for number, rows in enumerate(self.rows):
                version.publish(f"w{number}", rows)
        self.sealed += 1

    def take(self, way, turn, offers):
        if not self.owns:
            self.end.fetch(turn, self.items)

    def counts(self):
        """Bytes that left this owner for members, by path, and bytes of the boxes that it has sealed."""
        if not self.owns:
            return None
        left = collections.Counter()
        for path in self.server.paths()["paths"]:
            if path["role"] == "serve" and path["peer"].startswith("/job:engine/"):
                left[path["path"]] += path["bytes"]
        return +left, self.sealed * self.rows.nbytes

    def close(self):
        self.exchange(None)
        self.end.close()
        self.exchange(None)
        self.server.stop()


class TrystRelaying(Tryst):
    """Eight members, of which four want the same columns each, and which have for others what they have fetched."""

    role, hold, processes = "member", 1 << 30, 10
    newest = 0  # That the set's log has sealed, as far as this member has heard.

    def take(self, way, turn, offers):
        while not self.owns and self.newest < turn:  # What its log does not know yet a member does not have for others.
            event = self.end.next_event(PATIENCE_S)
            self.newest = event.number if event.kind == "sealed" else self.newest
        super().take(way, turn, offers)


class Gloo(End):
    """torch.distributed. broadcast: the rows of each owner. gathered: one owner gathers all rows and broadcasts them.
    send: columns that an owner packs for each member, into their place."""

    package, ways = "torch", ("broadcast", "gathered", "send")

    def open(self):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        torch.set_num_threads(1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = self.exchange("127.0.0.1:%d" % free.getsockname()[1])[0]
        dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=self.rank, world_size=4)
        self.groups = [dist.new_group([owner, *MEMBERS]) for owner in OWNERS]
        self.owners = dist.new_group(list(OWNERS))
        self.whole = [self.room(HALF, COLUMNS) for _ in OWNERS]
        if self.owns:
            self.packed = [self.room(HALF, HALF) for _ in MEMBERS]

    def take(self, way, turn, offers):
        getattr(self, way)()

    def broadcast(self):
        rows = list(self.whole)
        if self.owns:
            rows[self.rank] = self.rows
        works = {owner: self.dist.broadcast(self.torch.from_numpy(rows[owner]), owner, self.groups[owner], async_op=True)
                 for owner in OWNERS if not self.owns or owner == self.rank}
        for owner, work in works.items():
            work.wait()
            if not self.owns:
                self.place(owner, self.whole[owner])

    def gathered(self):
        whole = [self.torch.from_numpy(one) for one in self.whole]
        if self.owns:
            self.dist.all_gather(whole, self.torch.from_numpy(self.rows), self.owners)
        for owner, one in zip(OWNERS, whole):
            if self.rank != 1:
                self.dist.broadcast(one, 0, self.groups[0])
            if not self.owns:
                self.place(owner, self.whole[owner])

    def send(self):
        works = []
        for number in range(self.tensors):
            for member, packed in zip(MEMBERS, self.packed) if self.owns else ():
                packed[number] = self.rows[number, :, columns_of(member)]
                works.append(self.dist.isend(self.torch.from_numpy(packed[number]), member, tag=number))
            for owner in () if self.owns else OWNERS:
                place = self.into[number, rows_of(owner)]
                works.append(self.dist.irecv(self.torch.from_numpy(place), owner, tag=number))
        for work in works:
            work.wait()

    def close(self):
        super().close()
        self.dist.destroy_process_group()


class Registered(End):
    """Reads of registered memory, by lists that are made before the clock starts. runs: 2 KiB of each row, into their place.
    rows: whole rows, of which the member takes its columns. packed: columns that owners have packed, into their place."""

    ways = ("runs", "rows", "packed")

    def open(self):
        self.start()
        if self.owns:
            self.packed = [self.room(HALF, HALF) for _ in MEMBERS]
            mine = [self.rows, *self.packed]
        else:
            self.whole = [self.room(HALF, COLUMNS) for _ in OWNERS]
            mine = [self.into, *self.whole]
        for array in mine:
            self.register(array.ctypes.data, array.nbytes)
        ends = self.exchange((self.offer(), [array.ctypes.data for array in mine]))
        self.meet([offer for offer, _ in ends])
        self.lists = {}
        for owner in () if self.owns else OWNERS:
            pieces = self.pieces(owner, *ends[owner][1])
            self.lists.update({(way, owner): self.prepared(owner, pieces[way]) for way in self.ways})
        self.exchange(None)

    def pieces(self, owner, rows, *packed):
        """By way: (to, from, bytes)."""
        box = HALF * HALF * 4  # This owner has so many bytes of a tensor for this member.
        run, row = HALF * 4, COLUMNS * 4
        into = self.into.ctypes.data + owner * box
        skipped = (self.rank - 2) * run
        each = range(self.tensors)
        return {
            "runs": [(into + number * 2 * box + i * run, rows + skipped + (number * HALF + i) * row, run)
                     for number in each for i in range(HALF)],
            "rows": [(self.whole[owner].ctypes.data + number * 2 * box, rows + number * 2 * box, 2 * box)
                     for number in each],
            "packed": [(into + number * 2 * box, packed[self.rank - 2] + number * box, box) for number in each]}

    def ready(self, way, turn):
        if way == "packed":
            for member, packed in zip(MEMBERS, self.packed):
                packed[:] = self.rows[:, :, columns_of(member)]

    def take(self, way, turn, offers):
        if self.owns:
            return
        self.read([self.lists[way, owner] for owner in OWNERS])
        for owner in OWNERS if way == "rows" else ():
            self.place(owner, self.whole[owner])


class Nixl(Registered):
    """READ by UCX, by handles that are used again. Owners need its thread, which spins; members poll by themselves, and are
    faster without it. Over TCP each owner is faster on one core with a member, where there are too few cores for all."""

    package = "nixl"

    def start(self):
        if self.path == "soft":
            os.environ["UCX_TLS"] = "tcp"
            if os.cpu_count() < 8:
                os.sched_setaffinity(0, {self.rank % os.cpu_count()})
        import nixl_cu12._api as api

        self.agent = api.nixl_agent(f"end{self.rank}", api.nixl_agent_config(enable_prog_thread=self.owns, backends=[]))
        self.agent.create_backend("UCX", {})

    def register(self, address, size):
        self.agent.register_memory([(address, size, 0, "")], "DRAM")

    def offer(self):
        return self.agent.get_agent_metadata()

    def meet(self, offers):
        self.names = [rank == self.rank or self.agent.add_remote_agent(offer) for rank, offer in enumerate(offers)]

    def prepared(self, owner, pieces):
        to = self.agent.get_xfer_descs([(to, size, 0) for to, _, size in pieces], "DRAM")
        at = self.agent.get_xfer_descs([(at, size, 0) for _, at, size in pieces], "DRAM")
        return self.agent.initialize_xfer("READ", to, at, self.names[owner], b"")

    def read(self, handles):
        left = [handle for handle in handles if self.agent.transfer(handle) == "PROC"]
        while left:
            states = [(handle, self.agent.check_xfer_state(handle)) for handle in left]
            if wrong := {state for _, state in states} - {"PROC", "DONE"}:
                raise RuntimeError(f"a READ ended as {wrong}")
            left = [handle for handle, state in states if state == "PROC"]


class Mooncake(Registered):
    """Its transfer engine, over TCP: a batch of reads of each owner in turn. It refuses batches of as many as runs are."""

    package, ways = "mooncake-transfer-engine-non-cuda", ("rows", "packed")

    def start(self):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("its engine does not start")

    def register(self, address, size):
        if self.engine.register_memory(address, size) != 0:
            raise RuntimeError("memory was not registered")

    def offer(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def meet(self, offers):
        self.names = offers

    def prepared(self, owner, pieces):
        return self.names[owner], *(list(each) for each in zip(*pieces))

    def read(self, lists):
        for one in lists:
            if self.engine.batch_transfer_sync_read(*one) != 0:
                raise RuntimeError("a read failed")


class Ray(End):
    """The object store of its own: an owner puts its rows, and a member takes its columns of the view that it gets."""

    package = "ray"

    def open(self):
        import ray

        self.ray, address = ray, None
        if self.rank == 0:
            address = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error",
                               object_store_memory=2 << 30).address_info["gcs_address"]
        address = self.exchange(address)[0]
        if self.rank != 0:
            ray.init(address, log_to_driver=False, logging_level="error")
        self.exchange(None)

    def ready(self, way, turn):
        self.kept = self.ray.put(self.rows)
        return self.ray.cloudpickle.dumps(self.kept)

    def take(self, way, turn, offers):
        for owner in () if self.owns else OWNERS:
            self.place(owner, self.ray.get(self.ray.cloudpickle.loads(offers[owner]), timeout=PATIENCE_S))

    def close(self):
        super().close()
        if self.rank != 0:
            self.ray.shutdown()
        self.exchange(None)
        if self.rank == 0:
            self.ray.shutdown()


class Generating:
    """A member's loop. What it writes down of each piece of work: when it began and ended, and the version it had."""

    begins_behind = 0

    def generate(self, pipe, number):
        """Until that version was used and the pipe has something."""
        done = []
        while not (done and done[-1][2] == number and pipe.poll()):
            if (piece := self.piece()) is not None:
                done.append(piece)
        return done

    def work(self, number, arrays, vector=numpy.ones(HALF, "f")):
        began = now()
        for array in arrays[:2]:
            array @ vector
        return began, now(), number


class TrystGenerating(Generating, Tryst):
    """Members serve what is active while they stage what is next beside it, in the other one of two copies."""

    role = "member"

    def open(self):
        super().open()
        self.small = self.joined("small", "member", 1, (16, 16))
        self.served = None
        if not self.owns:
            copies = [self.boxes(self.into), self.boxes(self.room(ROWS, HALF))]
            self.follow(self.end, lambda number: copies[number % 2], self.switch)
            self.follow(self.small, lambda number: None, lambda number, tensors: None)

    def follow(self, end, stage, switch):
        threading.Thread(target=end.follow, args=(stage, switch), daemon=True).start()

    def switch(self, number, tensors):
        self.into = list(tensors.values())
        self.served = number, self.into

    def piece(self):
        from tryst.errors import FailedPrecondition

        with contextlib.suppress(FailedPrecondition), self.end.serving():
            return self.work(*self.served)
        return time.sleep(1e-4)  # Nothing may be served now.

    def fill(self, turn):
        if self.owns:
            super().fill(turn)

    def seal_small(self, turn):
        with self.small.version(turn) as version:
            version.publish("w0", numpy.full((8, 16), turn, "f"))

    def activate(self, name, number, mode):
        """How long it took."""
        began = now()
        (self.end if name == "policy" else self.small).activate(number, mode, timeout=PATIENCE_S)
        return now() - began

    def close(self):
        self.small.close()
        super().close()


class GlooGenerating(Generating, Gloo):
    """Members stand while they receive into the only copy."""

    begins_behind, number = 1, 0

    def piece(self):
        return self.work(self.number, self.into)

    def fill(self, turn):
        if self.owns:
            super().fill(turn)

    def take(self, way, turn, offers):
        super().take(way, turn, offers)
        self.number = turn


SYSTEMS = {  # Kind, path.
    "tryst shm": (Tryst, "shm"), "tryst soft": (Tryst, "soft"), "gloo": (Gloo, ""), "nixl": (Nixl, "shm"),
    "nixl tcp": (Nixl, "soft"), "mooncake": (Mooncake, ""), "ray": (Ray, "")}


def run_end(kind, rank, pipe, log, *settings):
    """One of them: does what it is told, and says when it had done it and how much processor time it has taken."""
    with open(log, "ab") as file:  # Libraries write to both.
        for descriptor in 1, 2:
            os.dup2(file.fileno(), descriptor)

    def exchange(value):
        pipe.send(("all", value))
        return pipe.recv()

    try:
        end, answer = kind(rank, exchange, *settings), kind.ways
        while True:
            pipe.send(("did", (answer, now(), time.process_time())))
            command, *args = pipe.recv()
            answer = getattr(end, command)(*([pipe] if command == "generate" else []), *args)
            if command == "close":
                break
        pipe.send(("did", (None, now(), 0.0)))
    except BaseException as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    os._exit(0)  # Threads of some libraries do not end.


class Failed(Exception):
    """What is wrong with a system."""


class Ends:
    """The processes of a system, from here."""

    def __init__(self, kind, *settings):
        context = multiprocessing.get_context("spawn")
        self.log = tempfile.NamedTemporaryFile()
        self.pipes, self.processes = [], []
        for rank in range(kind.processes):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=run_end, args=(kind, rank, theirs, self.log.name, *settings)))
            self.processes[-1].start()
            theirs.close()

    def __enter__(self):
        try:
            self.ways = self.hear()[0][0]
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.do("close")
        for process in self.processes:
            if kind is not None:
                process.kill()
            process.join()
        self.log.close()

    def message(self, rank):
        try:
            if not self.pipes[rank].poll(PATIENCE_S):
                raise Failed(f"nothing came of process {rank} for {PATIENCE_S} s")
            what, message = self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join()
            last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Failed(f"process {rank} ended with {self.processes[rank].exitcode}: {last}") from None
        if what == "failed":
            raise Failed(message)
        return what, message

    def hear(self, ranks=None):
        """What each answered, when, and its processor time."""
        while True:
            messages = [self.message(rank) for rank in ranks or range(len(self.pipes))]
            if messages[0][0] == "did":
                return [message for _, message in messages]
            for pipe in self.pipes:
                pipe.send([message for _, message in messages])

    def tell(self, command, *args, ranks=None):
        for rank in ranks or range(len(self.pipes)):
            self.pipes[rank].send((command, *args))

    def do(self, command, *args, ranks=None):
        self.tell(command, *args, ranks=ranks)
        return self.hear(ranks)

    def sync(self, way, turn):
        """How long owners took to be ready, how long members then took, and processor time of all."""
        before = self.do("fill", turn)
        began = now()
        offers = self.do("ready", way, turn, ranks=OWNERS)
        ready = max(ended for _, ended, _ in offers) - began
        began = now()
        taken = self.do("take", way, turn, [offer for offer, _, _ in offers])
        took = max(ended for _, ended, _ in taken) - began
        spent = self.do("counts")  # An owner says at once that it has taken, and then answers.
        self.do("check", turn)
        return ready, took, sum(after - then for (_, _, after), (_, _, then) in zip(spent, before))


class Loaded:
    """How many cores others use: looked at while nothing runs here."""

    def __init__(self):
        self.seen = []

    def look(self, seconds=0.3):
        before, began = figures.busy_seconds(), now()
        time.sleep(seconds)
        self.seen.append((figures.busy_seconds() - before) / (now() - began))


class Ledger:
    """What was right, wrong or left out."""

    def __init__(self):
        self.passed, self.wrong, self.left_out, self.out = 0, [], {}, {}

    def check(self, right, what):
        self.passed += bool(right)
        if not right:
            self.wrong.append(what)

    def failed(self, name, why):
        if name.startswith("tryst"):
            self.wrong.append(f"{name}: {why}")
        else:
            self.left_out[name] = why


def resharded(names, options, loaded, ledger):
    """By system and way: medians of ready, taken and processor seconds. Their bytes are checked on the way."""
    rounds = collections.defaultdict(list)
    for _ in range(options.rounds):
        for name in [name for name in names if name not in ledger.left_out]:
            loaded.look()
            kind, path = SYSTEMS[name]
            try:
                with Ends(kind, path, options.tensors) as ends:
                    for at, way in enumerate(ends.ways):
                        syncs = [ends.sync(way, at * (WARMING + SYNCS) + turn) for turn in range(1, WARMING + SYNCS + 1)][WARMING:]
                        rounds[name, way].append([statistics.median(column) for column in zip(*syncs)])
                        ledger.passed += 1
                    if kind is Tryst:
                        check_counts(name, [count for count, _, _ in ends.do("counts", ranks=OWNERS)], ledger)
            except Failed as failure:
                ledger.failed(name, str(failure))
    return {key: [statistics.median(column) for column in zip(*value)]
            for key, value in rounds.items() if key[0] not in ledger.left_out}


def check_counts(name, counts, ledger):
    """Each member wants half of each box, so that all of it leaves once, to one of those that want the same."""
    for left, boxes in counts:
        ledger.out[name] = sum(left.values()) / boxes
        ledger.check(1 <= ledger.out[name] <= MOST_BYTES_OUT, f"{name}: {ledger.out[name]:.5f} of its boxes left an owner")
        ledger.check(list(left) == [PATHS[name.split()[1]]], f"{name}: the bytes went by {dict(left)}")


def relayed(path, options, ledger):
    """As of resharded(), of one round with eight members."""
    name = f"tryst {path} with 8 members"
    try:
        with Ends(TrystRelaying, path, options.tensors, options.permit) as ends:
            syncs = [ends.sync("", turn) for turn in range(1, WARMING + SYNCS + 1)][WARMING:]
            ledger.passed += 1
            check_counts(name, [count for count, _, _ in ends.do("counts", ranks=OWNERS)], ledger)
    except Failed as failure:
        ledger.failed(name, str(failure))
        return {}
    return {(name, "relay"): [statistics.median(column) for column in zip(*syncs)]}


def switches(logs):
    """How long each member stood: from its last piece of work with a version to its first one with the next."""
    return [begin - end for log in logs for (_, end, before), (begin, _, after) in zip(log, log[1:]) if before != after]


def speed(logs, began, ended):
    return sum(began <= begin < ended for log in logs for begin, _, _ in log) / (ended - began)


def one_at_a_time(logs):
    """Whether each version's last piece of work of all members ends before the next one's first."""
    ends, begins = collections.defaultdict(float), {}
    for begin, end, number in sorted(piece for log in logs for piece in log):
        begins.setdefault(number, begin)
        ends[number] = max(ends[number], end)
    order = sorted(begins)
    return all(ends[before] <= begins[after] for before, after in zip(order, order[1:]))


def stood(kind, settings, turns, bring):
    """How long members stood for a version, and how fast they work while one comes beside how fast they work before.
    `bring(ends, turn)` brings it, and gives what work was written down meanwhile."""
    stands, speeds, orders = [], [], []
    with Ends(kind, *settings) as ends:
        for turn in range(1, WARMING + turns + 1):
            ends.do("fill", turn, ranks=OWNERS)
            ends.tell("generate", turn - kind.begins_behind, ranks=MEMBERS)
            time.sleep(0.3)
            began = now()
            logs = bring(ends, turn)
            ended = now()
            ends.tell("check", turn, ranks=MEMBERS)
            logs = [before + log for before, (log, _, _) in zip(logs, ends.hear(MEMBERS))]
            ends.hear(MEMBERS)
            if turn > WARMING:
                stands += switches(logs)
                speeds.append(speed(logs, began, ended) / speed(logs, began - 0.2, began))
                orders.append(one_at_a_time(logs))
    return {"count": len(stands), "p50": statistics.median(stands), "p99": sorted(stands)[int(len(stands) * 0.99)],
            "speed": statistics.median(speeds), "one_at_a_time": all(orders)}


def activated(mode):
    def bring(ends, turn):
        ends.do("ready", "", turn, ranks=OWNERS)
        ends.do("activate", "policy", turn, mode, ranks=OWNERS[:1])
        return [[], []]
    return bring


def received(way):
    def bring(ends, turn):
        ends.tell("take", way, turn, None)
        logs = [log for log, _, _ in ends.hear(MEMBERS)]
        ends.hear()
        ends.tell("generate", turn, ranks=MEMBERS)
        return logs
    return bring


def small_activations(path, permit, turns):
    """Seconds of an activation that has nothing to move, by mode."""
    with Ends(TrystGenerating, path, 1, permit) as ends:
        took = {"rolling": [], "barrier": []}
        for turn in range(1, 2 * turns + 1):
            ends.do("seal_small", turn, ranks=OWNERS)
            mode = "rolling" if turn <= turns else "barrier"
            took[mode].append(ends.do("activate", "small", turn, mode, ranks=OWNERS[:1])[0][0])
    return {mode: statistics.median(times) for mode, times in took.items()}


def print_resharded(table, ledger):
    best = {}
    for (name, way), (ready, taken, _) in table.items():
        if name not in best or ready + taken < sum(best[name]):
            best[name] = ready, taken
    print("| system | way | ready, ms | taken, ms | both, ms | processor s |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (name, way), (ready, taken, processor) in table.items():
        print(f"| {name} | {way} | {ready * 1e3:.1f} | {taken * 1e3:.1f} | {(ready + taken) * 1e3:.1f} | {processor:.2f} |")
    if ratios := [pair for pair in GOALS if best.keys() >= set(pair)]:
        print("\n| of a peer's fastest way | taken | both | goal |\n| --- | ---: | ---: | ---: |")
    for ours, peer in ratios:
        taken, both = best[ours][1] / best[peer][1], sum(best[ours]) / sum(best[peer])
        print(f"| {ours} / {peer} | {taken:.2f} | {both:.2f} | {GOALS[ours, peer]} |")
    for name, out in ledger.out.items():
        print(f"\n{name}: {out:.5f} of the bytes of its boxes leave an owner (goal {MOST_BYTES_OUT})")


def print_stood(stands):
    print(f"\n| a version comes | members stand, p50, ms | p99, ms (goal {PAUSE_MS}) | speed of their work |")
    print("| --- | ---: | ---: | ---: |")
    for name, stand in stands.items():
        print(f"| {name} | {stand['p50'] * 1e3:.2f} | {stand['p99'] * 1e3:.2f} | {stand['speed']:.2f} |")


def versions(names):
    packages = {SYSTEMS[name][0].package for name in names}
    return {package: importlib.metadata.version(package) for package in sorted(packages)}


def chosen(options, ledger):
    """The systems that are measured; those that are not installed are left out."""
    peers = (("" if options.quick else "gloo,nixl,mooncake,ray") if options.peers is None else options.peers).split(",")
    for name, (kind, path) in SYSTEMS.items():
        if path and options.path not in (None, path) or kind is not Tryst and kind.__name__.lower() not in peers:
            continue
        try:
            importlib.metadata.version(kind.package)
            yield name
        except importlib.metadata.PackageNotFoundError:
            ledger.failed(name, f"{kind.package} is not installed")


def paused(names, options, loaded, ledger):
    turns = 3 if options.quick else 25
    works = []
    for name in names:
        kind, path = SYSTEMS[name]
        if kind is Tryst:
            works += [(name, f"{name}, {mode}", TrystGenerating, path, activated(mode)) for mode in ("rolling", "barrier")]
        if kind is Gloo:
            works += [(name, f"{name}, {way}", GlooGenerating, path, received(way)) for way in ("broadcast", "send")]
    stands = {}
    for name, label, kind, path, bring in works:
        loaded.look()
        try:
            stands[label] = stood(kind, (path, options.tensors, options.permit), turns, bring)
            ledger.check(stands[label]["count"] >= 2 * turns, f"{label}: members switched {stands[label]['count']} times")
            if "barrier" in label:
                ledger.check(stands[label]["one_at_a_time"], f"{label}: two versions were used at one moment")
        except Failed as failure:
            ledger.failed(name, str(failure))
    return stands


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--path", choices=PATHS)
    parser.add_argument("--peers", help="separated by commas; by default all, and none with --quick")
    parser.add_argument("--pause", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", help="where the figures are appended as a line")
    options = parser.parse_args()
    options.tensors = 8 if options.quick else 64
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.permit = 5.0 if options.quick else None  # Members of a test may be starved for longer than one usually has.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
                      RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    ledger, loaded, activations, stands = Ledger(), Loaded(), {}, {}
    names = list(chosen(options, ledger))
    table = resharded(names, options, loaded, ledger)
    ours = [name for name in names if SYSTEMS[name][0] is Tryst][:1]  # One of the two paths is enough for what follows.
    for name in ours:
        table.update(relayed(SYSTEMS[name][1], options, ledger))
    print_resharded(table, ledger)
    for name in ours:
        activations = small_activations(SYSTEMS[name][1], options.permit, 10 if options.quick else 100)
        print(f"\n{name}: activation of 1 KiB, p50 (goal {ACTIVATION_MS} ms): " +
              ", ".join(f"{mode} {took * 1e3:.2f} ms" for mode, took in activations.items()))
    if options.pause or options.quick:
        stands = paused([name for name in names if name in ours or name == "gloo"], options, loaded, ledger)
        print_stood(stands)
    loaded.look()
    print(f"\nMedians of {options.rounds} rounds, {options.tensors * ROWS * COLUMNS >> 18} MiB; {figures.machine()}; "
          f"{', '.join(' '.join(pair) for pair in versions(names).items())}; between the turns others used "
          f"{statistics.median(loaded.seen):.1f} cores, at most {max(loaded.seen):.1f}.\n")
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps({
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": figures.machine(),
                "versions": versions(names), "others": loaded.seen, "bytes_out": ledger.out, "activation_s": activations,
                "pause_s": stands, "reshard_s": [[*key, *value] for key, value in table.items()],
                "left_out": ledger.left_out}) + "\n")
    for name, why in ledger.left_out.items():
        print(f"SKIPPED {name}: {why}")
    for what in ledger.wrong:
        print(f"FAILED {what}")
    print(f"{ledger.passed} passed, {len(ledger.wrong)} failed, {len(ledger.left_out)} skipped")
    return 1 if ledger.wrong or not ledger.passed else 0


if __name__ == "__main__":
    sys.exit(main())
