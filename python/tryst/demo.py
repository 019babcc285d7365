"""python -m tryst demo: an asynchronous parameter server and its workers, one of which is killed.

The server keeps the weights of a linear model. Each worker is a process with rows of its own: it
pulls the weights, pushes a gradient, and waits for no other worker. In the middle of it the last
worker is killed; the others do not notice, and the model is learned all the same.
"""
import argparse
import asyncio
import multiprocessing
import sys
import time

import tryst

PS = "/job:ps/task:0"
FEATURES = 4096
RATE = 0.35
COMMON = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)


def step_of(worker, turn):
    """Workers do not share steps, since they do not wait for each other."""
    return worker * 1_000_000 + turn


def true_weights(numpy):
    return numpy.sin(numpy.arange(FEATURES, dtype="f"))


def work(worker, join, turns):
    import numpy

    chance = numpy.random.default_rng(worker)
    answer = true_weights(numpy)
    with tryst.Server(job="worker", task=worker, join=join, **COMMON) as server:
        before = None
        for turn in range(turns + 1):  # The last turn brings the final weights.
            step = server.step(step_of(worker, turn))
            weights = step.recv("weights", frm=PS, timeout=60).numpy()
            if before is not None:
                # These weights were computed from the last gradient, so it was taken.
                before.cleanup()
            if turn < turns:
                noise = chance.normal(0, 0.01, FEATURES).astype("f")
                step.send("gradient", weights - answer + noise, to=PS)
            before = step


class Model:
    """The weights, and how far they are off after each gradient."""

    def __init__(self, numpy, bar):
        self.weights = numpy.zeros(FEATURES, "f")
        self.losses, self.lost, self.bar = [], [], bar
        self._answer = true_weights(numpy)

    def take(self, gradient):
        self.weights = self.weights - RATE * gradient
        self.losses.append(float(((self.weights - self._answer) ** 2).mean()))
        self.bar(len(self.losses), self.losses[-1])


async def serve(server, model, worker, turns, kill=None):
    """One worker's side of the parameter server. Where kill() is given, half of the turns come before it."""
    peer = f"/job:worker/task:{worker}"
    for turn in range(turns):
        if kill and turn == turns // 2:
            kill()  # Here, not by a clock: a worker that started before the others might be done by then.
        step = server.step(step_of(worker, turn))
        step.send("weights", model.weights, to=peer)
        try:
            # Before the kill a worker may still be starting.
            patience = 60 if turn < turns // 2 else 10
            gradient = await step.arecv("gradient", frm=peer, timeout=patience)
        except tryst.Error as error:
            model.lost.append((worker, len(model.losses), error))
            return
        model.take(gradient.numpy())
        step.cleanup()  # The worker that sent a gradient has received the weights.
    server.step(step_of(worker, turns)).send("weights", model.weights, to=peer)


def progress(total):
    if not sys.stderr.isatty():
        return lambda done, loss: None

    def bar(done, loss):
        filled = 30 * done // total
        print(f"\r[{'#' * filled:<30}] {done}/{total} gradients, loss {loss:.6f} ", end="", file=sys.stderr)

    return bar


def plot(model):
    """The losses as an SVG picture, on a scale of powers of ten."""
    import math

    width, height, low, high = 640, 240, -6, 0
    points = " ".join(
        f"{40 + (width - 60) * i / max(1, len(model.losses) - 1):.1f},"
        f"{20 + (height - 50) * (high - min(high, max(low, math.log10(max(loss, 1e-9))))) / (high - low):.1f}"
        for i, loss in enumerate(model.losses))
    killed = "".join(
        f'<line x1="{40 + (width - 60) * at / len(model.losses):.1f}" x2="{40 + (width - 60) * at / len(model.losses):.1f}" '
        f'y1="20" y2="{height - 30}" stroke="#c33" stroke-dasharray="4"/>' for _, at, _ in model.lost)
    ticks = "".join(f'<text x="4" y="{24 + (height - 50) * (high - t) / (high - low):.0f}">1e{t}</text>'
                    for t in range(low, high + 1, 2))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="11" '
            f'font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>{ticks}{killed}'
            f'<polyline points="{points}" fill="none" stroke="#269" stroke-width="1.5"/>'
            f'<text x="{width // 2 - 90}" y="{height - 8}">gradients taken; dashed: a worker is missed</text></svg>\n')


def main(words):
    parser = argparse.ArgumentParser("python -m tryst demo", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--turns", type=int, default=60, help="gradients of each worker")
    parser.add_argument("--svg", help="a picture of the loss goes there")
    options = parser.parse_args(words)
    try:
        import numpy
    except ImportError:
        print("The demo needs numpy: pip install numpy", file=sys.stderr)
        return 1
    spawn = multiprocessing.get_context("spawn")  # Not fork: a server's threads do not survive it.
    model = Model(numpy, progress(options.workers * options.turns))
    began = time.perf_counter()
    with tryst.Server(job="ps", **COMMON) as server:
        join = f"{server.worker}@{server.address}"
        workers = [spawn.Process(target=work, args=(i, join, options.turns), daemon=True)
                   for i in range(options.workers)]
        for worker in workers:
            worker.start()

        async def everybody():
            last = options.workers - 1
            await asyncio.gather(*(serve(server, model, i, options.turns, workers[i].kill if i == last else None)
                                   for i in range(options.workers)))

        asyncio.run(everybody())
        for worker in workers:
            worker.join()
        for line in server.explain().splitlines():
            print("  " + line)
    for worker, at, error in model.lost:
        print(f"worker {worker} was missed after {at} gradients: {error}")
    print(f"{len(model.losses)} gradients of {FEATURES} floats in {time.perf_counter() - began:.1f} s, "
          f"loss {model.losses[0]:.4f} -> {model.losses[-1]:.6f}")
    if options.svg:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(plot(model))
    sys.stdout.flush()
    good = len(model.lost) == 1 and model.losses[-1] < 1e-3
    return 0 if good else 1
