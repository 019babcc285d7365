"""A cluster of TensorFlow's on this machine: each task a process, this process the chief."""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

_HERE = os.path.abspath(__file__)


def free_ports(count):
    """Below those that the kernel gives out, so that nobody is given one meanwhile."""
    sockets = []
    while len(sockets) < count:
        opened = socket.socket()
        try:
            opened.bind(("127.0.0.1", random.randint(12000, 32000)))
            sockets.append(opened)
        except OSError:
            opened.close()
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class Cluster:
    """jobs: {"ps": 1, "worker": 2}. `protocols` has those of tasks that differ: {"ps:0": "grpc"}.
    What a task says is kept until stop(), and shown of one that died."""

    def __init__(self, jobs, protocol, protocols=None):
        ports = iter(free_ports(sum(jobs.values())))
        self.spec = {
            job: ["127.0.0.1:%d" % next(ports) for _ in range(count)] for job, count in jobs.items()
        }
        self.protocol = protocol
        self._protocols = protocols or {}
        self._logs = tempfile.TemporaryDirectory(prefix="tensorflow-cluster-")
        self._tasks = {}
        for job, count in jobs.items():
            for task in range(count):
                self.start(job, task)

    def start(self, job, task):
        name = "%s:%d" % (job, task)
        protocol = self._protocols.get(name, self.protocol)
        with open(self._log(name), "a", encoding="utf-8") as log:
            self._tasks[name] = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", _HERE, json.dumps(self.spec), job, str(task), protocol],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.PIPE, text=True)
        return self._tasks[name]

    def _log(self, name):
        return os.path.join(self._logs.name, name.replace(":", "_") + ".log")

    def dead(self):
        """What those that nobody killed said before they died: "" while all live."""
        told = []
        for name, task in self._tasks.items():
            if task.poll() is None:
                continue
            with open(self._log(name), encoding="utf-8", errors="replace") as log:
                last = "".join(log.readlines()[-60:])
            told.append("%s ended with %d, and said at last:\n%s" % (name, task.returncode, last))
        return "\n".join(told)

    def wait(self):
        for name in self._tasks:
            self.wait_for(name)

    def wait_for(self, name):
        if self._tasks[name].stdout.readline().strip() != "serving":
            self._tasks[name].wait()
            raise RuntimeError(name + " does not serve: " + self.dead())

    def ask(self, name, what):
        """explain, stats, trace, memory or cpu (seconds so far), of a task."""
        task = self._tasks[name]
        task.stdin.write(what + "\n")
        task.stdin.flush()
        return json.loads(task.stdout.readline())

    def kill(self, name):
        task = self._tasks.pop(name)
        task.kill()
        task.wait()
        task.stdin.close()
        task.stdout.close()

    def stop(self):
        for name in list(self._tasks):
            self.kill(name)
        self._logs.cleanup()


def _memory_kib():
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {"own": int(fields["RssAnon"].split()[0]), "shared": int(fields["RssShmem"].split()[0])}


def serve(spec, job, task, protocol):
    import tensorflow as tf

    if protocol != "grpc":
        import tryst.tensorflow as tt

        tt.enable()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(spec), job_name=job, task_index=task, protocol=protocol)
    print("serving", flush=True)
    for line in sys.stdin:
        what, _, text = line.strip().partition(" ")
        if what == "memory":
            answer = _memory_kib()
        elif what == "cpu":
            answer = time.process_time()
        elif protocol == "grpc":
            answer = None
        else:
            told = {"stats": tt.stats, "explain": tt.explain, "trace": lambda text=text: tt.trace(text)}
            answer = told[what]()
        print(json.dumps(answer), flush=True)
    os._exit(0)  # TensorFlow's server never ends by itself.
    return server


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
