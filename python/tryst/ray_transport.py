"""Tensors of Ray's actors by Tryst.

    from tryst import ray_transport

    ray_transport.register(torch.Tensor)          # Before the classes that name it.

    @ray.remote(enable_tensor_transport=True)
    class Worker:
        @ray.method(tensor_transport="tryst")
        def gradients(self): ...

What such a method returns stays where it is, and goes from actor to actor when its reference is an argument. Ray's store
holds no byte of it. Each actor has a server of its own; they meet by the server of the process that owns the references, as a
rule the driver, whose address Ray keeps for its job. A detached actor has a server for each job that uses it. When an actor
dies, those that wait for its tensors get an error and live on: transfers can be aborted.
"""
import contextlib
import itertools
import os
import secrets
import threading

import ray
from ray.experimental import internal_kv, register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (CommunicatorMetadata, FetchRequest,
                                                           TensorTransportManager, TensorTransportMetadata)

import tryst
from tryst import adapters

_SEED = "tryst_seed"
_SPACE = b"tryst"
# Ray's own default. Ray's message of a failure may arrive before the receive has begun.
_GIVE_UP_S = 60.0
_MOST_JOBS = 16  # Whose servers a process has at a time.
_transfers = itertools.count(1)


def register(data_type, name="tryst", devices=("cpu", "cuda"), **settings):
    """Makes `name` a tensor transport of Ray's for `data_type`: torch.Tensor, or numpy.ndarray.

    `settings` are of every actor's server. If they do not say otherwise, it listens at the node's address, for who knows a
    token that is made for each job of Ray's, and so encrypts what leaves the host (docs/SECURITY.md).
    """
    transport = type("Transport", (Transport,), {"settings": settings, "name": name.upper()})
    register_tensor_transport(name, list(devices), transport, data_type)


class Description(TensorTransportMetadata):
    """Of the tensors of an object."""

    def __init__(self, obj_id, tensors, device):
        super().__init__([(one.shape, one.dtype) for one in tensors], device)
        self.obj_id = obj_id


class Meeting(CommunicatorMetadata):
    """Who sends to whom, in which step, and whom both join."""

    def __init__(self, source, sink, seed):
        self.source, self.sink, self.seed = source, sink, seed
        # Each owner of references numbers its transfers by itself, so a random part keeps them
        # apart.
        self.step = int.from_bytes(os.urandom(4), "big") >> 1 << 32 | next(_transfers)


class Fetch(FetchRequest):
    """Tensors on their way into `tensors`. When it is dropped, the fetch is cancelled, and nothing is written into them
    any more."""

    def __init__(self, obj_id, tensors, transport, meeting):
        super().__init__(obj_id, tensors)
        self._transport, self._done = transport, not tensors
        if tensors:
            self._step = transport._started(meeting.seed).step(meeting.step)
            transport._begin(obj_id, self._step)
            self._receive = self._step.start([str(i) for i in range(len(tensors))], _worker(meeting.source),
                                             _GIVE_UP_S, into=tensors)

    def wait(self, timeout):
        if not self._done:
            if not self._receive.wait(timeout):
                raise TimeoutError(f"the tensors of object {self.obj_id} did not come within {timeout} s: wait again, or drop the request")
            self._receive.result()
            self._done = True
        return self.tensors

    def __del__(self):
        step = getattr(self, "_step", None)
        if step is None:
            return
        receive = getattr(self, "_receive", None)
        if receive is not None and not self._done:
            receive.cancel()
            with contextlib.suppress(tryst.Error):
                receive.result()  # It ends when nobody writes any more.
        self._transport._end(self.obj_id, step)
        step.cleanup()


def _worker(actor_id):
    return f"/job:ray_{actor_id}/task:0"


def _dense(one):
    """Row by row, which costs a copy where it is not."""
    if hasattr(one, "detach"):  # A tensor of torch.
        return one.detach().contiguous()
    import numpy

    return numpy.ascontiguousarray(one)


class Transport(TensorTransportManager):
    settings = {}
    name = "TRYST"

    def __init__(self):
        self._lock = threading.Lock()
        self._servers, self._seed = {}, None  # By seed, the one that was wanted last last.
        self._sent = {}  # Object -> the steps in which it was sent.
        self._receiving = {}  # Object -> the steps that wait for it.

    def tensor_transport_backend(self):
        return self.name

    @staticmethod
    def is_one_sided():
        return False

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        devices = {str(getattr(one.device, "type", one.device)) if hasattr(one, "device") else "cpu"
                   for one in rdt_object}
        if len(devices) > 1:
            raise ValueError(f"all tensors of an object must lie on one kind of device, and these lie on {sorted(devices)}")
        return Description(obj_id, rdt_object, devices.pop() if devices else None)

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        with self._lock:
            self._seed = self._seed or self._agreed_seed()
        return Meeting(src_actor._actor_id.hex(), dst_actor._actor_id.hex(), self._seed)

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        meeting = communicator_metadata
        step = self._started(meeting.seed).step(meeting.step)
        with self._lock:
            self._sent.setdefault(tensor_transport_metadata.obj_id, []).append(step)
        step.send_many({str(i): _dense(one) for i, one in enumerate(tensors)}, to=_worker(meeting.sink))

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        return self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata,
                                           target_buffers).wait(None)

    def fetch_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        into = target_buffers or [self._empty(shape, dtype, tensor_transport_metadata.tensor_device)
                                  for shape, dtype in tensor_transport_metadata.tensor_meta]
        return Fetch(obj_id, into, self, communicator_metadata)

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        return fetch_request.wait(None if timeout < 0 else timeout)

    def _begin(self, obj_id, step):
        with self._lock:
            self._receiving.setdefault(obj_id, []).append(step)

    def _end(self, obj_id, step):
        with self._lock:
            self._receiving[obj_id].remove(step)
            if not self._receiving[obj_id]:
                del self._receiving[obj_id]

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        with self._lock:
            steps = self._sent.pop(obj_id, ())
        for step in steps:
            step.cleanup()

    def abort_transport(self, obj_id, communicator_metadata):
        with self._lock:
            steps = list(self._receiving.get(obj_id, ()))
        for step in steps:
            step.abort("Ray has given the transfer up")

    # ---- The servers of this process ----

    def _started(self, seed):
        with self._lock:
            server = self._servers.pop(seed, None) or self._start(seed)
            self._servers[seed] = server
            others = [one for one in self._servers if one not in (seed, self._seed)]  # The job may meet by that of self._seed.
            left = self._servers.pop(others[0]) if len(self._servers) > _MOST_JOBS else None
        if left is not None:
            with contextlib.suppress(tryst.Error):
                left.stop(1.0)
        return server

    def _start(self, seed):
        token, _, join = seed.partition(" ")
        context = ray.get_runtime_context()
        return adapters.start(f"ray_{context.get_actor_id() or context.get_worker_id()}",
                              ray.util.get_node_ip_address(), token, join, self.settings)

    def _agreed_seed(self):
        """A token, and whom to join: the first process of this job that owns references. What other jobs had may be gone."""
        name = f"{_SEED}_{ray.get_runtime_context().get_job_id()}".encode()
        seed = internal_kv._internal_kv_get(name, namespace=_SPACE)
        if seed is None:
            token = secrets.token_hex(32)
            server = self._start(token)
            seed = f"{token} {server.worker}@{server.address}".encode()
            if internal_kv._internal_kv_put(name, seed, overwrite=False, namespace=_SPACE):
                server.stop()  # Another process has started one meanwhile.
                seed = internal_kv._internal_kv_get(name, namespace=_SPACE)
            else:
                self._servers[seed.decode()] = server
        return seed.decode()

    @staticmethod
    def _empty(shape, dtype, device):
        if type(dtype).__module__.partition(".")[0] == "torch":
            import torch

            return torch.empty(shape, dtype=dtype, device=device)
        import numpy

        return numpy.empty(shape, dtype)
