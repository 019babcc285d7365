#!/usr/bin/env python3
"""What examples/deploy/kubernetes.yaml promises, without a Kubernetes: names whose addresses change, in a real DNS
server; how long termination takes; and the manifests against the API's schemas.

  kubernetes.py PEER TRYSTD TRYST    PEER is //tests/release/versions:peer; DNS needs root and Debian's dnsmasq-base, the schemas
                        need the module kubernetes_validate of PyPI (./run test --kubernetes gets it)
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../../tools")]
import case_report  # noqa: E402
import namespace  # noqa: E402

MANIFEST = os.path.join(HERE, "../../../examples/deploy/kubernetes.yaml")
SERVICE = "tryst.default.svc.cluster.local"
PATIENCE_S = 60
PORT = 2222


def manifest():
    with open(MANIFEST) as file:
        return file.read()


class Pod:
    """A worker under the name of a stateful set's pod, on one of our hosts."""

    def __init__(self, folder, hosts, host, pod, *flags):
        self.name = "/job:%s/replica:0/task:%s" % tuple(pod.rsplit("-", 1))
        # As the kubelet does: a pod's own name is the only one in its hosts file.
        own = os.path.join(folder, "hosts.%s.%s" % (pod, host))
        with open(own, "w") as file:
            file.write("127.0.0.1 localhost\n%s %s.%s %s\n" % (hosts.address(host), pod, SERVICE, pod))
        with open(os.path.join(folder, pod + ".log"), "a") as log:
            self.process = subprocess.Popen(
                hosts.command(host, "unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', own, PROGRAM, "--insecure", "--insecure_anywhere", "--nic=soft", "--shm=off",
                              "--listen=0.0.0.0:%d" % PORT, "--resolver=kubernetes:%s:%d" % (SERVICE, PORT),
                              "--cluster_spec=ps=1,worker=1", *flags),
                env=dict(os.environ, HOSTNAME=pod), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.answer("serving")

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

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class DnsTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="tryst-dns-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.hosts = namespace.Hosts(self.folder, ["node1", "node2", "node3"])
        # All other names must come from dnsmasq.
        resolv = os.path.join(self.folder, "resolv.conf")
        with open(resolv, "w") as file:
            file.write("nameserver 10.77.0.1\n")
        namespace.run("mount", "--bind", resolv, "/etc/resolv.conf")
        self.names = os.path.join(self.folder, "names")
        self.say({})
        log = open(os.path.join(self.folder, "dnsmasq.log"), "a")
        self.addCleanup(log.close)
        self.dns = subprocess.Popen(
            ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--local-ttl=1", "--user=root",
             "--listen-address=10.77.0.1", "--bind-interfaces", "--addn-hosts=" + self.names,
             "--local=/cluster.local/", "--pid-file="], stdout=log, stderr=log)
        self.addCleanup(self.dns.wait)
        self.addCleanup(self.dns.terminate)

    def say(self, places):
        with open(self.names, "w") as file:
            for pod, host in places.items():
                file.write("%s %s.%s\n" % (self.hosts.address(host), pod, SERVICE))

    def move(self, places):
        self.say(places)
        self.dns.send_signal(signal.SIGHUP)

    def test_pods_find_each_other_in_any_order_and_again_where_they_come_back(self):
        # The worker starts first, before the other's name exists.
        worker = Pod(self.folder, self.hosts, "node3", "worker-0")
        self.addCleanup(worker.kill)
        time.sleep(1)
        ps = Pod(self.folder, self.hosts, "node1", "ps-0")
        self.move({"ps-0": "node1", "worker-0": "node3"})
        start = time.monotonic()
        for step, host in ((1, None), (2, "node2"), (3, "node1")):
            if host:
                ps.kill()
                ps = Pod(self.folder, self.hosts, host, "ps-0")
                start = time.monotonic()
                self.move({"ps-0": host, "worker-0": "node3"})
            ps.tell("send", step, "edge", step, 1, 100000, worker.name)
            ps.answer("sent")
            # What it remembers of the earlier incarnation may cost it a few tries.
            for _ in range(20):
                worker.tell("recv", step, "edge", "one", 1, 100000, 5000, ps.name)
                got = worker.answer("got")
                if got == str(step):
                    break
                self.assertIn(got, ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED"))
            self.assertEqual(got, str(step))
            print("found at %s after %.1f s" % (host or "node1", time.monotonic() - start), end="; ", file=sys.stderr)
        ps.kill()


class TerminationTest(unittest.TestCase):
    def setUp(self):
        grace = set(map(int, re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest())))
        self.assertEqual(len(grace), 1)
        self.grace_s = grace.pop()

    def test_trystd_drains_within_the_grace_period_under_load(self):
        took = []
        for _ in range(3):
            daemon = subprocess.Popen(
                [TRYSTD, "--insecure", "--open_cluster", "--job=ps", "--listen=127.0.0.1:0", "--nic=soft"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(lambda daemon=daemon: daemon.poll() is None and daemon.kill())
            words = daemon.stdout.readline().split()
            place = "%s@%s" % (words[1], words[3])
            # Each load runs for longer than a second: pulls one by one and many at once, of up to
            # some MiB.
            loads = [subprocess.Popen(
                [TRYST, "bench", place, "--insecure", "--open_cluster", "--listen=127.0.0.1:0", "--nic=soft",
                 "--timeout=10s", "--job=load", "--task=%d" % task,
                 *(["--protocol=grpc"] if task % 2 else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for task in range(4)]
            for load in loads:
                self.addCleanup(lambda load=load: load.poll() is None and load.kill())
            time.sleep(0.6)
            self.assertEqual([load.poll() for load in loads], [None] * 4, "the load ended before the drain began")
            start = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(60), 0)
            took.append(time.monotonic() - start)
            daemon.stdout.close()
            for load in loads:  # A load that was cut off must end with an error, and not hang.
                said = load.communicate(timeout=30)[1]
                self.assertEqual(load.returncode, 1, said)
                self.assertRegex(said, "UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED")
        print("under load trystd ends after %.2f s at most" % max(took), end=" ", file=sys.stderr)
        self.assertLess(max(took), self.grace_s)

    def test_trystd_ends_well_within_the_grace_period(self):
        took = []
        for _ in range(3):
            process = subprocess.Popen(
                [TRYSTD, "--insecure", "--job=ps", "--cluster_spec=ps=127.0.0.1:0", "--listen=127.0.0.1:0", "--nic=soft"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.assertTrue(process.stdout.readline().startswith("serving"))
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(60), 0)
            process.stdout.close()
            took.append(time.monotonic() - start)
        print("an idle trystd ends after %.2f s at most" % max(took), end=" ", file=sys.stderr)
        self.assertLess(max(took), self.grace_s)


class SchemaTest(unittest.TestCase):
    def test_the_manifests_are_what_the_api_takes(self):
        try:
            import kubernetes_validate
            import yaml
        except ImportError:
            self.skipTest("needs kubernetes_validate of PyPI: ./run test --kubernetes")
        kinds = []
        for document in yaml.safe_load_all(manifest()):
            if document["apiVersion"].startswith("cert-manager.io"):
                continue  # Not a part of the API.
            kubernetes_validate.validate(document, "1.28", strict=True)
            kinds.append(document["kind"])
        self.assertEqual(kinds, ["Service", "ConfigMap", "StatefulSet", "StatefulSet"])
        wrong = next(iter(yaml.safe_load_all(manifest())))
        wrong["spec"]["clusterIPP"] = "None"
        with self.assertRaises(Exception):
            kubernetes_validate.validate(wrong, "1.28", strict=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    PROGRAM, TRYSTD, TRYST = map(os.path.abspath, sys.argv[1:4])
    WHY = None if shutil.which("dnsmasq") else "this machine lacks dnsmasq"
    WHY = WHY or namespace.enter()
    if WHY:
        DnsTest = unittest.skip(WHY)(DnsTest)
    case_report.main()
