#!/usr/bin/env python3
"""A parameter server and workers as actors of Ray, whose tensors go by Tryst; one worker is killed.

Needs the packages tryst, ray and numpy; starts a cluster on this machine. The same run then moves the same arrays by Ray's own
object store. Nothing of the training knows what its tensors travel by, but for the names of two methods' transports.
"""
import argparse
import json
import statistics
import sys
import time

import numpy
import ray

from tryst import ray_transport

RATE = 0.35
# Must come before the classes, because their methods name the transport.
ray_transport.register(numpy.ndarray)


class Server:
    """Keeps the weights of a linear model."""

    def __init__(self, features):
        self.weights = numpy.zeros(features, "f")
        self.answer = numpy.sin(numpy.arange(features, dtype="f"))
        self.losses = []

    @ray.method(tensor_transport="tryst")
    def pull(self):
        return self.weights

    def push(self, gradient):
        # A new array: the old weights may still be on their way to a worker.
        self.weights = self.weights - RATE * gradient
        self.losses.append(float(((self.weights - self.answer) ** 2).mean()))
        return self.losses[-1]


class Worker:
    def __init__(self, features, seed):
        self.chance = numpy.random.default_rng(seed)
        self.answer = numpy.sin(numpy.arange(features, dtype="f"))

    @ray.method(tensor_transport="tryst")
    def gradient(self, weights):
        return weights - self.answer + self.chance.normal(0, 0.01, len(weights)).astype("f")

    def pid(self):
        import os

        return os.getpid()


class Source:
    def __init__(self, mib):
        self.array = numpy.arange(mib << 18, dtype="f")

    @ray.method(tensor_transport="tryst")
    def by_tryst(self):
        return self.array

    def by_ray(self):
        return self.array


class Sink:
    def take(self, array):
        return array.shape[0], float(array[-1])


def train(options):
    """Asynchronous: a worker that has pushed starts again at once. In the middle of it one is killed."""
    server = ray.remote(enable_tensor_transport=True)(Server).remote(options.features)
    make = ray.remote(enable_tensor_transport=True)(Worker)
    workers = [make.remote(options.features, seed) for seed in range(options.workers)]
    ray.get([worker.pid.remote() for worker in workers])
    pushes = {}

    def turn(worker):
        pushes[server.push.remote(worker.gradient.remote(server.pull.remote()))] = worker

    for worker in workers:
        turn(worker)
    losses, lost, left = [], [], options.turns
    while pushes:
        (done,), _ = ray.wait(list(pushes), timeout=120)
        worker = pushes.pop(done)
        try:
            losses.append(ray.get(done))
        except ray.exceptions.RayError as error:
            lost.append((len(losses), str(error).strip().splitlines()[-1]))
            continue
        left -= 1
        if len(losses) == options.turns // 3:
            ray.kill(workers[-1])
        if left > len(pushes):
            turn(worker)
    print(f"{len(losses)} gradients of {options.features} floats, loss {losses[0]:.4f} -> {losses[-1]:.6f}; "
          f"{len(lost)} worker lost after {lost[0][0] if lost else '-'}: {lost[0][1] if lost else ''}")
    return len(lost) == 1 and losses[-1] < 1e-3


def compare(options):
    make = ray.remote(enable_tensor_transport=True)
    table = {}
    for mib in options.mib:
        source, sink = make(Source).remote(mib), make(Sink).remote()
        took = {"by_ray": [], "by_tryst": []}
        for turn in range(options.rounds + 1):
            for name, times in took.items():
                began = time.perf_counter()
                got = ray.get(sink.take.remote(getattr(source, name).remote()), timeout=120)
                if turn > 0:
                    times.append(time.perf_counter() - began)
                assert got == (mib << 18, float(numpy.float32((mib << 18) - 1))), got
        table[mib] = {name: statistics.median(times) * 1e3 for name, times in took.items()}
        print(f"{mib} MiB from actor to actor, with its two calls: by Ray's store {table[mib]['by_ray']:.1f} ms, "
              f"by Tryst {table[mib]['by_tryst']:.1f} ms")
        ray.kill(source)
        ray.kill(sink)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=45, help="gradients of all workers together")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--json", help="the times go there")
    options = parser.parse_args()
    ray.init(num_cpus=options.workers + 4, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    good = train(options)
    table = compare(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file)
    ray.shutdown()
    return 0 if good else 1


sys.exit(main())
