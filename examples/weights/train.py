#!/usr/bin/env python3
"""train.py [--seconds=20] [--layers=2] [--library=numpy|torch] [--svg=weights.svg] [--json=FILE]

Four trainers own a transformer's shards and publish version after version; two engines of two ranks, sharded otherwise,
generate all the while. Trainer 2 is killed and comes back, then the engine "b". At the end report.py checks that the
loss fell, that no answer mixed two versions, and that none came from an engine that was not allowed to serve.
README.md says what one sees.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TRAINERS, ENGINES, LOST = 4, "ab", 2
EVERY, LINES = 3, 8  # Turns of a version; lines of a trainer's batch.
MOST_EPOCHS = 8  # One follows each loss.


class Everybody:
    """The processes, and what they have said."""

    def __init__(self, folder, options):
        self.folder, self.options, self.processes, self.lives = folder, options, {}, {}
        self.said, self._changed = [], threading.Condition()
        self._telling, self._abandoned, self.epoch = threading.Lock(), set(), 0
        self._threads = []

    def start(self, who, program, **task):
        life = self.lives[who] = self.lives.get(who, 0) + 1
        task.update(layers=self.options.layers, library=self.options.library)
        errors = open(os.path.join(self.folder, f"{who}.{life}.log"), "wb")
        process = self.processes[who] = subprocess.Popen(
            [sys.executable, HERE / program, json.dumps(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})

        def read():
            for line in process.stdout:
                said = {"who": who, "life": life, **json.loads(line)}
                with self._changed:
                    self.said.append(said)
                    self._changed.notify_all()
                if said["kind"] == "lost":
                    self.abandon(said["epoch"])

        self._threads.append(threading.Thread(target=read, daemon=True))
        self._threads[-1].start()

    def start_engine(self, name, join):
        for rank in range(2):
            self.start(f"{name}{rank}", "engine.py", name=name, rank=rank, join=join)

    def of(self, kind, **like):
        return [one for one in list(self.said) if one["kind"] == kind and all(one[key] == value for key, value in like.items())]

    def until(self, condition, what):
        end = self.began + self.options.patience
        while True:
            with self._changed:
                if self._changed.wait_for(condition, 0.5):
                    return
            ended = [who for who, process in self.processes.items() if process.poll() is not None]
            if ended:
                sys.exit(f"{' and '.join(ended)} ended before {what}")
            if all(self.of("lost", who=f"trainer {rank}", epoch=self.epoch) for rank in range(TRAINERS)):
                begin(self)  # None was killed: one asked for a row of the life that had been.
            if time.monotonic() > end:
                sys.exit(f"it does not come about within {self.options.patience:.0f} s that {what}")

    def tell(self, who, order):
        with self._telling:
            self.processes[who].stdin.write(json.dumps(order) + "\n")
            self.processes[who].stdin.flush()

    def abandon(self, epoch):
        """A trainer that misses another's rows sends none of its own, so those that wait for it have to hear of the loss."""
        with self._changed:
            if epoch in self._abandoned:
                return
            self._abandoned.add(epoch)
        for rank in range(TRAINERS):
            try:
                self.tell(f"trainer {rank}", {"abandon": epoch})
            except (KeyError, OSError):
                pass  # It is the one that was lost.

    def kill(self, *names):
        for who in names:
            self.processes[who].kill()
        for who in names:
            self.processes[who].wait()
        return time.monotonic()

    def end(self):
        for process in self.processes.values():
            process.stdin.close()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        return [who for who, process in self.processes.items() if process.returncode]

    began = time.monotonic()


def start_trainers(everybody, join, ranks):
    for rank in ranks:
        everybody.start(f"trainer {rank}", "trainer.py", rank=rank, folder=everybody.folder, join=join, every=EVERY, lines=LINES)


def ready(everybody, ranks):
    everybody.until(lambda: all(everybody.of("ready", who=f"trainer {rank}", life=everybody.lives[f"trainer {rank}"])
                                for rank in ranks), f"the trainers {list(ranks)} are ready")
    return everybody.of("ready", who="trainer 0")[0]["address"]


def begin(everybody):
    """Has all trainers go on from the newest version whose rows all have kept, in an epoch of its own."""
    everybody.epoch += 1
    if everybody.epoch > MOST_EPOCHS:
        sys.exit(f"the trainers lost each other in {MOST_EPOCHS} epochs, the last time so: {everybody.of('lost')[-1]['error']}")
    numbers = {one["number"] for one in everybody.of("publishes")}
    kept = [number for number in numbers
            if all(os.path.exists(f"{everybody.folder}/{number}.{rank}.npz") for rank in range(TRAINERS))]
    order = {"epoch": everybody.epoch, "version": max(kept, default=None), "number": max(numbers, default=0) + 1}
    for rank in range(TRAINERS):
        everybody.tell(f"trainer {rank}", order)


def run(everybody):
    seconds = everybody.options.seconds
    start_trainers(everybody, None, [0])
    join = ready(everybody, [0])
    start_trainers(everybody, join, range(1, TRAINERS))
    for name in ENGINES:
        everybody.start_engine(name, join)
    ready(everybody, range(TRAINERS))
    begin(everybody)
    for name in ENGINES:
        everybody.until(lambda: everybody.of("answer", who=f"{name}0"), f"engine {name} answers")
    begun = time.monotonic()

    def some_more(share, versions):
        """Goes on until that share of the time is over, and so many more versions are active."""
        until, before = begun + share * seconds, len(everybody.of("activated"))
        time.sleep(max(0.0, until - time.monotonic()))
        everybody.until(lambda: len(everybody.of("activated")) >= before + versions, f"{versions} versions are active")

    happened = []
    some_more(0.25, 2)
    happened.append((everybody.kill(f"trainer {LOST}"), f"trainer {LOST} is killed"))
    start_trainers(everybody, join, [LOST])
    ready(everybody, [LOST])
    begin(everybody)
    everybody.until(lambda: everybody.of("sealed", who=f"trainer {LOST}", life=2), "it has published again")
    happened.append((everybody.of("sealed", who=f"trainer {LOST}", life=2)[0]["at"], "it publishes again"))
    some_more(0.6, 2)
    happened.append((everybody.kill("b0", "b1"), "engine b is killed"))
    everybody.start_engine("b", join)
    everybody.until(lambda: everybody.of("answer", who="b0", life=2), "engine b answers again")
    happened.append((everybody.of("answer", who="b0", life=2)[0]["at"], "it answers again"))
    some_more(1.0, 2)
    everybody.tell("trainer 0", "enough")
    everybody.until(lambda: len(everybody.of("done")) == TRAINERS, "the trainers are done")
    for name in ENGINES:
        everybody.tell(f"{name}0", "enough")
    everybody.until(lambda: len(everybody.of("done")) == TRAINERS + 2 * len(ENGINES), "the engines are done")
    return happened


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="from the first answers on")
    parser.add_argument("--patience", type=float, default=180.0, help="it fails after so long")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--library", choices=("numpy", "torch"), default="torch" if importlib.util.find_spec("torch") else "numpy")
    parser.add_argument("--svg", help="a picture goes there", default="weights.svg")
    parser.add_argument("--json", help="all that the processes said goes there")
    options = parser.parse_args()
    import report  # Beside this file; it needs numpy.

    with tempfile.TemporaryDirectory() as folder:
        everybody = Everybody(folder, options)
        try:
            happened = run(everybody)
            failed = everybody.end()
            good = report.report(everybody.said, happened, folder, options)
        except BaseException:
            for process in everybody.processes.values():
                process.kill()
            for path in sorted(pathlib.Path(folder).glob("*.log")):
                text = path.read_text(errors="replace").splitlines()
                print(path.name, *(line for line in text[-30:] if not line.startswith("I")), sep="\n  ", file=sys.stderr)
            for one in {(one["who"], one["kind"]): one for one in everybody.said}.values():  # The last one of each.
                print({key: value for key, value in one.items() if key != "letters"}, file=sys.stderr)
            raise
        finally:
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(everybody.said))
    if failed:
        print("these ended badly:", *failed)
    return 0 if good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
