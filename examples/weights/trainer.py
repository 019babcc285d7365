"""A rank of the trainer, which train.py starts. It owns the rows of each parameter that torch.chunk gives it.

In each turn the ranks give each other their rows, each finds the gradients of lines of its own, and they give each
other the gradients of their rows. Every so many turns they publish and seal a version; rank 0 has it activated. When
one of them is lost, train.py has the others abandon what they wait for of each other, and names the version from which
all go on.
"""
import json
import os
import queue
import sys
import threading
import time

import model
import numpy
import tryst
from tryst import torch_weights
from tryst.weights import Layout, Shard

RANKS = 4
SETTINGS = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
OWNERS = [f"/job:trainer/task:{rank}" for rank in range(RANKS)]
PERMIT_S = 1.0
RATE = 4e-3


def report(kind, **what):
    sys.stdout.write(json.dumps({"kind": kind, "at": time.monotonic(), **what}) + "\n")  # Whole, since threads do so.
    sys.stdout.flush()


class Steps:
    """The step under way, which another thread may abandon."""

    def __init__(self):
        self.lock, self.abandoned, self.epoch, self.step = threading.Lock(), 0, 0, None

    def begin(self, epoch, step):
        with self.lock:
            self.epoch, self.step = epoch, step
            self._abort_abandoned()
        return step

    def abandon(self, epoch):
        with self.lock:
            self.abandoned = max(self.abandoned, epoch)
            self._abort_abandoned()

    def _abort_abandoned(self):
        if self.step and self.epoch <= self.abandoned:
            self.step.abort("another trainer was lost")


def orders(abandon=None):
    """What train.py says: its orders, where None is that it is gone, and whether it has said that it is enough. An epoch
    that is to be abandoned goes to `abandon`."""
    said, enough = queue.SimpleQueue(), threading.Event()

    def read():
        for line in sys.stdin:
            order = json.loads(line)
            if order == "enough":
                enough.set()
            elif "abandon" in order:
                abandon(order["abandon"])
            else:
                said.put(order)
        said.put(None)
        time.sleep(15)  # This thread does not keep the process from ending.
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return said, enough


def rows_of(shapes, rank):
    """Which rows of each parameter a rank owns."""
    return {name: box[0] for name, shape in shapes.items()
            for box, _ in torch_weights.boxes(shape, (RANKS,), [Shard(0)], (rank,))}


def unflat(flat, rows, whole):
    """Puts the rows of a rank, which lie one behind the other, where they belong."""
    at = 0
    for name, of in rows.items():
        part = whole[name][of]
        part[:] = flat[at:at + part.size].reshape(part.shape)
        at += part.size


class Trainer:
    def __init__(self, server, rank, folder, layers, library, every, lines, steps, enough):
        self.server, self.rank, self.folder, self.steps, self.enough = server, rank, folder, steps, enough
        self.shapes, self.library, self.every, self.lines = model.shapes(layers), library, every, lines
        self.owner = server.weights("model", role="owner", owners=OWNERS, permit=PERMIT_S)
        self.owner.declare(Layout(name, "float32", shape, placements=[Shard(0)]) for name, shape in self.shapes.items())
        self.rows = [rows_of(self.shapes, one) for one in range(RANKS)]
        self.activation = None

    def load(self, number):
        """This rank's rows as the version had them; the first ones are made."""
        if number is None:
            whole = model.made(model.layers_of(self.shapes))
            self.mine = self.flat(whole, self.rank)
            self.first, self.second, self.turn = numpy.zeros_like(self.mine), numpy.zeros_like(self.mine), 0
        else:
            with numpy.load(os.path.join(self.folder, f"{number}.{self.rank}.npz")) as file:
                self.mine, self.first, self.second, self.turn = (
                    file[name] for name in ("mine", "first", "second", "turn"))
            self.turn = int(self.turn)

    def save(self, number):
        path = os.path.join(self.folder, f"{number}.{self.rank}.npz")
        numpy.savez(path + ".part.npz", mine=self.mine, first=self.first, second=self.second, turn=self.turn)
        os.replace(path + ".part.npz", path)

    def flat(self, tensors, rank):
        return numpy.concatenate([tensors[name][self.rows[rank][name]].ravel() for name in self.shapes])

    def exchange(self, step, name, of_rank):
        """Gives each rank what is for it, and returns what each has for this one."""
        given = [of_rank(rank) for rank in range(RANKS)]
        for rank in range(RANKS):
            if rank != self.rank:
                step.send(name, given[rank], to=OWNERS[rank])
        return [given[rank] if rank == self.rank else step.recv(name, frm=OWNERS[rank], timeout=60).numpy()
                for rank in range(RANKS)]

    def learn(self, epoch, number):
        """Until rank 0 is told to stop. The ranks go on alike: each error is all of theirs."""
        stop, before = 0.0, None
        while not stop:
            step = self.steps.begin(epoch, self.server.step(epoch << 24 | self.turn))
            told = self.rank == 0 and self.enough.is_set()
            given = numpy.concatenate([[told], self.mine]).astype("f")
            shards = self.exchange(step, "weights", lambda rank: given)
            if before:
                before.cleanup()  # All have gone on, so all have what was sent in it.
            before, stop = step, shards[0][0]
            whole = {name: numpy.empty(shape, "f") for name, shape in self.shapes.items()}
            for rank, shard in enumerate(shards):
                unflat(shard[1:], self.rows[rank], whole)
            letters, following = model.batch(numpy.random.default_rng((self.turn, self.rank)), self.lines)
            loss, gradients = model.loss_and_gradients(self.library, whole, letters, following)
            got = self.exchange(step, "gradients", lambda rank: numpy.append(self.flat(gradients, rank), numpy.float32(loss)))
            mean = sum(got) / RANKS
            self.adam(mean[:-1])
            if self.rank == 0:
                report("turn", turn=self.turn, loss=float(mean[-1]))
            if self.turn % self.every == 0 or stop:
                self.publish(number, stop)
                number += 1

    def adam(self, gradient):
        self.turn += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.98 * self.second + 0.02 * gradient ** 2
        first, second = self.first / (1 - 0.9 ** self.turn), self.second / (1 - 0.98 ** self.turn)
        self.mine = (self.mine - RATE * first / (numpy.sqrt(second) + 1e-8)).astype("f")

    def publish(self, number, last):
        report("publishes", number=number)
        at = 0
        with self.owner.version(number, label=f"turn {self.turn}", timeout=60) as version:
            for name, shape in self.shapes.items():
                rows = self.rows[self.rank][name]
                size = (rows.stop - rows.start) * shape[1]
                version.publish(name, self.mine[at:at + size].reshape(-1, shape[1]))
                at += size
        self.save(number)
        report("sealed", number=number)
        if self.rank == 0:
            if last and self.activation:
                self.activation.join()
            if not self.activation or not self.activation.is_alive():
                self.activation = threading.Thread(target=self.activate, args=(number,))
                self.activation.start()
            if last:
                self.activation.join()

    def activate(self, number):
        """Every other version is switched to at a barrier. The training goes on meanwhile."""
        mode, begun = ("rolling", "barrier")[number % 2], time.monotonic()
        try:
            self.owner.activate(number, mode=mode, timeout=30)
            report("activated", number=number, mode=mode, begun=begun)
        except tryst.Error as error:
            report("dropped", number=number, mode=mode, begun=begun, error=str(error))


def main(rank, folder, join, layers, library, every, lines):
    steps = Steps()
    said, enough = orders(steps.abandon)
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        library = torch
    else:
        library = numpy
    where = {"join": join} if join else {}
    with tryst.Server(job="trainer", task=rank, **where, **SETTINGS) as server:
        trainer = Trainer(server, rank, folder, layers, library, every, lines, steps, enough)
        os.nice(5)  # In earnest, trainers do not share the processors of engines.
        report("ready", address=f"{server.worker}@{server.address}")
        while (order := said.get()) is not None:
            try:
                trainer.load(order["version"])
                trainer.learn(order["epoch"], order["number"])
                report("done")
            except tryst.Error as error:
                report("lost", epoch=order["epoch"], error=str(error))
        trainer.owner.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
