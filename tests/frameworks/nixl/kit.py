#!/usr/bin/env python3
"""kit.py [--plugins=FOLDER] [--cases=a,b] [--markdown] [SYSTEM...]: what a back end of NIXL does where it matters.

Through NIXL's own agent (nixl-cu12 of PyPI, 1.5.1), between two processes. A system is the name of a back end; behind a '+' it may have
a way: UCX+tcp sets UCX_TLS=tcp, TRYST+soft the setting shm=off. FOLDER has the libplugin_NAME.so that NIXL's package does not. Each case
has processes of its own and ends as

  right     what anybody would expect
  wrong     something else, or a process that died, or an answer that took longer than a minute
  refused   an error where another back end may do it
  unknown   it did not come to it, and the kit says why

The last line counts. It fails where a system named TRYST is wrong.
"""
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

CASES = {}
LIMIT_S = 60
SIZE = 64 << 20
CANARY = 0x5A


def case(title):
    def add(function):
        CASES[function.__name__] = (title, function)
        return function
    return add


class Verdict(Exception):
    def __init__(self, what, why=""):
        super().__init__(what, why)
        self.what, self.why = what, why


def right(why=""):
    raise Verdict("right", why)


def wrong(why):
    raise Verdict("wrong", why)


def must(condition, why):
    if not condition:
        wrong(why)


class Agent:
    """One of NIXL's with an array that is registered."""

    def __init__(self, system, name, size=SIZE):
        import logging

        import numpy

        logging.disable(logging.WARNING)
        import nixl_cu12._api as api

        backend, _, way = system.partition("+")
        self.numpy, self.name = numpy, name
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
        self.agent.create_backend(backend, {"shm": "off"} if (backend, way) == ("TRYST", "soft") else {})
        self.memory = numpy.zeros(size, "u1")
        self.at = self.memory.ctypes.data
        self.registered = self.agent.register_memory([(self.at, size, 0, name)], "DRAM")

    def published(self):
        return self.agent.get_agent_metadata(), self.at

    def fill(self, seed):
        tile = self.numpy.random.default_rng(seed).integers(0, 255, 1_048_583, "u1")
        for at in range(0, len(self.memory), len(tile)):
            part = self.memory[at:at + len(tile)]
            part[:] = tile[:len(part)]
        self.memory[self.memory == CANARY] = CANARY + 1

    def load(self, published):
        metadata, self.theirs = published
        name = self.agent.add_remote_agent(metadata)
        self.peer = name.decode() if isinstance(name, bytes) else name

    def prepare(self, operation, pieces, note=b"", peer=None, theirs=None):
        """Pieces: (offset here, offset there, bytes)."""
        theirs = self.theirs if theirs is None else theirs
        mine = self.agent.get_xfer_descs([(self.at + here, size, 0) for here, there, size in pieces], "DRAM")
        other = self.agent.get_xfer_descs([(theirs + there, size, 0) for here, there, size in pieces], "DRAM")
        return self.agent.initialize_xfer(operation, mine, other, peer or self.peer, note)

    def wait(self, handle, state, limit=40):
        until = time.monotonic() + limit
        while state == "PROC":
            if time.monotonic() > until:
                return "PROC"
            state = self.agent.check_xfer_state(handle)
        return state

    def move(self, operation, pieces, note=b"", **more):
        """DONE, ERR, PROC after 40 s, or the name of the error."""
        try:
            handle = self.prepare(operation, pieces, note, **more)
            state = self.wait(handle, self.agent.transfer(handle))
            self.agent.release_xfer_handle(handle)
            return state
        except Exception as error:
            return type(error).__name__

    def notes(self, count, limit=20):
        got, until = [], time.monotonic() + limit
        while len(got) < count and time.monotonic() < until:
            for name, notes in self.agent.get_new_notifs().items():
                got += [(name, bytes(note)) for note in notes]
            time.sleep(0.0005)
        return got


def serve(system, name, pipe):
    """The other process: does what it is told to, and else nothing."""
    threading.Thread(target=lambda: (time.sleep(LIMIT_S + 20), os._exit(1)), daemon=True).start()
    agent = Agent(system, name)
    agent.fill(1)
    pipe.send(agent.published())
    while True:
        what, *rest = pipe.recv()
        answer = None
        if what == "fill":
            agent.fill(*rest)
        elif what == "bytes":
            answer = agent.memory[rest[0]:rest[0] + rest[1]].tobytes()
        elif what == "canary":
            agent.memory[:] = CANARY
        elif what == "spoiled":
            answer = int((agent.memory != CANARY).sum())
        elif what == "notes":
            answer = agent.notes(*rest)
        elif what == "note then bytes":
            answer = [(bytes(note), agent.memory.tobytes() == bytes([note[0]]) * SIZE) for name, note in agent.notes(1)]
        elif what == "load":
            agent.load(*rest)
        elif what == "deregister":
            agent.agent.deregister_memory(agent.registered)
        elif what == "read":
            answer = agent.move("READ", *rest)
        elif what == "processor":
            began = time.process_time(), time.monotonic()
            time.sleep(rest[0])
            answer = (time.process_time() - began[0]) / (time.monotonic() - began[1])
        pipe.send(answer)


class Target:
    def __init__(self, system, name="target"):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(system, name, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.published = self.pipe.recv()

    def tell(self, *words):
        self.pipe.send(words)

    def ask(self, *words):
        self.tell(*words)
        return self.pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()

    def signal(self, number):
        os.kill(self.process.pid, number)


class World:
    def __init__(self, system):
        self.system = system

    def pair(self):
        target, agent = Target(self.system), Agent(self.system, "initiator")
        agent.load(target.published)
        return agent, target


def blocks(count, size, seed=7, gap=2):
    draw = random.Random(seed)
    here, there = list(range(count)), list(range(count))
    draw.shuffle(here)
    draw.shuffle(there)
    return [(a * gap * size, b * gap * size, size) for a, b in zip(here, there)]


def moved(agent, target, operation, pieces):
    """Moves them, and whether just these bytes have come."""
    agent.fill(2)
    theirs = bytearray(target.ask("bytes", 0, SIZE))
    mine = bytearray(agent.memory.tobytes())
    state = agent.move(operation, pieces)
    if state != "DONE":
        return state
    for here, there, size in pieces:
        if operation == "READ":
            mine[here:here + size] = theirs[there:there + size]
        else:
            theirs[there:there + size] = mine[here:here + size]
    same = agent.memory.tobytes() == bytes(mine) and target.ask("bytes", 0, SIZE) == bytes(theirs)
    return "DONE" if same else "wrong bytes"


def expect_moved(world, operation, pieces):
    agent, target = world.pair()
    state = moved(agent, target, operation, pieces)
    must(state == "DONE", state)
    right()


@case("READ of 1,000 scattered blocks")
def read(world):
    expect_moved(world, "READ", blocks(1000, 4096))


@case("WRITE of 1,000 scattered blocks")
def write(world):
    expect_moved(world, "WRITE", blocks(1000, 4096))


@case("20,000 descriptors of 64 bytes")
def many(world):
    expect_moved(world, "READ", blocks(20_000, 64))


@case("8 bytes, 64 KiB, 64 MiB, both ways")
def lengths(world):
    agent, target = world.pair()
    for size in (8, 64 << 10, SIZE):
        for operation in ("READ", "WRITE"):
            state = moved(agent, target, operation, [(0, 0, size)])
            must(state == "DONE", "%s of %d: %s" % (operation, size, state))
    right()


@case("the last functions of its table")
def last(world):
    """Where it was made for an interface with other functions, an agent that calls the last ones reaches others, or nothing."""
    agent, target = world.pair()
    handle, said = agent.prepare("READ", blocks(10, 4096)), []
    for name, call in (("cost", lambda: agent.agent.estimate_xfer_cost(handle)[0]),
                       ("query", lambda: agent.agent.query_memory([(agent.at, 64, 0, "")], world.system.partition("+")[0], "DRAM"))):
        try:
            said.append("%s: %s" % (name, call()))
        except Exception as error:
            must("NotSupported" in type(error).__name__, "%s: %s: %s" % (name, type(error).__name__, error))
    must(agent.wait(handle, agent.agent.transfer(handle)) == "DONE", "the transfer fails")
    right(", ".join(said) or "not supported, as it says")


@case("two agents of one process")
def one_process(world):
    first, second = Agent(world.system, "first"), Agent(world.system, "second")
    second.fill(6)
    first.load(second.published())
    state = first.move("READ", blocks(100, 4096), b"read")
    must(state == "DONE", state)
    for here, there, size in blocks(100, 4096):
        must((first.memory[here:here + size] == second.memory[there:there + size]).all(), "wrong bytes")
    must(second.notes(1) == [("first", b"read")], "no notification")
    right()


@case("odd addresses and sizes")
def unaligned(world):
    expect_moved(world, "WRITE", [(1 + 97 * i, 3 + 89 * i, 1 + i % 67) for i in range(500)])


@case("an agent with itself")
def itself(world):
    agent = Agent(world.system, "self")
    agent.fill(3)
    want = agent.memory[4096:8192].tobytes()
    state = agent.move("READ", [(0, 4096, 4096)], b"note", peer="self", theirs=agent.at)
    must(state == "DONE", state)
    must(agent.memory[:4096].tobytes() == want, "wrong bytes")
    must(agent.notes(1) == [("self", b"note")], "no notification")
    right()


@case("a descriptor of 0 bytes beside others")
def zero(world):
    agent, target = world.pair()
    state = moved(agent, target, "READ", [(0, 0, 0), (64, 64, 32)])
    must(state in ("DONE", "ERR") or state.startswith("nixl"), state)
    must(agent.move("READ", [(0, 0, 64)]) == "DONE", "the next transfer fails")
    if state != "DONE":
        raise Verdict("refused", state)
    right()


@case("a READ whose destinations overlap")
def overlap(world):
    agent, target = world.pair()
    agent.memory[:] = CANARY
    state = agent.move("READ", [(0, 0, 64), (32, 1024, 64)])
    must(state in ("DONE", "ERR") or state.startswith("nixl"), state)
    must((agent.memory[96:] == CANARY).all(), "bytes beside them were written")
    must(agent.move("READ", [(0, 0, 64)]) == "DONE", "the next transfer fails")
    if state != "DONE":
        raise Verdict("refused", state)
    first, second = target.ask("bytes", 0, 64), target.ask("bytes", 1024, 64)
    got = agent.memory[:96].tobytes()
    must(all(got[32 + i] in (first[32 + i], second[i]) for i in range(32)), "bytes of neither")
    right("one of them stays")


@case("memory that is not registered")
def outside(world):
    agent, target = world.pair()
    for pieces in ([(0, SIZE - 8, 16)], [(SIZE - 8, 0, 16)]):
        state = agent.move("READ", pieces)
        must(state == "ERR" or state.startswith("nixl"), state)
    must(agent.move("READ", [(0, 0, 64)]) == "DONE", "the next transfer fails")
    right()


@case("one handle posted 2,000 times")
def reuse(world):
    agent, target = world.pair()
    handle = agent.prepare("READ", [(0, 0, 4096)])
    for i in range(2000):
        if i % 500 == 0:
            target.ask("fill", i)
        state = agent.wait(handle, agent.agent.transfer(handle))
        must(state == "DONE", "%s at the %dth" % (state, i))
    must(agent.memory[:4096].tobytes() == target.ask("bytes", 0, 4096), "old bytes")
    right()


@case("a post while the first is under way")
def repost(world):
    agent, target = world.pair()
    handle = agent.prepare("READ", [(0, 0, SIZE)])
    for _ in range(20):
        state = agent.agent.transfer(handle)
        if state == "PROC":
            try:
                again = agent.agent.transfer(handle)
                must(again in ("ERR", "DONE", "PROC"), again)
            except Exception as error:
                again = type(error).__name__
            state = agent.wait(handle, agent.agent.check_xfer_state(handle))
            must(state == "DONE", "the first ends as %s" % state)
            must(agent.memory.tobytes() == target.ask("bytes", 0, SIZE), "wrong bytes")
            right(again)
        must(state == "DONE", state)
    raise Verdict("unknown", "each had ended when it was posted")


@case("a handle released twice")
def twice(world):
    agent, target = world.pair()
    handle = agent.prepare("READ", [(0, 0, SIZE)])
    agent.agent.transfer(handle)
    refused = False
    for _ in range(3):
        try:
            agent.agent.release_xfer_handle(handle)
        except Exception:
            refused = True
    must(agent.move("READ", [(0, 0, 64)]) == "DONE", "the next transfer fails")
    right("at first refused" if refused else "")


def late(world, operation):
    agent, target = world.pair()
    draw, released, refused, worst = random.Random(3), 0, 0, 0
    began = time.monotonic()
    agent.fill(5)
    took = time.monotonic()
    must(agent.move(operation, [(0, 0, SIZE)]) == "DONE", "it fails")
    took = time.monotonic() - took
    for i in range(40):
        if time.monotonic() - began > LIMIT_S * 0.6:
            break
        if operation == "READ":
            agent.memory[:] = CANARY
        else:
            target.ask("canary")
        handle = agent.prepare(operation, blocks(500, SIZE // 1000, seed=i))
        state = agent.agent.transfer(handle)
        until = time.monotonic() + draw.random() * took
        while time.monotonic() < until and state == "PROC":
            state = agent.agent.check_xfer_state(handle)
        released += state == "PROC"
        for attempt in range(100):
            try:
                agent.agent.release_xfer_handle(handle)
                break
            except Exception:
                refused += attempt == 0
                time.sleep(0.05)
        else:
            wrong("a handle is never released")
        if operation == "READ":
            agent.memory[:] = CANARY
        else:
            target.ask("canary")
        other = agent.prepare("READ", [(SIZE - 8, SIZE - 8, 8)])  # Makes the back end go on.
        agent.wait(other, agent.agent.transfer(other))
        agent.agent.release_xfer_handle(other)
        for _ in range(20):
            agent.agent.get_new_notifs()
            time.sleep(0.002)
        if operation == "READ":
            agent.memory[SIZE - 8:] = CANARY
            spoiled = int((agent.memory != CANARY).sum())
        else:
            spoiled = target.ask("spoiled")
        worst = max(worst, spoiled)
        if worst:
            break
    if worst:
        wrong("%.1f MiB landed after the release" % (worst / 2**20))
    if released < 3:
        raise Verdict("unknown", "all had ended: it moves in the post")
    right("%d released under way%s" % (released, ", %d refused at first" % refused if refused else ""))


@case("no byte lands after a READ was released")
def late_read(world):
    late(world, "READ")


@case("no byte lands after a WRITE was released")
def late_write(world):
    late(world, "WRITE")


@case("release of a READ while the target stands still")
def still(world):
    agent, target = world.pair()
    must(agent.move("READ", [(0, 0, SIZE)]) == "DONE", "it fails")
    target.signal(signal.SIGSTOP)
    handle = agent.prepare("READ", blocks(500, SIZE // 1000))
    state = agent.agent.transfer(handle)
    if state == "DONE":
        target.signal(signal.SIGCONT)
        raise Verdict("unknown", "it needs no target")
    began = time.monotonic()
    for attempt in range(400):
        try:
            agent.agent.release_xfer_handle(handle)
            break
        except Exception:
            time.sleep(0.05)
    took = time.monotonic() - began
    agent.memory[:] = CANARY
    target.signal(signal.SIGCONT)
    for _ in range(100):
        agent.agent.get_new_notifs()
        time.sleep(0.01)
    spoiled = int((agent.memory != CANARY).sum())
    must(not spoiled, "%.1f MiB landed after the release" % (spoiled / 2**20))
    must(took < 15, "it took %.0f s" % took)
    right("%.2f s" % took)


@case("1,000 notifications in their order, once each")
def order(world):
    agent, target = world.pair()
    want = [b"%d" % i for i in range(1000)]
    for note in want:
        agent.agent.send_notif(agent.peer, note)
    got = [note for name, note in target.ask("notes", 1000)]
    must(sorted(got) == sorted(want), "%d of 1,000 came" % len(set(got)))
    must(got == want, "in another order")
    right()


@case("empty notifications, and of 1 MiB")
def sizes(world):
    agent, target = world.pair()
    want = [b"", b"x" * (1 << 20), b"\0\xff"]
    for note in want:
        try:
            agent.agent.send_notif(agent.peer, note)
        except Exception as error:
            raise Verdict("refused", "%d bytes: %s" % (len(note), type(error).__name__))
    got = [note for name, note in target.ask("notes", 3, 10)]
    must(got == want, "%d came" % len(got))
    right()


@case("a WRITE's notification comes behind its bytes")
def behind(world):
    agent, target = world.pair()
    for value in range(20):
        agent.memory[:] = value
        target.tell("note then bytes")
        state = agent.move("WRITE", [(0, 0, SIZE)], bytes([value]))
        must(state == "DONE", state)
        got = target.pipe.recv()
        must(got == [(bytes([value]), True)], "the notification came first" if got else "no notification")
    right()


@case("a target that does not call NIXL")
def asleep(world):
    agent, target = world.pair()
    target.tell("processor", 3)
    began = time.monotonic()
    for operation in ("READ", "WRITE"):
        state = agent.move(operation, blocks(100, 4096))
        must(state == "DONE", state)
    took = time.monotonic() - began
    target.pipe.recv()
    must(took < 3, "it waits for the target")
    right()


@case("processor of an idle target")
def idle(world):
    agent, target = world.pair()
    must(agent.move("READ", [(0, 0, 4096)]) == "DONE", "it fails")
    time.sleep(0.5)
    share = target.ask("processor", 3)
    must(share < 0.05, "%.2f of a core" % share)
    right("%.2f of a core" % share)


@case("a target that restarts under its name")
def restart(world):
    agent, target = world.pair()
    must(agent.move("READ", [(0, 0, 4096)]) == "DONE", "it fails")
    target.kill()
    agent.agent.remove_remote_agent(agent.peer)
    target = Target(world.system)
    target.ask("fill", 9)
    agent.load(target.published)
    for operation in ("READ", "WRITE"):
        state = moved(agent, target, operation, blocks(100, 4096))
        must(state == "DONE", "%s: %s" % (operation, state))
    agent.agent.send_notif(agent.peer, b"new")
    must([note for name, note in target.ask("notes", 1)] == [b"new"], "no notification")
    right()


@case("a handle of the life before ends as an error")
def old_handle(world):
    agent, target = world.pair()
    must(agent.move("WRITE", [(0, 0, 4096)]) == "DONE", "it fails")
    handle = agent.prepare("WRITE", [(0, 0, 4096)])
    target.kill()
    target = Target(world.system)
    target.ask("canary")
    began = time.monotonic()
    try:
        state = agent.wait(handle, agent.agent.transfer(handle), 30)
    except Exception as error:
        state = type(error).__name__
    must(target.ask("spoiled") == 0, "it wrote to the new life")
    must(state != "DONE", "it says that it was done")
    must(state != "PROC", "it does not end within 30 s")
    right("%.1f s" % (time.monotonic() - began))


def killed(world, operation):
    agent, target = world.pair()
    must(agent.move(operation, [(0, 0, SIZE)]) == "DONE", "it fails")
    for _ in range(20):
        target.signal(signal.SIGSTOP)
        handle = agent.prepare(operation, blocks(500, SIZE // 1000))
        state = agent.agent.transfer(handle)
        if state == "PROC":
            target.kill()
            began = time.monotonic()
            try:
                state = agent.wait(handle, state, 30)
            except Exception as error:
                state = type(error).__name__
            if state == "DONE":
                raise Verdict("unknown", "it had ended")
            must(state != "PROC", "it does not end within 30 s")
            took = time.monotonic() - began
            try:
                agent.agent.release_xfer_handle(handle)
            except Exception:
                pass
            right("%.1f s" % took)
        target.signal(signal.SIGCONT)
    raise Verdict("unknown", "it needs no target")


@case("the target of a READ is killed")
def killed_read(world):
    killed(world, "READ")


@case("the target of a WRITE is killed")
def killed_write(world):
    killed(world, "WRITE")


@case("the initiator of a WRITE is killed; the target goes on")
def killed_initiator(world):
    target = Target(world.system)
    script = ("import sys; sys.path.insert(0, %r); import kit, pickle\n"
              "agent = kit.Agent(%r, 'dies'); agent.load(pickle.loads(bytes.fromhex(sys.argv[1])))\n"
              "handle = agent.prepare('WRITE', [(0, 0, kit.SIZE)]); agent.move('WRITE', [(0, 0, 64)]); print('ready', flush=True)\n"
              "for _ in range(100000): agent.wait(handle, agent.agent.transfer(handle))\n"
              % (os.path.dirname(os.path.abspath(__file__)), world.system))
    import pickle
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", script, pickle.dumps(target.published).hex()], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
        for line in child.stdout:
            if line.strip() == b"ready":
                break
        time.sleep(0.2 * random.random())
        child.kill()
        child.wait()
    agent = Agent(world.system, "initiator")
    agent.load(target.published)
    target.ask("fill", 4)
    state = moved(agent, target, "READ", blocks(100, 4096))
    must(state == "DONE", state)
    right()


@case("memory that the target has deregistered")
def deregistered(world):
    agent, target = world.pair()
    must(agent.move("READ", [(0, 0, 4096)]) == "DONE", "it fails")
    target.ask("deregister")
    agent.memory[:] = CANARY
    state = agent.move("READ", [(0, 0, 4096)])
    must(state != "DONE", "it is read all the same")
    must(state != "PROC", "it does not end")
    agent.agent.send_notif(agent.peer, b"still here")
    got = [note for name, note in target.ask("notes", 1, 10)]
    must(got == [b"still here"], "the peer is lost with it")
    right(state)


def run_one(system, name):
    """In a process of its own: the last line is the verdict."""
    multiprocessing.set_start_method("spawn")
    try:
        CASES[name][1](World(system))
        verdict = Verdict("unknown", "it said nothing")
    except Verdict as said:
        verdict = said
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict("unknown" if isinstance(error, ImportError) else "wrong", "%s: %s" % (type(error).__name__, error))
    print("\nVERDICT " + json.dumps([verdict.what, verdict.why]), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def judge(system, name, plugins):
    environment = dict(os.environ, NIXL_LOG_LEVEL="FATAL")
    backend, _, way = system.partition("+")
    if backend == "UCX" and way:
        environment["UCX_TLS"] = way
    if plugins and os.path.exists(os.path.join(plugins, "libplugin_%s.so" % backend)):
        environment["NIXL_PLUGIN_DIR"] = plugins
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--one", system, name], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        out = process.communicate(timeout=LIMIT_S + 15)[0].decode(errors="replace")
        verdict = [line for line in out.splitlines() if line.startswith("VERDICT ")]
        if verdict:
            return (*json.loads(verdict[-1][8:]), out)
        return "wrong", "the process died: %s" % (signal.Signals(-process.returncode).name if process.returncode < 0 else process.returncode), out
    except subprocess.TimeoutExpired:
        return "wrong", "no answer within %d s" % LIMIT_S, ""
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def main():
    if sys.argv[1:2] == ["--one"]:
        return run_one(*sys.argv[2:])
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--")}
    systems = [word for word in sys.argv[1:] if not word.startswith("--")] or ["TRYST", "TRYST+soft", "UCX", "UCX+tcp"]
    names = flags["--cases"].split(",") if flags.get("--cases") else list(CASES)
    counts, table, failed = {}, {}, False
    for name in names:
        for system in systems:
            what, why, out = judge(system, name, flags.get("--plugins"))
            counts[what] = counts.get(what, 0) + 1
            table[name, system] = what + (", " + why if why else "")
            failed |= what == "wrong" and system.startswith("TRYST")
            print("%-8s %-11s %-52s %s" % (what, system, CASES[name][0], why), flush=True)
            if what == "wrong" and system.startswith("TRYST"):
                print("\n".join(out.splitlines()[-25:]))
    if "--markdown" in flags:
        print("\n| | %s |\n| --- |%s" % (" | ".join(systems), " --- |" * len(systems)))
        for name in names:
            print("| %s | %s |" % (CASES[name][0], " | ".join(table[name, system] for system in systems)))
    print("\n" + ", ".join("%d %s" % (counts.get(what, 0), what) for what in ("right", "wrong", "refused", "unknown")))
    sys.exit(failed)


if __name__ == "__main__":
    main()
