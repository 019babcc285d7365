"""TensorFlow over Tryst beside TensorFlow over its gRPC, in one run, on this machine.

    steps.py [--rounds N] [--json FILE]        steps a second, a large variable, by turns
    steps.py --memory STEPS                    memory of each process over so many steps

A step pulls 20 MiB in 1,000 variables from two parameter servers into each worker; the large
variable is of 64 MiB. Rounds of the two protocols take turns, and the medians are compared. Memory is watched over steps of
100 variables.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(_HERE, "..", "..", "tests", "frameworks", "tensorflow"))

import cluster  # pylint: disable=wrong-import-position


def worker_device(task):
    return "/job:worker/replica:0/task:%d/device:CPU:0" % task


class Side:
    """A cluster of one protocol, driven by a process of its own: TensorFlow knows one at a time."""

    def __init__(self, protocol, workers, variables):
        import tensorflow as tf

        self.tf = tf
        self.protocol = protocol
        if protocol != "grpc":
            import tryst.tensorflow as tt

            tt.enable()
        self.cluster = cluster.Cluster({"ps": 2, "worker": workers}, protocol)
        self.cluster.wait()
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(self.cluster.spec), job_name="chief", protocol=protocol)
        self.workers = workers
        self.variables = []
        for i in range(variables):
            with tf.device("/job:ps/replica:0/task:%d/device:CPU:0" % (i % 2)):
                self.variables.append(tf.Variable(tf.fill([5243], float(i))))  # 20 MiB in all.
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            self.large = tf.Variable(tf.zeros([16 << 20]))
        self.pulls = [self.make_pull(self.variables, task) for task in range(workers)]
        self.large_pull = self.make_pull([self.large], 0)
        for pull in self.pulls + [self.large_pull]:
            pull()
        self.meet()

    def make_pull(self, variables, task):
        tf = self.tf

        @tf.function
        def pull():
            # One element of each, so that pulling is what takes the time.
            return tf.add_n([tf.reshape(tf.identity(v.read_value()), [-1])[0] for v in
                             self.read(variables)])

        def run():
            with tf.device(worker_device(task)):
                return pull().numpy()

        return run

    def read(self, variables):
        return [_Read(self.tf, variable) for variable in variables]

    def meet(self):
        until = time.time() + 60
        while self.protocol != "grpc" and time.time() < until:
            told = [self.cluster.ask("worker:%d" % task, "stats") for task in range(self.workers)]
            states = [p["state"] for servers in told for s in servers for p in s["from"]]
            if len(states) >= 2 * self.workers and set(states) == {"met"}:
                return
            time.sleep(0.2)

    def steps_per_second(self, steps):
        """Of each worker, all at once."""
        threads = [threading.Thread(target=lambda pull=pull: [pull() for _ in range(steps)])
                   for pull in self.pulls]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return steps * self.workers / (time.perf_counter() - began)

    def large_seconds(self):
        began = time.perf_counter()
        self.large_pull()
        return time.perf_counter() - began

    def copies(self):
        if self.protocol == "grpc":
            return None
        told = [self.cluster.ask("worker:%d" % task, "stats") for task in range(self.workers)]
        servers = [server for all_of_task in told for server in all_of_task]
        producers = [p for server in servers for p in server["from"]]
        counts = {"tensors": sum(p["tensors"] for p in producers),
                  "copied": sum(p["copied"] for p in producers),
                  "by_grpc": sum(sum(p["by_grpc"].values()) for p in producers)}
        for name in ("shm_fetches", "shm_in_cells", "shm_by_reference", "shm_copied", "shm_pulled", "shm_in_parts"):
            counts[name] = sum(server["tryst"].get(name, 0) for server in servers)
        return counts

    def of_each(self, what):
        names = ["ps:0", "ps:1"] + ["worker:%d" % task for task in range(self.workers)]
        return {name: self.cluster.ask(name, what) for name in names}

    def memory(self):
        return self.of_each("memory")

    def cpu(self):
        return sum(self.of_each("cpu").values())


class _Read:
    """A read of the variable where it lives."""

    def __init__(self, tf, variable):
        self._tf, self._variable = tf, variable

    def read_value(self):
        with self._tf.device(self._variable.device):
            return self._variable.read_value()


def serve_side(protocol, workers, variables):
    """Runs what it is told, a line each, and answers in JSON."""
    side = Side(protocol, workers, variables)
    calls = {"steps": side.steps_per_second, "large": side.large_seconds, "copies": side.copies,
             "memory": side.memory, "cpu": side.cpu}
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(calls[name](*map(int, arguments))), flush=True)
    side.cluster.stop()
    os._exit(0)


class Remote:

    def __init__(self, protocol, workers, variables=1000):
        import subprocess

        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--side", protocol, str(workers), str(variables)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(protocol + " does not start")

    def ask(self, *what):
        self._process.stdin.write(" ".join(map(str, what)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self):
        self._process.stdin.close()
        self._process.wait()


def compare(workers, rounds, steps):
    sides = {protocol: Remote(protocol, workers) for protocol in ("grpc", "grpc+verbs")}
    rates = {protocol: [] for protocol in sides}
    large = {protocol: [] for protocol in sides}
    for side in sides.values():  # Once for nothing.
        side.ask("steps", 2)
        side.ask("large")
    seconds = dict.fromkeys(sides, 0)  # Processor time of the parameter servers and the workers.
    for _ in range(rounds):
        for protocol, side in sides.items():
            before = side.ask("cpu")
            rates[protocol].append(side.ask("steps", steps))
            seconds[protocol] += side.ask("cpu") - before
            large[protocol].append(min(side.ask("large") for _ in range(3)))
    copies = sides["grpc+verbs"].ask("copies")
    for side in sides.values():
        side.stop()
    rate = {protocol: statistics.median(values) for protocol, values in rates.items()}
    pull = {protocol: statistics.median(values) for protocol, values in large.items()}
    result = {
        "workers": workers,
        "steps_per_second": rate,
        "steps_ratio": rate["grpc+verbs"] / rate["grpc"],
        "cpu_ms_per_step": {protocol: 1000 * value / (rounds * steps * workers) for protocol, value in seconds.items()},
        "pull_64_mib_ms": {protocol: 1000 * value for protocol, value in pull.items()},
        "pull_ratio": pull["grpc"] / pull["grpc+verbs"],
        "copies": copies,
    }
    print("%d worker(s): %.2f steps/s by Tryst, %.2f by gRPC: %.2fx; 64 MiB in %.1f and %.1f ms: %.2fx; "
          "%d tensors by Tryst, %d of them copied on arrival, %d by gRPC" % (
              workers, rate["grpc+verbs"], rate["grpc"], result["steps_ratio"],
              1000 * pull["grpc+verbs"], 1000 * pull["grpc"], result["pull_ratio"],
              copies["tensors"], copies["copied"], copies["by_grpc"]), flush=True)
    print("processor's time for a step: %s ms; copies: %s" % (
        {protocol: round(value, 1) for protocol, value in result["cpu_ms_per_step"].items()}, copies), flush=True)
    return result


def watch_memory(steps, protocol):
    """A tenth of the steps first, after which nothing should grow."""
    side = Remote(protocol, 1, 100)
    side.ask("steps", max(1, steps // 10))
    before = side.ask("memory")
    began = time.time()
    for _ in range(10):
        side.ask("steps", steps // 10)
        print("%.0f s: %s" % (time.time() - began, side.ask("memory")), flush=True)
    after = side.ask("memory")
    copies = side.ask("copies")
    side.stop()
    print("copies: %s" % copies)
    return {"steps": steps, "before_kib": before, "after_kib": after, "copies": copies}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="in a round, of each worker")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--memory", type=int)
    parser.add_argument("--protocol", default="grpc+verbs", help="whose memory")
    parser.add_argument("--json")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve_side(options.side[0], *map(int, options.side[1:]))
    if options.memory:
        results = watch_memory(options.memory, options.protocol)
    else:
        results = [compare(workers, options.rounds, options.steps) for workers in options.workers]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
