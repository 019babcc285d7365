#!/usr/bin/env python3
"""Workers of Python and of C, each on what its users install, under faults, and judged from outside: ./run audit.

    audit.py --wheel=FILE --sdk=FILE [--minutes N] [--seed S] [--keep]

Six processes stand on two hosts, which are network namespaces on a wire of their own where this runs as root, and the
loopback where not. They speak TLS. Pairs of them send to each other over shared memory, the software NIC and gRPC alone
(client.py, client.c), stream after stream. Meanwhile they are killed and come back, are stopped, their wire is cut or slow, one's
clock of the day is set forth and back by minutes, one's disk is slow (harm.c), and half of the lives have limits so small that they
are always reached. Two live through it all.

Each client writes down what it did and saw, and this program what it did to them. Then checker.py, which knows nothing but
these files, judges. Beside it `tryst verify` judges what the workers traced of all their operations. The last line says how many rules
held, by path. The folder is kept, and named, when one did not.
"""
import argparse
import ctypes
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

HERE = os.path.dirname(os.path.realpath(__file__))
LIBC = ctypes.CDLL(None)
PATIENCE_S = 8  # The least over gRPC alone.
KEEP_S = 120  # As docs/CONFIG.md says of patience.
SLACK_S = 3
GIVE_UP_S = 60  # A stream that takes longer, beside its faults, stands still.
HELD_MS, LATE_MS = 200, 60
STEPS_MIN = (1.5, 3, 10)  # A clock of the day is set so far; what a caller states is good for a minute.
DISK_MS = (30, 300)  # For how long each read, write or sync of a file takes.
VERIFY_S = 8  # A worker keeps the newest 4,096 operations.
NOTHING_TRACED = 3
# Times are those at which a turn began: of one during which a process or the machine stood still, they seem to go back.
OF_LONG_TURNS = re.compile(r" (\d+\.\d+) ms before (that was sent|it came)$")
LONGEST_STOP_S = 13
DAY_S = 86400
INSIDE = "TRYST_AUDIT_INSIDE"  # Set where this process has a network namespace of its own.
BASE_MIB = 128  # A process with its program and its connections has this before any tensor.
MIB = 1 << 20

SHM, SOFT, GRPC = "shm", "rdma/soft-tls", "grpc/stream"
# By name: the host and what it is; the program; whether it is never killed; its own settings.
WORKERS = {
    "a.py": ("python", True, {}),
    "a.c": ("c", False, {}),
    "b.py": ("python", False, {}),
    "b.c": ("c", True, {}),
    "a.grpc": ("python", False, {"protocol": "grpc"}),
    "b.grpc": ("c", False, {"protocol": "grpc"}),
}
PAIRS = [("a.py", "a.c", SHM), ("b.py", "b.c", SHM), ("a.py", "b.py", SOFT), ("a.c", "b.c", SOFT),
         ("a.grpc", "b.c", GRPC), ("b.grpc", "a.py", GRPC), ("a.grpc", "a.c", GRPC)]
USUAL = {"landing_bytes": 32, "shm_bytes": 32, "max_held_bytes": 32, "max_kept_bytes": 16}  # MiB
SMALL = {"landing_bytes": 4, "shm_bytes": 16, "max_held_bytes": 3, "max_kept_bytes": 4}
LARGEST, LARGEST_OF_SMALL = 1_100_000, 262_145
WAYS = ("fresh", "into", "view", "many", "ahead", "task", "steps")


def now():
    return time.monotonic_ns() // 1000


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


class Shim:
    """What harm.c does to one process, or to none yet."""

    def __init__(self, library, path):
        with open(path, "wb") as file:
            file.write(bytes(16))
        with open(path, "r+b") as file:
            self.bytes = mmap.mmap(file.fileno(), 16)
        self.environment = {"LD_PRELOAD": library, "TRYST_AUDIT_HARM": path}

    def step(self, seconds):
        struct.pack_into("<q", self.bytes, 0, round(seconds * 1e9))

    def delay(self, ms):
        struct.pack_into("<q", self.bytes, 8, ms * 1000)


def certificates(folder, addresses, shim):
    """An authority, and one certificate for all workers of the cluster. Of yesterday: a clock that is behind must not find them too new."""
    with open(os.path.join(folder, "names"), "w", encoding="ascii") as file:
        file.write("subjectAltName=URI:tryst://tryst,%s\n" % ",".join("IP:" + one for one in addresses))
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=audit"
    for command in (new + " -x509 -keyout ca.key -out ca.crt", new + " -keyout worker.key -out worker.csr",
                    "x509 -req -in worker.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out worker.crt -extfile names"):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, stderr=subprocess.DEVNULL,
                       env=dict(os.environ, **shim.environment))
    return {"certificate_file": folder + "/worker.crt", "key_file": folder + "/worker.key", "ca_file": folder + "/ca.crt"}


class Port:
    """A port of the loopback that is a worker's in all its lives. As long as this is held, the kernel gives it to nobody who asks for
    any port, such as another audit; a worker, which allows that others have used its port, may listen there."""

    def __init__(self):
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.number = self.held.getsockname()[1]

    def close(self):
        self.held.close()


class Wire:
    """The two hosts and what is between them. Without root both are the loopback, and nothing can be cut."""

    def __init__(self):
        self.mine = False
        self.other = None
        if INSIDE not in os.environ:
            return
        try:
            subprocess.run("ip link set lo up && ip link add w0 type veth peer name w1", shell=True, check=True, capture_output=True)
        except (subprocess.CalledProcessError, OSError):
            return
        self.other = subprocess.Popen(["unshare", "-n", "sleep", "1000000"], preexec_fn=die_with_parent)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink("/proc/%d/ns/net" % self.other.pid) == own:
            time.sleep(0.01)
        self.run("ip link set w1 netns %d" % self.other.pid)
        self.run("ip addr add 10.91.0.1/24 dev w0")
        self.run("ip link set w0 up")
        self.run("nsenter -t %d -n ip link set lo up" % self.other.pid)
        self.run("nsenter -t %d -n ip addr add 10.91.0.2/24 dev w1" % self.other.pid)
        self.run("nsenter -t %d -n ip link set w1 up" % self.other.pid)
        self.mine = True

    @staticmethod
    def run(command):
        return subprocess.run(command.split(), check=False, capture_output=True).returncode == 0

    def address(self, host):
        if not self.mine:
            return "127.0.0.1"
        return "10.91.0.1" if host == "a" else "10.91.0.2"

    def enter(self, host):
        return ["nsenter", "-t", str(self.other.pid), "-n"] if self.mine and host == "b" else []

    def cut(self):
        return self.run("ip link set w0 down")

    def heal(self):
        return self.run("ip link set w0 up")

    def slow(self):
        """What does not fit into 50 Mbit/s waits, and is lost when it waited 100 ms."""
        return self.run("tc qdisc add dev w0 root tbf rate 50mbit burst 64kb latency 100ms")

    def fast(self):
        return self.run("tc qdisc del dev w0 root")

    def close(self):
        if self.other is not None:
            self.other.kill()
            self.other.wait()


class Life:
    """One life of one worker."""

    def __init__(self, audit, worker, number):
        self.audit, self.worker, self.name = audit, worker, "%s-%d" % (worker, number)
        self.program, _, own = WORKERS[worker]
        self.small = audit.random.random() < 0.5
        limits = SMALL if self.small else USUAL
        settings = {"job": "w", "task": list(WORKERS).index(worker), **audit.settings, **own,
                    "listen": audit.places[worker], **{name: "%dMiB" % mib for name, mib in limits.items()}}
        if not audit.wire.mine and worker.startswith("b."):
            settings["shm"] = "off"
        if "protocol" in own:
            settings.pop("shm", None)
        self.limit_kib = (BASE_MIB + sum(limits.values())) << 10
        self.ready = threading.Event()
        self.incarnation = None
        self.streams = {}
        self.dead = self.stopped = self.slow = False
        self.ahead_min = 0  # Its clock of the day.
        self.shim = Shim(audit.shim, audit.folder + "/%s.harm" % self.name)
        host = worker[0]
        environment = dict(os.environ, MALLOC_ARENA_MAX="2", PYTHONPATH=audit.site, LD_LIBRARY_PATH=audit.library,
                           **self.shim.environment)
        command = [sys.executable, "-P", HERE + "/client.py"] if self.program == "python" else [audit.client]
        self.log = open(audit.folder + "/%s.log" % self.name, "wb")
        audit.write("life", self.name, worker, self.limit_kib)
        self.process = subprocess.Popen(
            [*audit.wire.enter(host), *command, self.name, audit.histories, *("%s=%s" % one for one in settings.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True,
            preexec_fn=die_with_parent)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "ready":
                self.incarnation = words[1]
                self.ready.set()
            elif len(words) == 2:
                stream = self.audit.streams.get(words[1])
                if stream is not None:
                    stream.heard(self, words[0])

    def tell(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            pass  # It has died; reap() will see.

    def has_ended(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def memory_kib(self):
        with open("/proc/%d/status" % self.process.pid, encoding="ascii") as status:
            rows = dict(line.split(":", 1) for line in status)
        return int(rows["RssAnon"].split()[0]) + int(rows["RssShmem"].split()[0])


class Stream:
    """One way between two lives, from its begin until both have closed it."""

    def __init__(self, audit, number, producer, consumer, path):
        self.audit, self.name, self.path = audit, str(number), path
        self.producer, self.consumer = producer, consumer
        rng = audit.random
        keys, count = rng.choice((1, 3, 4)), rng.choice((20, 40, 80))
        pause = rng.choice((5, 10, 30))
        self.way = rng.choice(WAYS)
        largest = LARGEST_OF_SMALL if producer.small or consumer.small else LARGEST
        self.begun = time.monotonic()
        self.excuse = -audit.held_s
        self.said = set()
        self.over_at = {}  # By life: when it is told that the stream is over.
        audit.write("stream", self.name, producer.name, consumer.name, path)
        for life, other, word in ((consumer, producer, "consume"), (producer, consumer, "produce")):
            task = list(WORKERS).index(other.worker)
            life.streams[self.name] = self
            life.tell(word, self.name, "/job:w/replica:0/task:%d" % task, other.incarnation, number * 1000, keys, count, largest,
                      pause, self.way)

    def heard(self, life, word):
        if word == "hangs":
            self.audit.write("stuck", self.name)
            return
        self.said.add((life.name, word))

    def ends(self):
        return (self.producer, self.consumer)

    def close(self, life, after=0.0, with_path=False):
        if life.name not in self.over_at:
            self.over_at[life.name] = (time.monotonic() + after, life, with_path)

    def step(self):
        """What is due. Returns whether both have closed it."""
        at = time.monotonic()
        if (self.consumer.name, "got") in self.said:
            self.close(self.consumer, with_path=True)
            self.close(self.producer, after=0.1)
        for life in self.ends():
            if life.dead:  # The other one may see that for a while.
                other = self.consumer if life is self.producer else self.producer
                self.close(other, after=self.audit.random.choice((0, 1, PATIENCE_S + 4)))
        if not self.over_at and at - self.begun - self.excuse - self.audit.held_s > GIVE_UP_S:
            for life in self.ends():
                life.tell("show")
            time.sleep(0.5)
            self.audit.write("stuck", self.name)
            self.audit.note("stream %s (%s, %s to %s) stands still" %
                            (self.name, self.way, self.producer.name, self.consumer.name))
            for life in self.ends():
                self.close(life)
        for name, (when, life, with_path) in self.over_at.items():
            if when is not None and when <= at and not life.stopped:
                life.tell("over", self.name, *(["path"] if with_path else []))
                self.over_at[name] = (None, life, with_path)
        closed = all(life.dead or (life.name, "closed") in self.said for life in self.ends())
        if closed:
            for life in self.ends():
                life.streams.pop(self.name, None)
        return closed


class Audit:
    def __init__(self, arguments, folder):
        self.random = random.Random(arguments.seed)
        self.folder = folder
        self.histories = folder + "/histories"
        self.site, self.library, self.client = folder + "/site", folder + "/sdk/lib", folder + "/client"
        self.shim = folder + "/harm.so"
        os.makedirs(self.histories)
        self.file = os.open(self.histories + "/audit.history", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.notes = []
        self.make_programs(arguments)
        self.wire = Wire()
        hosts = {worker: worker[0] for worker in WORKERS}
        self.ports = [] if self.wire.mine else [Port() for _ in hosts]
        numbers = [port.number for port in self.ports] or range(21000, 21000 + len(hosts))
        self.places = {worker: "%s:%d" % (self.wire.address(host), number) for (worker, host), number in zip(hosts.items(), numbers)}
        os.makedirs(folder + "/secrets", mode=0o700)
        shim = Shim(self.shim, folder + "/secrets/harm")
        shim.step(-DAY_S)
        self.secrets = certificates(folder + "/secrets", ["127.0.0.1", "10.91.0.1", "10.91.0.2"], shim)
        self.settings = {
            "cluster_spec": "w=" + ",".join(self.places.values()), "nic": "soft", "shm": "auto",
            "patience": "%ds" % PATIENCE_S, "stop_deadline": "5s", "protocol": "grpc+verbs", "trace_sample_every": 1,
            **self.secrets}
        self.settings["shm"] = "on"
        self.lives, self.numbers, self.streams = {}, dict.fromkeys(WORKERS, 0), {}
        self.number = 0
        self.faults = dict.fromkeys(("kill", "stop", "cut", "slow", "step", "disk"), 0)
        self.verified = self.traces = self.long_turns = 0
        self.untraced = ""
        self.refused = []  # What `tryst verify` said.
        self.over = threading.Event()
        self.ends_at = []  # (when, what to do): the end of a fault.
        self.cut = self.slowed = False
        self.held_s = 0.0  # For how long the machine let nobody run.

    def make_programs(self, arguments):
        """What a user would have done: pip's unpacking of the wheel, and a compiler's call."""
        with zipfile.ZipFile(arguments.wheel) as wheel:
            wheel.extractall(self.site)
        subprocess.run(["tar", "-xzf", arguments.sdk, "-C", self.folder], check=True)
        (unpacked,) = [name for name in os.listdir(self.folder) if name.startswith("tryst-c-")]
        os.rename(os.path.join(self.folder, unpacked), self.folder + "/sdk")
        subprocess.run(["gcc", "-std=c11", "-O2", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic",
                        "-I" + self.folder + "/sdk/include", HERE + "/client.c", "-L" + self.library, "-l:libtryst.so.1",
                        "-pthread", "-o", self.client], check=True)
        subprocess.run(["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", HERE + "/harm.c", "-ldl", "-pthread",
                        "-o", self.shim], check=True)

    def write(self, *words):
        os.write(self.file, (" ".join(map(str, (*words, now()))) + "\n").encode())

    def note(self, text):
        self.notes.append(text)
        print("  %6.1f s  %s" % (time.monotonic() - self.begun, text), flush=True)

    # ---- Lives ----

    def start(self, worker):
        self.numbers[worker] += 1
        self.lives[worker] = Life(self, worker, self.numbers[worker])

    def reap(self):
        """Those that have ended, whoever ended them."""
        for worker, life in self.lives.items():
            if life.dead or life.process.poll() is None:
                continue
            life.dead = True
            code = life.process.returncode
            self.write("exit", life.name, code)
            if code != -signal.SIGKILL:
                self.note("%s ended by itself with %d: %s/%s.log" % (life.name, code, self.folder, life.name))
            self.later(self.random.choice((0, 0.2, 2)), lambda worker=worker: self.start(worker))

    def later(self, seconds, what):
        self.ends_at.append((time.monotonic() + seconds, what))

    def run_due(self, everything=False):
        for due in [one for one in self.ends_at if everything or one[0] <= time.monotonic()]:
            self.ends_at.remove(due)
            due[1]()

    # ---- Faults ----

    def excuse(self, seconds, lives):
        for stream in self.streams.values():
            if any(life in lives for life in stream.ends()):
                stream.excuse += seconds + PATIENCE_S

    def strike(self):
        rng = self.random
        kind = rng.choices(tuple(self.faults), (4, 4, 3, 1, 3, 2) if self.wire.mine else (3, 3, 0, 0, 3, 2))[0]
        up = [life for life in self.lives.values() if not life.dead and not life.stopped and life.ready.is_set()]
        long = rng.random() < 0.15
        if kind == "kill":
            up = [life for life in up if not WORKERS[life.worker][1]]
            if not up:
                return
            life = rng.choice(up)
            self.write("kill", life.name)
            life.process.kill()
            life.process.wait()
        elif kind == "stop":
            if not up:
                return
            life, seconds = rng.choice(up), rng.uniform(10, LONGEST_STOP_S) if long else rng.uniform(0.1, 3)
            self.write("stop", life.name)
            life.process.send_signal(signal.SIGSTOP)
            life.stopped = True
            self.excuse(seconds, [life])
            self.later(seconds, lambda: self.resume(life))
        elif kind == "cut" and not self.cut:
            seconds = rng.uniform(10, LONGEST_STOP_S) if long else rng.uniform(0.1, 4)
            self.write("cut", "a", "b")
            self.cut = self.wire.cut()
            self.excuse(seconds, list(self.lives.values()))
            self.later(seconds, self.heal)
        elif kind == "slow" and not self.slowed:
            self.write("slow", "a", "b")
            self.slowed = self.wire.slow()
            self.excuse(6, list(self.lives.values()))
            self.later(6, self.speed_up)
        elif kind in ("step", "disk"):
            if kind == "disk":
                up = [life for life in up if not life.slow]
            if not up:
                return
            self.harm(rng.choice(up), kind)
        else:
            return
        self.faults[kind] += 1

    def harm(self, life, kind):
        """Explains nothing: every promise holds beside it. Deadlines are of the clock that nobody can set."""
        if kind == "step":
            self.set_clock(life, life.ahead_min + self.random.choice(STEPS_MIN))
            to = self.random.choice((0, -self.random.choice(STEPS_MIN)))
            self.later(self.random.uniform(0.1, 12), lambda: self.set_clock(life, to))
        else:
            ms = self.random.randint(*DISK_MS)
            self.write("disk", life.name, ms)
            life.shim.delay(ms)
            life.slow = True
            for path in self.secrets.values():
                os.utime(path)  # So that they are read.
            self.later(6, lambda: self.spin_up(life))

    def set_clock(self, life, minutes):
        life.ahead_min = minutes
        life.shim.step(minutes * 60)
        self.write("step", life.name, round(minutes * 60))

    def spin_up(self, life):
        life.shim.delay(0)
        life.slow = False
        self.write("disk", life.name, 0)

    def resume(self, life):
        if life.stopped and not life.dead:
            life.process.send_signal(signal.SIGCONT)
            self.write("cont", life.name)
        life.stopped = False

    def heal(self):
        self.wire.heal()
        self.write("heal", "a", "b")
        self.cut = False

    def speed_up(self):
        self.wire.fast()
        self.write("fast", "a", "b")
        self.slowed = False

    def pulse(self):
        """Writes down when the machine is too busy to let a thread run that only wants to sleep for 20 ms: at once, or bit by bit
        within a second."""
        last = since = now()
        late = 0
        while True:
            time.sleep(0.02)
            at = now()
            if at - last > LATE_MS * 1000:
                late += at - last
            last = at
            if late > HELD_MS * 1000:
                self.write("held", late // 1000)
                self.held_s += late / 1e6
            if late > HELD_MS * 1000 or at - since > 1000000:
                late, since = 0, at

    def patiently(self, seconds, waited):
        """Asks until it is so, and for so long as the machine has run meanwhile. Returns whether it is."""
        until = time.monotonic() + seconds - self.held_s
        while not waited(1):
            if time.monotonic() > until + self.held_s:
                return False
        return True

    # ---- Traces ----

    def of_a_long_turn(self, breach):
        found = OF_LONG_TURNS.search(breach)
        return found and float(found.group(1)) < 1000 * (LONGEST_STOP_S + PATIENCE_S + self.held_s)

    def verify(self):
        """Holds what all workers that answer have traced against the tables of states. An operation may be judged twice."""
        tool = [sys.executable, "-P", "-m", "tryst"]
        environment = dict(os.environ, PYTHONPATH=self.site)
        names = ["/job:w/replica:0/task:%d@%s" % (task, place) for task, place in enumerate(self.places.values())]
        flags = ["--timeout=2s", *("--%s=%s" % one for one in self.secrets.items())]
        while not self.over.wait(VERIFY_S):
            self.traces += 1
            trace = self.folder + "/trace-%d.json" % self.traces
            try:
                told = subprocess.run([*tool, "trace", *names, *flags, "--out=" + trace], check=False, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True, env=environment, timeout=60)
            except subprocess.TimeoutExpired:
                self.untraced = "tryst trace took a minute"
                continue
            if not os.path.exists(trace):
                self.untraced = told.stderr.strip()
                continue
            done = subprocess.run([*tool, "verify", trace], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=environment, timeout=600)
            lines = done.stdout.strip().split("\n")
            counted = re.match(r"(\d+) operations: ", lines[-1])
            breaches = [line for line in lines[:-1] if not self.of_a_long_turn(line)] if counted else lines
            if done.returncode in (0, NOTHING_TRACED) or (counted and not breaches):
                self.verified += int(counted.group(1)) if counted else 0
                self.long_turns += len(lines) - 1 if counted else 0
                os.remove(trace)
            else:
                self.refused.append("%s: %s" % (trace, " | ".join(breaches)[:2000]))
                self.note("what was traced breaks the tables: %s" % breaches[0])

    # ---- The run ----

    def begin_streams(self):
        busy = {(stream.producer.worker, stream.consumer.worker) for stream in self.streams.values()}
        for one, other, path in PAIRS:
            if not self.wire.mine and path == SHM and one[0] == "b":
                path = SOFT
            for producer, consumer in ((one, other), (other, one)):
                lives = self.lives[producer], self.lives[consumer]
                if (producer, consumer) in busy or any(life.dead or life.stopped or not life.ready.is_set() for life in lives):
                    continue
                self.number += 1
                self.streams[str(self.number)] = Stream(self, self.number, *lives, path)

    def step_streams(self):
        for name, stream in list(self.streams.items()):
            if stream.step():
                del self.streams[name]

    def sample(self):
        for life in self.lives.values():
            if not life.dead and life.process.poll() is None:
                try:
                    self.write("memory", life.name, life.memory_kib())
                except (OSError, KeyError):
                    pass  # It ends just now.

    def run(self, seconds):
        self.begun = time.monotonic()
        threading.Thread(target=self.pulse, daemon=True).start()
        self.write("allow", "slack_ms", SLACK_S * 1000)
        self.write("allow", "patience_ms", PATIENCE_S * 1000)
        self.write("allow", "keep_ms", KEEP_S * 1000)
        self.write("allow", "base_kib", BASE_MIB << 10)
        for worker in WORKERS:
            self.start(worker)
        if not all(self.patiently(60, life.ready.wait) for life in self.lives.values()):
            raise SystemExit("audit: not all workers started: look into " + self.folder)
        verifier = threading.Thread(target=self.verify)
        verifier.start()
        until = time.monotonic() + seconds
        strike_at, sample_at = time.monotonic() + 3, 0
        try:
            while time.monotonic() < until:
                time.sleep(0.02)
                self.reap()
                self.run_due()
                self.begin_streams()
                self.step_streams()
                if time.monotonic() >= strike_at:
                    self.strike()
                    strike_at = time.monotonic() + self.random.uniform(1, 4)
                if time.monotonic() >= sample_at:
                    self.sample()
                    sample_at = time.monotonic() + 1
        finally:
            self.over.set()
            verifier.join(120)
        self.finish()

    def finish(self):
        """No more faults; every stream ends, and then every process."""
        self.run_due(everything=True)
        until = time.monotonic() + GIVE_UP_S - self.held_s
        while self.streams and time.monotonic() < until + self.held_s:
            time.sleep(0.02)
            self.reap()
            self.run_due()
            self.step_streams()
        for stream in self.streams.values():
            self.write("stuck", stream.name)
            self.note("stream %s (%s, %s to %s) did not end" %
                      (stream.name, stream.way, stream.producer.name, stream.consumer.name))
            for life in stream.ends():
                life.tell("show")
        for life in self.lives.values():
            life.ready.wait(20)
            life.tell("bye")
        for life in self.lives.values():
            if life.dead:
                continue
            code = -1
            if self.patiently(30, life.has_ended):
                code = life.process.returncode
            else:
                self.note("%s does not end" % life.name)
                life.process.kill()
            life.dead = True
            self.write("exit", life.name, code)
        self.write("end")
        self.wire.close()
        for port in self.ports:
            port.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--sdk", required=True)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    if os.geteuid() == 0 and INSIDE not in os.environ:
        alone = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], check=False, capture_output=True).returncode == 0
        if alone:
            os.environ[INSIDE] = "1"
            os.execvp("unshare", ["unshare", "-n", sys.executable, *sys.argv])
    folder = tempfile.mkdtemp(prefix="tryst_audit_")
    skipped = []
    audit = Audit(arguments, folder)
    if not audit.wire.mine:
        skipped.append("cuts and slow wires need root and network namespaces")
    audit.run(arguments.minutes * 60)
    print("%.0f s, seed %d: %s" % (time.monotonic() - audit.begun, arguments.seed,
                                   ", ".join("%d times %s" % (count, kind) for kind, count in audit.faults.items())), flush=True)
    judged = subprocess.run([sys.executable, "-I", HERE + "/checker.py", audit.histories, *skipped], check=False,
                            stdout=subprocess.PIPE, text=True)
    *lines, closing = judged.stdout.rstrip().split("\n")
    print("\n".join(lines))
    counts = [int(word) for word in re.findall(r"\d+", closing)]
    if audit.verified == 0 and not audit.refused:
        print("SKIPPED   traces: no worker told of an operation: %s" % audit.untraced)
        counts[2] += 1
    else:
        print("%-9s %-22s %s" % ("FAILED" if audit.refused else "held", "traces:",
                                 "`tryst verify` accepts what both ends trace: %d operations" % audit.verified +
                                 (", %d of them with times of turns that took long" % audit.long_turns if audit.long_turns else "")))
        counts[1 if audit.refused else 0] += 1
    for text in audit.refused:
        print("  " + text)
    code = 1 if counts[1] > 0 else judged.returncode
    if code == 0 and not arguments.keep:
        shutil.rmtree(folder)
    else:
        print("the histories are kept: %s/checker.py %s" % (HERE, audit.histories))
    print("%d passed, %d failed, %d skipped" % tuple(counts), flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
