#!/usr/bin/env python3
"""Two workers, each of a release of its own: tensors both ways on every path, by number and bytes.

  versions.py OLD NEW     OLD and NEW are programs made of peer.cc: each produces for the other,
                          over shared memory, the software NIC and gRPC

Then jobs of four workers are upgraded and brought back, one worker after the other, under load (rolling.py).

OLD and NEW may be one program: it produces for itself, once for each path. Ends as a unittest file does, with "N passed, N failed, N
skipped" below it.
"""
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../tools"))
import case_report  # noqa: E402
import rolling  # noqa: E402

PROGRAMS = {}  # "old" and "new".
PATHS = {
    "shm": ["--protocol=grpc+verbs", "--nic=soft", "--shm=on"],
    "rdma/soft": ["--protocol=grpc+verbs", "--nic=soft", "--shm=off"],
    "grpc": ["--protocol=grpc", "--shm=off"],
}
# Empty, inside a message, about a message's size, a landing, more than one part, large; strings.
SIZES = (0, 8, 100, 2000, 8191, 8192, 8193, 65536, 300001, 8 << 20, -1)
PATIENCE_S = 60


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, stderr=subprocess.DEVNULL)


def tls_flags(folder, job):
    """A certificate that names the worker, signed by the folder's own authority."""
    def at(name):
        return os.path.join(folder, name)
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    if not os.path.exists(at("ca.pem")):
        openssl("req", "-x509", *new, "-days", "2", "-subj", "/CN=ca", "-keyout", at("ca.key"), "-out", at("ca.pem"))
    openssl("req", *new, "-subj", "/", "-keyout", at(job + ".key"), "-out", at(job + ".csr"))
    with open(at(job + ".ext"), "w") as file:
        file.write("subjectAltName=URI:tryst://tryst/job:%s/replica:0/task:0" % job)
    openssl("x509", "-req", "-in", at(job + ".csr"), "-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-CAcreateserial",
            "-days", "2", "-out", at(job + ".pem"), "-extfile", at(job + ".ext"))
    return ["--certificate_file=" + at(job + ".pem"), "--key_file=" + at(job + ".key"), "--ca_file=" + at("ca.pem")]


def token_flags(folder, _job):
    token = os.path.join(folder, "token")
    with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("a token of both releases, long enough\n")
    return ["--token_file=" + token]


SECURITY = {"insecure": lambda _folder, _job: ["--insecure"], "tls": tls_flags, "token": token_flags}


class Peer:
    def __init__(self, program, job, flags, folder, security="insecure"):
        self.log = os.path.join(folder, job + ".log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [program, *SECURITY[security](folder, job), "--open_cluster", "--job=" + job, "--listen=127.0.0.1:0", *flags],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        words = self.answer("serving").split()
        self.name, self.place = words[0], "%s@%s" % (words[0], words[2])

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self, word):
        """The rest of the next line, which begins with that word."""
        watch = threading.Timer(PATIENCE_S, self.process.kill)
        watch.start()
        line = self.process.stdout.readline().strip()
        watch.cancel()
        first, _, rest = line.partition(" ")
        if first == word:
            return rest
        with open(self.log) as log:
            raise AssertionError("%r in place of %r; its log ends:\n%s" % (line, word, "".join(log.readlines()[-12:])))

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Pair:
    """Not cases by itself: what OldToNew and NewToOld do on each path."""
    producer_is = consumer_is = path = None
    security = "insecure"
    expected = None  # The path that is taken, if it is not the configured one.
    producer_flags = ()
    new_flags = ()  # Workers of this tree have these.

    def setUp(self):
        if self.security == "tls" and not shutil.which("openssl"):
            self.skipTest("needs openssl")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        def flags(who):
            return [*PATHS[self.path], *(self.new_flags if who == "new" else ())]
        self.producer = Peer(PROGRAMS[self.producer_is], "ps", [*flags(self.producer_is), *self.producer_flags],
                             folder.name, self.security)
        self.addCleanup(self.producer.stop)
        self.consumer = Peer(PROGRAMS[self.consumer_is], "worker",
                             [*flags(self.consumer_is), "--join=" + self.producer.place], folder.name, self.security)
        self.addCleanup(self.consumer.stop)

    def start_send(self, step, edge, first, count, size):
        self.producer.tell("send", step, edge, first, count, size, self.consumer.name)

    def send(self, *what):
        self.start_send(*what)
        self.producer.answer("sent")

    def start_recv(self, step, edge, how, count, size, timeout_ms=20000):
        self.consumer.tell("recv", step, edge, how, count, size, timeout_ms, self.producer.name)

    def got(self):
        return self.consumer.answer("got").split()

    def recv(self, *what):
        self.start_recv(*what)
        return self.got()

    def check_path(self):
        """That the tensors came by the path that is tested, and not by the next best."""
        self.consumer.tell("path", self.producer.name)
        said = self.consumer.answer("path")
        used = re.findall(r"fetch from \S+ over (\S+): (?:connected|in use)", said)
        self.assertEqual(used, [self.expected or self.path], said.replace("|", "\n"))

    def test_bytes_of_every_size(self):
        for size in SIZES:
            numbers = ["0"] * 3 if size == 0 else ["7", "8", "9"]
            for how in ("one", "all", "into", "many"):
                if how == "into" and size < 0:
                    continue
                with self.subTest(size=size, how=how):
                    edge = "%s%d" % (how, size)
                    self.send(1, edge, 7, 3, size)  # First the tensors, then the receives.
                    self.assertEqual(self.recv(1, edge, how, 3, size), numbers)
                    self.start_recv(2, edge, how, 3, size)  # First the receives, then the tensors.
                    time.sleep(0.02)
                    self.send(2, edge, 7, 3, size)
                    self.assertEqual(self.got(), numbers)
        self.check_path()

    def test_order_of_one_key(self):
        for size in (100, 30000):
            edge = "order%d" % size
            self.start_recv(1, edge, "one", 300, size)
            self.send(1, edge, 0, 300, size)
            self.assertEqual(self.got(), [str(i) for i in range(300)])
            # All at once.
            self.start_recv(2, edge, "all", 200, size)
            self.send(2, edge, 0, 200, size)
            got = self.got()
            self.assertEqual(got, [str(i) for i in range(200)])
        self.check_path()

    def test_a_receive_that_timed_out_takes_no_tensor(self):
        for size in (100, 30000):
            for i in range(10):
                with self.subTest(size=size, i=i):
                    edge = "late%d.%d" % (size, i)
                    self.assertEqual(self.recv(1, edge, "one", 1, size, 20 * (i % 3) + 5), ["DEADLINE_EXCEEDED"])
                    self.send(1, edge, i, 2, size)
                    self.assertEqual(self.recv(1, edge, "one", 2, size), [str(i), str(i + 1)])
        self.check_path()

    def test_a_receive_that_was_cancelled_takes_no_tensor(self):
        for size in (100, 30000):
            for i in range(10):
                with self.subTest(size=size, i=i):
                    edge = "cancelled%d.%d" % (size, i)
                    self.consumer.tell("cancel", 1, edge, size, 5 * i, self.producer.name)
                    self.assertEqual(self.got(), ["CANCELLED"])
                    self.send(1, edge, i, 2, size)
                    self.assertEqual(self.recv(1, edge, "one", 2, size), [str(i), str(i + 1)])
        self.check_path()

    def test_deadlines_in_the_middle_of_sends_lose_and_double_nothing(self):
        draw = random.Random(17)
        for size in (100, 30000):
            edge, got, rounds = "race%d" % size, [], 60
            for i in range(rounds):
                self.start_recv(1, edge, "one", 1, size, 20)
                time.sleep(draw.uniform(0.016, 0.026))
                self.send(1, edge, i, 1, size)
                got += self.got()
            late = got.count("DEADLINE_EXCEEDED")
            got = [word for word in got if word != "DEADLINE_EXCEEDED"]
            got += self.recv(1, edge, "one", late, size) if late else []
            self.assertEqual(sorted(got), sorted(str(i) for i in range(rounds)), "%d were late" % late)
        self.check_path()

    def test_dead_tensors_and_aborted_steps(self):
        self.producer.tell("dead", 1, "dead", self.consumer.name)
        self.producer.answer("sent")
        self.assertEqual(self.recv(1, "dead", "one", 1, 100), ["dead"])
        # The producer must have begun the step that it aborts.
        self.send(2, "begun", 0, 1, 100)
        self.start_recv(2, "never", "all", 5, 100)
        time.sleep(0.1)
        self.producer.tell("abort", 2)
        self.producer.answer("aborted")
        self.assertEqual(self.got(), ["ABORTED"] * 5)
        self.check_path()


def pairs():
    """A class of cases for each way and path: Old_to_new_over_shm and so on."""
    ways = (("old", "new"), ("new", "old"))
    if PROGRAMS["old"] == PROGRAMS["new"]:
        ways = (("new", "new"),)
    for producer, consumer in ways:
        who = {"producer_is": producer, "consumer_is": consumer}
        for path in PATHS:
            name = "%s_to_%s_over_%s" % (producer.capitalize(), consumer, path.split("/")[-1])
            expected = "grpc" if producer != consumer else None  # Calls are all that they have in common.
            if path == "grpc" and producer == consumer:
                expected = "grpc/stream"
            yield type(name, (Pair, unittest.TestCase), dict(who, path=path, expected=expected, __module__=__name__))
    for producer, consumer in ways:
        for security in ("tls", "token"):
            for path in PATHS:
                who = {"producer_is": producer, "consumer_is": consumer, "path": path, "security": security}
                mixed = producer != consumer
                if mixed and security == "token":  # As CHANGELOG.md has such a cluster upgraded.
                    who["new_flags"] = ("--encrypt=off",)
                if mixed:
                    who["expected"] = "grpc"
                elif path != "shm":
                    who["expected"] = {"rdma/soft": "rdma/soft-tls", "grpc": "grpc/stream" if security == "tls" else "grpc/sealed"}[path]
                name = "%s_to_%s_over_%s_under_%s" % (producer.capitalize(), consumer, path.split("/")[-1], security)
                yield type(name, (Pair, unittest.TestCase), dict(who, __module__=__name__))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAMS.update(zip(("old", "new"), map(os.path.abspath, sys.argv[1:3])))
    globals().update((case.__name__, case) for case in pairs())
    globals().update((case.__name__, case) for case in rolling.cases(unittest.TestCase, PATHS, PROGRAMS, Peer))
    case_report.main()
