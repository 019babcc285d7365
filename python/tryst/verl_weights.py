"""verl's checkpoint engine "tryst": every rank of the actor sends its share of the rows, so that all their NICs do. This is
for verl 0.9.

    checkpoint_engine.backend=tryst
    checkpoint_engine.custom_backend_module=tryst.verl_weights
    checkpoint_engine.engine_kwargs.tryst.staging=whole

Each update is a version of a set (tryst.weights): the rollouts fetch it once all of it is sealed, and check every byte.
"""
import asyncio
import contextlib
import math
import re
import secrets
import time
import uuid

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import tryst
from tryst import adapters
from tryst.weights import Layout, Shard


_TERM_S = 5.0  # Within which all actors begin a new term.


@CheckpointEngineRegistry.register("tryst")
class TrystCheckpointEngine(CheckpointEngine):
    """`staging`: "whole" loads nothing before all of it has come, for which each rollout needs host memory for the model;
    "buckets" needs two times `bucket_size`, and an actor that dies can leave half a model. `settings` are of each server
    (docs/CONFIG.md)."""

    _last = 0  # In the process that calls build_topology(): the number of the last version.

    def __init__(self, bucket_size, is_master=False, staging="whole", device=None, timeout=300.0, settings=()):
        if staging not in ("whole", "buckets"):
            raise ValueError(f'staging is {staging!r}, and must be "whole" or "buckets"')
        self.bucket_size, self.is_master = bucket_size, is_master
        self._whole, self._device, self._timeout, self._settings = staging == "whole", device, timeout, dict(settings)
        self._server = self._end = self._layouts = self._group = self._met = None
        self._life = uuid.uuid4().hex

    def prepare(self):
        """Only the master's server has to be there before the others know of it. All of them stay for the next update."""
        if self.is_master and self._server is None:
            self._job, self._token = f"verl_{uuid.uuid4().hex}", secrets.token_hex(32)
            self._server = adapters.start(self._job, adapters.own_address(), self._token, None, self._settings)
        if not self.is_master:
            return {"life": self._life}
        return {"life": self._life, "job": self._job, "address": self._server.address, "token": self._token}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        # Above those of any driver before, whatever it counted.
        cls._last = max(cls._last + 1, time.time_ns() // 1_000_000)

        lives = [one["life"] for one in metadata[:actor_wg_world_size]]

        def lists(first, count):
            return {"rank": list(range(first, first + count)), "lives": [lives] * count,
                    "master": [metadata[0]] * count, "number": [cls._last] * count}

        return lists(0, actor_wg_world_size), lists(actor_wg_world_size, rollout_world_size)

    def init_process_group(self, rank, lives, master, number):
        self._number, self._rank = number, rank
        # Where an actor was replaced, the others' ends of the set belong to another line-up.
        group = (master["life"], rank, lives)
        if group == self._group:
            return
        also_server = not self.is_master and self._group is not None and self._group[:2] != group[:2]
        self._leave(also_server)
        self._group = group
        self._owners = [f"/job:{master['job']}/replica:0/task:{task}" for task in range(len(lives))]
        sends = rank < len(lives)
        if self._server is None:
            job, task = (master["job"], rank) if sends else (f"{master['job']}_{uuid.uuid4().hex}", 0)
            self._server = adapters.start(job, adapters.own_address(master["address"]), master["token"],
                                          f"{self._owners[0]}@{master['address']}", self._settings, task)
        if not sends:
            self._end = self._server.weights("verl", role="observer", owners=self._owners)

    async def send_weights(self, weights, global_steps=None):
        # The layout is known when all have come, so a rank keeps its rows until then.
        rows, layouts = {}, []
        async for name, tensor in _each(weights):
            dtype, shape = str(tensor.dtype).rpartition(".")[2], tuple(tensor.shape)
            layouts.append((name, dtype, shape))
            begin, end = self._share(shape[0] if shape else 1)
            if begin < end:
                rows[name] = tensor.detach()[begin:end].cpu().contiguous() if shape else tensor.detach().cpu()
        if layouts != self._layouts:
            await asyncio.to_thread(self._declare, layouts)
        async with self._end.version(self._number, f"step {global_steps}", self._timeout) as version:
            for name in list(rows):
                await asyncio.to_thread(version.publish, name, rows.pop(name))

    def _share(self, size):
        """This rank's rows, as torch.chunk has them; the first rank has all of what has none."""
        part = -(-size // len(self._owners))
        return min(self._rank * part, size), min((self._rank + 1) * part, size)

    def _declare(self, layouts):
        if self._end is not None:
            self._end.close()  # Another layout begins another term.
            self._end = self._layouts = None
        self._meet()
        self._end = self._server.weights("verl", role="owner", owners=self._owners, rank=self._rank, keep=1)
        self._end.declare(Layout(name, dtype, shape, placements=[Shard(0)]) if shape else
                          Layout(name, dtype, shape, boxes=[(0, None)]) for name, dtype, shape in layouts)
        self._layouts = layouts

    def _meet(self):
        """Returns when all actors have closed their ends of the former term, which would answer for the new one."""
        if self._met is not None:
            self._met.cleanup()
        self._met = self._server.step(self._number)
        first, others = self._owners[0], self._owners[1:]
        for name, senders, receivers in (("closed", others, [first]), ("all are closed", [first], others)):
            mine = self._owners[self._rank]
            if mine in receivers:
                for sender in senders:
                    self._hear(name, sender)
            if mine in senders:
                for receiver in receivers:
                    self._met.send(name, None, to=receiver)

    def _hear(self, name, sender):
        until = time.monotonic() + self._timeout
        while True:
            try:
                return self._met.recv(name, frm=sender, timeout=max(until - time.monotonic(), 0))
            except (tryst.Aborted, tryst.Unavailable):  # It takes the place of one that was killed, and is not known yet.
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    async def receive_weights(self, global_steps=None):
        until = time.monotonic() + self._timeout
        buckets = self._buckets(await self._patiently(until, self._end.adescribe))
        coming = self._fetch(until, buckets, 0)
        try:
            for number in range(len(buckets)):
                came, coming = await coming, self._fetch(until, buckets, number + 1)
                for name, tensor in came.items():
                    tensor = torch.from_dlpack(tensor)
                    yield name, tensor if self._device is None else tensor.to(self._device)
        finally:
            if coming is not None:
                coming.cancel()
                with contextlib.suppress(BaseException):  # It ends when nothing comes any more.
                    await coming

    def _fetch(self, until, buckets, number):
        if number < len(buckets):
            return asyncio.ensure_future(self._patiently(until, self._end.afetch, buckets[number]))

    async def _patiently(self, until, call, *arguments):
        aborted = math.inf
        while True:
            try:
                return await call(self._number, *arguments, max(until - time.monotonic(), 0))
            # The first actor may not have come so far, and another may not have heard yet that the version is sealed.
            except (tryst.Unavailable, tryst.NotFound):
                if time.monotonic() > until:
                    raise
            except tryst.Aborted:  # An end of the former term has closed; or the version is dropped, and stays so.
                aborted = min(aborted, time.monotonic())
                if time.monotonic() > min(until, aborted + _TERM_S):
                    raise
            await asyncio.sleep(0.05)

    def _buckets(self, described):
        """Names of tensors that are fetched together."""
        if self._whole:
            return [list(described)]
        buckets, left = [], 0
        for name, layout in described.items():
            bits = re.search(r"[0-9]+", layout.dtype)
            size = math.prod(layout.shape) * (int(bits[0]) if bits else 8) // 8
            if size > left:
                buckets.append([])
                left = self.bucket_size
            buckets[-1].append(name)
            left -= size
        return buckets

    def finalize(self):
        """The servers and their connections stay, for the next update."""

    def _leave(self, also_server):
        if self._end is not None:
            self._end.close()
        if also_server and self._server is not None:
            self._server.stop()
            self._server = self._met = None
        self._end = self._layouts = self._group = None


async def _each(weights):
    if hasattr(weights, "__aiter__"):
        async for one in weights:
            yield one
    else:
        for one in weights:
            yield one
