#!/usr/bin/env python3
"""verl's checkpoint engine as processes: two actors send and three rollouts receive, in verl's five phases.

ADAPTERS=real: over verl's own base classes and registry.
"""
import asyncio
import unittest

import processes
import stubs

stubs.install()
import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry

import tryst.verl_weights

SHAPES = {"embed": (10, 8), "layer.0.w": (7, 3), "layer.0.b": (5,), "scale": (), "head": (1, 6)}


class Engine:
    def open(self, arguments):
        self.engine = CheckpointEngineRegistry.new("tryst", **{"bucket_size": 200, "timeout": 60.0, **arguments})

    def phase(self, name, arguments):
        return getattr(self.engine, name)(**arguments)

    def send(self, shapes, value, steps=None):
        asyncio.run(self.engine.send_weights(((name, torch.full(shape, float(value))) for name, shape in shapes.items()), steps))

    def receive(self, most=100):
        async def receive():
            came = {}
            receiving = self.engine.receive_weights(1)
            async for name, tensor in receiving:
                came[name] = tensor.tolist()
                if len(came) == most:
                    await receiving.aclose()
                    break
            return came
        return asyncio.run(receive())

    def server(self):
        return self.engine._server.address


def rows(shape, values):
    """What comes of actors that send another value each: their rows, as torch.chunk has them."""
    part = -(-shape[0] // 2)
    line = values[0] if len(shape) == 1 else None
    if line is not None:
        return [float(values[at // part]) for at in range(shape[0])]
    return [[float(values[at // part])] * shape[1] for at in range(shape[0])]


class Verl(processes.Case):
    def setUp(self):
        super().setUp()
        self.actors = [self.start(Engine) for _ in range(2)]
        self.rollouts = [self.start(Engine) for _ in range(3)]

    def open(self, **arguments):
        for number, one in enumerate(self.actors + self.rollouts):
            one.call("open", {**arguments, **({"is_master": True} if number == 0 else {})})

    def all(self, calls):
        for one, arguments in calls:
            one.begin(*arguments)
        return [one.end() for one, _ in calls]

    def topology(self):
        """As verl's manager has it, which gives out each list by rank."""
        everybody = self.actors + self.rollouts
        metadata = self.all([(one, ("phase", "prepare", {})) for one in everybody])
        both = CheckpointEngineRegistry.get("tryst").build_topology(len(self.actors), len(self.rollouts), metadata)
        calls = []
        for group, lists in zip((self.actors, self.rollouts), both):
            for values in lists.values():
                self.assertEqual(len(values), len(group))
            calls += [(one, ("phase", "init_process_group", {name: values[at] for name, values in lists.items()}))
                      for at, one in enumerate(group)]
        self.all(calls)

    def update(self, values, shapes=SHAPES):
        self.topology()
        came = self.all([(one, ("send", shapes, value)) for one, value in zip(self.actors, values)] +
                        [(one, ("receive",)) for one in self.rollouts])[2:]
        self.all([(one, ("phase", "finalize", {})) for one in self.actors + self.rollouts])
        return came

    def check(self, came, values, shapes=SHAPES):
        for one in came:
            self.assertEqual(list(one), list(shapes))
            for name, shape in shapes.items():
                self.assertEqual(one[name], rows(shape, values) if shape else float(values[0]), name)

    def test_updates(self):
        for staging in ("whole", "buckets"):
            with self.subTest(staging):
                self.open(staging=staging)
                self.check(self.update((1, 2)), (1, 2))
                addresses = [one.call("server") for one in self.actors + self.rollouts]
                self.check(self.update((3, 4)), (3, 4))
                self.assertEqual([one.call("server") for one in self.actors + self.rollouts], addresses)
                other = {"adapter": (4, 2), "head": (3, 6)}
                self.check(self.update((5, 6), other), (5, 6), other)

    def test_a_rollout_that_takes_no_more(self):
        self.open(staging="buckets")
        self.topology()
        came = self.all([(one, ("send", SHAPES, 1)) for one in self.actors] +
                        [(one, ("receive", 2)) for one in self.rollouts])[2:]
        self.assertEqual([list(one) for one in came], [list(SHAPES)[:2]] * 3)
        self.check(self.update((3, 4)), (3, 4))

    def test_an_actor_is_killed(self):
        self.open(timeout=15.0)  # The first actor waits for the others so long.
        self.check(self.update((1, 2)), (1, 2))
        self.topology()
        for rollout in self.rollouts:
            rollout.begin("receive")
        self.actors[0].begin("send", SHAPES, 3)
        self.kill(self.actors[1])
        for one in [self.actors[0], *self.rollouts]:
            with self.assertRaisesRegex(RuntimeError, "Aborted|DeadlineExceeded|Unavailable"):
                one.end()
        # Another one takes its place, in a group that is built anew.
        self.actors[1] = self.start(Engine, self.actors[1].path)
        self.actors[1].call("open", {})
        self.check(self.update((5, 6)), (5, 6))

    def test_what_is_wrong_says_so(self):
        with self.assertRaisesRegex(ValueError, "whole"):
            tryst.verl_weights.TrystCheckpointEngine(1, staging="half")


if __name__ == "__main__":
    unittest.main()
