#!/usr/bin/env python3
"""Device tensors from one process to another over the pretend driver (tests/doubles/cuda/fake_cuda.cc), which LD_LIBRARY_PATH has as
libcuda.so.1: it does what it is asked late, and its memory cannot be read by the host."""
import ctypes
import os
import subprocess
import sys
import types
import unittest
import unittest.mock

import numpy
import tryst
import tryst.weights

SETTINGS = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
CPU, CUDA = 1, 2
cuda = ctypes.CDLL("libcuda.so.1")
handed_out = []  # Kept alive, because no deleter has run yet.


def check(result):
    if result != 0:
        raise RuntimeError(f"the driver answers {result}")


def copy(to, from_, size, stream):
    check(cuda.cuMemcpyAsync(to, from_, ctypes.c_size_t(size), stream))


def pinned(count):
    """Floats that the driver copies from and to; nobody frees them."""
    address = ctypes.c_void_p()
    check(cuda.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(4 * count), 3))
    return numpy.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Gpu:
    def __init__(self, number):
        self.number = number
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        check(cuda.cuInit(0))
        check(cuda.cuDeviceGet(ctypes.byref(device), number))
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        check(cuda.cuCtxSetCurrent(self.context))
        self.stream = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(self.stream), 1))


class DeviceArray:
    """Floats in a GPU's memory, as a library hands them out that honours streams."""

    def __init__(self, gpu, values):
        self.gpu, self.count = gpu, len(values)
        self.address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(4 * self.count)))
        self.asked = []
        self.set(values)

    def set(self, values):
        host = pinned(self.count)
        host[:] = values
        copy(self.address, ctypes.c_uint64(host.ctypes.data), 4 * self.count, self.gpu.stream)

    def __dlpack_device__(self):
        return CUDA, self.gpu.number

    def __cuda_stream__(self):
        return 0, self.gpu.stream.value

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        shape = (ctypes.c_int64 * 1)(self.count)
        managed = Managed(DLTensor(self.address.value, CUDA, self.gpu.number, 1, 2, 32, 1,
                                   ctypes.addressof(shape), None, 0), None, None)
        handed_out.append((self, shape, managed))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)

    def values(self):
        """What the stream leaves there."""
        got = pinned(self.count)
        copy(ctypes.c_uint64(got.ctypes.data), self.address, 4 * self.count, self.gpu.stream)
        check(cuda.cuStreamSynchronize(self.gpu.stream))
        return got


def bits_of(floats):
    """As bfloat16 has them, rounded to nearest even."""
    bits = floats.view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("uint32").view("f")


SIZES = (1, 1000, 100_000, 3_000_000)


def last_gpu():
    """The consumer's: on a machine with one GPU both processes share it."""
    count = ctypes.c_int()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    return min(count.value - 1, 1)


def produce(join):
    with tryst.Server(job="producer", join=join, gpus="0", **SETTINGS) as server:
        gpu = Gpu(0)
        kept = []
        for i, size in enumerate(SIZES):
            kept.append(DeviceArray(gpu, numpy.arange(size) + i))
            server.step(1).send(f"t{i}", kept[-1], to="/job:consumer/task:0")
            assert kept[-1].asked == [gpu.stream.value], kept[-1].asked
        server.step(1).send("mapped again", kept[1], to="/job:consumer/task:0")
        server.step(1).send("to the host", kept[1], to="/job:consumer/task:0")
        server.step(1).send("host", numpy.arange(5, dtype="f"), to="/job:consumer/task:0")
        pool = DeviceArray(gpu, numpy.arange(1000))
        for name in ("blocks", "blocks to the host", "blocks without a list"):
            server.step(1).send(name, pool, to="/job:consumer/task:0", select=tryst.Blocks([7, 3, 9], 40))
        pool.set(numpy.zeros(1000))  # The stream comes to it when it has gathered.
        server.step(1).send("blocks of the host", numpy.arange(30, dtype="f"), to="/job:consumer/task:0")
        owner = server.weights("policy", role="owner", owners=1)
        owner.declare([tryst.weights.Layout("w", "float32", (1000,)), tryst.weights.Layout("b", "bfloat16", (1000,))])
        with owner.version(1) as version:
            pool.set(numpy.arange(1000))
            version.publish("w", pool)
            version.publish("b", pool, cast="bfloat16")
            pool.set(numpy.zeros(1000))
        server.step(2).recv("over", frm="/job:consumer/task:0", timeout=120)


class Cuda(unittest.TestCase):
    def released_by_torch(self, server, backend_takes_none=False):
        """How many mappings go when torch, or what stands in for it here, gives memory back."""
        emptied, observers, released = [], [], []
        torch = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(empty_cache=lambda: emptied.append(1), memory=types.SimpleNamespace())

        def observe(observer):
            observers.append(observer)
            if backend_takes_none:
                raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

        torch._C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=observe)
        release = server.release_gpu_memory
        server.release_gpu_memory = lambda: released.append(release())
        with unittest.mock.patch.dict(sys.modules, torch=torch):
            server.follow_torch()
            server.follow_torch()
            torch.cuda.empty_cache()
            torch.cuda.memory.empty_cache()
        self.assertEqual((len(emptied), len(observers), len(released)), (2, 1, 2))
        observers[0](0, 1 << 20, 0, 0)
        self.assertEqual(len(released), 3)
        server.release_gpu_memory = release
        return sum(released)

    def test_device_tensors_go_from_process_to_process(self):
        with tryst.Server(job="consumer", gpus=str(last_gpu()), **SETTINGS) as server:
            child = subprocess.Popen([sys.executable, __file__, "--produce", f"{server.worker}@{server.address}"])
            try:
                gpu = Gpu(last_gpu())
                step = server.step(1)
                for i, size in enumerate(SIZES):
                    with self.subTest(size):
                        into = DeviceArray(gpu, numpy.zeros(size))
                        got = step.recv(f"t{i}", frm="/job:producer/task:0", timeout=60, into=into)
                        self.assertEqual(got.__dlpack_device__(), (CUDA, gpu.number))
                        numpy.testing.assert_array_equal(into.values(), numpy.arange(size, dtype="f") + i)
                        self.assertRaises(BufferError, memoryview, got)
                into = DeviceArray(gpu, numpy.zeros(5))
                step.recv("host", frm="/job:producer/task:0", timeout=60, into=into)
                numpy.testing.assert_array_equal(into.values(), numpy.arange(5, dtype="f"))
                ways = server.explain("/job:producer/task:0")
                self.assertGreater(server.release_gpu_memory(), 0)
                self.assertEqual(server.release_gpu_memory(), 0)
                into = DeviceArray(gpu, numpy.zeros(SIZES[1]))
                step.recv("mapped again", frm="/job:producer/task:0", timeout=60, into=into)
                numpy.testing.assert_array_equal(into.values(), numpy.arange(SIZES[1], dtype="f") + 1)
                self.assertGreater(self.released_by_torch(server), 0)
                self.assertEqual(self.released_by_torch(server, backend_takes_none=True), 0)
                got = step.recv("to the host", frm="/job:producer/task:0", timeout=60)
                numpy.testing.assert_array_equal(got.numpy(), numpy.arange(SIZES[1], dtype="f") + 1)
                self.gather(server, gpu)
                self.fetch_weights(server, gpu)
                server.step(2).send("over", b"", to="/job:producer/task:0")
                self.assertEqual(child.wait(60), 0)
                print(ways.splitlines()[-1])
                self.assertIn("0 staged in chunks", ways)
            finally:
                child.kill()

    def fetch_weights(self, server, gpu):
        """Weights that were published from a GPU's memory, into that of another one and the host's."""
        engine = server.weights("policy", role="observer", owners=["/job:producer/task:0"])
        into = DeviceArray(gpu, numpy.zeros(50))
        got = engine.fetch(tryst.weights.newer_than(0), {"w": (numpy.s_[100:150], into), "b": None}, timeout=60)
        numpy.testing.assert_array_equal(into.values(), numpy.arange(100, 150, dtype="f"))
        floats = numpy.arange(1000, dtype="f")
        self.assertEqual(got["b"].dtype, "bfloat16")
        bits = numpy.frombuffer(got["b"]._view("uint16"), dtype="uint16")
        numpy.testing.assert_array_equal((bits.astype("uint32") << 16).view("f"), bits_of(floats))
        engine.close()

    def gather(self, server, gpu):
        """Selected bytes of a GPU's memory, or into it."""
        peer, step = "/job:producer/task:0", server.step(1)
        sent = numpy.concatenate([numpy.arange(10, dtype="f") + 10 * block for block in (7, 3, 9)])
        wanted = numpy.full(100, -1, "f")
        wanted[20:30], wanted[50:60], wanted[0:10] = sent[:10], sent[10:20], sent[20:]
        for name in ("blocks", "blocks of the host"):
            into = DeviceArray(gpu, numpy.full(100, -1))
            got = step.gather(name, frm=peer, into=into, select=tryst.Blocks([2, 5, 0], 40), timeout=60)
            got.result()
            self.assertEqual(got.failed, [])
            if name == "blocks of the host":
                wanted[20:30], wanted[50:60], wanted[0:10] = range(10), range(10, 20), range(20, 30)
            numpy.testing.assert_array_equal(into.values(), wanted)
        mine = numpy.full(100, -1, "f")
        step.gather("blocks to the host", frm=peer, into=mine, select=tryst.Blocks([2, 5, 0], 40), timeout=60).result()
        wanted[20:30], wanted[50:60], wanted[0:10] = sent[:10], sent[10:20], sent[20:]
        numpy.testing.assert_array_equal(mine, wanted)
        row = step.recv("blocks without a list", frm=peer, timeout=60)
        numpy.testing.assert_array_equal(row.numpy().view("f"), sent)
        into = DeviceArray(gpu, numpy.zeros(100))
        for refused in (dict(digests=True), dict(select=tryst.Blocks([1, 1], 40))):
            with self.assertRaises(tryst.errors.InvalidArgument):
                step.gather("none", frm=peer, into=into, timeout=60, **refused).result()
        with self.assertRaises(tryst.errors.InvalidArgument):
            step.send("none", into, to=peer, select=tryst.Blocks([0], 40), digests=True)

    def test_what_a_worker_sends_itself_is_the_very_tensor(self):
        with tryst.Server(job="self", gpus="0", **SETTINGS) as server:
            gpu = Gpu(0)
            array, into = DeviceArray(gpu, numpy.arange(9)), DeviceArray(gpu, numpy.zeros(9))
            step = server.step(1)
            step.send("own", array, to=server.worker)
            step.recv("own", frm=server.worker, timeout=60, into=into)
            numpy.testing.assert_array_equal(into.values(), numpy.arange(9, dtype="f"))
            step.send("own", array, to=server.worker)
            got = step.recv("own", frm=server.worker, timeout=60)
            self.assertEqual((got.__dlpack_device__(), got.shape), ((CUDA, 0), (9,)))
            self.assertRaises(BufferError, got.numpy)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        produce(sys.argv[2])
        os._exit(0)
    unittest.main()
