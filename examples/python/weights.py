"""A trainer gives its weights to the processes that serve them, version after version.

  weights.py trainer READERS [--SETTING=VALUE ...]  prints its name and address, and makes versions
  weights.py reader NUMBER [--SETTING=VALUE ...]    fills its arrays with each version

docs/tutorials/weights.md leads through it.
"""
import sys
import time

import numpy
import tryst

VERSIONS = 5
LAYERS = {f"layer {i}": (1024, 1024) for i in range(8)}  # 32 MiB.
TRAINER = "/job:trainer/task:0"


def train(server, readers):
    there = [f"/job:reader/task:{number}" for number in range(readers)]
    # Two sets in turn: one is written while the other may still be read. Readers of this host look at this memory.
    sets = [{name: server.empty(shape) for name, shape in LAYERS.items()} for _ in range(2)]
    plans = [{reader: server.plan(weights, to=reader) for reader in there} for weights in sets]
    for version in range(1, VERSIONS + 1):
        for layer in sets[version % 2].values():
            numpy.asarray(layer)[:] = version
        with server.step(version) as step:
            began = time.perf_counter()
            for reader in there:
                plans[version % 2][reader].send(step)
            for reader in list(there):
                try:
                    step.recv("filled", frm=reader, timeout=60)
                except (tryst.errors.Unavailable, tryst.errors.Aborted):
                    there.remove(reader)  # It has ended; the others need not know.
            print(f"version {version}: {len(there)} readers have it after {1e3 * (time.perf_counter() - began):.1f} ms", flush=True)


def read(server):
    weights = {name: numpy.zeros(shape, "f") for name, shape in LAYERS.items()}
    pull = server.plan(weights, frm=TRAINER)
    before = None
    for version in range(1, VERSIONS + 1):
        step = server.step(version)
        pull.recv(step, timeout=60).result()  # All layers have come: no half of a version is ever seen.
        assert all((layer == version).all() for layer in weights.values())
        if before:
            before.cleanup()  # The trainer has gone on, so it knows that the version before was filled.
        step.send("filled", None, to=TRAINER)
        before = step
    print("filled", VERSIONS, "times")
    print(server.explain(TRAINER))


def main(role, number, *words):
    settings = dict(word[2:].split("=", 1) for word in words)
    task = int(number) if role == "reader" else 0
    with tryst.Server(job=role, task=task, **settings) as server:
        if role == "trainer":
            print(f"{server.worker}@{server.address}", flush=True)
            train(server, int(number))
        else:
            read(server)


main(*sys.argv[1:])
