#!/usr/bin/env python3
"""vLLM's engines as processes: two trainers and two workers, which a client calls as vLLM does, and kills between the calls.

ADAPTERS=real: over vLLM itself.
"""
import contextlib
import functools
import os
import random
import secrets
import signal
import socket
import threading
import time
import types
import unittest

import processes
import stubs

stubs.install()
import torch
from vllm.distributed.weight_transfer import (WeightTransferEngineFactory, WeightTransferTrainerFactory)
from vllm.distributed.weight_transfer.base import ParamMeta, Replicate, Shard, WeightSource

import tryst
from tryst import adapters

SHAPES = {"embed": (10, 8), "layer.0.w": (7, 3), "layer.0.b": (5,), "head": (1, 6)}
CALLS = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
PERMIT, TIMEOUT = 1.0, 90.0  # A limit that only a hang reaches.


# ---- A worker, which does what vLLM's does with its engine ----

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.throws, self.have = None, {}
        if stubs.REAL:
            for name, shape in SHAPES.items():
                self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(torch.zeros(shape), requires_grad=False))

    def load_weights(self, weights):
        loaded = set()
        for name, tensor in weights:
            if name == self.throws:
                raise OSError(f"the loader has no place for {name}")
            assert tuple(tensor.shape) == SHAPES[name]
            if stubs.REAL:
                parameter = getattr(self, name.replace(".", "_"))
                getattr(parameter, "weight_loader", lambda to, what: to.data.copy_(what))(parameter, tensor)
            else:
                self.have[name] = tensor.copy()
            loaded.add(name)
        return loaded

    def values(self):
        if stubs.REAL:
            return sorted({float(one) for part in self.parameters() for one in part.flatten()})
        return sorted({float(one) for part in self.have.values() for one in part.ravel()})


class Worker:
    def __init__(self):
        adapters.register_vllm()
        self.model, self.active, self.calls = Model(), False, []
        if stubs.REAL:
            from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
            record_metadata_for_reloading(self.model)
        config = types.SimpleNamespace(parallel_config=None, model_config=types.SimpleNamespace(dtype=None, quantization=None))
        self.engine = WeightTransferEngineFactory.create_engine(types.SimpleNamespace(backend="tryst"), config, "cpu", self.model)

    def init_weight_transfer_engine(self, info):
        self.calls.append("init")
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def start_weight_update(self):
        self.calls.append("start")
        if self.active:
            raise RuntimeError("a weight update is already active")
        self.engine.start_weight_update()
        self.active = True

    def update_weights(self, info):
        self.calls.append("update")
        if not self.active:
            raise RuntimeError("start_weight_update must be called before")
        try:
            self.engine.update_weights(info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self, version=None):
        self.calls.append(f"finish {version}")
        if not self.active:
            raise RuntimeError("finish_weight_update without a start_weight_update")
        self.engine.finish_weight_update()
        self.active = False

    def state(self):
        """What the model has, and whether it may be served."""
        return self.model.values(), self.engine.serves()

    def throw(self, name):
        self.model.throws = name

    def heard(self):
        return self.calls


# ---- A trainer ----

class Source(WeightSource):
    """All elements of version N are N."""

    def __init__(self, rank, trainers):
        self.rank, self.trainers, self.value = rank, trainers, 0

    @functools.cached_property
    def metadata(self):
        owners = tuple(range(self.trainers))
        return [ParamMeta(name, torch.float32, shape, owners=owners, placements=(self.placement,))
                for name, shape in SHAPES.items()]


class Local(Source):
    placement = Shard(0)

    def iter_local(self):
        for name, shape in SHAPES.items():
            rows = -(-shape[0] // self.trainers)
            mine = max(0, min(rows, shape[0] - self.rank * rows))
            yield name, torch.full((mine, *shape[1:]), float(self.value))


class Full(Source):
    placement = Replicate()

    def iter_full(self):
        for name, shape in SHAPES.items():
            yield name, torch.full(shape, float(self.value))


class Client:
    """vLLM's protocol over sockets. `kill` has for a call, with "before " or "after ", the process to kill there."""

    def __init__(self, paths):
        self.workers, self.kill = [processes.Remote(path) for path in paths], {}

    def _call(self, name, *arguments):
        self._kill(f"before {name}")
        errors = []
        for step in ("begin", "end"):
            for number, worker in enumerate(self.workers):
                if any(number == failed for failed, _ in errors):
                    continue
                try:
                    worker.begin(name, *arguments) if step == "begin" else worker.end()
                except (RuntimeError, OSError) as error:
                    errors.append((number, error))
        if errors:
            raise RuntimeError("; ".join(f"worker {number}: {error}" for number, error in errors))
        self._kill(f"after {name}")

    def _kill(self, when):
        pid = self.kill.pop(when, None)
        if pid is not None:
            os.kill(pid or os.getpid(), signal.SIGKILL)


for call in CALLS:
    setattr(Client, call, lambda self, *arguments, call=call: self._call(call, *arguments))


class Trainer:
    def open(self, rank, trainers, address, paths, kind, first, token):
        from tryst.vllm_weights import TrainerInfo

        adapters.register_vllm()
        self.source, self.client = globals()[kind](rank, trainers), Client(paths)
        info = TrainerInfo(rank=rank, address=address, trainers=trainers, workers=len(paths), token=token, first=first,
                           permit=PERMIT, timeout=TIMEOUT, hold_bytes=1 << 24)
        self.engine = WeightTransferTrainerFactory.trainer_init(info, client=self.client, source=self.source)

    def send(self, value, kill=()):
        self.source.value, self.client.kill = value, dict(kill)
        self.engine.send_weights()

    def welcome(self):
        self.engine.welcome()

    def finish(self):
        self.client.finish_weight_update(None)


# ---- The tests ----

class VLLM(processes.Case):
    def setUp(self):
        super().setUp()
        self.token = secrets.token_hex(32)
        self.workers = [self.start(Worker) for _ in range(2)]
        self.first = 1

    def stop(self, trainers):
        for trainer in trainers:
            self.kill(trainer)

    def trainers(self, kind="Local", first=1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        trainers = [self.start(Trainer) for _ in range(2)]
        paths = [worker.path for worker in self.workers]
        for rank, trainer in enumerate(trainers):
            trainer.begin("open", rank, 2, address, paths, kind, first, self.token)
        for trainer in trainers:
            trainer.end()
        return trainers

    def send(self, trainers, value, **kill):
        """What rank 0 says; None: it went well."""
        began = time.monotonic()
        kill = tuple((when.replace("_", " ", 1), pid) for when, pid in kill.items())
        trainers[1].begin("send", value)
        trainers[0].begin("send", value, kill)
        try:
            said = trainers[0].end()
        except RuntimeError as error:
            said = str(error)
        trainers[1].end()
        self.assertLess(time.monotonic() - began, TIMEOUT, "it took until a timeout")
        return said

    def state(self, worker, serves=None):
        """The worker's model, which is whole, as soon as it may serve that."""
        until = time.monotonic() + TIMEOUT
        while True:
            values, (number, confirmed) = worker.call("state")
            if serves is None or number == serves:
                break
            self.assertLess(time.monotonic(), until, f"it serves {number}, not {serves}")
            time.sleep(0.05)
        if number != 0:
            self.assertEqual(len(values), 1, f"it serves a model of {values}")
        return values

    def unconfirmed(self, worker, values):
        """The worker comes to have these, and serves nothing. The trainers' call may have failed while it still loads them."""
        until = time.monotonic() + TIMEOUT
        while (has := self.state(worker, 0)) != values:
            self.assertLess(time.monotonic(), until, f"it has {has}, not {values}")
            time.sleep(0.05)

    def test_rounds(self):
        for kind in ("Local", "Full"):
            first = self.first
            trainers = self.trainers(kind, first)
            for value in (first, first + 1, first + 2):
                self.assertIsNone(self.send(trainers, value))
                for worker in self.workers:
                    self.assertEqual(self.state(worker, value), [float(value)])
            self.first = first + 100
            self.stop(trainers)
        self.assertEqual(self.workers[0].call("heard")[:4], ["init", "start", "update", "finish 1"])

    def test_a_worker_is_killed_between_the_calls(self):
        # Where it dies, and what the other one has then.
        for when, has in (("before_start_weight_update", 1), ("after_start_weight_update", None),
                          ("before_update_weights", None), ("after_update_weights", 2), ("before_finish_weight_update", 2)):
            with self.subTest(when):
                trainers = self.trainers(first=self.first)
                self.assertIsNone(self.send(trainers, 1))
                said = self.send(trainers, 2, **{when: self.pid(self.workers[1])})
                self.assertRegex(said, "is gone|was dropped")
                values = self.state(self.workers[0])
                self.assertIn(values, [[1.0], [2.0]] if has is None else [[float(has)]])
                # Another one takes its place, and has what is active before there is a new version.
                self.children[self.workers[1].path].join(30)
                self.workers[1] = self.start(Worker, self.workers[1].path)
                trainers[0].call("welcome")
                self.assertIsNone(self.send(trainers, 3))
                for worker in self.workers:
                    self.assertEqual(self.state(worker, self.first + 2), [3.0])
                self.first += 100
                self.stop(trainers)

    def test_a_worker_dies_before_its_vote(self):
        trainers = self.trainers()
        self.assertIsNone(self.send(trainers, 1))
        self.kill(self.workers[1])
        said = self.send(trainers, 2)
        self.assertIn("was dropped", said)
        self.assertEqual(self.state(self.workers[0], 1), [1.0])
        self.assertEqual(self.workers[0].call("heard").count("start"), 1, "it was asked to load what not all have")

    def test_the_trainer_is_killed_between_the_calls(self):
        for when, has in (("before_start_weight_update", 1), ("after_start_weight_update", 1), ("before_update_weights", 1),
                          ("after_update_weights", 2), ("before_finish_weight_update", 2)):
            with self.subTest(when):
                trainers = self.trainers(first=self.first)
                self.assertIsNone(self.send(trainers, 1))
                self.assertIn("is gone", self.send(trainers, 2, **{when: 0}))
                for worker in self.workers:  # Nobody confirms what they serve, and no model is half of a version.
                    self.unconfirmed(worker, [float(has)])
                self.kill(trainers[1])
                self.first += 100
                trainers = self.trainers(first=self.first)
                if when != "before_start_weight_update":
                    self.assertIn("already active", self.send(trainers, 3))
                    with contextlib.suppress(RuntimeError):
                        trainers[0].call("finish")
                self.assertIsNone(self.send(trainers, 4))
                for worker in self.workers:
                    self.state(worker, self.first + (when != "before_start_weight_update"))
                    self.assertEqual(self.state(worker), [4.0])
                self.first += 100
                self.stop(trainers)

    def test_a_loader_throws(self):
        trainers = self.trainers()
        self.assertIsNone(self.send(trainers, 1))
        self.workers[1].call("throw", "layer.0.b")
        said = self.send(trainers, 2)
        self.assertIn("has no place for layer.0.b", said)
        self.assertEqual(self.state(self.workers[0], 2), [2.0])
        values, serves = self.workers[1].call("state")
        self.assertEqual(serves, (0, False), "half a model is served")
        if not stubs.REAL:
            self.assertEqual(values, [1.0, 2.0])
        time.sleep(3 * PERMIT)
        self.assertEqual(self.workers[1].call("state")[1], (0, False))
        # As long as it throws there is no other version.
        self.assertIn("has no place for layer.0.b", self.send(trainers, 3))
        self.workers[1].call("throw", None)
        self.assertIsNone(self.send(trainers, 4))
        for worker in self.workers:
            self.assertEqual(self.state(worker, 4), [4.0])

    def test_metas_and_layouts(self):
        from tryst.vllm_weights import layout_of, meta_of
        from tryst._tryst import weight_boxes

        dice = random.Random(2530)
        for _ in range(10_000):
            shape = tuple(dice.randrange(0, 9) for _ in range(dice.randrange(1, 4)))
            if dice.random() < 0.1:
                meta = ParamMeta("w", torch.bfloat16, shape)
                self.assertEqual(meta_of(layout_of(meta)), meta)
                continue
            mesh = tuple(dice.randrange(1, 4) for _ in range(dice.randrange(1, 3)))
            count = 1
            for size in mesh:
                count *= size
            owners = tuple(dice.sample(range(12), count))
            placements = tuple(dice.choice([Replicate(), Shard(dice.randrange(len(shape)))]) for _ in mesh)
            meta = ParamMeta("w", torch.bfloat16, shape, owners=owners, mesh_shape=mesh, placements=placements)
            self.assertEqual(meta_of(layout_of(meta)), meta)
            # Each owner has the box that torch.chunk gives, the outer axis first.
            at = dice.randrange(count)
            coordinate, left = [], at
            for size in reversed(mesh):
                coordinate.insert(0, left % size)
                left //= size
            begin, extent = [0] * len(shape), list(shape)
            for where, size, placement in zip(coordinate, mesh, placements):
                if isinstance(placement, Shard):
                    dim = placement.dim
                    rows = -(-extent[dim] // size)
                    begin[dim] += min(where * rows, extent[dim])
                    extent[dim] = max(0, min(rows, extent[dim] - where * rows))
            boxes = weight_boxes(layout_of(meta)._tuple(12), 12, owners[at])
            if 0 in extent:
                self.assertTrue(all(0 in box[1] for box in boxes), (meta, boxes))
            else:
                self.assertEqual([(tuple(low), tuple(size)) for low, size in boxes], [(tuple(begin), tuple(extent))], meta)

    def test_the_name_is_taken(self):
        registry = WeightTransferEngineFactory._registry
        adapters.register_vllm()
        self.addCleanup(registry.update, {"tryst": registry["tryst"]})
        registry["tryst"] = theirs = lambda: None
        adapters.register_vllm()
        self.assertIs(registry["tryst"], theirs)


if __name__ == "__main__":
    unittest.main()
