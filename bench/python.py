#!/usr/bin/env python3
"""bench/python.py [--quick] [--json FILE]: tensors from one Python process to another, by Tryst and by others.

Every system moves the same numpy arrays under the same keys, and every element that arrives is summed up and checked.
A round begins when the producer is told to send, by a pipe, and ends when the consumer has them all. The figures are
the median and the 99th percentile of the rounds after the first, the processor time of both processes in a round, and what
both take while nothing happens. A system that is not installed is named and left out.
"""
import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

WORKS = {  # name: (tensors, floats in each)
    "1 of 8 B": (1, 2),
    "1,000 of 4 KiB": (1000, 1024),
    "1 of 64 KiB": (1, 16 << 10),
    "1 of 1 MiB": (1, 1 << 18),
    "1 of 16 MiB": (1, 4 << 20),
    "1 of 256 MiB": (1, 64 << 20),
}


IDLE_S = 2.0


def arrays(turn, count, floats):
    return {f"k{i}": numpy.full(floats, (turn + i) % 97, "f") for i in range(count)}


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Tryst:
    """By a copy into memory of the consumer's."""

    by_reference = False
    common = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True, shm_bytes="3GiB")

    def __init__(self, address=None):
        import tryst

        self.steps = 0
        self.server = tryst.Server(job="producer" if address is None else "consumer",
                                   join=address, **self.common).start()
        self.address = f"{self.server.worker}@{self.server.address}"

    def send(self, tensors):
        self.steps += 1
        self.last = self.server.step(self.steps)
        self.last.send_many(tensors, to="/job:consumer/task:0")

    def recv(self, keys, floats):
        self.steps += 1
        step = self.server.step(self.steps)
        got = step.recv_many(keys, frm="/job:producer/task:0", timeout=120,
                             by_reference=self.by_reference).result()
        return [one.numpy() for one in got]

    def close(self):
        self.server.stop()


class TrystInto(Tryst):
    """Into the same memory round after round, by a plan at both ends."""

    plan = None

    def send(self, tensors):
        self.steps += 1
        if self.plan is None or self.plan.names != list(tensors):
            self.plan = self.server.plan(list(tensors), to="/job:consumer/task:0")
        self.plan.send(self.steps, tensors)

    def recv(self, keys, floats):
        self.steps += 1
        if self.plan is None or self.made != (len(keys), floats):
            self.made = len(keys), floats
            self.into = {key: numpy.empty(floats, "f") for key in keys}
            self.plan = self.server.plan(self.into, frm="/job:producer/task:0")
        self.plan.recv(self.steps, timeout=120).result()
        return list(self.into.values())


class TrystByReference(Tryst):
    """A view of the producer's memory, which it takes from server.empty()."""

    by_reference = True

    def send(self, tensors):
        made = {}
        for key, array in tensors.items():
            made[key] = self.server.empty(array.shape, "float32")
            numpy.asarray(made[key])[:] = array
        super().send(made)


class Zmq:
    def __init__(self, address=None):
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.PUSH if address is None else zmq.PULL)
        self.socket.set_hwm(0)
        if address is None:
            port = self.socket.bind_to_random_port("tcp://127.0.0.1")
            self.address = f"tcp://127.0.0.1:{port}"
        else:
            self.socket.connect(address)

    def send(self, tensors):
        for key, array in tensors.items():
            self.socket.send_multipart([key.encode(), array], copy=array.nbytes < 65536)

    def recv(self, keys, floats):
        got = {}
        while len(got) < len(keys):
            key, data = self.socket.recv_multipart(copy=False)
            got[bytes(key).decode()] = numpy.frombuffer(data, "f")
        return [got[key] for key in keys]

    def close(self):
        self.socket.close()


class Grpc:
    def __init__(self, address=None):
        import grpc
        from concurrent import futures
        import threading

        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if address is not None:
            self.get = grpc.insecure_channel(address, options=options).unary_unary("/b.B/Get")
            return
        self.store, self.changed = {}, threading.Condition()

        def get(key, _):
            with self.changed:
                self.changed.wait_for(lambda: key in self.store, 60)
                return self.store.pop(key)

        self.server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "b.B", {"Get": grpc.unary_unary_rpc_method_handler(get)}),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def send(self, tensors):
        with self.changed:
            self.store.update((key.encode(), array.tobytes()) for key, array in tensors.items())
            self.changed.notify_all()

    def recv(self, keys, floats):
        calls = [self.get.future(key.encode()) for key in keys]
        return [numpy.frombuffer(call.result(120), "f") for call in calls]

    def close(self):
        pass


class SharedMemory:
    """A segment a round, and its name by a pipe: what one writes by hand."""

    def __init__(self, address=None):
        from multiprocessing import connection

        if address is None:
            self.listener = connection.Listener(("127.0.0.1", 0))
            self.address = "%s:%d" % self.listener.address
            self.pipe = None
        else:
            host, _, port = address.partition(":")
            self.pipe = connection.Client((host, int(port)))

    def send(self, tensors):
        from multiprocessing import shared_memory

        if self.pipe is None:
            self.pipe = self.listener.accept()
        segment = shared_memory.SharedMemory(create=True, size=sum(a.nbytes for a in tensors.values()))
        at = 0
        for array in tensors.values():
            numpy.ndarray(array.shape, "f", segment.buf, at)[:] = array
            at += array.nbytes
        self.pipe.send(segment.name)
        self.pipe.recv()
        segment.close()
        segment.unlink()

    def recv(self, keys, floats):
        from multiprocessing import resource_tracker, shared_memory

        segment = shared_memory.SharedMemory(self.pipe.recv())
        resource_tracker.unregister(segment._name, "shared_memory")  # It is the producer's.
        got = [numpy.ndarray(floats, "f", segment.buf, i * floats * 4).copy() for i in range(len(keys))]
        segment.close()
        self.pipe.send(None)
        return got

    def close(self):
        pass


class Registered:
    """Of libraries that read a peer's registered memory: a pipe says where it lies and when it is filled. The cost of
    filling it is in the round, as that of sending is elsewhere; registering it and making a handle are not."""

    def __init__(self, address=None):
        from multiprocessing import connection

        self.made = None
        self.kept = []
        if address is None:
            self.listener = connection.Listener(("127.0.0.1", 0))
            self.address = "%s:%d" % self.listener.address
            self.pipe = None
        else:
            host, _, port = address.partition(":")
            self.pipe = connection.Client((host, int(port)))

    def room(self, count, floats):
        self.flat = numpy.zeros((count, floats), "f")
        self.kept.append(self.flat)  # It stays registered.
        self.register(self.flat.ctypes.data, self.flat.nbytes)

    def send(self, tensors):
        if self.pipe is None:
            self.pipe = self.listener.accept()
        shape = len(tensors), next(iter(tensors.values())).size
        if self.made != shape:
            self.made = shape
            self.room(*shape)
            self.pipe.send((self.flat.ctypes.data, self.offer()))
            self.answered(self.pipe.recv())
        for row, array in zip(self.flat, tensors.values()):
            row[:] = array
        self.pipe.send_bytes(b"filled")

    def recv(self, keys, floats):
        shape = len(keys), floats
        if self.made != shape:
            self.made = shape
            self.room(*shape)
            there, offer = self.pipe.recv()
            self.pipe.send(self.accept(offer))
            self.prepare([(self.flat.ctypes.data + i * floats * 4, there + i * floats * 4, floats * 4)
                          for i in range(len(keys))])
        self.pipe.recv_bytes()
        self.read()
        return list(self.flat)

    def answered(self, answer):
        pass

    def close(self):
        self.pipe.close()


class Nixl(Registered):
    """READ of registered memory by UCX, with a handle that is used again."""

    def __init__(self, address=None):
        import nixl_cu12._api as api

        super().__init__(address)
        # Without its thread, which spins, a producer does not answer.
        self.agent = api.nixl_agent("producer" if address is None else "consumer", api.nixl_agent_config(backends=[]))
        self.agent.create_backend("UCX", {})

    def register(self, address, size):
        self.registered = self.agent.register_memory([(address, size, 0, "")], "DRAM")

    def offer(self):
        return self.agent.get_agent_metadata()

    def accept(self, offer):
        self.peer = self.agent.add_remote_agent(offer)
        return self.agent.get_agent_metadata()

    def answered(self, answer):
        self.agent.add_remote_agent(answer)

    def prepare(self, pieces):
        here = self.agent.get_xfer_descs([(to, size, 0) for to, _, size in pieces], "DRAM")
        there = self.agent.get_xfer_descs([(at, size, 0) for _, at, size in pieces], "DRAM")
        self.handle = self.agent.initialize_xfer("READ", here, there, self.peer, b"")

    def read(self):
        state = self.agent.transfer(self.handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
        if state != "DONE":
            raise RuntimeError(f"a READ ended as {state}")


class Mooncake(Registered):
    """Its transfer engine, over TCP: reads of registered memory."""

    def __init__(self, address=None):
        from mooncake.engine import TransferEngine

        super().__init__(address)
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("its engine does not start")

    def register(self, address, size):
        if self.engine.register_memory(address, size) != 0:
            raise RuntimeError("memory was not registered")

    def offer(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def accept(self, offer):
        self.peer = offer

    def prepare(self, pieces):
        self.pieces = [list(each) for each in zip(*pieces)]

    def read(self):
        if self.engine.batch_transfer_sync_read(self.peer, *self.pieces) != 0:
            raise RuntimeError("a read failed")


class Gloo:
    """torch.distributed's gloo: a send and a receive for each tensor, all at once."""

    def __init__(self, address=None):
        import torch.distributed

        self.dist, self.rank, self.started = torch.distributed, int(address is not None), False
        self.address = address or free_address()

    def start(self):  # Returns when both have called it.
        if not self.started:
            self.dist.init_process_group("gloo", init_method=f"tcp://{self.address}", rank=self.rank, world_size=2)
            self.started = True

    def send(self, tensors):
        import torch

        self.start()
        for sent in [self.dist.isend(torch.from_numpy(array), 1, tag=i) for i, array in enumerate(tensors.values())]:
            sent.wait()

    def recv(self, keys, floats):
        import torch

        self.start()
        got = [torch.empty(floats) for _ in keys]
        for received in [self.dist.irecv(one, 0, tag=i) for i, one in enumerate(got)]:
            received.wait()
        return [one.numpy() for one in got]

    def close(self):
        if self.started:
            self.dist.destroy_process_group()


class RayStore:
    """Ray's own object store: two drivers of one cluster, and the references by a pipe."""

    def __init__(self, address=None):
        import ray
        from multiprocessing import connection

        self.ray = ray
        if address is None:
            self.cluster = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error",
                                    object_store_memory=2 << 30).address_info["gcs_address"]
            self.listener = connection.Listener(("127.0.0.1", 0))
            self.address = "%s:%d=%s" % (*self.listener.address, self.cluster)
            self.pipe = None
        else:
            pipe, _, cluster = address.partition("=")
            ray.init(cluster, log_to_driver=False, logging_level="error")
            host, _, port = pipe.partition(":")
            self.pipe = connection.Client((host, int(port)))

    def send(self, tensors):
        if self.pipe is None:
            self.pipe = self.listener.accept()
        self.kept = [self.ray.put(array) for array in tensors.values()]
        self.pipe.send_bytes(self.ray.cloudpickle.dumps(self.kept))

    def recv(self, keys, floats):
        return self.ray.get(self.ray.cloudpickle.loads(self.pipe.recv_bytes()), timeout=120)

    def close(self):
        self.ray.shutdown()


_offered = {}


def _offer(key):
    while key not in _offered:
        time.sleep(0.0001)
    return _offered.pop(key)


class TorchRpc:
    """torch.distributed.rpc: the consumer calls for each tensor."""

    def __init__(self, address=None):
        from torch.distributed import rpc

        self.rpc, self.name, self.started = rpc, "producer" if address is None else "consumer", False
        self.address = address or free_address()

    def start(self):  # Returns when both have called it.
        if not self.started:
            options = self.rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{self.address}", num_worker_threads=8)
            self.rpc.init_rpc(self.name, rank=int(self.name == "consumer"), world_size=2,
                              rpc_backend_options=options)
            self.started = True

    def send(self, tensors):
        import torch

        _offered.update((key, torch.from_numpy(array)) for key, array in tensors.items())
        self.start()

    def recv(self, keys, floats):
        self.start()
        calls = [self.rpc.rpc_async("producer", _offer, (key,)) for key in keys]
        return [call.wait().numpy() for call in calls]

    def close(self):
        if self.started:
            self.rpc.shutdown()


class Mpi:
    """Both run under mpirun: the consumer is rank 0."""

    address = "mpi"

    def __init__(self, address=None):
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD

    def send(self, tensors):
        self.mpi.Request.Waitall([self.comm.Isend(array, 0, i) for i, array in enumerate(tensors.values())])

    def recv(self, keys, floats):
        got = [numpy.empty(floats, "f") for _ in keys]
        self.mpi.Request.Waitall([self.comm.Irecv(one, 1, i) for i, one in enumerate(got)])
        return got

    def close(self):
        self.mpi.Finalize()


SYSTEMS = {"tryst": Tryst, "tryst, into by plans": TrystInto, "tryst, by reference": TrystByReference, "nixl": Nixl,
           "mooncake": Mooncake, "gloo": Gloo, "pyzmq": Zmq, "grpcio": Grpc,
           "shared memory": SharedMemory, "ray's store": RayStore, "torch rpc": TorchRpc, "mpi4py": Mpi}


def produce(name, commands, answers):
    system = SYSTEMS[name]()
    answers.write(system.address + "\n")
    answers.flush()
    kept = None
    for line in commands:
        turn, count, floats, phase = line.split()
        if phase == "make":
            made = arrays(int(turn), int(count), int(floats))
            answers.write("made\n")
            answers.flush()
        elif phase == "cpu":
            answers.write(f"{time.process_time()}\n")
            answers.flush()
        else:
            system.send(made)
            kept = made  # Until the next round: it may be read where it is.
    del kept
    system.close()


def busy(command):
    """Processor time of (consumer, producer) until now, in seconds."""
    return time.process_time(), float(command("0 0 0 cpu", True))


def rounds(system, count, floats, turns, command):
    keys = [f"k{i}" for i in range(count)]
    took, used = [], [0.0, 0.0]
    for turn in range(turns + 1):
        command(f"{turn} {count} {floats} make", True)
        before = busy(command)
        began = time.perf_counter()
        command(f"{turn} {count} {floats} send", False)
        got = system.recv(keys, floats)
        took.append(time.perf_counter() - began)
        if turn > 0:
            used = [sum_ + now - then for sum_, now, then in zip(used, busy(command), before)]
        for i, array in enumerate(got):
            assert array.size == floats and array[0] == array[-1] == (turn + i) % 97, (turn, i, array[:2])
            assert float(array.sum(dtype="d")) == floats * ((turn + i) % 97)
        del got, array
    took = sorted(took[1:])
    return {"p50": statistics.median(took), "p99": took[min(len(took) - 1, int(len(took) * 0.99))],
            "consumer_cpu": used[0] / turns, "producer_cpu": used[1] / turns}


def consume(name, commands, answers, quick):
    system = SYSTEMS[name](answers.readline().strip())

    def command(line, wait):
        commands.write(line + "\n")
        commands.flush()
        return answers.readline() if wait else None

    result = {}
    for work, (count, floats) in WORKS.items():
        if quick and floats > 1 << 20:
            continue
        result[work] = rounds(system, count, floats, 5 if floats > 1 << 20 else 30 if count > 1 else 200, command)
    before = busy(command)
    time.sleep(IDLE_S)
    result["idle"] = [(now - then) / IDLE_S for now, then in zip(busy(command), before)]
    commands.close()
    answers.close()
    system.close()
    return result


def measure(name, quick):
    if name == "mpi4py":
        import mpi4py  # noqa: F401  That it is here.

        with tempfile.TemporaryDirectory() as folder:
            for fifo in "commands", "answers":  # mpirun hands no descriptors on.
                os.mkfifo(os.path.join(folder, fifo))
            words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, __file__,
                     "--mpi", folder]
            out = subprocess.run(words + (["--quick"] if quick else []), capture_output=True, text=True,
                                 stdin=subprocess.DEVNULL, timeout=180)
        if out.returncode != 0:
            raise RuntimeError(out.stderr.strip().splitlines()[-1] if out.stderr.strip() else "mpirun failed")
        return json.loads(out.stdout.strip().splitlines()[-1])
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # Both processes are of one cluster of Ray.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    child = subprocess.Popen([sys.executable, __file__, "--produce", name], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        return consume(name, child.stdin, child.stdout, quick)
    finally:
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--only", default="")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    parser.add_argument("--mpi", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        # Some libraries write to the standard output, which answers go to.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        return produce(options.produce, sys.stdin, answers)
    if options.mpi:
        from mpi4py import MPI

        commands, answers = (os.path.join(options.mpi, fifo) for fifo in ("commands", "answers"))
        if MPI.COMM_WORLD.Get_rank() == 0:
            with open(commands, "w") as to, open(answers) as back:
                print(json.dumps(consume("mpi4py", to, back, options.quick)))
        else:
            with open(commands) as to, open(answers, "w") as back:
                produce("mpi4py", to, back)
        return None
    table = {}
    for name in SYSTEMS:
        if options.only and options.only not in name:
            continue
        try:
            table[name] = measure(name, options.quick)
        except (AttributeError, ImportError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        idle = table[name]["idle"]
        print(f"{name}: idle, consumer {idle[0] * 1e3:.1f} ms/s, producer {idle[1] * 1e3:.1f} ms/s of processor time")
        for work, took in table[name].items():
            if work != "idle":
                print(f"  {work:16} p50 {took['p50'] * 1e3:9.3f} ms, p99 {took['p99'] * 1e3:9.3f} ms, processor time: "
                      f"consumer {took['consumer_cpu'] * 1e3:8.3f} ms, producer {took['producer_cpu'] * 1e3:8.3f} ms",
                      flush=True)
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps({"unix_s": int(time.time()), "cpus": os.cpu_count(), "seconds": table}) + "\n")
    return None


main()
