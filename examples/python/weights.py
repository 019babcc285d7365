"""A trainer gives its weights to the processes that serve them, version after version.

  weights.py trainer READERS [--SETTING=VALUE ...]  prints its name and address, and makes versions
  weights.py reader NUMBER [--SETTING=VALUE ...]    serves each version

docs/tutorials/weights.md leads through it.
"""
import sys
import threading
import time

import numpy
import tryst
from tryst.weights import Layout

VERSIONS = 5
LAYERS = {f"layer {i}": (1024, 1024) for i in range(8)}  # 32 MiB.
TRAINER = "/job:trainer/task:0"


def train(server, readers):
    owner = server.weights("policy", role="owner", owners=1, min_members=readers)
    owner.declare(Layout(name, "float32", shape) for name, shape in LAYERS.items())
    weights = {name: numpy.zeros(shape, "f") for name, shape in LAYERS.items()}
    for number in range(1, VERSIONS + 1):
        for layer in weights.values():
            layer += 1  # A training step.
        with owner.version(number, label=f"step {number}") as version:
            for name, layer in weights.items():
                version.publish(name, layer)  # It is copied: the next step may begin.
        began = time.perf_counter()
        try:
            owner.activate(number, mode="barrier", timeout=60)
        except tryst.errors.Aborted as error:
            print(f"version {number} was dropped, and the one before is served: {error}", flush=True)
        else:
            print(f"version {number}: all serve it after {1e3 * (time.perf_counter() - began):.1f} ms", flush=True)
    owner.close()


def serve(server):
    member = server.weights("policy", role="member", owners=[TRAINER], hold_bytes=128 << 20)
    model = {}

    def switch(number, tensors):
        model.update({name: numpy.asarray(tensor) for name, tensor in tensors.items()})

    threading.Thread(target=member.follow, args=(lambda number: None, switch), daemon=True).start()
    number, answers = 0, 0
    while number < VERSIONS:
        try:
            with member.serving() as number:
                values = {layer[0, 0] for layer in model.values()}  # A request.
                assert len(values) == 1, f"an answer mixed {values}"
                answers += 1
        except tryst.errors.FailedPrecondition:
            time.sleep(0.001)  # Nothing may be served: no version is active yet, or the trainer is not heard.
    print(f"{answers} answers, none of two versions; the last one of version {number}")
    member.close()


def main(role, number, *words):
    settings = dict(word[2:].split("=", 1) for word in words)
    task = int(number) if role == "reader" else 0
    with tryst.Server(job=role, task=task, **settings) as server:
        if role == "trainer":
            print(f"{server.worker}@{server.address}", flush=True)
            train(server, int(number))
        else:
            serve(server)


main(*sys.argv[1:])
