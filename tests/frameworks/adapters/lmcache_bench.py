#!/usr/bin/env python3
"""lmcache_bench.py [--turns=3] [SYSTEM...]: LMCache's own benchmark of its transfer channels, over "tryst" and its "nixl", in turns.

100 objects of 1 MiB are read and compared, between two processes. The installed package is what runs; in place of torch and of its L1 memory,
which takes native code, it has numpy's.
"""
import functools
import os
import pathlib
import re
import runpy
import socket
import subprocess
import sys
import types

os.environ["ADAPTERS"] = "lmcache"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import numpy
import stubs

BENCHMARK = "lmcache.tools.transfer_channel_benchmark"


class Object:
    def __init__(self, memory, offset, size):
        self.shm_offset, self.shm_byte_length, self.tensor = offset, size, memory[offset:offset + size].view(stubs.Tensor)


class Memory:
    """What the benchmark asks of an L1MemoryManager."""

    def __init__(self, size_in_bytes, align_bytes, **_):
        self.memory, self.align = numpy.zeros(size_in_bytes, "u1"), align_bytes

    def allocate(self, layout, count):
        size = layout.shapes[0][0]
        return "success", [Object(self.memory, i * size, size) for i in range(count)]

    def get_l1_memory_desc(self):
        from lmcache.v1.distributed.internal_api import L1MemoryDesc

        return L1MemoryDesc(ptr=self.memory.ctypes.data, size=self.memory.nbytes, align_bytes=self.align)

    def free(self, objects):
        pass

    def close(self):
        pass


def put(name, **names):
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


def run(system, arguments):
    stubs.install()
    del sys.modules["lmcache.v1.distributed.transfer_channel"]  # Not the one without its own code.
    stubs.Tensor.fill_ = numpy.ndarray.fill
    import lmcache.v1.distributed.api as api

    api.MemoryLayoutDesc = types.SimpleNamespace
    put("lmcache.v1.distributed.config", L1MemoryManagerConfig=dict)
    put("lmcache.v1.distributed.error", L1Error=types.SimpleNamespace(SUCCESS="success"))
    put("lmcache.v1.distributed.memory_manager", L1MemoryManager=lambda config: Memory(**config))
    if system == "tryst":
        import tryst.lmcache
        from lmcache.v1.distributed.transfer_channel.factory import register_transfer_channel_factory

        register_transfer_channel_factory("tryst", lambda backends, **how: tryst.lmcache.TrystContext(insecure=True, **how))
    sys.argv = [BENCHMARK, "--transfer-channel-type", system, *arguments]
    runpy.run_module(BENCHMARK, run_name="__main__", alter_sys=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % one.getsockname()[1]


def measure(system):
    """The median of a read, in ms."""
    url, control, own = free_port(), free_port(), free_port()
    start = functools.partial(subprocess.Popen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    command = [sys.executable, __file__, "--run", system, "--url", url, "--control-url", control, "--page-size", "1MB", "--object-size", "1MB",
               "--num-objects", "100", "--buffer-size", "600MB"]
    server = start([*command, "--role", "server"])
    try:
        said = ""
        while "[server] ready" not in said:
            said = server.stdout.readline() or sys.exit("%s: its server ends" % system)
        client = start([*command, "--role", "client", "--listen-url", own, "--iters", "30", "--warmup", "3", "--verify"])
        text = client.communicate(timeout=120)[0]
    finally:
        server.kill()
    median = re.search(r"median : +([0-9.]+) ms", text)
    if not median or "verify OK" not in text:
        sys.exit(text)
    return float(median[1])


def main():
    if sys.argv[1:2] == ["--run"]:
        return run(sys.argv[2], sys.argv[3:])
    turns = int(next((word[8:] for word in sys.argv if word.startswith("--turns=")), 3))
    systems = [word for word in sys.argv[1:] if not word.startswith("--")] or ["tryst", "nixl"]
    times = {system: [] for system in systems}
    for _ in range(turns):
        for system in systems:
            times[system].append(measure(system))
    medians = {system: sorted(each)[len(each) // 2] for system, each in times.items()}
    print("LMCache's own benchmark, 100 x 1 MiB: " + ", ".join("%s %.1f ms" % pair for pair in medians.items()))


if __name__ == "__main__":
    main()
