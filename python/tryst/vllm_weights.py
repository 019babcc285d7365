"""vLLM's pair of weight transfer engines, as versions of one set (tryst.weights). This is for vLLM 0.33.

In vLLM: `WeightTransferConfig(backend="tryst")`. In each rank of the trainer:

    engine = WeightTransferTrainerFactory.trainer_init(
        TrainerInfo(rank=rank, address="10.0.0.1:7000", trainers=4, workers=16, token=token), client=client, source=source)
    engine.send_weights()  # Each time: publishes, has all workers hold it whole, then has them load it.

A worker loads only what all workers have whole and checked in their memory, so no byte can be missing halfway, and where one
of them cannot have it no model is touched. If a model's own loader throws, that worker's permit (WorkerEngine.serves()) is
over until it has loaded whole; the next send_weights() has it load first.
"""
import contextlib
import dataclasses
import threading
import time
import uuid

import torch
from vllm.distributed.weight_transfer.base import (ParamMeta, Replicate, Shard, TrainerInitInfo,
                                                   TrainerWeightTransferEngine, WeightTransferEngine,
                                                   WeightTransferInitInfo, WeightTransferUpdateInfo)

import tryst
from tryst import adapters, weights

_BARRIER = weights._MODES["barrier"]


def layout_of(meta, shares=False):
    """The Layout of a ParamMeta; with `shares`, of a tensor of which each owner has the whole and publishes its rows."""
    owners, mesh, placements = meta.owners, meta.mesh_shape, meta.placements
    if shares:
        mesh, placements = None, (Shard(0),) if len(meta.shape) > 0 else None
    placed = [weights.Shard(one.dim) if isinstance(one, Shard) else weights.Replicate() for one in placements or ()]
    return weights.Layout(meta.name, str(meta.dtype).rpartition(".")[2], meta.shape, owners, placed, mesh)


def meta_of(layout):
    """The ParamMeta of a Layout without boxes: the same that layout_of() was given."""
    if layout.boxes:
        raise ValueError(f"tensor {layout.name!r} has boxes, which a ParamMeta cannot say: give it owners and placements")
    placed = tuple(Shard(one.dim) if one.dim >= 0 else Replicate() for one in layout.placements) or None
    return ParamMeta(layout.name, getattr(torch, layout.dtype), layout.shape, owners=layout.owners,
                     mesh_shape=layout.mesh, placements=placed)


@dataclasses.dataclass
class WorkerInfo(WeightTransferInitInfo):
    """What a worker hears of the trainer: TrainerEngine.worker_info has it."""

    name: str
    owners: list
    join: str
    token: str | None = None
    permit: float = 1.0
    timeout: float = 300.0
    settings: dict = dataclasses.field(default_factory=dict)
    hold_bytes: int = 0


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    version: int


class WorkerEngine(WeightTransferEngine):
    init_info_cls = WorkerInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    _info = _server = _member = _follower = None
    loaded = 0  # The version that the model has whole; 0: what it began with, or a part of one.

    def init_transfer_engine(self, init_info):
        if init_info == self._info and self._follower._ended is None:
            return
        self.shutdown()
        self._info, self.loaded = init_info, 0
        self._server = adapters.start(f"vllm_{uuid.uuid4().hex}", adapters.own_address(init_info.join.rpartition("@")[2]),
                                      init_info.token, init_info.join, init_info.settings)
        self._member = self._server.weights(init_info.name, role="member", owners=init_info.owners, permit=init_info.permit,
                                            hold_bytes=init_info.hold_bytes)
        self._follower = adapters.Follower(self._member, lambda number: self._member.stage(number, timeout=init_info.timeout), False)

    def start_weight_update(self):
        """Touches nothing of the model: what vLLM runs between its steps is proof that no work runs."""
        if self._follower is None:
            raise RuntimeError("init_weight_transfer_engine() has to be called before the first update")
        self._follower.quiet()

    def receive_weights(self, update_info):
        number = update_info.version
        try:
            if self.loaded == number:
                return
            self._follower.wait(number, "active", self._info.timeout)
            self.loaded = 0
            self._load(self._follower.tensors)
            self.loaded = number
            with contextlib.suppress(tryst.FailedPrecondition):  # It was loaded once before, or another has taken its place.
                self._member.switched(number)
            self._follower.tensors = None
        finally:
            self._follower.quiet(False)

    def _load(self, tensors):
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                self.model.load_weights((name, torch.from_dlpack(tensor).to(self.device)) for name, tensor in tensors.items())
        except BaseException:
            with contextlib.suppress(Exception):  # Else the next load would go on with this one's layers.
                finalize_layerwise_reload(self.model, self.model_config)
            raise
        finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self):
        if self._follower is not None:
            self._follower.quiet(False)

    def serves(self):
        """(number, confirmed) of the version that the model has whole and may serve now; (0, False): none."""
        return self._member.serves() if self._member is not None else (0, False)

    def shutdown(self):
        if self._server is not None:
            self._follower.close()
            self._server.stop()
        self._info = self._server = self._member = self._follower = None


@dataclasses.dataclass
class TrainerInfo(TrainerInitInfo):
    """The same at all ranks, but for `rank`."""

    backend = "tryst"

    address: str  # Where rank 0 listens, host:port.
    trainers: int  # How many ranks.
    workers: int  # How many workers all engines have: a version that one of them cannot have is dropped.
    token: str | None = None  # What processes show each other: a random text.
    name: str = "policy"
    first: int = 1  # The number of the first version: above all that the workers have seen.
    permit: float = 1.0
    timeout: float = 300.0  # One step of an update may take so long.
    settings: dict = dataclasses.field(default_factory=dict)  # The servers of trainers and workers have these (docs/CONFIG.md).
    hold_bytes: int = 0  # Each worker has so much of its versions for the others, so that trainers send it once.


class TrainerEngine(TrainerWeightTransferEngine):
    init_info_cls = TrainerInfo

    def __init__(self, info, *, client, source):
        super().__init__(client=client, source=source, is_sender=info.is_sender, rank=info.rank)
        self._info, self._number, self._active = info, info.first - 1, 0
        self._local = source.implements_iter_local()
        job = f"vllm_trainer_{info.name}"
        owners = [f"/job:{job}/replica:0/task:{rank}" for rank in range(info.trainers)]
        join = f"{owners[0]}@{info.address}"
        self._servers = []
        try:
            self._servers.append(adapters.start(
                job, info.address if self.is_sender else adapters.own_address(info.address), info.token,
                None if self.is_sender else join, info.settings, info.rank))
            # The workers, and the one that hears for rank 0 that all of them have voted.
            self._owner = self._servers[0].weights(info.name, role="owner", owners=owners, rank=info.rank,
                                                   min_members=info.workers + 1, permit=info.permit)
            self._owner.declare(layout_of(meta, shares=not self._local) for meta in source.metadata)
            if self.is_sender:
                self._servers.append(adapters.start(f"{job}_watch", adapters.own_address(info.address), info.token, join,
                                                    {**info.settings, "protocol": "grpc"}))
                self.worker_info = dataclasses.asdict(WorkerInfo(info.name, owners, join, info.token, info.permit,
                                                                 info.timeout, info.settings, info.hold_bytes))
                self._watch = self._watcher()
        except BaseException:
            self.shutdown()
            raise

    def _watcher(self):
        member = self._servers[1].weights(self._info.name, role="member", owners=self.worker_info["owners"],
                                          permit=self._info.permit)
        return adapters.Follower(member, lambda number: (), True)

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None:
            raise ValueError("the engine tryst sends the tensors of a WeightSource: give source=")
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender:
            client.init_weight_transfer_engine(engine.worker_info)
        return engine

    def welcome(self):
        """Tells workers that have taken the place of others whom to join, and waits until those others count no more."""
        self.client.init_weight_transfer_engine(self.worker_info)
        time.sleep(2.5 * self._info.permit)

    def send_weights(self):
        self._number += 1
        number, timeout = self._number, self._info.timeout
        with self._owner.version(number, f"vLLM {number}", timeout) as version:
            for name, tensor in self.source.iter_local() if self._local else self.source.iter_full():
                for box in self._owner.boxes(name):
                    piece = tensor.detach() if self._local else tensor.detach()[box]
                    version.publish(name, piece.cpu(), box, cast=self._owner._layouts[name].dtype)
        if self.is_sender:
            self._catch_up()
            self._activate(number)

    def _catch_up(self):
        """Who has not loaded the active version, as one whose loader threw or one that is new, does so before there is another."""
        until = time.monotonic() + self._info.timeout
        while self._owner.members() <= self._info.workers:  # The watcher is one more.
            if time.monotonic() > until:
                raise tryst.Unavailable(f"not all {self._info.workers} workers are members, and no model was touched: start what "
                                        f"is missing, and call welcome(); {self._owner.explain()}")
            time.sleep(0.02)
        if self._active == 0:
            return
        try:
            self._owner.activate(self._active, "barrier", 0.2)
        except tryst.DeadlineExceeded:
            self._have_loaded(self._active)
            self._owner.activate(self._active, "barrier", self._info.timeout)

    def _activate(self, number):
        ended, before = threading.Event(), self._active
        call = weights._Call(self._owner, self._owner._weights.activate, (number, _BARRIER, self._info.timeout), ended.set)
        call.start()
        try:
            # All workers have it, or nobody is asked to load it.
            self._watch.wait(number, "hold", self._info.timeout)
            self._have_loaded(number)
        except BaseException:
            if self._watch.decided(number):
                self._owner._stop(call.cancellation)
            else:
                # Without this voice the version is dropped, and who holds it goes on as before.
                self._watch.close()
                ended.wait()
                self._watch, self._active = self._watcher(), before
            raise
        ended.wait()
        with contextlib.suppress(tryst.DeadlineExceeded):  # Only the loads may take longer.
            call.result()
        self._owner.activate(number, "barrier", self._info.timeout)

    def _have_loaded(self, number):
        try:
            self.client.start_weight_update()
            self._active = number
            self._watch.quiet()
            self._watch.wait(number, "active", self._info.timeout)
            self.client.update_weights({"version": number})
        except BaseException:
            with contextlib.suppress(Exception):  # Who still has the update open ends it.
                self.client.finish_weight_update(None)
            raise
        finally:
            self._watch.quiet(False)
        self.client.finish_weight_update(str(number))

    def shutdown(self):
        for end in ("_watch", "_owner"):
            if hasattr(self, end):
                getattr(self, end).close()
        for server in reversed(self._servers):
            server.stop()
