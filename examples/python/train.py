"""A parameter server and its workers, each a process of its own, learn a linear model together.

  train.py ps [--SETTING=VALUE ...]             prints its name and address, and serves two workers
  train.py worker NUMBER [--SETTING=VALUE ...]  pulls weights, pushes gradients

docs/tutorials/parameter_servers.md leads through it.
"""
import sys

import numpy
import tryst

WORKERS, STEPS, FEATURES, RATE = 2, 50, 100, 0.3
PS = "/job:ps/task:0"


def serve(server):
    weights = numpy.zeros(FEATURES, "f")
    workers = [f"/job:worker/task:{number}" for number in range(WORKERS)]
    for number in range(1, STEPS + 1):
        with server.step(number) as step:
            for worker in workers:
                step.send("weights", weights, to=worker)
            gradients = [step.recv("gradient", frm=worker, timeout=60).numpy() for worker in workers]
        # Another array: whoever asks for the last one may still be reading it.
        weights = weights - RATE * sum(gradients) / WORKERS
        if number % 10 == 0:
            print(f"step {number}: off by {abs(weights - 1).max():.4f}", flush=True)
    last = server.step(STEPS + 1)
    for worker in workers:
        last.send("weights", weights, to=worker)
    for worker in workers:
        try:
            last.recv("thanks", frm=worker, timeout=60)
        except (tryst.errors.Aborted, tryst.errors.Unavailable):
            pass  # It has its weights, and leaves or has left before its thanks were fetched.


def work(server, chance):
    before = None
    for number in range(1, STEPS + 2):
        step = server.step(number)
        weights = step.recv("weights", frm=PS, timeout=60).numpy()
        if before:
            before.cleanup()  # These weights were computed from the last gradient, so it was taken.
        if number > STEPS:
            break
        examples = chance.normal(size=(256, FEATURES)).astype("f")
        answers = examples.sum(axis=1)  # All true weights are 1.
        step.send("gradient", examples.T @ (examples @ weights - answers) / len(examples), to=PS)
        before = step
    step.send("thanks", None, to=PS)  # A dead tensor: a sign without bytes.
    print(f"learned: off by {abs(weights - 1).max():.4f}")


def main(role, *words):
    settings = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    if role == "ps":
        with tryst.Server(job="ps", **settings) as server:
            print(f"{server.worker}@{server.address}", flush=True)
            serve(server)
    else:
        number = int(words[0])
        with tryst.Server(job="worker", task=number, **settings) as server:
            work(server, numpy.random.default_rng(number))
            print(server.explain(PS))


main(*sys.argv[1:])
