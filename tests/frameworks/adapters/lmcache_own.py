#!/usr/bin/env python3
"""lmcache_own.py SOURCES tryst|nixl: LMCache's own tests of its transfer channels, over the channel "tryst" or NIXL's.

SOURCES is its source package, unpacked; the installed package is what runs, without torch and native code (stubs.py). Those of NIXL's channel
are written against the public contract, so that they take any context in its place. The last line counts.
"""
import os
import pathlib
import shutil
import sys
import tempfile
import types

os.environ["ADAPTERS"] = "lmcache"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import numpy
import pytest
import stubs

CHANNEL = "lmcache.v1.distributed.transfer_channel"


def torch_of_numpy():
    torch, tensor = sys.modules["torch"], stubs.Tensor
    torch.zeros = lambda size, dtype=None: numpy.zeros(size, getattr(dtype, "name", "f")).view(tensor)
    torch.arange = lambda begin, end, dtype=None: numpy.arange(begin, end, dtype=dtype.name).view(tensor)
    torch.equal = numpy.array_equal
    tensor.data_ptr = lambda self: self.ctypes.data
    tensor.repeat = lambda self, times: numpy.tile(numpy.asarray(self), times).view(tensor)


def put_tryst_in_its_place():
    import tryst.lmcache

    tryst.lmcache.register()
    from lmcache.v1.distributed.transfer_channel.factory import create_transfer_channel_context

    def context(memory, listen_url, advertise_url):
        return create_transfer_channel_context("tryst", l1_memory_desc=memory, listen_url=listen_url, advertise_url=advertise_url, insecure=True)

    sys.modules[f"{CHANNEL}.impl.nixl_impl"] = types.SimpleNamespace(NixlTransferChannelContext=context)


class Count:
    def __init__(self):
        self.of = {"passed": 0, "failed": 0, "skipped": 0}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.of[report.outcome] += 1


def main():
    sources, system = sys.argv[1:]
    stubs.install()
    torch_of_numpy()
    del sys.modules[CHANNEL]  # Not the one without its own code.
    if system == "tryst":
        sys.modules.setdefault("nixl", types.ModuleType("nixl"))
        put_tryst_in_its_place()
    count = Count()
    with tempfile.TemporaryDirectory() as alone:  # Without what its conftest.py loads.
        shutil.copytree(pathlib.Path(sources, "tests", *CHANNEL.split(".")[1:]), alone, dirs_exist_ok=True)
        pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", alone, "--import-mode=importlib", alone], plugins=[count])
    print("%d passed, %d failed, %d skipped" % tuple(count.of.values()), flush=True)
    os._exit(not (count.of["passed"] and not count.of["failed"]))  # NIXL's threads would not end.


if __name__ == "__main__":
    main()
