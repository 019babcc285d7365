#!/usr/bin/env python3
"""vLLM's KV connector, made by its factory: engines that prefill and decode, as its scheduler and its workers call them; one is killed.

ADAPTERS=vllm: over vLLM's own base class, factory and configuration; ADAPTERS=real: over all of it.
"""
import array
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
import types
import unittest
import unittest.mock

import numpy
import stubs

stubs.install()
import tryst
import vllm.distributed
from tryst import vllm_kv
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

BLOCKS, SHAPE, CANARY, HUNG_S = 64, (2, 64, 16, 2, 8), 0.5, 60.0
names = itertools.count()


class Blocks:
    def __init__(self, ids):
        self.ids = ids

    def get_unhashed_block_ids(self):
        return self.ids


class Elsewhere(stubs.Tensor):
    """In memory of a device, as it says."""
    device = types.SimpleNamespace(type="cuda")

    def cpu(self):
        return numpy.array(self).view(stubs.Tensor)


class Engine:
    """A scheduler and the worker of each rank, and their calls in one step of the engine."""

    def __init__(self, ranks=1, kind=stubs.Tensor, name=None, blocks=BLOCKS, **extra):
        transfer = KVTransferConfig(kv_connector="TrystConnector", kv_connector_module_path="tryst.vllm_kv", kv_role="kv_both",
                                    kv_buffer_device="cpu", engine_id=name or f"e{os.getpid()}-{next(names)}",
                                    kv_connector_extra_config={"host": "127.0.0.1", "insecure": True, **extra})
        config = types.SimpleNamespace(kv_transfer_config=transfer,
                                       scheduler_config=types.SimpleNamespace(disable_hybrid_kv_cache_manager=True))
        cache = types.SimpleNamespace(num_blocks=blocks)
        self.scheduler = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache)
        self.workers, self.caches = [], []
        for rank in range(ranks):
            vllm.distributed.get_tensor_model_parallel_rank = lambda rank=rank: rank
            worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
            caches = {f"layer{i}": numpy.full((SHAPE[0], blocks, *SHAPE[2:]), CANARY, "f").view(kind) for i in range(3)}
            if kind is Elsewhere:
                worker.set_host_xfer_buffer_ops(self.copy)
            worker.register_kv_caches(caches)
            self.workers.append(worker)
            self.caches.append(caches)
        self.scheduler.set_xfer_handshake_metadata({rank: worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)})
        self.moved = []

    def copy(self, source, destination, from_blocks, to_blocks, way):
        self.moved.append(way)
        for name, cache in source.items():
            destination[name][:, to_blocks] = cache[:, from_blocks]

    def fill(self, seed):
        for rank, caches in enumerate(self.caches):
            for i, cache in enumerate(caches.values()):
                cache[:] = numpy.random.default_rng([seed, rank, i]).standard_normal(cache.shape, "f")

    def step(self, finished=()):
        """(sent, received, failed, lost blocks) of all ranks."""
        work = self.scheduler.build_connector_meta(None)
        ends = []
        for worker in self.workers:
            worker.bind_connector_metadata(work)
            worker.start_load_kv(None)
            worker.wait_for_layer_load("layer0")
            worker.save_kv_layer("layer0", None, None)
            worker.wait_for_save()
            ends.append((worker.get_transfer_results(set(finished)), worker.get_block_ids_with_load_errors()))
            worker.clear_connector_metadata()
        return ends

    def until(self, what, finished=(), beside=None):
        """Steps, as does the engine `beside`, until each rank has said `what` of some request; all that was said."""
        said, until = [[] for _ in self.workers], time.monotonic() + HUNG_S
        while not all(any(getattr(results, what) for results, _ in one) for one in said):
            for one, end in zip(said, self.step(finished)):
                one.append(end)
            if beside is not None:
                beside.step()
            if time.monotonic() > until:
                raise AssertionError(f"nothing is {what}")
            time.sleep(0.002)
        return said

    def close(self):
        for worker in self.workers:
            worker.shutdown()


def request(name, tokens, params):
    return types.SimpleNamespace(request_id=name, prompt_token_ids=list(range(tokens)), kv_transfer_params=params,
                                 status=types.SimpleNamespace(name="FINISHED_LENGTH_CAPPED"))


def prefilled(engine, name, ids):
    keep, params = engine.scheduler.request_finished(request(name, 16 * len(ids), {"do_remote_decode": True}), ids)
    assert keep
    return params


def decode(engine, name, tokens, params, ids):
    asked = request(name, tokens, params)
    count, later = engine.scheduler.get_num_new_matched_tokens(asked, 0)
    assert (count, later) == (tokens, True)
    engine.scheduler.update_state_after_alloc(asked, Blocks(ids), count)
    engine.scheduler.update_state_after_alloc(asked, Blocks(ids), 0)  # It may come twice.
    return asked


def serve(pipe, name):
    engine = Engine(name=name)
    engine.fill(9)
    pipe.send(prefilled(engine, "r", [3, 1, 2]))
    while True:
        engine.step()
        time.sleep(0.005)


class Connector(unittest.TestCase):
    def setUp(self):
        self.engines = []

    def tearDown(self):
        for engine in self.engines:
            engine.close()

    def engine(self, **options):
        self.engines.append(Engine(**options))
        return self.engines[-1]

    def check(self, prefill, decode, theirs, ours):
        for there, here in zip(prefill.caches, decode.caches):
            for name, cache in here.items():
                self.assertTrue((cache[:, ours] == there[name][:, theirs]).all())
                rest = [i for i in range(cache.shape[1]) if i not in ours]
                self.assertTrue((cache[:, rest] == CANARY).all(), "blocks of others were written")

    def test_blocks_come_to_the_worker_of_the_same_rank(self):
        prefill, decoder = self.engine(ranks=2), self.engine(ranks=2, digests=True)
        prefill.fill(1)
        theirs, ours = [5, 9, 2, 60], [1, 0, 33, 12]
        params = prefilled(prefill, "r", theirs)
        self.assertEqual(len(params["remote_workers"]), 2)
        decode(decoder, "d", 64, params, ours)
        decoder.step()  # Before the other engine has had its step.
        prefill.step()
        for one in decoder.until("finished_recving"):
            self.assertEqual(set().union(*(results.finished_recving for results, _ in one)), {"d"})
            self.assertEqual(set().union(*(results.failed_recving | lost for results, lost in one)), set())
        self.check(prefill, decoder, theirs, ours)
        for one in prefill.until("finished_sending"):
            self.assertEqual(one[-1][0].finished_sending, {"r"})

    def test_what_is_here_already_is_not_fetched(self):
        prefill, decoder = self.engine(), self.engine()
        prefill.fill(2)
        params = prefilled(prefill, "r", [5, 9, 2])
        prefill.step()
        decode(decoder, "d", 48, params, [7, 8])
        decoder.until("finished_recving")
        self.check(prefill, decoder, [9, 2], [7, 8])

    def test_what_needs_nothing(self):
        engine = self.engine()
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request("a", 16, None), 0), (0, False))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request("a", 16, {"do_remote_prefill": True}), 16), (0, False))
        self.assertEqual(engine.scheduler.request_finished(request("a", 16, None), [1]), (False, None))
        stopped = request("a", 16, {"do_remote_decode": True})
        stopped.status.name = "FINISHED_ABORTED"
        self.assertEqual(engine.scheduler.request_finished(stopped, [1]), (False, None))
        work = engine.scheduler.build_connector_meta(None)
        self.assertEqual((work.sends, work.loads), ({}, {}))

    def test_who_ends_before_it_is_scheduled_frees_the_blocks(self):
        prefill, decoder = self.engine(), self.engine()
        params = prefilled(prefill, "r", [5, 9])
        self.assertEqual(decoder.scheduler.request_finished(request("d", 32, params), []), (False, None))
        decoder.step()
        said = prefill.step()
        until = time.monotonic() + HUNG_S
        while not said[0][0].finished_sending and time.monotonic() < until:
            for results, _ in decoder.step():
                self.assertEqual(results.finished_recving, set())
            said = prefill.step()
        self.assertEqual(said[0][0].finished_sending, {"r"})

    def test_an_abort_gives_the_blocks_back_and_nothing_lands(self):
        prefill, decoder = self.engine(), self.engine()
        prefill.fill(3)
        for seed in range(30):
            theirs = random.Random(seed).sample(range(BLOCKS), 20)
            ours = random.Random(-seed).sample(range(BLOCKS), 20)
            for cache in decoder.caches[0].values():
                cache[:] = CANARY
            params = prefilled(prefill, f"r{seed}", theirs)
            if seed % 3:
                prefill.step()
            decode(decoder, f"d{seed}", 320, params, ours)
            said = decoder.step()
            time.sleep(random.Random(seed).random() / 500)
            if not said[0][0].finished_recving:
                said += decoder.until("finished_recving", finished=[f"d{seed}"])[0]
            lost = set().union(*(lost for _, lost in said))
            for cache, there in zip(decoder.caches[0].values(), prefill.caches[0].values()):
                whole = [(a, b) for a, b in zip(theirs, ours) if b not in lost]
                self.assertTrue((cache[:, [b for _, b in whole]] == there[:, [a for a, _ in whole]]).all())
                cache[:] = -1.0
            time.sleep(0.003)
            for cache in decoder.caches[0].values():
                self.assertTrue((cache == -1.0).all(), "bytes came late")
            prefill.until("finished_sending", beside=decoder)

    def test_who_comes_late_is_refused(self):
        prefill, decoder = self.engine(keep_s=0.2), self.engine(load_s=0.5)
        prefill.fill(4)
        params = prefilled(prefill, "r", [5, 9])
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            prefill.until("finished_sending")
            prefill.fill(5)  # The blocks are another request's.
            decode(decoder, "d", 32, params, [1, 2])
            said = decoder.until("finished_recving")[0]
        self.assertEqual(said[-1][0].failed_recving, {"d"})
        self.assertEqual(set().union(*(lost for _, lost in said)), {1, 2})
        self.assertTrue((decoder.caches[0]["layer0"] == CANARY).all())

    def test_a_peer_that_dies(self):
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=serve, args=(theirs, "dies"), daemon=True)
        child.start()
        decoder = self.engine(load_s=3.0)
        params = ours.recv()
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        decode(decoder, "d", 48, params, [4, 5, 6])
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            said = decoder.until("finished_recving")[0]
        self.assertEqual(said[-1][0].failed_recving, {"d"})
        self.assertEqual(set().union(*(lost for _, lost in said)), {4, 5, 6})

    def test_a_peer_that_is_gone_is_waited_for_once(self):
        class Gather:
            failed = None

            def __init__(self, name):
                self.name = name

            def wait(self, _):
                return True

            def result(self):
                if not self.name.endswith("/blocks"):
                    raise tryst.Unavailable("nobody answers")

        class Server:
            waits = 0

            def wait_for(self, *_):
                self.waits += 1
                if self.waits > 1:
                    raise tryst.DeadlineExceeded("nobody answers")

            def group(self):
                return None

            def fetch_region(self, name, into, **_):
                if name.endswith("/blocks"):
                    into[:] = array.array("I", [8, 2, 1])
                return Gather(name)

        server = Server()
        worker = self.worker(server)
        fetch = vllm_kv._Fetch(worker, vllm_kv.Load("r", ["peer@nowhere"], [3, 4]))
        self.assertFalse(fetch.is_over())  # The list of blocks has come.
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            self.assertTrue(fetch.is_over())
        self.assertEqual((fetch.lost, server.waits), ({3, 4}, 2))

    def test_clients_that_name_many_peers_start_few_servers(self):
        class Server:
            def __init__(self, task):
                self.task, self.stopped = task, False

            def stop(self, _):
                self.stopped = True

        started = []

        def start(*_, task, **__):
            started.append(Server(task))
            return started[-1]

        worker = self.engine().workers[0]._worker
        most = vllm_kv._MOST_PEERS
        with unittest.mock.patch.object(vllm_kv.adapters, "start", start):
            busy = worker.server_for("busy@nowhere")
            worker._saying.append(types.SimpleNamespace(server=busy))
            first = worker.server_for("first@nowhere")
            for i in range(3 * most):
                worker._gone[f"p{i}@nowhere"] = time.monotonic()
                worker.server_for(f"p{i}@nowhere")
                self.assertIs(worker.server_for("first@nowhere"), first)  # It is wanted again and again.
            alive = [server for server in started if not server.stopped]
            self.assertEqual((len(alive), len({server.task for server in alive}), len(worker._peers)), (most, most, most))
            self.assertIn(busy, alive)
            self.assertLessEqual(len(worker._gone), most)
            worker._saying.extend(types.SimpleNamespace(server=server) for server in alive)
            with self.assertRaisesRegex(tryst.ResourceExhausted, f"{most} peers"):
                worker.server_for("more@nowhere")
            worker._saying.clear()

    def worker(self, server):
        """One of 20 caches whose peers are all reached by that server."""
        worker = self.engine().workers[0]._worker
        worker.caches, worker.server_for = [(numpy.zeros(8, "f"), 1, 8, 4)] * 20, lambda peer: server
        return worker

    def test_a_peer_that_is_gone_is_waited_for_once_by_all_requests(self):
        class Server:
            waits, answers, seconds = 0, False, 0.0

            def wait_for(self, _, seconds):
                self.waits, self.seconds = self.waits + 1, self.seconds + seconds
                if not self.answers:
                    raise tryst.DeadlineExceeded("nobody answers")

            def group(self):
                return tryst.Group()

            def fetch_region(self, *_, **__):
                return types.SimpleNamespace(wait=lambda _: False)

        server = Server()
        worker = self.worker(server)
        loads = {f"r{i}": vllm_kv.Load(f"r{i}", ["peer@nowhere"], [2 * i, 2 * i + 1]) for i in range(20)}
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            worker.start(vllm_kv.Work(loads=loads))
        self.assertEqual(worker.results(()).failed_recving, loads.keys())
        self.assertEqual((worker.lost, server.waits), (set(range(40)), 1))
        server.answers = True
        with self.assertRaises(tryst.Unavailable):
            vllm_kv._Fetch(worker, loads["r0"])
        with unittest.mock.patch.object(vllm_kv.time, "monotonic", lambda now=time.monotonic: now() + vllm_kv._FIND_S):
            vllm_kv._Fetch(worker, loads["r0"])  # Later it is asked again, for a shorter time.
        self.assertEqual(server.waits, 2)
        self.assertLess(server.seconds, 1.2 * vllm_kv._FIND_S)
        vllm_kv._Fetch(worker, loads["r0"])  # It has answered.

    def works(self, prefill, decoder, name):
        """The next request."""
        for cache in decoder.caches[0].values():
            cache[:] = CANARY
        params = prefilled(prefill, name, [5, 9])
        prefill.step()
        decode(decoder, name, 32, params, [1, 2])
        for said in decoder.until("finished_recving", beside=prefill):
            self.assertEqual(set().union(*(results.failed_recving for results, _ in said)), set())
        self.check(prefill, decoder, [5, 9], [1, 2])

    def test_any_id_of_a_request_will_do(self):
        prefill, decoder = self.engine(), self.engine()
        prefill.fill(7)
        for name in "a|b;" + "x" * 300, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a/b", "\ud800":
            self.works(prefill, decoder, name)

    def test_what_a_client_has_written_ends_no_other_request(self):
        prefill, decoder = self.engine(ranks=2), self.engine(ranks=2, load_s=3.0)
        prefill.fill(8)
        good = prefilled(prefill, "r", [5, 9])
        prefill.step()
        bad = [{key: value for key, value in good.items() if key != left}
               for left in ("remote_request_id", "remote_workers")]
        bad += [{**good, "remote_request_id": 7}, {**good, "remote_workers": [None, None]}]
        for i, params in enumerate(bad):
            asked = request(f"bad{i}", 32, dict(params))
            with self.assertLogs("tryst.vllm_kv", "WARNING"):  # It is not loaded, so that the engine computes it.
                self.assertEqual(decoder.scheduler.get_num_new_matched_tokens(asked, 0), (0, False))
            decoder.scheduler.update_state_after_alloc(asked, Blocks([1, 2]), 0)
            with self.assertLogs("tryst.vllm_kv", "WARNING"):
                decoder.scheduler.request_finished(request(f"bad{i}", 32, dict(params)), [])
        self.assertEqual(decoder.scheduler._scheduler.work.loads, {})
        one = {**good, "remote_workers": good["remote_workers"][:1]}
        odd = {**good, "remote_request_id": "a|b;\ud800"}
        nowhere = {**good, "remote_workers": ["x", "y"]}
        for i, (params, ranks) in enumerate(((one, 1), (odd, 2), (nowhere, 2))):
            name = f"fails{i}"
            decode(decoder, name, 32, dict(params), [1, 2])
            with self.assertLogs("tryst.vllm_kv", "WARNING"):
                said = decoder.until("finished_recving")
            for results, lost in (end for one in said[-ranks:] for end in one):
                if results.finished_recving:
                    self.assertEqual((results.failed_recving, lost), ({name}, {1, 2}))
        self.works(prefill, decoder, "next")

    def test_a_client_gets_no_other_requests_blocks(self):
        prefill, decoder = self.engine(), self.engine()
        prefill.fill(10)
        mine, others = prefilled(prefill, "mine", [5, 9]), prefilled(prefill, "other", [7, 8])
        prefill.step()
        params = {**mine, "remote_block_ids": [7, 8]}
        self.assertEqual(others.keys(), mine.keys())
        decode(decoder, "d", 32, params, [1, 2])
        said = decoder.until("finished_recving")[0]
        self.assertEqual(said[-1][0].failed_recving, set())
        self.check(prefill, decoder, [5, 9], [1, 2])
        decode(decoder, "more", 48, mine, [3, 4, 6])  # Than its request has.
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            said = decoder.until("finished_recving")[0]
        self.assertEqual(said[-1][0].failed_recving, {"more"})
        self.check(prefill, decoder, [5, 9], [1, 2])

    def test_who_knows_a_requests_id_does_not_know_its_regions(self):
        first, second = (prefilled(self.engine(), "r", [5])["remote_request_id"] for _ in range(2))
        self.assertNotEqual(first, second)

    def test_the_engines_may_have_different_numbers_of_blocks(self):
        for theirs, ours in ((2 * BLOCKS, BLOCKS), (BLOCKS, 2 * BLOCKS)):
            prefill, decoder = self.engine(blocks=theirs), self.engine(blocks=ours)
            prefill.fill(11)
            params = prefilled(prefill, "r", [5, theirs - 1])
            prefill.step()
            decode(decoder, "d", 32, params, [ours - 1, 2])
            decoder.until("finished_recving")
            self.check(prefill, decoder, [5, theirs - 1], [ours - 1, 2])

    def test_a_list_that_is_none_fails_its_request_alone(self):
        class Server:
            def wait_for(self, *_):
                pass

            def group(self):
                return tryst.Group()

            def fetch_region(self, name, into, **_):
                into[:] = told
                return types.SimpleNamespace(wait=lambda _: True, result=lambda: None, failed=[])

        worker = self.worker(Server())
        worker.caches = [(cache, 2, blocks, unit) for cache, _, blocks, unit in worker.caches]
        for numbers in [8, 1, 8], [0, 0, 0], [2**32 - 1, 1, 2]:
            told = array.array("I", numbers)
            worker.start(vllm_kv.Work(loads={"r": vllm_kv.Load("r", ["peer@nowhere"], [3, 4])}))
            with self.assertLogs("tryst.vllm_kv", "WARNING"):
                results = worker.results(())
            self.assertEqual((results.failed_recving, worker.lost), ({"r"}, {3, 4}))
            worker.lost = set()
            worker._saying.clear()

    def test_a_send_that_fails_gives_its_blocks_back(self):
        prefill, decoder = self.engine(), self.engine()
        prefill.fill(9)
        worker = prefill.workers[0]._worker
        name, region = prefilled(prefill, "r", [5, 9])["remote_request_id"], worker.server.region
        calls = []

        def refuses(called, memory):
            calls.append(called)
            if called == f"{name}/2":
                raise ValueError("there is no room")
            return region(called, memory)

        worker.server.region = refuses
        with self.assertLogs("tryst.vllm_kv", "WARNING"):
            self.assertEqual(prefill.step()[0][0].finished_sending, {"r"})
        self.assertEqual(len(calls), 3)
        worker.server.region = region
        region(f"{name}/0", bytearray(1)).close()  # The first ones were closed.
        self.assertEqual(prefill.step()[0][0].finished_sending, set())
        self.works(prefill, decoder, "next")

    def test_between_two_processes(self):
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=serve, args=(theirs, "lives"), daemon=True)
        child.start()
        decoder = self.engine()
        params = ours.recv()
        decode(decoder, "d", 48, params, [4, 5, 6])
        said = decoder.until("finished_recving")[0]
        self.assertEqual(said[-1][0].failed_recving, set())
        for i, cache in enumerate(decoder.caches[0].values()):
            there = numpy.random.default_rng([9, 0, i]).standard_normal(SHAPE, "f")
            self.assertTrue((cache[:, [4, 5, 6]] == there[:, [3, 1, 2]]).all())
        child.kill()

    def test_caches_of_a_device_go_over_a_host_buffer(self):
        prefill, decoder = self.engine(kind=Elsewhere), self.engine(kind=Elsewhere)
        prefill.fill(6)
        params = prefilled(prefill, "r", [5, 9])
        prefill.step()
        decode(decoder, "d", 32, params, [1, 2])
        decoder.until("finished_recving")
        self.check(prefill, decoder, [5, 9], [1, 2])
        self.assertEqual((prefill.moved, decoder.moved), (["d2h"], ["h2d"]))
        with self.assertRaisesRegex(ValueError, "kv_buffer_device"):
            engine = self.engine()
            engine.workers[0].register_kv_caches({"a": numpy.zeros(SHAPE, "f").view(Elsewhere)})

    def test_caches_without_blocks_are_refused(self):
        engine = self.engine()
        with self.assertRaisesRegex(ValueError, "blocks without gaps"):
            engine.workers[0].register_kv_caches({"a": numpy.zeros((2, 63, 4), "f").view(stubs.Tensor)})


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(unittest.main())
