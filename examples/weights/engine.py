"""A rank of an engine, which train.py starts: two of them generate together, each with half of every layer.

They fetch their halves of a version beside those that they serve, and switch when the set says so. Rank 0 asks rank 1
to work on an answer with it. Both do so within serving(), with one version; each sum names the version of its parts.
"""
import json
import sys
import threading
import time

import model
import numpy
import tryst
from trainer import OWNERS, PERMIT_S, SETTINGS, orders, report

LINES, PROMPT, LETTERS = 4, 8, 8  # An answer adds so many letters to each of its lines.


class Engine:
    def __init__(self, server, name, rank, layers, library):
        self.server, self.rank, self.other = server, rank, f"/job:{name}/task:{1 - rank}"
        self.shapes, self.library = model.shapes(layers), library
        self.member = server.weights("model", role="member", owners=OWNERS, permit=PERMIT_S)
        self.versions = {}  # The one that is served, and the one before: its last answer may still be made.
        self.before, self.mixed = None, 0

    def follow(self):
        self.member.follow(self.stage, self.switch)

    def stage(self, number):
        """The whole of the two small tables, and of a layer's tensors the rows or the columns of this rank's half."""
        items = {}
        for name, shape in self.shapes.items():
            box = [slice(0, size) for size in shape]
            if "." in name:
                dim = 1 if name.endswith((".mix", ".down")) else 0
                half = shape[dim] // 2
                box[dim] = slice(half * self.rank, half * (self.rank + 1))
            items[name] = tuple(box), numpy.empty([part.stop - part.start for part in box], "f")
        return items

    def switch(self, number, tensors):
        if self.library is not numpy:
            tensors = {name: self.library.from_numpy(array) for name, array in tensors.items()}
        self.versions = {number: dict(tensors), **dict(list(self.versions.items())[:1])}
        report("switched", number=number)

    def generate(self, step, number, tensors, lines):
        """Lines of letters, and how likely the model found those that it has added. `tensors`: of this version, which
        several others may have followed before the last letter."""
        sums = 0
        likely = []

        def reduce(part):
            nonlocal sums
            part = numpy.asarray(part)
            name, sums = f"sum {sums}", sums + 1
            step.send(name, numpy.append(part, numpy.float32(number)), to=self.other)
            other = step.recv(name, frm=self.other, timeout=60).numpy()
            self.mixed += int(other[-1] != number)
            other = other[:-1].reshape(part.shape)
            total = part + other if self.rank == 0 else other + part
            return total if self.library is numpy else self.library.from_numpy(total)

        for _ in range(LETTERS):
            letters = lines if self.library is numpy else self.library.from_numpy(lines)
            scores = numpy.asarray(model.logits(self.library, tensors, letters, reduce)[:, -1])
            likely.append(scores.max(-1))
            lines = numpy.concatenate([lines, scores.argmax(-1)[:, None]], 1)
        return lines, numpy.mean(likely)

    def went_on(self, step):
        """The other rank has begun this step, so it has what was sent in the one before."""
        if self.before:
            self.before.cleanup()
        self.before = step

    def lead(self, enough):
        """Makes answers, until train.py says that it is enough."""
        turn, chance = 0, numpy.random.default_rng(53)
        while not enough.is_set():
            if self.member.serves()[0] == 0:
                time.sleep(0.0005)
                continue
            turn += 1
            step, begun = self.server.step(turn), time.monotonic()
            prompt = model.batch(chance, LINES)[0][:, :PROMPT]
            try:
                with self.member.serving() as number:
                    tensors = self.versions.get(number)
                    if tensors is None:  # Two versions have followed since.
                        turn -= 1
                        continue
                    step.send("ask", numpy.append(prompt, number), to=self.other)
                    agreed = step.recv("agreed", frm=self.other, timeout=60).numpy()[0]
                    self.went_on(step)
                    if agreed:
                        text, likely = self.generate(step, number, tensors, prompt)
                        report("answer", version=number, begun=begun, likely=float(likely), letters=text.tolist())
            except tryst.FailedPrecondition:  # The permit ended meanwhile, before anything was asked.
                turn -= 1
        self.server.step(turn + 1).send("ask", numpy.zeros(1, "q"), to=self.other)

    def assist(self):
        for turn in range(1, 1 << 30):
            step = self.server.step(turn)
            asked = step.recv("ask", frm=self.other).numpy()
            self.went_on(step)
            number = int(asked[-1])
            if number == 0:
                return
            try:
                with self.member.serving() as mine:
                    tensors = self.versions.get(number) if mine == number else None
                    step.send("agreed", numpy.array([tensors is not None]), to=self.other)
                    if tensors is not None:
                        self.generate(step, number, tensors, asked[:-1].reshape(LINES, PROMPT))
            except tryst.FailedPrecondition:
                step.send("agreed", numpy.array([False]), to=self.other)


def main(name, rank, join, layers, library):
    said, enough = orders()
    if library == "torch":
        import torch as library

        library.set_num_threads(1)
        library.set_grad_enabled(False)
    else:
        library = numpy
    with tryst.Server(job=name, task=rank, join=join, **SETTINGS) as server:
        engine = Engine(server, name, rank, layers, library)
        following = threading.Thread(target=engine.follow, daemon=True)
        following.start()
        report("ready")
        if rank == 0:
            engine.lead(enough)
        else:
            engine.assist()
        report("done", mixed=engine.mixed)
        said.get()  # train.py goes when the other rank has done, too: it may still receive from this one.
        engine.member.close()
        following.join()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
