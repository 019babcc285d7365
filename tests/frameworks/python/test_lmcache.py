#!/usr/bin/env python3
"""LMCache's transfer channel over Tryst: what its interface says, over stubs of it, with peers that are killed."""
import ctypes
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
import unittest

import numpy
import stubs

stubs.install()
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.transfer_channel.factory import create_transfer_channel_context

import tryst.lmcache

SIZE, HUNG_S = 1 << 20, 60.0


def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


def context(memory, url=None):
    url = url or free_url()
    return create_transfer_channel_context(
        "tryst", l1_memory_desc=L1MemoryDesc(ptr=memory.ctypes.data, size=memory.nbytes, align_bytes=256), listen_url=url,
        advertise_url=url, insecure=True)


def pattern():
    return numpy.random.default_rng(3).integers(0, 256, SIZE, "u1")


def serve(url, pipe):
    memory = pattern()  # The channel has its address alone.
    peer = context(memory, url)
    pipe.send(peer.get_num_connected_clients())
    pipe.recv()


def ended(client, task):
    until = time.monotonic() + HUNG_S
    while time.monotonic() < until:
        result = client.query_read_status(task)
        if result.is_finished():
            return result.succeeded_mask
        time.sleep(0.002)
    raise AssertionError("the read has not ended")


class Channel(unittest.TestCase):
    def setUp(self):
        self.mine, self.theirs = numpy.zeros(SIZE, "u1"), pattern()
        self.here, self.there = context(self.mine), context(self.theirs)

    def tearDown(self):
        self.here.close()
        self.there.close()

    def test_reads_land_where_they_are_said(self):
        client = self.here.get_transfer_channel_client(self.there.advertise_url)
        self.assertIs(client, self.here.get_transfer_channel_client(self.there.advertise_url))
        blocks = list(range(0, SIZE, 4096))
        for seed in range(20):
            order = random.Random(seed)
            theirs, ours = order.sample(blocks, 50), order.sample(blocks, 50)
            self.mine[:] = 0
            task = client.submit_read(self.here.get_transfer_channel_address([(at, 4096) for at in ours]),
                                      self.there.get_transfer_channel_address([(at, 4096) for at in theirs]))
            self.assertEqual(ended(client, task), [True] * 50)
            expected = numpy.zeros_like(self.mine)
            for mine, there in zip(ours, theirs):
                expected[mine:mine + 4096] = self.theirs[there:there + 4096]
            self.assertTrue((self.mine == expected).all())
            with self.assertRaises(KeyError):
                client.query_read_status(task)

    def test_what_does_not_fit_is_refused(self):
        for wrong in (SIZE, 1), (SIZE - 1, 2), (-1, 2), (0, 0):
            with self.assertRaises(ValueError):
                self.here.get_transfer_channel_address([wrong])
        client = self.here.get_transfer_channel_client(self.there.advertise_url)
        one, two = (self.here.get_transfer_channel_address([(0, size)]) for size in (256, 512))
        with self.assertRaises(ValueError):
            client.submit_read(one, one + one)
        with self.assertRaises(ValueError):
            client.submit_read(one, two)
        self.assertEqual(ended(client, client.submit_read(one + one, one + one)), [False, False])
        self.assertFalse(self.mine.any())

    def test_both_ends_count_their_clients(self):
        self.assertEqual((self.here.get_num_connected_clients(), self.there.get_num_connected_clients()), (0, 0))
        self.here.get_transfer_channel_client(self.there.advertise_url)
        self.assertEqual((self.here.get_num_connected_clients(), self.there.get_num_connected_clients()), (1, 1))
        self.there.get_transfer_channel_client(self.here.advertise_url)
        self.assertEqual((self.here.get_num_connected_clients(), self.there.get_num_connected_clients()), (1, 1))
        self.here.remove_transfer_channel_client(self.there.advertise_url)
        self.here.remove_transfer_channel_client("10.255.255.1:1")

    def test_nothing_lands_in_what_was_given_up(self):
        whole = self.here.get_transfer_channel_address([(0, SIZE)])
        for round in range(10):
            client = self.here.get_transfer_channel_client(self.there.advertise_url)
            for _ in range(8):
                client.submit_read(whole, whole)
            time.sleep(random.random() * 0.002)
            self.here.remove_transfer_channel_client(self.there.advertise_url)
            self.mine[:] = 0x5a
            time.sleep(0.01)
            self.assertTrue((self.mine == 0x5a).all())

    def test_a_peer_that_is_killed_and_comes_back(self):
        url, spawn = free_url(), multiprocessing.get_context("spawn")
        limit, tryst.lmcache._READ_S = tryst.lmcache._READ_S, 3.0
        try:
            for life in range(2):
                ours, theirs = spawn.Pipe()
                child = spawn.Process(target=serve, args=(url, theirs), daemon=True)
                child.start()
                self.assertTrue(ours.poll(HUNG_S))
                client = self.here.get_transfer_channel_client(url)
                place = self.here.get_transfer_channel_address([(4096, 8192)])
                until = time.monotonic() + HUNG_S
                while ended(client, client.submit_read(place, place)) != [True]:  # It may ask for the former life first.
                    self.assertTrue(life == 1 and time.monotonic() < until)
                self.assertTrue((self.mine[4096:12288] == self.theirs[4096:12288]).all())
                os.kill(child.pid, signal.SIGKILL)
                child.join()
                self.mine[:] = 0
                self.assertEqual(ended(client, client.submit_read(place, place)), [False])
                began = time.monotonic()
                task = client.submit_read(place, place)
                self.assertLess(time.monotonic() - began, HUNG_S / 2, "it waits for a peer that is gone")
                self.assertEqual(ended(client, task), [False])
                self.assertFalse(self.mine.any())
            self.here.remove_transfer_channel_client(url)
        finally:
            tryst.lmcache._READ_S = limit

    def test_it_is_registered_once(self):
        with self.assertRaises(ValueError):
            tryst.lmcache.register()
        self.assertEqual(ctypes.sizeof(self.here.memory), SIZE)


tryst.lmcache.register()
if __name__ == "__main__":
    sys.exit(unittest.main())
