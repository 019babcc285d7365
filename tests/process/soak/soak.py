#!/usr/bin/env python3
"""Four workers and two parameter servers under load, killed at random: ./run soak.

    soak.py [--seconds=N] [--seed=N] [--programs=FOLDER]

Every pair has a stream of checked tensors each way (tests/process/e2e/load_worker), over shared
memory, the software NIC and gRPC at once. Every few seconds one process gets SIGKILL,
SIGTERM, or SIGSTOP and after a while SIGCONT. One server and one worker are left alone:
their memory, files and threads must not grow, however many lives of the others they see.

Fails when a byte is wrong, when a stream stands still for longer than a stop can explain
(then tells what both ends wait for), when the history of what all lives sent and received breaks a
promise (tests/process/history; then its folder is kept and named), when what both ends traced breaks the
tables of states (tryst verify, every few seconds), when a goodbye does not end well, or when what was left alone has
grown. Ends with a line that says all of it in figures, and a closing line.
"""
import argparse
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SERVERS, WORKERS = 2, 4
LONGEST_S = 40  # A stream that stands still for longer hangs.
WINDOW_S = 10  # The least memory within so many seconds counts, because tensors come and go.
GROWTH_KIB = 8192  # What the trend may add up to over the run: an allocator is not exact.
GROWTH_FILES = 16
NOTHING_FOUND = 3  # tryst verify had no operation.
VERIFY_S = 2  # A trace has the last few thousand operations, of which every one is kept.
LEAST_S = 120  # Before that, bounded tables still fill up.
LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


def free_ports(count):
    """Below those that connections get: a port must still be there after its owner has died."""
    ports = []
    for port in random.SystemRandom().sample(range(15000, 32000), 2000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    sys.exit("soak: no free ports")


class Life:
    """One life of one worker."""

    def __init__(self, cluster, name):
        self.name = name
        self.got = {}  # (peer, incarnation) -> how many tensors
        self.incarnation = None
        self.tail = []
        self.wrong = []
        self.stopped = False
        self.process = subprocess.Popen(cluster.command(name), stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True,
                                        preexec_fn=die_with_parent)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            words = line.split()
            if line.startswith("got "):
                self.got[words[1], words[2]] = int(words[3])
                continue
            if line.startswith("serving "):
                self.incarnation = words[5]
            if line.startswith("wrong: "):
                self.wrong.append(line.strip())
            self.tail = self.tail[-30:] + [line.rstrip()]

    def count_from(self, peer):
        return self.got.get((peer.name, peer.incarnation), 0)

    def send(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.reader.join(5)
        return code

    def memory_kib(self):
        """Private and shared memory that is in RAM."""
        with open("/proc/%d/status" % self.process.pid) as status:
            rows = dict(line.split(":", 1) for line in status)
        return int(rows["RssAnon"].split()[0]), int(rows["RssShmem"].split()[0])

    def files_and_threads(self):
        of = "/proc/%d/" % self.process.pid
        return len(os.listdir(of + "fd")), len(os.listdir(of + "task"))


class Trend:
    """Something that must not grow, sampled; judged after a first fifth in which it may."""

    def __init__(self, name, unit, may_grow):
        self.name, self.unit, self.may_grow = name, unit, may_grow
        self.windows = {}

    def add(self, at_s, value):
        window = int(at_s / WINDOW_S)
        self.windows[window] = min(value, self.windows.get(window, value))

    def judge(self, seconds):
        """(text, whether it is flat)."""
        points = [(w * WINDOW_S, v) for w, v in self.windows.items() if w * WINDOW_S >= seconds / 5]
        if seconds < LEAST_S or len(points) < 2:
            return "%s %d%s (a trend needs %d s)" % (self.name, list(self.windows.values())[-1],
                                                     self.unit, LEAST_S), True
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        over = sum((x - mean_x) ** 2 for x, _ in points)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / over
        growth = slope * (points[-1][0] - points[0][0])
        text = "%s %d%s, %+.1f%s a minute" % (self.name, points[-1][1], self.unit, slope * 60,
                                              self.unit)
        return text, growth <= self.may_grow


class Cluster:
    def __init__(self, programs, rng):
        self.programs, self.rng = programs, rng
        self.servers = ["/job:ps/replica:0/task:%d" % i for i in range(SERVERS)]
        self.workers = ["/job:worker/replica:0/task:%d" % i for i in range(WORKERS)]
        names = self.servers + self.workers
        self.places = dict(zip(names, ("127.0.0.1:%d" % p for p in free_ports(len(names)))))
        self.left_alone = [self.servers[0], self.workers[0]]
        self.mortal = [name for name in names if name not in self.left_alone]
        self.lives = {}
        self.trouble = []
        self.tensors = 0  # Counts for incarnations that have ended.
        self.verified = 0  # Operations; those that two looks have seen count twice.
        self.history = tempfile.mkdtemp(prefix="tryst_history_", dir=os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR"))
        self.begun = 0
        self.kills = {"SIGKILL": 0, "SIGTERM": 0, "SIGSTOP": 0}

    def command(self, name):
        # Two workers share memory with the servers, one uses the software NIC, one gRPC.
        way = {self.workers[2]: "--shm=off", self.workers[3]: "--protocol=grpc"}
        job, task = name.split(":")[1].split("/")[0], name.rsplit(":", 1)[1]
        spec = ";".join("%s=%s" % (j, ",".join(self.places[n] for n in ns))
                        for j, ns in (("ps", self.servers), ("worker", self.workers)))
        peers = self.workers if name in self.servers else self.servers
        return [os.path.join(self.programs, "tests/process/e2e/load_worker"), "--insecure", "--job=" + job,
                "--task=" + task, "--cluster_spec=" + spec, "--patience=60s", "--nic=soft",
                "--longest=600s", "--shm_bytes=256MiB", "--trace_sample_every=1", "--peers=" + ",".join(peers),
                "--history=%s/%d" % (self.history, self.begun), way.get(name, "--shm=on")]

    def judge(self):
        """Judges what all lives saw; afterwards the folder is gone, unless a promise was broken."""
        judge = os.path.join(self.programs, "tests/process/history/judge")
        done = subprocess.run([judge, self.history, "16"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout.strip(), flush=True)
        if done.returncode != 0:
            self.fail("the history is kept in %s: ./run history %s" % (self.history, self.history))
        else:
            shutil.rmtree(self.history)

    def verify(self):
        """Holds what all ends keep of their last operations against the tables of states: docs/STATES.md."""
        tryst = os.path.join(self.programs, "server/tryst")
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            places = ["%s@%s" % place for place in self.places.items()]
            # Who has just begun has nothing to tell yet.
            subprocess.run([tryst, "trace", *places, "--insecure", "--timeout=5s", "--out=" + trace], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            if not os.path.exists(trace):
                return
            done = subprocess.run([tryst, "verify", trace], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        counted = re.search(r"^(\d+) operations: ", done.stdout, re.MULTILINE)
        self.verified += int(counted.group(1)) if counted else 0
        if done.returncode not in (0, NOTHING_FOUND):
            self.fail("the traces of both ends break the tables: %s" % done.stdout.strip()[:4000])

    def start(self, name):
        self.begun += 1
        self.lives[name] = Life(self, name)

    def fail(self, what):
        print("FAILED  " + what, flush=True)
        self.trouble.append(what)

    def bury(self, name):
        life = self.lives[name]
        self.tensors += sum(life.got.values())
        for line in life.wrong:
            self.fail("%s says %s" % (name, line))

    def strike(self):
        """One event. Returns when the next may come."""
        name = self.rng.choice(self.mortal)
        life = self.lives[name]
        how = self.rng.choice(list(self.kills))
        self.kills[how] += 1
        life.send(getattr(signal, how))
        if how == "SIGSTOP":
            life.stopped = True
            return name, time.monotonic() + self.rng.uniform(0.5, 6)
        code = life.wait()
        if how == "SIGTERM" and code != 0 and life.incarnation is not None:
            self.fail("%s ends with %s after SIGTERM:\n%s" % (name, code, "\n".join(life.tail)))
        self.bury(name)
        time.sleep(self.rng.choice([0, 0, 0.2, 2]))
        self.start(name)
        return None, 0

    def streams(self):
        for server in self.servers:
            for worker in self.workers:
                yield server, worker
                yield worker, server

    def explain_hang(self, producer, consumer):
        tryst = os.path.join(self.programs, "server/tryst")
        for name, peer in ((consumer, producer), (producer, consumer)):
            place = "%s@%s" % (name, self.places[name])
            for command in (["waiting", place], ["explain", place, peer]):
                done = subprocess.run([tryst] + command + ["--insecure", "--timeout=5s"],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                print("--- tryst %s\n%s" % (" ".join(command), done.stdout[:4000]))
            print("--- %s says\n%s" % (name, "\n".join(self.lives[name].tail)), flush=True)

    def end(self):
        for life in self.lives.values():
            life.send(signal.SIGCONT)
            life.send(signal.SIGTERM)
        for name, life in self.lives.items():
            code = life.wait()
            if code != 0 and life.incarnation is not None:
                self.fail("%s ends with %s:\n%s" % (name, code, "\n".join(life.tail)))
            self.bury(name)


def soak(cluster, seconds, calm):
    """Runs it; returns the trends."""
    trends = []
    for name in cluster.servers + cluster.workers:
        cluster.start(name)
    for name in cluster.left_alone:
        for what, unit, may_grow in (("private", " KiB", GROWTH_KIB), ("shared", " KiB", GROWTH_KIB),
                                     ("files", "", GROWTH_FILES), ("threads", "", GROWTH_FILES)):
            trends.append((name, what, Trend("%s %s" % (name, what), unit, may_grow)))
    began = time.monotonic()
    moved = {}  # stream -> (count with incarnations, when it last changed)
    thaw, thaw_at, next_strike = None, 0, began + 3
    next_word = began + 10
    next_look = began + VERIFY_S
    now = began
    while time.monotonic() < began + seconds and not cluster.trouble:
        time.sleep(0.2)
        gap = time.monotonic() - now
        now += gap
        if gap > 5:  # This process was stopped, or the machine was.
            moved = {stream: (state, at + gap) for stream, (state, at) in moved.items()}
        if thaw is not None and now >= thaw_at:
            cluster.lives[thaw].send(signal.SIGCONT)
            cluster.lives[thaw].stopped = False
            thaw = None
        if now >= next_strike and thaw is None and not calm:
            thaw, thaw_at = cluster.strike()
            next_strike = time.monotonic() + cluster.rng.uniform(0.5, 5)
        if now >= next_look and thaw is None:
            cluster.verify()
            next_look = time.monotonic() + VERIFY_S
        for name, life in cluster.lives.items():
            if life.process.poll() is not None:
                cluster.fail("%s ended with %d by itself:\n%s" %
                             (name, life.process.returncode, "\n".join(life.tail)))
            for line in life.wrong:
                cluster.fail("%s says %s" % (name, line))
            life.wrong = []
        for producer, consumer in cluster.streams():
            a, b = cluster.lives[producer], cluster.lives[consumer]
            state = (id(a), id(b), b.count_from(a))
            last = moved.get((producer, consumer))
            if last is None or last[0] != state or a.stopped or b.stopped:
                moved[producer, consumer] = (state, now)
            elif now - last[1] > LONGEST_S:
                cluster.fail("%s has had nothing from %s for %d s" % (consumer, producer, LONGEST_S))
                cluster.explain_hang(producer, consumer)
        for name, what, trend in trends:
            life = cluster.lives[name]
            if what in ("private", "shared"):
                trend.add(now - began, life.memory_kib()[what == "shared"])
            else:
                trend.add(now - began, life.files_and_threads()[what == "threads"])
        if now >= next_word:
            next_word = now + max(10, seconds / 20)
            print("%4d s: %d tensors, %d kills; %s" % (
                now - began, total(cluster), sum(cluster.kills.values()),
                ", ".join("%s %d KiB" % (n, cluster.lives[n].memory_kib()[0])
                          for n in cluster.left_alone)), flush=True)
    return [trend for _, _, trend in trends]


def total(cluster):
    return cluster.tensors + sum(sum(list(life.got.values())) for life in cluster.lives.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--programs", default=".")
    parser.add_argument("--calm", action="store_true", help="nobody is killed")
    options = parser.parse_args()
    print("soak: %d s, --seed=%d" % (options.seconds, options.seed), flush=True)
    cluster = Cluster(options.programs, random.Random(options.seed))
    try:
        trends = soak(cluster, options.seconds, options.calm)
        for life in cluster.lives.values():
            life.send(signal.SIGCONT)
        cluster.verify()
    finally:
        cluster.end()
    cluster.judge()
    passed = 0
    texts = []
    for trend in trends:
        text, flat = trend.judge(options.seconds)
        texts.append(text)
        if flat:
            passed += 1
        else:
            cluster.fail("grows: " + text)
    if cluster.tensors == 0:
        cluster.fail("nothing was moved")
    if cluster.verified == 0:
        cluster.fail("no trace was verified")
    print("\n".join("  " + text for text in texts))
    print("soak: %d s, %d tensors checked, traces of %d operations verified, %d kills (%s), %d failures" % (
        options.seconds, cluster.tensors, cluster.verified, sum(cluster.kills.values()),
        ", ".join("%d %s" % (count, how) for how, count in cluster.kills.items()),
        len(cluster.trouble)))
    print("%d passed, %d failed, 0 skipped" % (passed + (not cluster.trouble),
                                               len(cluster.trouble)))
    return 1 if cluster.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
