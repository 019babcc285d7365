#!/usr/bin/env python3
"""--resolver=etcd:... against three real etcd-servers, each on a host of its own that can be cut off.

  etcd.py PEER APPENDER WORKER [--rounds=N]   //tests/release/versions:peer, //tests/weights:log_appender and :group_worker;
                                              needs root, Debian's etcd-server and etcd-client; N times a leader is killed or a
                                              server cut off (4)

Tensors travel all the while: no fetch may fail for what happens to etcd. The log of a set of weights there stays one log, and
members serve by it whoever dies.
"""
import base64
import json
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
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import case_report  # noqa: E402
import namespace  # noqa: E402

NAMES = ["etcd1", "etcd2", "etcd3"]
KNOWN_WITHIN_S = 2.0
PATIENCE_S = 60


def until(what, ready, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = ready()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError("waited %d s: %s" % (seconds, what))


def free_port():
    """Below those that the kernel gives to connections, so that it is still free when it is used."""
    while True:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", random.SystemRandom().randint(12000, 32000)))
                return one.getsockname()[1]
            except OSError:
                continue


class Etcd:
    """Three servers of one cluster."""

    def __init__(self, folder):
        self.folder = folder
        self.hosts = namespace.Hosts(folder, NAMES)
        self.servers = {}
        for name in NAMES:
            self.start(name)
        self.await_leader()

    def place(self, name, port=2379):
        return "%s:%d" % (self.hosts.address(name), port)

    def endpoints(self):
        return ",".join(map(self.place, NAMES))

    def start(self, name):
        every = ",".join("%s=http://%s" % (one, self.place(one, 2380)) for one in NAMES)
        here, peer = "http://" + self.place(name), "http://" + self.place(name, 2380)
        with open(os.path.join(self.folder, name + ".log"), "a") as log:
            self.servers[name] = subprocess.Popen(
                self.hosts.command(name, "etcd", "--name=" + name, "--data-dir=%s/%s" % (self.folder, name),
                                   "--listen-client-urls=" + here, "--advertise-client-urls=" + here,
                                   "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
                                   "--initial-cluster=" + every, "--initial-cluster-state=new"),
                stdout=log, stderr=log)

    def kill(self, name):
        self.servers[name].kill()
        self.servers[name].wait()

    def cut(self, name, off=True):
        """From the other two; workers still reach it."""
        for other in NAMES:
            if other != name:
                namespace.run("ip", "-n", name, "route", "add" if off else "del", "blackhole", self.hosts.address(other))

    def leader(self, names=NAMES):
        """Whom all of these hold to be the leader; None: they do not agree, or there is none."""
        said = set()
        for name in names:
            try:
                request = urllib.request.Request("http://%s/v3/maintenance/status" % self.place(name), b"{}")
                with urllib.request.urlopen(request, timeout=0.5) as response:
                    status = json.load(response)
            except (OSError, ValueError):
                return None
            said.add(status.get("leader", "0"))
            if status["header"]["member_id"] == status.get("leader"):
                ours = name
        if len(said) != 1 or said == {"0"}:
            return None
        return locals().get("ours")

    def await_leader(self, names=NAMES):
        return until("a leader", lambda: self.leader(names))

    def has(self, key):
        body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
        for name in NAMES:
            try:
                with urllib.request.urlopen("http://%s/v3/kv/range" % self.place(name), body, timeout=10) as response:
                    return "kvs" in json.load(response)
            except OSError:  # It has yet to come back.
                continue
        return False

    def stop(self):
        for server in self.servers.values():
            server.kill()
            server.wait()


class Peer:
    """A worker that does what it is told; see tests/release/versions/peer.cc."""

    def __init__(self, folder, job, etcd, *flags, task=0, lease="3s"):
        self.name = "/job:%s/replica:0/task:%d" % (job, task)
        self.page = "127.0.0.1:%d" % free_port()
        with open(os.path.join(folder, "%s%d.log" % (job, task)), "a") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "--insecure", "--nic=soft", "--job=" + job, "--task=%d" % task, "--listen=127.0.0.1:0",
                 "--resolver=etcd:" + etcd, "--patience=" + lease,
                 "--status_listen=" + self.page, *flags],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.address = self.answer("serving").split()[2]

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self, word):
        watch = threading.Timer(PATIENCE_S, self.process.kill)
        watch.start()
        line = self.process.stdout.readline().strip()
        watch.cancel()
        first, _, rest = line.partition(" ")
        if first != word:
            raise AssertionError("%s says %r in place of %r" % (self.name, line, word))
        return rest

    def look(self):
        with urllib.request.urlopen("http://%s/paths.json" % self.page, timeout=10) as response:
            return json.load(response)

    def member(self, name):
        """(address, incarnation) as this worker knows it; (None, None): not at all."""
        for member in self.look()["members"]:
            if member["worker"] == name and int(member["incarnation"], 16):
                return member["address"], member["incarnation"]
        return None, None

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Grouped:
    """An owner or a member of a set of weights whose log is in etcd; see tests/weights/group_worker.cc."""

    lives = 0

    def __init__(self, folder, place, role, task, owners):
        Grouped.lives += 1
        self.out = os.path.join(folder, "%s%d.%d.out" % (role, task, Grouped.lives))
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(
                ["sh", "-c", 'exec "$0" "$@" 3<&0', WORKER, role, str(task), str(owners), "grpc", place],
                stdin=subprocess.PIPE, stdout=out, stderr=out, text=True)

    def lines(self):
        with open(self.out) as out:
            return [line.rstrip("\n") for line in out if line.endswith("\n")]

    def now(self):
        return len(self.lines())

    def wait_for(self, begin, after=0):
        """The rest of the first line, of those after so many, that begins so."""
        def said():
            if self.process.poll() is not None:
                raise AssertionError("%s has ended, and said no %r" % (self.out, begin))
            return [line[len(begin):] + "\n" for line in self.lines()[after:] if line.startswith(begin)]
        try:
            return until(begin, said)[0].rstrip("\n")
        except AssertionError as error:
            raise AssertionError("%s: %s" % (error, "\n".join(self.lines()))) from None

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def order(self, line):
        before = self.now()
        self.tell(line)
        return self.wait_for("done %s: " % line, before)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


def fetch(producer, consumer, step, edge, number, size=3000):
    """What the consumer got."""
    producer.tell("send", step, edge, number, 1, size, consumer.name)
    producer.answer("sent")
    consumer.tell("recv", step, edge, "one", 1, size, 20000, producer.name)
    return consumer.answer("got")


class EtcdTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tryst-etcd-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.etcd = Etcd(cls.folder)
        cls.addClassCleanup(cls.etcd.stop)

    def peer(self, job, *flags, **more):
        peer = Peer(self.folder, job, self.etcd.endpoints(), "--cluster=" + self._testMethodName, *flags, **more)
        self.addCleanup(peer.stop)
        return peer

    def pair(self):
        ps, worker = self.peer("ps"), self.peer("worker")
        self.assertEqual(fetch(ps, worker, 1, "first", 7), "7")
        return ps, worker

    def test_a_worker_that_returns_elsewhere_is_found(self):
        ps, worker = self.pair()
        was = worker.member(ps.name)
        self.assertEqual(was[0], ps.address)
        ps.process.kill()
        ps = self.peer("ps")
        until("it is known at its new address", lambda: worker.member(ps.name)[0] == ps.address)
        self.assertNotEqual(worker.member(ps.name)[1], was[1])
        self.assertEqual(fetch(ps, worker, 2, "again", 8), "8")
        ps.stop()  # It says goodbye.
        until("it has left", lambda: worker.member(ps.name)[0] is None, 5)

    def test_a_lease_that_lapsed_is_taken_anew(self):
        ps, worker = self.pair()
        ps.signal(signal.SIGSTOP)
        until("its lease lapses", lambda: worker.member(ps.name)[0] is None)
        ps.signal(signal.SIGCONT)
        until("it is a member again", lambda: worker.member(ps.name)[0] == ps.address)
        self.assertGreaterEqual(ps.look()["membership"]["leases"], 2)
        self.assertEqual(fetch(ps, worker, 2, "again", 8), "8")

    def test_a_stale_member_does_not_take_the_place_of_a_new_one(self):
        ps, worker = self.pair()
        ps.signal(signal.SIGSTOP)
        new = self.peer("ps")
        until("the new one is known", lambda: worker.member(ps.name)[0] == new.address)
        until("the old lease lapses", lambda: new.look()["membership"]["age_s"] < 1)
        time.sleep(4)
        ps.signal(signal.SIGCONT)
        until("the old one knows", lambda: ps.look()["membership"]["superseded"])
        self.assertEqual(worker.member(ps.name)[0], new.address)
        self.assertEqual(fetch(new, worker, 2, "again", 8), "8")

    def test_data_goes_on_while_etcd_is_away(self):
        ps, worker = self.pair()
        for name in NAMES:
            self.etcd.servers[name].send_signal(signal.SIGSTOP)
        try:
            for i in range(40):
                self.assertEqual(fetch(ps, worker, 2, "away", i), str(i))
                time.sleep(0.1)
            self.assertGreater(worker.look()["membership"]["age_s"], 2)
            worker.tell("path", "")
            self.assertRegex(worker.answer("path"), r"members by etcd at \S+: 2, as of \d+\.\d s ago \(")
        finally:
            for name in NAMES:
                self.etcd.servers[name].send_signal(signal.SIGCONT)
        until("etcd is heard again", lambda: 0 <= worker.look()["membership"]["age_s"] < 1.5)
        self.assertEqual(fetch(ps, worker, 2, "back", 9), "9")

    def test_leaders_killed_and_minorities_cut_off(self):
        ps, worker = self.pair()
        ended, got, known = threading.Event(), [], []

        def load():
            while not ended.is_set():
                got.append(fetch(ps, worker, 2, "load", len(got)))
                time.sleep(0.01)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for i in range(ROUNDS):
                leader = self.etcd.await_leader()
                hit = leader if i % 2 == 0 else NAMES[i // 2 % 3]
                (self.etcd.kill if i % 2 == 0 else self.etcd.cut)(hit)
                self.etcd.await_leader([name for name in NAMES if name != hit])
                new = self.peer("new", task=i)
                serves = time.monotonic()
                until("the new one is known", lambda: ps.member(new.name)[0] == new.address)
                known.append(time.monotonic() - serves)
                new.stop()
                if i % 2 == 0:
                    self.etcd.start(hit)
                else:
                    self.etcd.cut(hit, off=False)
        finally:
            ended.set()
            thread.join()
        print("%d rounds: %d fetches; a new worker was known after %.2f s at most, %.2f s in the middle" % (
            ROUNDS, len(got), max(known), sorted(known)[len(known) // 2]), file=sys.stderr)
        self.assertEqual(got, [str(i) for i in range(len(got))])
        self.assertGreater(len(got), 10 * ROUNDS)
        self.assertLess(sorted(known)[len(known) // 2], KNOWN_WITHIN_S)
        self.assertLess(max(known), 5 * KNOWN_WITHIN_S)  # An election, and a busy machine.


    def test_the_log_of_weights_is_one_log(self):
        """Two want to lead it, while servers and leaders die."""
        seconds = 6 * ROUNDS
        outs = [os.path.join(self.folder, "log%d" % i) for i in range(4)]
        appenders = {}

        def start(i):
            with open(outs[i], "a") as out:
                appenders[i] = subprocess.Popen([APPENDER, self.etcd.endpoints(), "weights", str(seconds)], stdout=out)
            self.addCleanup(appenders[i].wait)
            self.addCleanup(appenders[i].kill)

        start(0)
        start(1)
        for i in range(ROUNDS):
            leader = self.etcd.await_leader()
            hit = leader if i % 2 == 0 else NAMES[i // 2 % 3]
            (self.etcd.kill if i % 2 == 0 else self.etcd.cut)(hit)
            self.etcd.await_leader([name for name in NAMES if name != hit])
            time.sleep(2)
            if i % 2 == 0:
                self.etcd.start(hit)
            else:
                self.etcd.cut(hit, off=False)
                if i // 2 < 2:  # One of the two dies in the middle of what it does, and another begins.
                    appenders[i // 2].kill()
                    start(2 + i // 2)
            time.sleep(1)
        for appender in appenders.values():
            appender.wait()
        at, lives, leads, mine = {}, set(), set(), {}
        for out in outs:
            with open(out) as lines:
                for line in lines:
                    if not line.endswith("\n"):
                        continue  # It was killed while it wrote this.
                    what, *words = line.split()
                    lives.add(words[0])
                    if what == "leads":
                        leads.add(words[1])
                        continue
                    index, value = int(words[1]), words[2]
                    self.assertEqual(at.setdefault(index, value), value, "entry %d is two: %s, %s" % (index, out, line))
                    if what == "appended":
                        self.assertEqual(mine.setdefault(value, index), index, "appended twice: " + line)
        print("%d entries of one log, by %d leases; %d answers were heard" % (max(at) + 1, len(leads), len(mine)), file=sys.stderr)
        self.assertEqual(len(lives), 1, "another log began, and etcd lost nothing")
        self.assertGreater(len(leads), 1)
        self.assertGreater(len(mine), 20 * ROUNDS)
        self.assertEqual(sorted(at), list(range(max(at) + 1)), "a gap")

    def grouped(self, role, task, owners):
        place = "%s@etcd:%s" % (self._testMethodName, self.etcd.endpoints())
        one = Grouped(self.folder, place, role, task, owners)
        self.addCleanup(one.kill)
        return one

    def seal(self, number, owners):
        """Returns its number: what is begun before all of them are in the log's term is dropped, and the next one is tried."""
        for number in range(number, number + 4):
            before = [owner.now() for owner in owners]
            for owner in owners:
                owner.order("publish %d" % number)
            for owner in owners:
                owner.tell("seal %d 30" % number)
            said = [owner.wait_for("done seal %d 30: " % number, line) for owner, line in zip(owners, before)]
            if set(said) == {"OK"}:
                return number
        raise AssertionError(said)

    def activate(self, number, how, owner, members):
        for member in members:
            member.wait_for("sealed %d" % number)
        before = [member.now() for member in members]
        self.assertEqual(owner.order("activate %d %s 30" % (number, how)), "OK")
        for member, line in zip(members, before):
            member.wait_for("serves %d " % number, line if number > 1 else 0)

    def serving(self, owners, members):
        """So many of each, of which the first owner leads, and the members serve version 1."""
        first = self.grouped("owner", 0, owners)
        until("it leads", lambda: self.etcd.has("/tryst.weights/%s/policy/leader" % self._testMethodName))
        owners = [first] + [self.grouped("owner", rank, owners) for rank in range(1, owners)]
        members = [self.grouped("member", task, len(owners)) for task in range(members)]
        self.assertEqual(self.seal(1, owners), 1)
        self.activate(1, "rolling", owners[0], members)
        return owners, members

    def serve_again(self, members, since):
        """They serve version 1 after so many lines, and nobody has told them to stage anything."""
        for member, line in zip(members, since):
            stopped = line + [one.startswith("serves 0 ") for one in member.lines()[line:]].index(True)
            member.wait_for("serves 1 ", stopped)
            told = [one for one in member.lines()[line:] if one.split()[0] in ("prepare", "staged", "voted", "active")]
            self.assertEqual(told, [], member.out)

    def stop_serving(self, members, since):
        for member, line in zip(members, since):
            member.wait_for("serves 0 ", line)

    def test_weights_of_owners_that_died_are_served_by_their_next_lives(self):
        owners, members = self.serving(owners=2, members=2)
        since = [member.now() for member in members]
        for owner in owners:
            owner.kill()
        self.stop_serving(members, since)
        owners = [self.grouped("owner", rank, 2) for rank in range(2)]
        self.serve_again(members, since)
        # It is the same log: its numbers are taken, and who comes gets what is active, of a member.
        owners[0].order("publish 1")
        self.assertNotEqual(owners[0].order("seal 1 5"), "OK")
        members.append(self.grouped("member", 2, 2))
        members[2].wait_for("staged 1: OK")
        members[2].wait_for("serves 1 ")
        self.activate(self.seal(2, owners), "barrier", owners[0], members)

    def test_weights_are_led_by_another_owner(self):
        owners, members = self.serving(owners=3, members=2)
        since = [member.now() for member in members]
        owners[0].kill()
        self.stop_serving(members, since)
        self.serve_again(members, since)
        # The first owner is the one that is asked first, and its boxes are a member's alone.
        members.append(self.grouped("member", 2, 3))
        members[2].wait_for("staged 1: OK")
        members[2].wait_for("serves 1 ")
        owners[0] = self.grouped("owner", 0, 3)
        self.activate(self.seal(2, owners), "barrier", owners[1], members)

    def test_weights_wait_while_etcd_is_away(self):
        owners, members = self.serving(owners=2, members=2)
        since = [member.now() for member in members]
        for name in NAMES:
            self.etcd.kill(name)
        try:
            self.stop_serving(members, since)
            for member, line in zip(members, since):
                member.wait_for("headless 1", line)
            self.assertNotEqual(owners[0].order("activate 1 rolling 2"), "OK")
            for member in members:
                self.assertTrue([one for one in member.lines() if one.startswith("serves ")][-1].startswith("serves 0 "))
        finally:
            for name in NAMES:
                self.etcd.start(name)
        self.etcd.await_leader()
        self.serve_again(members, since)
        self.activate(self.seal(2, owners), "rolling", owners[1], members)


class SecureEtcdTest(unittest.TestCase):
    """One server, which wants a certificate and a user's password."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tryst-etcd-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        namespace.run(*openssl, "-subj", "/CN=ca", "-keyout", cls.at("ca.key"), "-out", cls.at("ca.crt"))
        for name, more in (("server", "IP:127.0.0.1"), ("worker", "DNS:worker")):
            request = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            namespace.run(*request, "-subj", "/", "-keyout", cls.at(name + ".key"), "-out", cls.at(name + ".csr"))
            with open(cls.at("extensions"), "w") as file:
                file.write("subjectAltName=" + more)
            namespace.run("openssl", "x509", "-req", "-in", cls.at(name + ".csr"), "-CA", cls.at("ca.crt"), "-CAkey",
                          cls.at("ca.key"), "-CAcreateserial", "-days", "2", "-out", cls.at(name + ".crt"),
                          "-extfile", cls.at("extensions"))
        cls.endpoint = "127.0.0.1:%d" % free_port()
        here, peer = "https://" + cls.endpoint, "http://127.0.0.1:%d" % free_port()
        with open(cls.at("etcd.log"), "a") as log:
            server = subprocess.Popen(
                ["etcd", "--name=one", "--data-dir=" + cls.at("data"), "--listen-client-urls=" + here,
                 "--advertise-client-urls=" + here, "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
                 "--initial-cluster=one=" + peer, "--client-cert-auth", "--trusted-ca-file=" + cls.at("ca.crt"),
                 "--cert-file=" + cls.at("server.crt"), "--key-file=" + cls.at("server.key")], stdout=log, stderr=log)
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.kill)
        until("etcd serves", lambda: cls.ctl("get", "x").returncode == 0)
        for words in (("user", "add", "root:rootpassword"), ("user", "grant-role", "root", "root"),
                      ("user", "add", "tryst:good password"), ("role", "add", "tryst"),
                      ("role", "grant-permission", "tryst", "--prefix=true", "readwrite", "/tryst/"),
                      ("user", "grant-role", "tryst", "tryst"), ("auth", "enable")):
            if cls.ctl(*words).returncode != 0:
                raise AssertionError(words)

    @classmethod
    def at(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def ctl(cls, *words):
        return subprocess.run(
            ["etcdctl", "--endpoints=https://" + cls.endpoint, "--cacert=" + cls.at("ca.crt"), "--cert=" + cls.at("worker.crt"),
             "--key=" + cls.at("worker.key"), *words], env=dict(os.environ, ETCDCTL_API="3"), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=20)

    def peer(self, job, password, tls=True):
        with open(self.at(job + ".password"), "w") as file:
            file.write("tryst:%s\n" % password)
        flags = ["--etcd_password_file=" + self.at(job + ".password")]
        if tls:
            flags += ["--etcd_ca_file=" + self.at("ca.crt"), "--etcd_certificate_file=" + self.at("worker.crt"),
                      "--etcd_key_file=" + self.at("worker.key")]
        peer = Peer(self.folder, job, self.endpoint, *flags)
        self.addCleanup(peer.stop)
        return peer

    def test_with_certificate_and_password_they_find_each_other(self):
        ps, worker = self.peer("ps", "good password"), self.peer("worker", "good password")
        self.assertEqual(fetch(ps, worker, 1, "edge", 7), "7")

    def test_a_wrong_password_and_no_tls_are_turned_away_and_say_so(self):
        stranger = self.peer("stranger", "bad password")
        until("it says why", lambda: "authentication failed" in stranger.look()["membership"]["trouble"])
        self.assertEqual(stranger.look()["membership"]["age_s"], -1)
        plain = self.peer("plain", "good password", tls=False)
        until("it says why", lambda: plain.look()["membership"]["trouble"])
        self.assertEqual(plain.look()["membership"]["age_s"], -1)


def missing():
    lacks = [name for name in ("etcd", "etcdctl", "openssl") if shutil.which(name) is None]
    return "this machine lacks " + ", ".join(lacks) if lacks else None


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not words:
        sys.exit(__doc__)
    PROGRAM, APPENDER, WORKER = map(os.path.abspath, words[:3])
    ROUNDS = int(([4] + re.findall(r"--rounds=(\d+)", " ".join(sys.argv)))[-1])
    why = missing() or namespace.enter()
    if why:
        EtcdTest = unittest.skip(why)(EtcdTest)
        if missing():
            SecureEtcdTest = unittest.skip(why)(SecureEtcdTest)
    case_report.main()
