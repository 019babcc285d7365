"""A worker for the audit, on the package `tryst` as its users have it: client.py LIFE FOLDER SETTING=VALUE...

Obeys the lines of its standard input, says on standard output how far it is, and writes each call and its end into
FOLDER/LIFE.history (checker.py has the form). It judges nothing.

  produce STREAM PEER INCARNATION STEP KEYS COUNT LARGEST PAUSE_MS WAY   sends COUNT tensors of each key, and says "sent STREAM"
  consume STREAM PEER INCARNATION STEP KEYS COUNT LARGEST PAUSE_MS WAY   receives them, and says "got STREAM"
  over STREAM [path]    cleans up, says "closed STREAM"; before that, writes down the path in use
  show                  says on standard error what it waits for
  bye                   stops

A stream's bytes come from a pool of chance that each life draws; a head before them says what they are.
"""
import asyncio
import faulthandler
import itertools
import os
import random
import struct
import sys
import threading
import time
import zlib

import tryst

HEAD = struct.Struct("<QIIQQ")  # Stream, key, number, bytes, a life's own number.
POOL_BYTES = 1 << 20
SIZES = (32, 100, 500, 4096, 8400, 8500, 30_000, 100_000, 262_144, 262_145, 700_000, 1_100_000)
WEIGHTS = (4, 4, 8, 8, 4, 4, 4, 3, 2, 2, 1, 1)
AHEAD = 6  # Receives of a key that are out at once.
LATER_S = 2.0  # When the memory of a receive that failed is looked at again.
LEAST_PAUSE_S = 0.02  # After a failure.


def now():
    return time.monotonic_ns() // 1000


def sum_of(data):
    return "%08x%08x" % (zlib.crc32(data), zlib.adler32(data))


class History:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.calls = itertools.count(1)

    def write(self, *words):
        """One write a line: lines of threads do not mix, and a kill takes none back."""
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def send(self, stream, key, seq, data):
        call = next(self.calls)
        self.write("S", call, stream, key, seq, len(data), sum_of(data), now())
        return call

    def receive(self, stream, key, timeout, way):
        call = next(self.calls)
        self.write("R", call, stream, key, -1 if timeout is None else round(timeout * 1000), way, now())
        return call

    def failed(self, call, error):
        """Returns with what code. The words are for who reads the history."""
        code = code_of(error)
        self.write("r", call, code, now())
        if code not in (1, 4):
            self.write("M", call, error.message[:200].encode("ascii", "replace").decode().replace("\n", "?"))
        return code

    def received(self, call, tensor):
        at = now()
        data = memoryview(tensor).cast("B")
        if len(data) < HEAD.size:
            self.write("r", call, 0, at, "short", "?", -1, len(data), sum_of(data))
            return None
        stream, key, seq, size, _ = HEAD.unpack_from(data)
        if size != len(data):
            key = "of-%d-bytes" % size
        self.write("r", call, 0, at, stream, key, seq, len(data), sum_of(data))
        return seq


def code_of(error):
    return tryst.errors.CODES.get(error.code, 2)


class Stream:
    """One way between two lives: `count` tensors of each of `keys` keys, in one step, or with WAY `steps` in a step each."""

    def __init__(self, client, name, peer, _, step, keys, count, largest, pause_ms, way):
        self.client, self.server, self.history = client, client.server, client.history
        self.name, self.peer, self.way = name, peer, way
        self.first, self.keys, self.count = int(step), int(keys), int(count)
        self.pause = int(pause_ms) / 1000
        self.sizes = [size for size in SIZES if size <= int(largest)]
        self.weights = WEIGHTS[:len(self.sizes)]
        self.random = random.Random(f"{client.life} {name}")
        self.over = threading.Event()
        self.steps = range(self.first, self.first + (self.count if way == "steps" else 1))
        self.threads = []
        self.cancelled_tasks = None

    def start(self, what):
        thread = threading.Thread(target=self._guarded, args=(what,), name=f"{self.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _guarded(self, what):
        try:
            what()
        except Exception:  # This program itself is wrong: the audit must not go on as if nothing were.
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)

    def close(self):
        """Ends what waits here."""
        self.over.set()
        for step in self.steps:
            self.history.write("C", self.name, now())
            self.server.step(step).cleanup()
        for thread in self.threads:
            thread.join(30)
            if thread.is_alive():
                print("hangs %s" % self.name, flush=True)
        self.client.say("closed", self.name)

    def size_of(self, key):
        """In streams into memory of the consumer's, each key has one size, which both ends know."""
        return self.sizes[(int(self.name) + key) % len(self.sizes)]

    # ---- Sends ----

    def make(self, key, seq):
        if self.way in ("into", "steps"):
            size = self.size_of(key % self.keys)
        else:
            size = self.random.choices(self.sizes, self.weights)[0]
        size = max(size, HEAD.size)
        head = HEAD.pack(int(self.name), key, seq, size, self.client.salt)
        at = self.random.randrange(0, 4096)
        rest = size - HEAD.size
        return b"".join((head, memoryview(self.client.pool)[at:at + rest]))

    def produce(self):
        if self.way == "steps":
            for i in range(self.count):
                if self.over.is_set():
                    return
                # A key of each step is a key of its own.
                self.send(self.server.step(self.first + i), [(f"k{k}", i * self.keys + k, 0) for k in range(self.keys)])
                self.over.wait(self.pause * self.keys)
        else:
            step = self.server.step(self.first)
            for seq in range(self.count):
                keys = list(range(self.keys))
                self.random.shuffle(keys)
                while keys and not self.over.is_set():
                    some = keys[:self.random.choice((1, 1, 2, len(keys)))]
                    del keys[:len(some)]
                    self.send(step, [(f"k{k}", k, seq) for k in some])
                    self.over.wait(self.pause * len(some))
        if not self.over.is_set():
            self.client.say("sent", self.name)

    def send(self, step, items):
        """Until it is sent: where the memory is full it is tried again."""
        made = {name: (key, seq, self.make(key, seq)) for name, key, seq in items}
        while not self.over.is_set():
            how = self.random.randrange(3)
            tensors, buffers = {}, []
            for name, (_, _, data) in made.items():
                if how == 0:
                    tensors[name] = data
                elif how == 1:
                    buffers.append(bytearray(data))
                    tensors[name] = buffers[-1]
                else:
                    try:
                        tensors[name] = self.server.empty((len(data),), "uint8")
                    except tryst.errors.ResourceExhausted:
                        tensors[name] = data
                    else:
                        memoryview(tensors[name])[:] = data
            calls = [self.history.send(self.name, key, seq, data) for key, seq, data in made.values()]
            try:
                if len(made) == 1:
                    ((name, tensor),) = tensors.items()
                    step.send(name, tensor, self.peer, copy=how == 1)
                else:
                    step.send_many(tensors, self.peer, copy=how == 1)
                code = 0
            except tryst.errors.Error as error:
                code = code_of(error)
            for call in calls:
                self.history.write("s", call, code, now())
            for buffer in buffers:  # What was copied is the caller's again.
                buffer[:] = b"\xee" * len(buffer)
            if code == 0:
                return
            self.over.wait(0.02 + self.random.random() * 0.05)

    # ---- Receives ----

    def timeout(self, allow_none=True):
        if allow_none and self.random.random() < 0.25:
            return None
        return self.random.choice((0.02, 0.1, 0.5, 2.0, 5.0))

    def consume(self):
        self.find()
        ways = {"fresh": self.one_by_one, "into": self.one_by_one, "view": self.one_by_one, "many": self.many, "ahead": self.ahead,
                "task": self.tasks, "steps": self.by_steps}
        ways[self.way]()
        if not self.over.is_set():
            self.client.say("got", self.name)

    def find(self):
        """Until the peer answers: from then on its receives begin when they are called."""
        while not self.over.is_set():
            try:
                return self.server.wait_for(self.peer, 2)
            except tryst.errors.Error:
                self.over.wait(0.1)

    def failed(self, error):
        if code_of(error) not in (1, 4):
            self.over.wait(LEAST_PAUSE_S + 0.2 * self.random.random())

    def one_by_one(self):
        step = self.server.step(self.first)
        left = dict.fromkeys(range(self.keys), self.count)
        while left and not self.over.is_set():
            # None gets far ahead: the producer's memory must hold what the others lack.
            key = self.random.choice([key for key in left if left[key] == max(left.values())])
            timeout = self.timeout()
            into = bytearray(b"\xcc" * max(self.size_of(key), HEAD.size)) if self.way == "into" else None
            call = self.history.receive(self.name, key, timeout, self.way)
            try:
                tensor = step.recv(f"k{key}", self.peer, timeout, into=into, by_reference=self.way == "view")
            except tryst.errors.Error as error:
                self.history.failed(call, error)
                if into is not None:
                    self.client.look_later(call, into)
                self.failed(error)
                continue
            self.take(left, key, self.history.received(call, into if into is not None else tensor))

    def take(self, left, key, seq):
        """One has come: the last one of the key, or it is one of fewer that are left."""
        left[key] -= 1
        if left[key] <= 0 or seq == self.count - 1:
            left.pop(key)

    def many(self):
        step = self.server.step(self.first)
        left = dict.fromkeys(range(self.keys), self.count)
        while left and not self.over.is_set():
            keys = list(left)
            timeout = self.random.choice((None, 5.0, 20.0))
            calls = [self.history.receive(self.name, key, timeout, "many") for key in keys]
            try:
                tensors = step.recv_many([f"k{key}" for key in keys], self.peer, timeout).result()
            except tryst.errors.Error as error:
                for call in calls:
                    self.history.failed(call, error)
                self.failed(error)
                continue
            for key, call, tensor in zip(keys, calls, tensors):
                self.take(left, key, self.history.received(call, tensor))

    def ahead(self):
        """Several receives of each key are out, some of which are cancelled. An event loop, to see the end of each."""
        asyncio.run(self._of_each_key(self._ahead))

    def tasks(self):
        """Tasks wait, some of which the program gives up."""
        asyncio.run(self._of_each_key(self._task))

    async def _of_each_key(self, what):
        await asyncio.gather(*(what(key) for key in range(self.keys)))

    async def _ahead(self, key):
        step = self.server.step(self.first)
        left = {key: self.count}
        out = {}  # By task: its receive and its call.

        async def end(receive, call):
            try:
                (tensor,) = await receive
            except tryst.errors.Error as error:
                return self.history.failed(call, error)
            if key in left:
                self.take(left, key, self.history.received(call, tensor))
            else:
                self.history.received(call, tensor)
            return 0

        while left and not self.over.is_set():
            while len(out) < min(AHEAD, left[key]):
                timeout = self.timeout()
                call = self.history.receive(self.name, key, timeout, "fresh")
                try:
                    receive = step.recv_many([f"k{key}"], self.peer, timeout)
                except tryst.errors.Error as error:  # The step was cleaned up just now.
                    self.history.failed(call, error)
                    break
                out[asyncio.ensure_future(end(receive, call))] = (receive, call)
            if not out:
                continue
            if self.random.random() < 0.1:
                self.cancel(*self.random.choice(list(out.values())))
            done, _ = await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del out[task]
            if any(task.result() not in (0, 1, 4) for task in done):
                # The peer is asked who it is before the next receive, or they would not begin in their order.
                if out:
                    await asyncio.wait(out)
                    out.clear()
                await asyncio.get_running_loop().run_in_executor(None, self.find)
                await asyncio.sleep(LEAST_PAUSE_S + 0.2 * self.random.random())
        for receive, call in out.values():
            self.cancel(receive, call)
        if out:
            await asyncio.wait(out)

    def cancel(self, receive, call):
        self.history.write("K", call, now())
        receive.cancel()

    async def _task(self, key):
        step = self.server.step(self.first)
        left = {key: self.count}
        while left and not self.over.is_set():
            timeout = self.timeout()
            give_up = self.random.random() < 0.1
            call = self.history.receive(self.name, key, timeout, "task" if give_up else "fresh")
            try:
                if give_up:  # By the program, which then cannot know whether a tensor had come.
                    tensor = await asyncio.wait_for(step.arecv(f"k{key}", self.peer, timeout=timeout), 0.05)
                else:
                    tensor = await step.arecv(f"k{key}", self.peer, timeout=timeout)
            except tryst.errors.Error as error:
                self.history.failed(call, error)
                if code_of(error) not in (1, 4):
                    await asyncio.sleep(LEAST_PAUSE_S + 0.2 * self.random.random())
                continue
            except asyncio.TimeoutError:
                self.history.write("K", call, now())
                self.history.write("r", call, 1, now())
                continue
            self.take(left, key, self.history.received(call, tensor))

    def by_steps(self):
        """A plan, in step after step, into the same memory."""
        into = self.random.random() < 0.5
        recurring = self.random.random() < 0.5
        names = [f"k{k}" for k in range(self.keys)]
        plan = self.server.plan(names, frm=self.peer, recurring=recurring)
        for i in range(self.count):
            got = False
            for _ in range(3):
                if self.over.is_set():
                    return
                timeout = self.random.choice((None, 10.0))
                # What a plan received may still be written when its call failed: new memory for each.
                buffers = [bytearray(max(self.size_of(k), HEAD.size)) for k in range(self.keys)] if into else None
                calls = [self.history.receive(self.name, i * self.keys + k, timeout, "many") for k in range(self.keys)]
                try:
                    tensors = plan.recv(self.first + i, timeout, into=buffers).result()
                except tryst.errors.Error as error:
                    for call in calls:
                        self.history.failed(call, error)
                    self.failed(error)
                    continue
                for k, call in enumerate(calls):
                    self.history.received(call, buffers[k] if into else tensors[k])
                got = True
                break
            if not got:
                self.over.wait(0.2)


class Client:
    def __init__(self, life, folder, settings):
        self.life = life
        self.history = History(os.path.join(folder, life + ".history"))
        self.history.write("L", life, now())
        self.pool = os.urandom(POOL_BYTES) + bytes(256 * 1024)
        self.salt = int.from_bytes(os.urandom(8), "little")
        self.streams = {}
        self.saying = threading.Lock()
        self.later = []  # (when, call, buffer, its sum)
        job, task = settings.pop("job"), int(settings.pop("task"))
        self.server = tryst.Server(job, task, **settings)

    def say(self, *words):
        with self.saying:
            print(*words, flush=True)

    def look_later(self, call, buffer):
        if len(self.later) < 200:
            self.later.append((time.monotonic() + LATER_S, call, buffer, sum_of(buffer)))

    def look(self, everything=False):
        while self.later and (everything or self.later[0][0] <= time.monotonic()):
            _, call, buffer, then = self.later.pop(0)
            self.history.write("B", call, then, sum_of(buffer))

    def path_to(self, peer):
        for path in self.server.paths(peer)["paths"]:
            if path["role"] == "fetch" and path["in_use"]:
                return path["path"].replace(" ", "_")
        return "none"

    def obey(self, words):
        if words[0] in ("produce", "consume"):
            stream = Stream(self, *words[1:])
            self.streams[words[1]] = stream
            stream.start(getattr(stream, words[0]))
            stream.role = words[0]
        elif words[0] == "over" and words[1] in self.streams:
            stream = self.streams.pop(words[1])
            if stream.role == "consume" and len(words) > 2:
                self.history.write("P", stream.name, self.path_to(stream.peer))
            threading.Thread(target=stream.close, daemon=True).start()
        elif words[0] == "show":
            print(self.life, self.server.explain(), self.server.waiting(), file=sys.stderr, flush=True)

    def run(self):
        self.server.start()
        self.say("ready", "%016x" % self.server.incarnation, self.server.address)
        threading.Thread(target=self.look_for_ever, daemon=True).start()
        for line in sys.stdin:
            words = line.split()
            if words == ["bye"]:
                break
            self.obey(words)
        for stream in list(self.streams.values()):
            stream.close()
        self.look(True)
        self.server.stop()
        self.history.write("E", now())

    def look_for_ever(self):
        while True:
            time.sleep(0.2)
            self.look()


def main():
    faulthandler.enable()  # The log says where it crashed, as the machine may keep no core.
    life, folder = sys.argv[1:3]
    Client(life, folder, dict(word.split("=", 1) for word in sys.argv[3:])).run()


if __name__ == "__main__":
    main()
