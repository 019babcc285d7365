"""vLLM's KV connector "TrystConnector" (0.33): prefill and decode in engines of their own, on the CPU or over a host buffer.

    --kv-transfer-config '{"kv_connector": "TrystConnector", "kv_connector_module_path": "tryst.vllm_kv", "kv_role": "kv_both"}'

A worker that has prefilled opens its caches and the list of the request's blocks as regions of the request; the worker of the same rank that
decodes fetches the list, since no client is to name blocks, then the blocks, and says that it has them. Then the regions are closed, and the
blocks are free: whoever comes later is refused, and reads no other request's. Settings of the servers (docs/CONFIG.md) are in
kv_connector_extra_config, with "host", by which peers reach this machine, "keep_s" (120), for how long blocks are kept for a decoder that says
nothing, "load_s" (60), in which they are fetched, and "digests".
"""
import array
import dataclasses
import logging
import math
import secrets
import time

import tryst
from tryst import adapters
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata,
                                                               KVConnectorRole, KVConnectorTransferResults)

_FIND_S, _FIND_AGAIN_S, _AGAIN_S = 5.0, 0.5, 0.02
_LIST = "blocks"
_MOST_PEERS = 64  # A client names them, and each takes a server with its threads and sockets.
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Load:
    """What a worker fetches: the last blocks of the peer's request, as many as there are in `ours`, into these; none: only that they are not wanted."""

    request: str
    peers: list
    ours: list


@dataclasses.dataclass
class Work(KVConnectorMetadata):
    sends: dict = dataclasses.field(default_factory=dict)  # By request: what its regions are called, and its blocks.
    loads: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Address(KVConnectorHandshakeMetadata):
    worker: str
    address: str


def _readable(params):
    """Whether they are as _Scheduler.finished() has made them: a client hands them on."""
    workers = params.get("remote_workers")
    return isinstance(params.get("remote_request_id"), str) and isinstance(workers, (list, tuple)) and set(map(type, workers)) <= {str}


class _Scheduler:
    def __init__(self):
        self.peers, self.work = [], Work()

    def matched(self, request, computed):
        params = request.kv_transfer_params or {}
        count = len(request.prompt_token_ids) - computed if self._wants(request, params) else 0
        return (count, True) if count > 0 else (0, False)

    def _wants(self, request, params):
        if params.get("do_remote_prefill") and not _readable(params):
            _log.warning("%s is computed here: its kv_transfer_params are not those that the engine which has prefilled made", request.request_id)
            params["do_remote_prefill"] = False
        return bool(params.get("do_remote_prefill"))

    def allocated(self, request, blocks, count):
        params = request.kv_transfer_params or {}
        if self._wants(request, params):
            self._load(request, params, blocks.get_unhashed_block_ids() if count > 0 else [])

    def _load(self, request, params, ours):
        params["do_remote_prefill"] = False  # Once.
        self.work.loads[request.request_id] = Load(params["remote_request_id"], params["remote_workers"], ours)

    def finished(self, request, block_ids):
        params = request.kv_transfer_params or {}
        if self._wants(request, params):  # It has ended before it was scheduled: nobody wants them.
            self._load(request, params, [])
        if not params.get("do_remote_decode") or not block_ids or request.status.name != "FINISHED_LENGTH_CAPPED":
            return False, None
        name = secrets.token_hex(16)  # A client that knows the id of another's request must not find its regions.
        self.work.sends[request.request_id] = name, list(block_ids)
        return True, {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": name, "remote_workers": self.peers}


class _Send:
    def __init__(self, server, name, blocks, caches, count, keep_s):
        self._regions, self._until = [], time.monotonic() + keep_s
        try:
            for i, cache in enumerate(caches):
                self._regions.append(server.region(f"{name}/{i}", cache))
            self._said = server.region(f"{name}/got", bytearray(1))
            self._regions.append(self._said)
            # How many blocks there are, and which are the request's, the last one first: who has the first ones already fetches less of it.
            # Whoever finds this region finds the others, too.
            self._regions.append(server.region(f"{name}/{_LIST}", array.array("I", [count, *reversed(blocks)])))
        except BaseException:
            self.close()
            raise

    def is_over(self, request):
        if self._said.bytes_sent == 0:
            if time.monotonic() < self._until:
                return False
            _log.warning("nobody has said that the blocks of %s have come: they are free, and who comes now is refused", request)
        self.close()
        return True

    def close(self):
        """Nothing reads the blocks any more when it returns."""
        for region in self._regions:
            region.close()


class _Fetch:
    """One request's blocks, each cache as a gather of one group."""

    def __init__(self, worker, load):
        self._worker, self._load = worker, load
        self.server, self._peer = worker.find(load.peers[worker.rank])
        self.group = self.server.group()
        self._until, self._again = time.monotonic() + worker.load_s, 0.0
        self._said, self.lost = None, set()
        self._theirs = array.array("I", bytes(4 * (1 + len(load.ours))))
        self._gathers = {_LIST: self._start(_LIST)} if load.ours else {}

    def _start(self, i):
        if i == _LIST:
            wanted, into, landing = tryst.Spans([(0, 4 * len(self._theirs))]), self._theirs, None
        else:
            into, ways, count, unit = self._worker.caches[i]
            wanted, landing = (tryst.Blocks([way * blocks + block for way in range(ways) for block in ids], unit)
                               for blocks, ids in ((self._theirs[0], self._theirs[:0:-1]), (count, self._load.ours)))
        return self.server.fetch_region(f"{self._load.request}/{i}", frm=self._peer, wanted=wanted, into=into, select=landing,
                                         timeout=max(0.0, self._until - time.monotonic()), group=self.group,
                                         digests=self._worker.digests)

    def _begin(self):
        """The list has come."""
        if max(self._theirs[1:]) >= self._theirs[0]:
            raise tryst.InvalidArgument(f"{self._peer} has {self._theirs[0]} blocks, and names one behind them")
        for i in range(len(self._worker.caches)):
            self._gathers[i] = self._start(i)

    def is_over(self):
        """Whether all has come, or never will; `lost` then has the numbers of blocks."""
        if time.monotonic() < self._again:
            return False
        for i, gather in list(self._gathers.items()):
            if gather.wait(0.0) and self._ended(i, gather):
                del self._gathers[i]
        if not self._gathers and self._said is None:
            self._say()
        return not self._gathers

    def _ended(self, i, gather):
        try:
            try:
                gather.result()
            except tryst.Unavailable:  # The worker that has prefilled has not opened it yet, or is gone.
                if time.monotonic() >= self._until:
                    raise
                try:
                    self._worker.find(self._load.peers[self._worker.rank])
                except tryst.Error:
                    self._until = time.monotonic()  # It is not waited for again for each of the other caches.
                    raise
                self._gathers[i], self._again = self._start(i), time.monotonic() + _AGAIN_S
                return False
            if i == _LIST:
                self._begin()
        except (tryst.Error, ValueError) as error:  # A ValueError: the list's numbers are none of blocks.
            ours = self._load.ours
            failed = range(len(ours)) if i == _LIST or gather.failed is None else gather.failed
            self.lost.update(ours[span % len(ours)] for span in failed)
            _log.warning("%d blocks of %s have not come: %s", len(self.lost), self._load.request, error)
        return True

    def _say(self):
        # Not of the group: what was cancelled is not wanted any more, either. With digests its owner is asked, and so it hears of it.
        self._said = self.server.fetch_region(f"{self._load.request}/got", frm=self._peer, wanted=tryst.Spans([(0, 1)]),
                                               into=bytearray(1), timeout=_FIND_S, digests=True)

    def said(self):
        if not self._said.wait(0.0):
            return False
        try:
            self._said.result()
        except tryst.Error as error:
            if isinstance(error, tryst.Unavailable) and time.monotonic() < self._until:
                self._say()
                return False
        return True


class _Worker:
    def __init__(self, config, rank):
        settings = dict(config.kv_connector_extra_config)
        self.rank, self.digests = rank, settings.pop("digests", False)
        self.keep_s, self.load_s = float(settings.pop("keep_s", 120)), float(settings.pop("load_s", 60))
        self._host, self._settings = settings.pop("host", None) or adapters.own_address(), settings
        self._job = "vllm_" + "".join(c if c.isalnum() else "_" for c in config.engine_id)
        self.server = adapters.start(self._job, self._host, settings=settings, task=rank)
        self.caches, self.blocks, self._sends, self._fetches, self._saying, self._peers = [], 0, {}, {}, [], {}
        self._gone = {}  # Until when a peer that has not answered is not waited for again.
        self.copy, self._there, self._here, self.lost, self._unsent = None, {}, {}, set(), set()

    def server_for(self, peer):
        """A member of the cluster of that "worker@address". Of the most there may be, the one that was wanted longest ago makes room."""
        if peer not in self._peers:
            if len(self._peers) >= _MOST_PEERS:
                self._make_room()
            task = self.rank * 4096 + min(set(range(_MOST_PEERS)) - {task for task, _ in self._peers.values()})
            self._peers[peer] = task, adapters.start(self._job + "_reads", self._host, join=peer, settings=self._settings, task=task)
        self._peers[peer] = self._peers.pop(peer)  # The last is the one wanted last.
        return self._peers[peer][1]

    def _make_room(self):
        fetches = [fetch for _, fetch in self._fetches.values() if fetch is not None] + self._saying
        busy = {id(fetch.server) for fetch in fetches}
        for peer, (_, server) in self._peers.items():
            if id(server) not in busy:
                del self._peers[peer]
                self._gone.pop(peer, None)
                return server.stop(1.0)
        raise tryst.ResourceExhausted(f"blocks of {_MOST_PEERS} peers are fetched already, the most at a time")

    def find(self, peer):
        """The server that reaches it, and its name, when it has answered. The engine stands still meanwhile: once for all requests."""
        server, name = self.server_for(peer), peer.partition("@")[0]
        if time.monotonic() < self._gone.get(peer, 0.0):
            raise tryst.Unavailable(f"{name} did not answer a moment ago")
        try:
            server.wait_for(name, _FIND_AGAIN_S if peer in self._gone else _FIND_S)
        except tryst.Error:
            self._gone[peer] = time.monotonic() + _FIND_S
            raise
        self._gone.pop(peer, None)
        return server, name

    def register(self, caches, blocks):
        self._there = caches
        self._here = {name: cache if cache.device.type == "cpu" else cache.cpu() for name, cache in caches.items()}
        if self.copy is None and any(self._here[name] is not cache for name, cache in caches.items()):
            raise ValueError('the caches are not in memory of the host: set "kv_buffer_device": "cpu" in the KV transfer config')
        self.caches, self.blocks = [], blocks
        for name, cache in self._here.items():
            if not cache.is_contiguous() or blocks not in cache.shape:
                raise ValueError(f"the cache of {name}, of the shape {tuple(cache.shape)}, does not consist of {blocks} blocks without gaps")
            ways = math.prod(cache.shape[:list(cache.shape).index(blocks)])  # Two, where keys and values lie apart.
            self.caches.append((cache, ways, blocks, cache.numel() * cache.element_size() // (ways * blocks)))

    def _move(self, ids, way):
        if self.copy is not None and ids:
            ends = (self._there, self._here) if way == "d2h" else (self._here, self._there)
            self.copy(*ends, ids, ids, way)

    def start(self, work):
        for request, (name, blocks) in work.sends.items():
            try:
                self._move(blocks, "d2h")
                self._sends[request] = _Send(self.server, name, blocks, [cache for cache, *_ in self.caches], self.blocks, self.keep_s)
            except Exception as error:  # What one client has written ends no other's request.
                _log.warning("the blocks of %s cannot be fetched: %s", request, error)
                self._unsent.add(request)
        for request, load in work.loads.items():
            try:
                self._fetches[request] = load, _Fetch(self, load)
            except Exception as error:
                _log.warning("the blocks of %s cannot be fetched from who has prefilled: %s", request, error)
                self._fetches[request] = load, None

    def results(self, finished):
        for request in set(finished) & self._fetches.keys():  # Aborted: its blocks are to be free.
            if self._fetches[request][1] is not None:
                self._fetches[request][1].group.cancel().wait()
        results = KVConnectorTransferResults()
        results.finished_sending, self._unsent = self._unsent, set()
        for request, send in list(self._sends.items()):
            if send.is_over(request):
                del self._sends[request]
                results.finished_sending.add(request)
        for request, (load, fetch) in list(self._fetches.items()):
            if fetch is not None and not fetch.is_over():
                continue
            del self._fetches[request]
            lost = set(load.ours) if fetch is None else fetch.lost
            self._move([block for block in load.ours if block not in lost], "h2d")
            if fetch is not None:
                self._saying.append(fetch)
            if load.ours:
                results.finished_recving.add(request)
                self.lost |= lost
                if lost:
                    results.failed_recving.add(request)
        self._saying = [fetch for fetch in self._saying if not fetch.said()]
        return results

    def close(self):
        for _, fetch in self._fetches.values():
            if fetch is not None:
                fetch.group.cancel().wait()  # Nothing lands any more.
        for send in self._sends.values():
            send.close()
        for server in [*(server for _, server in self._peers.values()), self.server]:
            server.stop(1.0)


class TrystConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler, self._worker = _Scheduler(), None
        else:
            from vllm.distributed import get_tensor_model_parallel_rank

            self._worker = _Worker(vllm_config.kv_transfer_config, get_tensor_model_parallel_rank())

    def register_kv_caches(self, kv_caches):
        self._worker.register(kv_caches, self._kv_cache_config.num_blocks)

    def set_host_xfer_buffer_ops(self, copy_operation):
        self._worker.copy = copy_operation

    def get_handshake_metadata(self):
        return Address(self._worker.server.worker, self._worker.server.address)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name):
        pass  # Requests wait for all of their layers.

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass  # Peers fetch what lies in the caches.

    def wait_for_save(self):
        pass

    def get_transfer_results(self, finished_req_ids):
        return self._worker.results(finished_req_ids)

    def get_block_ids_with_load_errors(self):
        lost, self._worker.lost = self._worker.lost, set()
        return lost

    def shutdown(self):
        if self._worker is not None:
            self._worker.close()

    def set_xfer_handshake_metadata(self, metadata):
        self._scheduler.peers = [f"{metadata[rank].worker}@{metadata[rank].address}" for rank in sorted(metadata)]

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        work, self._scheduler.work = self._scheduler.work, Work()
        return work

    def request_finished(self, request, block_ids):
        return self._scheduler.finished(request, block_ids)
