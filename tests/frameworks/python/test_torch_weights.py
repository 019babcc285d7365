#!/usr/bin/env python3
"""tryst.torch_weights as it is installed. test_torch_weights.py [Boxes|StateDicts|Processes]: only Boxes needs no torch."""
import collections
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest

import numpy
import tryst
from test_weights import SETTINGS, in_thread
from tryst import _tryst, torch_weights
from tryst.weights import Layout, Replicate, Shard

try:
    import torch
except ImportError:
    torch = None
needs_torch = unittest.skipIf(torch is None, "no torch")
RANKS = 4

Strided = collections.namedtuple("Strided", "dim split_factor")


def random_layout(random, strided):
    """(shape, mesh, placements); `strided` makes the placement of a dimension and a factor."""
    shape = tuple(random.choice([0, 1, 2, 3, 5, 7, 8, 12, 13]) for _ in range(random.randint(1, 3)))
    mesh = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))

    def placement():
        dim = random.randrange(len(shape))
        return random.choice([Replicate(), Shard(dim), Shard(dim), strided(dim, random.randint(2, 3))])

    return shape, mesh, [placement() for _ in mesh]


class Boxes(unittest.TestCase):
    def check(self, whole, local, pairs):
        """Each element of `local` comes once, from where `whole` has it."""
        left = numpy.full(local.shape, -1)
        for box, part in pairs:
            self.assertTrue((left[part] == -1).all())
            left[part] = whole[box]
        numpy.testing.assert_array_equal(left, local)

    def test_numpy_cuts_the_same(self):
        def chunk(array, dim, parts, at):
            size = -(-array.shape[dim] // parts)
            return array[(slice(None),) * dim + (slice(size * at, size * (at + 1)),)]

        some = random.Random(46)
        for _ in range(1000):
            shape, mesh, placements = random_layout(some, Strided)
            whole = numpy.arange(math.prod(shape)).reshape(shape)
            for at in itertools.product(*map(range, mesh)):
                local = whole
                for one, parts, position in zip(placements, mesh, at):
                    if one.dim >= 0:
                        local = numpy.concatenate([chunk(chunk(local, one.dim, split, group), one.dim, parts, position)
                                                   for split in [getattr(one, "split_factor", 1)] for group in range(split)], one.dim)
                self.check(whole, local, torch_weights.boxes(shape, mesh, placements, at))

    def test_the_library_cuts_the_same(self):
        some = random.Random(47)
        for _ in range(1000):
            shape, mesh, placements = random_layout(some, lambda dim, _: Shard(dim))
            ranks = some.sample(range(64), math.prod(mesh))
            layout = Layout("w", "float32", shape, ranks, placements, mesh)._tuple(64)
            for rank, at in zip(ranks, itertools.product(*map(range, mesh))):
                of = [tuple(slice(begin, begin + size) for begin, size in zip(*box)) for box in _tryst.weight_boxes(layout, 64, rank)]
                self.assertEqual([box for box, _ in torch_weights.boxes(shape, mesh, placements, at)], of)

    def test_axes_in_another_order(self):
        # The inner axis cuts first: the outer one cuts each of its halves.
        two = [Shard(0), Shard(0)]
        self.assertEqual([torch_weights.boxes((8,), (2, 2), two, at, order=[1, 0])[0][0][0].start
                          for at in itertools.product(range(2), range(2))], [0, 4, 2, 6])

    def test_torchstore(self):
        TensorSlice = collections.namedtuple("TensorSlice", "offsets coordinates global_shape local_shape mesh_shape")
        one = TensorSlice((4, 0), (1, 0), (8, 6), (4, 3), (2, 2))
        self.assertEqual(torch_weights.box_of(one), numpy.s_[4:8, 0:3])

    @needs_torch
    def test_torch_cuts_the_same(self):
        from torch.distributed.tensor import placement_types as types

        some = random.Random(48)
        for _ in range(1000):
            shape, mesh, placements = random_layout(some, lambda dim, split: types._StridedShard(dim, split_factor=split))
            placements = [types.Shard(one.dim) if isinstance(one, Shard) else
                          types.Replicate() if isinstance(one, Replicate) else one for one in placements]
            whole = torch.arange(math.prod(shape)).reshape(shape)
            for at in itertools.product(*map(range, mesh)):
                local = whole
                for one, parts, position in zip(placements, mesh, at):
                    if not one.is_replicate():
                        local = one._split_tensor(local, parts, with_padding=False, contiguous=False)[0][position]
                self.check(whole.numpy(), local.numpy(), torch_weights.boxes(shape, mesh, placements, at))


@needs_torch
class StateDicts(unittest.TestCase):
    sets = (f"set{number}" for number in itertools.count())

    @classmethod
    def setUpClass(cls):
        cls.servers = [tryst.Server(job="trainer", **SETTINGS).start()]
        join = f"{cls.servers[0].worker}@{cls.servers[0].address}"
        cls.servers.append(tryst.Server(job="trainer", task=1, join=join, **SETTINGS).start())
        cls.servers.append(tryst.Server(job="engine", join=join, **SETTINGS).start())

    @classmethod
    def tearDownClass(cls):
        for server in reversed(cls.servers):
            server.stop()

    def opened(self, owners=1):
        name = next(self.sets)
        ends = [server.weights(name, role="owner", owners=owners, permit=0.6) for server in self.servers[:owners]]
        ends.append(self.servers[2].weights(name, "observer", [f"/job:trainer/task:{task}" for task in range(owners)]))
        for end in ends:
            self.addCleanup(end.close)
        return ends

    def passed(self, state_dict, into, dtype=None):
        """Fills `into` by a version of the other one."""
        owner, member = self.opened()
        torch_weights.declare_state_dict(owner, state_dict, dtype)
        with owner.version(7, label="seven") as version:
            torch_weights.publish_state_dict(version, state_dict)
        fetched = torch_weights.fetch_state_dict(member, into, timeout=30)
        self.assertEqual((fetched.number, fetched.label), (7, "seven"))

    def same(self, got, wanted):
        self.assertEqual((got.dtype, got.shape), (wanted.dtype, wanted.shape))
        got, wanted = (one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (got, wanted))
        self.assertTrue(torch.equal(got, wanted))

    def test_every_type(self):
        types = ("bfloat16 float16 float32 float64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
                 "int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex32 complex64 complex128").split()
        bytes_of = torch.arange(192, dtype=torch.uint8)
        source = {name: bytes_of.view(getattr(torch, name)).view(3, -1) for name in types}
        source["bool"] = torch.tensor([True, False, True])
        into = {name: torch.zeros_like(tensor.view(torch.uint8)).view(tensor.dtype) for name, tensor in source.items()}
        self.passed(source, into)
        for name, tensor in source.items():
            self.same(into[name], tensor)

    def test_however_it_lies(self):
        w = torch.randn(6, 8)
        module = torch.nn.Linear(3, 2)
        source = {"turned": w.t(), "some": w[1:5:2, 2:7:3], "one": torch.tensor(4.5), "none": torch.zeros(0, 4),
                  "repeated": torch.ones(3, 1).expand(3, 5), "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
                  **module.state_dict(keep_vars=True)}
        memory = torch.full((20, 30), -1.0)
        into = {"turned": memory[1:17:2, 3:21:3], "some": torch.zeros(2, 2).t(), "one": torch.tensor(0.0), "none": torch.zeros(0, 4),
                "repeated": torch.zeros(3, 5), "conjugate": torch.zeros(4, dtype=torch.complex64),
                **torch.nn.Linear(3, 2).state_dict(keep_vars=True)}
        around = memory.clone()
        around[1:17:2, 3:21:3] = w.t()
        self.passed(source, into)
        for name, tensor in source.items():
            self.same(into[name], tensor.resolve_conj())
        self.same(memory, around)
        self.assertTrue(into["weight"].requires_grad)

    def test_tied_tensors(self):
        module = torch.nn.Linear(4, 4, bias=False)
        module.head = module.weight
        other = torch.nn.Linear(4, 4, bias=False)
        other.head = other.weight
        self.assertEqual(list(torch_weights.items(other.state_dict())), ["weight"])
        self.passed(module.state_dict(), other.state_dict())
        self.same(other.head, module.weight)
        # A member that has them apart gets both.
        apart = {name: torch.zeros(4, 4) for name in ("weight", "head")}
        self.passed(module.state_dict(), apart)
        self.same(apart["head"], module.weight)

    def test_floats_are_cast(self):
        source = {"w": torch.randn(1000), "steps": torch.tensor(3)}
        into = {"w": torch.zeros(1000, dtype=torch.bfloat16), "steps": torch.tensor(0)}
        self.passed(source, into, torch.bfloat16)
        self.same(into["w"], source["w"].to(torch.bfloat16))
        self.same(into["steps"], source["steps"])

    def test_one_owner_has_the_plain_tensors(self):
        first, second, member = self.opened(2)
        w, into = torch.randn(5), torch.zeros(5)
        for owner in first, second:
            torch_weights.declare_state_dict(owner, {"w": w}, owners=[1])
        ended = in_thread(first.seal, 1)
        with second.version(1) as version:
            torch_weights.publish_state_dict(version, {"w": w})
        ended()
        torch_weights.fetch_state_dict(member, {"w": into})
        self.same(into, w)

    def test_owners_with_other_names(self):
        *owners, member = self.opened(2)
        parts = [{"first.w": torch.randn(4, 3)}, {"second.w": torch.randn(2, 3)}]
        gathered = [layout for rank, part in enumerate(parts) for layout in torch_weights.layouts(part, owners=[rank])]
        for owner in owners:
            owner.declare(gathered)

        def publish(owner, part):
            with owner.version(1) as version:
                torch_weights.publish_state_dict(version, part)

        ended = in_thread(publish, owners[1], parts[1])
        publish(owners[0], parts[0])
        ended()
        into = {name: torch.zeros_like(tensor) for part in parts for name, tensor in part.items()}
        torch_weights.fetch_state_dict(member, into)
        for name, tensor in into.items():
            self.same(tensor, {**parts[0], **parts[1]}[name])

    def test_what_is_wrong_says_so(self):
        with self.assertRaisesRegex(tryst.InvalidArgument, "'epoch'.* int: leave it out"):
            torch_weights.layouts({"epoch": 3})
        with self.assertRaises(KeyError):
            self.passed({"w": torch.zeros(3)}, {"v": torch.zeros(3)})
        with self.assertRaises(tryst.InvalidArgument):
            self.passed({"w": torch.zeros(3)}, {"w": torch.zeros(3, dtype=torch.int32)})


def placements():
    """What the processes reshard: (shape, mesh, placements of the owners, of the members)."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    strided = [_StridedShard(0, split_factor=2), Shard(0)]
    return {
        "rows to columns": ((8, 12), (4,), [Shard(0)], [Shard(1)]),
        "uneven": ((7, 5), (4,), [Shard(0)], [Shard(1)]),
        "some are empty": ((3, 2), (4,), [Shard(0)], [Shard(1)]),
        "replicas": ((6, 4), (2, 2), [Replicate(), Shard(0)], [Shard(1), Replicate()]),
        "twice": ((9, 4), (2, 2), [Shard(0), Shard(0)], [Shard(0), Shard(1)]),
        "strided": ((8, 6), (2, 2), strided, [Shard(1), Shard(0)]),
        "to strided": ((16, 3), (2, 2), [Shard(0), Replicate()], strided),
        "a scalar": ((), (4,), [Replicate()], [Replicate()]),
    }


def rank_of_processes(rank, folder):
    """One of the processes: it owns shards, and fetches others."""
    import torch.distributed
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor, init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    first = [None]
    if rank == 0:
        server = tryst.Server(job="trainer", **SETTINGS).start()
        first = [f"{server.worker}@{server.address}"]
    torch.distributed.broadcast_object_list(first)
    if rank != 0:
        server = tryst.Server(job="trainer", task=rank, join=first[0], **SETTINGS).start()
    engine = tryst.Server(job="engine", task=rank, join=first[0], **SETTINGS).start()
    meshes = {size: init_device_mesh("cpu", size) for size in ((4,), (2, 2))}
    kinds = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64]
    some = torch.Generator().manual_seed(49)
    source, into, expected = {}, {}, {}
    for number, (name, (shape, mesh, has, wants)) in enumerate(placements().items()):
        whole = torch.randint(0, 200, shape, generator=some).to(torch.float32).to(kinds[number % 4])
        source[name] = distribute_tensor(whole, meshes[mesh], has, src_data_rank=None)
        expected[name] = distribute_tensor(whole, meshes[mesh], wants, src_data_rank=None)
        empty = torch.zeros(expected[name].to_local().shape, dtype=torch.float32).to(whole.dtype)
        into[name] = DTensor.from_local(empty, meshes[mesh], wants, run_check=False, shape=whole.shape, stride=whole.stride())
    owner = server.weights("policy", role="owner", owners=RANKS)
    member = engine.weights("policy", role="observer", owners=[f"/job:trainer/task:{task}" for task in range(RANKS)])
    torch_weights.declare_state_dict(owner, source)
    for number in 1, 2:  # What the second one fetches has come in the first, too.
        with owner.version(number) as version:
            torch_weights.publish_state_dict(version, source)
        torch_weights.fetch_state_dict(member, into, number)
        for name, tensor in into.items():
            local, wanted = (one.to_local().contiguous().reshape(-1).view(torch.uint8) for one in (tensor, expected[name]))
            assert torch.equal(local, wanted), (rank, name, tensor.to_local(), expected[name].to_local())
            tensor.to_local().zero_()
    partial = DTensor.from_local(torch.ones(2), meshes[(4,)], [Partial()], run_check=False)
    try:
        torch_weights.layouts({"sum": partial})
    except tryst.InvalidArgument as error:
        assert "'sum' is a sum" in str(error) and "redistribute" in str(error), error
    else:
        raise AssertionError("a partial sum has a layout")
    torch.distributed.barrier()
    member.close()
    owner.close()
    torch.distributed.barrier()
    engine.stop()
    server.stop()
    torch.distributed.destroy_process_group()
    print("resharded", len(into), "tensors")


@needs_torch
class Processes(unittest.TestCase):
    def test_dtensors_are_resharded(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), folder], stdout=subprocess.PIPE, text=True)
                     for rank in range(RANKS)]
            said = [one.communicate(timeout=180)[0] for one in ranks]
        for rank, text in enumerate(said):
            self.assertIn(f"resharded {len(placements())} tensors", text, rank)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_of_processes(int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
