#!/usr/bin/env python3
"""Selections, groups and regions of the package: what docs/KV.md promises."""
import array
import asyncio
import sys
import threading
import time
import unittest

import numpy
import tryst
from tryst import Blocks, Box, Runs, Spans

SETTINGS = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
HUNG = 60.0


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


class Selections(unittest.TestCase):
    numbers = iter(range(1, 10**9))

    @classmethod
    def setUpClass(cls):
        cls.ps = tryst.Server(job="ps", **SETTINGS).start()
        cls.worker = tryst.Server(job="worker", join=f"{cls.ps.worker}@{cls.ps.address}", **SETTINGS).start()

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()
        cls.ps.stop()

    def setUp(self):
        number = next(self.numbers)
        self.out, self.back = self.ps.step(number), self.worker.step(number)
        self.pool = numpy.arange(4096, dtype="uint8").reshape(64, 64)
        self.mine = numpy.zeros((32, 64), "uint8")

    def tearDown(self):
        self.out.cleanup()
        self.back.cleanup()

    def gather(self, select, **options):
        return self.back.gather("kv", frm=self.ps.worker, into=self.mine, select=select, timeout=HUNG, **options)

    def send(self, select):
        self.out.send("kv", self.pool, to=self.worker.worker, select=select)

    def test_blocks(self):
        random = numpy.random.default_rng(1)
        self.pool[:] = random.integers(0, 256, self.pool.shape, "uint8")
        for kind in (list, tuple, lambda ids: array.array("I", ids), lambda ids: numpy.array(ids, "uint32"),
                     lambda ids: numpy.array(ids, "int64"), range):
            theirs, ours = [5, 1, 7], [2, 0, 31]
            if kind is range:
                theirs, ours, kind = [1, 2, 3], [4, 5, 6], list
            self.mine[:] = 9
            self.send(Blocks(kind(theirs), 64))
            got = self.gather(Blocks(kind(ours), 64)).result()[0]
            expected = numpy.full_like(self.mine, 9)
            expected[ours] = self.pool[theirs]
            self.assertTrue((self.mine == expected).all())
            self.assertEqual(got.numpy().ctypes.data, self.mine.ctypes.data)

    def test_what_is_sent_is_a_copy(self):
        self.send(Blocks([3], 64))
        sent = self.pool[3].copy()
        self.pool[:] = 0
        self.gather(Blocks([0], 64)).result()
        self.assertTrue((self.mine[0] == sent).all())

    def test_runs_and_spans(self):
        self.send(Runs([(0, 2, 64, 3)]))
        self.gather(Spans([(10, 5), (20, 1)])).result()
        flat, pool = self.mine.reshape(-1), self.pool.reshape(-1)
        sent = numpy.concatenate([pool[0:2], pool[64:66], pool[128:130]])
        self.assertTrue((numpy.concatenate([flat[10:15], flat[20:21]]) == sent).all())
        self.assertEqual(int(flat.sum()), int(sent.sum()))
        self.send(Spans(numpy.array([[64, 6]], "int64")))
        self.gather(Spans(numpy.array([[0, 6]], "uint64"))).result()
        self.assertTrue((flat[:6] == pool[64:70]).all())

    def test_without_a_selection_at_one_end(self):
        self.send(Blocks([2, 1], 64))
        row = self.back.recv("kv", frm=self.ps.worker, timeout=HUNG).numpy()
        self.assertTrue((row == self.pool[[2, 1]].reshape(-1)).all())
        self.out.send("kv", self.pool[:2].copy(), to=self.worker.worker)
        self.gather(Blocks([7, 6], 64)).result()
        self.assertTrue((self.mine[[7, 6]] == self.pool[:2]).all())

    def test_what_is_wrong_is_said(self):
        with self.assertRaisesRegex(tryst.InvalidArgument, "outside"):
            self.send(Blocks([64], 64))
        with self.assertRaisesRegex(tryst.InvalidArgument, "twice"):
            self.gather(Blocks([1, 1], 64)).result()
        with self.assertRaises(ValueError):
            Blocks([-1], 64)
        with self.assertRaises(ValueError):
            Blocks(numpy.array([2**32]), 64)
        with self.assertRaises(ValueError):
            Spans([(1, 2, 3)])
        with self.assertRaises(ValueError):
            Runs(numpy.zeros((2, 3), "uint64"))
        with self.assertRaises(TypeError):
            self.send([1, 2])
        self.send(Blocks([1, 2], 64))
        with self.assertRaisesRegex(tryst.InvalidArgument, "64 bytes and the tensor has 128"):
            self.gather(Blocks([1], 64)).result()
        self.assertFalse(self.mine.any())
        self.gather(Blocks([1, 2], 64)).result()
        self.assertTrue((self.mine[1:3] == self.pool[1:3]).all())

    def test_boxes(self):
        """Heads of tokens, as workers of another size of tensor parallelism have them."""
        heads = numpy.arange(16 * 8 * 4, dtype="float32").reshape(16, 8, 4)
        part = heads[2:10, 4:6]
        wide = numpy.zeros((8, 6, 4), "float32")
        self.out.send("kv", heads, to=self.worker.worker, select=Box(part, heads))
        self.back.gather("kv", frm=self.ps.worker, into=wide, select=Box(wide[:, 1:3], wide), timeout=HUNG).result()
        self.assertTrue((wide[:, 1:3] == part).all())
        self.assertEqual(float(wide.sum()), float(part.sum()))
        self.out.send("kv", heads, to=self.worker.worker, select=Box.at(0, 4, (16, 8), (128, 16)))
        got = self.back.recv("kv", frm=self.ps.worker, timeout=HUNG).numpy().view("float32")
        self.assertTrue((got == heads[:, :, 0].reshape(-1)).all())
        self.out.send("kv", heads, to=self.worker.worker, select=Box(heads.transpose(1, 0, 2), heads))
        got = self.back.recv("kv", frm=self.ps.worker, timeout=HUNG).numpy().view("float32")
        self.assertTrue((got == heads.transpose(1, 0, 2).reshape(-1)).all())
        with self.assertRaises(ValueError):
            Box.at(0, 4, (16, 8), (128,))
        with self.assertRaises(ValueError):
            Box(heads[::-1], heads)
        with self.assertRaisesRegex(tryst.InvalidArgument, "outside"):
            self.out.send("kv", heads, to=self.worker.worker, select=Box.at(0, 4, (17,), (128,)))

    def test_digests_of_spans(self):
        self.out.send("kv", self.pool, to=self.worker.worker, select=Blocks([3, 1, 2], 64), digests=True)
        got = self.gather(Blocks([5, 0, 4], 64), digests=True)
        self.assertIsNone(got.failed)
        got.result()
        self.assertEqual(got.failed, [])
        sent = numpy.concatenate([self.pool[[3]], self.pool[[1]], self.pool[[2]]])
        self.assertTrue((self.mine[[5, 0, 4]] == sent).all())
        self.assertEqual(list(got.digests), [crc32c(row.tobytes()) for row in sent])
        self.send(Blocks([3], 64))
        with self.assertRaisesRegex(tryst.InvalidArgument, "digests"):
            self.gather(Blocks([5], 64), digests=True).result()
        plain = self.gather(Blocks([5], 64))
        plain.result()
        self.assertEqual((plain.failed, list(plain.digests)), ([], []))
        with self.ps.region("l1", self.pool):
            got = self.worker.fetch_region("l1", frm=self.ps.worker, wanted=Blocks([9, 8], 64), into=self.mine,
                                           select=Spans([(0, 100), (100, 28)]), timeout=HUNG, digests=True, partial=True)
            got.result()
        row = self.pool[[9, 8]].tobytes()
        self.assertEqual((got.failed, list(got.digests)), ([], [crc32c(row[:100]), crc32c(row[100:])]))

    def test_what_is_there_of_a_gather_that_failed(self):
        with self.worker.group() as group:
            got = self.gather(Blocks([1, 5, 2], 64), group=group)
        with self.assertRaises(tryst.Cancelled):
            got.result()
        self.assertEqual(got.failed, [0, 1, 2])

        async def run():
            waits = self.gather(Blocks([1, 5], 64))
            waits.cancel()
            with self.assertRaises(tryst.Cancelled):
                await waits
            self.assertEqual(waits.failed, [0, 1])

        asyncio.run(run())

    def test_asyncio_and_a_group(self):
        async def run():
            self.send(Blocks([1], 64))
            await self.gather(Blocks([1], 64))
            group = self.worker.group()
            waits = [self.back.gather(f"never{i}", frm=self.ps.worker, into=self.mine, group=group) for i in range(5)]
            self.assertEqual(group.under_way, 5)
            self.assertFalse(group.fenced)
            self.assertIsNone(group.report)
            await group.cancel()
            self.assertTrue(group.fenced)
            self.assertEqual((group.report["cancelled"], group.report["ended_ok"]), (5, 0))
            for wait in waits:
                with self.assertRaises(tryst.Cancelled):
                    await wait
            with self.assertRaises(tryst.Cancelled):
                await self.back.gather("late", frm=self.ps.worker, into=self.mine, group=group)

        asyncio.run(run())
        self.assertTrue((self.mine[1] == self.pool[1]).all())

    def test_a_group_in_a_with(self):
        with self.worker.group() as group:
            got = self.gather(Blocks([1], 64), group=group)
        self.assertTrue(group.fenced)
        with self.assertRaises(tryst.Cancelled):
            got.result()

    def test_regions(self):
        with self.ps.region("l1", self.pool, readers=["/job:worker"]) as region:
            for checked in False, True:
                before = self.worker.stats()["region_bytes_copied"], region.bytes_sent
                for _ in range(3):
                    self.mine[:] = 0
                    got = self.worker.fetch_region("l1", frm=self.ps.worker, wanted=Blocks([9, 8], 64), into=self.mine,
                                                   select=Blocks([1, 0], 64), timeout=HUNG, digests=checked)
                    got.result()
                    self.assertTrue((self.mine[[1, 0]] == self.pool[[9, 8]]).all())
                copied = self.worker.stats()["region_bytes_copied"] - before[0]
                self.assertEqual(region.bytes_sent - before[1] + copied, 3 * 128)
                self.assertTrue(copied == 0 or not checked)  # Whoever wants digests asks.
            self.assertEqual(region.name, "l1")
            with self.assertRaises(tryst.AlreadyExists):
                self.ps.region("l1", self.pool)
        with self.assertRaises(tryst.Unavailable):
            self.worker.fetch_region("l1", frm=self.ps.worker, wanted=Blocks([9], 64), into=self.mine,
                                     select=Blocks([1], 64), timeout=HUNG).result()
        with self.ps.region("l1", self.pool, readers=["/job:other"]):
            with self.assertRaises(tryst.PermissionDenied):
                self.worker.fetch_region("l1", frm=self.ps.worker, wanted=Blocks([9], 64), into=self.mine,
                                         select=Blocks([1], 64), timeout=HUNG).result()

    def test_many_threads_and_long_lists(self):
        pool = numpy.random.default_rng(2).integers(0, 256, (20_000, 128), "uint8")
        failures = []

        def fetch(seed):
            ids = numpy.random.default_rng(seed).permutation(20_000)[:15_000]
            into = numpy.zeros((15_000, 128), "uint8")
            self.worker.fetch_region("big", frm=self.ps.worker, wanted=Blocks(ids, 128), into=into, timeout=HUNG).result()
            if not (into == pool[ids]).all():
                failures.append(seed)

        with self.ps.region("big", pool):
            threads = [threading.Thread(target=fetch, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])

    def test_a_region_keeps_its_array(self):
        region = self.ps.region("kept", numpy.full(4096, 7, "uint8"))
        self.worker.fetch_region("kept", frm=self.ps.worker, wanted=Spans([(0, 2048)]), into=self.mine, timeout=HUNG).result()
        self.assertTrue((self.mine == 7).all())
        began = time.monotonic()
        self.assertTrue(region.close(HUNG))
        self.assertLess(time.monotonic() - began, HUNG / 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
