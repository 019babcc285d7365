#!/usr/bin/env python3
"""Ray's transport: nested tensors go from actor to actor, and one that waits for a dead actor gets an error and lives on.
Fetches that are begun and waited for later: two at once, one whose source dies, one that is dropped. The second driver of a cluster, when the
first one has ended, with actors of its own and with one of the first one's."""
import gc
import os
import subprocess
import sys
import time

import ray
from ray.experimental.rdt.util import get_tensor_transport_manager

from tryst import ray_transport

try:
    import torch

    kind, ones, arange = torch.Tensor, torch.ones, lambda n: torch.arange(n).to(torch.bfloat16)
except ImportError:
    import numpy

    kind, ones, arange = numpy.ndarray, numpy.ones, numpy.arange
ray_transport.register(kind)


@ray.remote(enable_tensor_transport=True)
class Actor:
    @ray.method(tensor_transport="tryst")
    def make(self, count):
        return {"counted": arange(count), "more": [ones((3, 4)).T]}  # The second is not dense.

    def look(self, made):
        return str(made["counted"].dtype), float(made["counted"][-1]), tuple(made["more"][0].shape)

    def pid(self):
        return os.getpid()

    # Ray calls these of a transport; here they are called by hand, so that what is under way is known.
    def describe(self, obj_id, count):
        self.kept = getattr(self, "kept", {})
        self.kept[obj_id] = [ones(count) * count, arange(count)]
        return get_tensor_transport_manager("TRYST").extract_tensor_transport_metadata(obj_id, self.kept[obj_id])

    def send(self, obj_id, description, meeting):
        get_tensor_transport_manager("TRYST").send_multiple_tensors(self.kept[obj_id], description, meeting)

    def begin(self, obj_id, description, meeting):
        self.manager, self.fetches = get_tensor_transport_manager("TRYST"), getattr(self, "fetches", {})
        self.fetches[obj_id] = self.manager.fetch_multiple_tensors(obj_id, description, meeting)

    def wait(self, obj_id, timeout):
        try:
            came = self.manager.wait_fetch_complete(self.fetches[obj_id], timeout)
            return [float(one[-1]) for one in came]
        except Exception as error:
            return type(error).__name__

    def drop(self, obj_id):
        into = self.fetches[obj_id].tensors[0]
        del self.fetches[obj_id]
        gc.collect()
        into[:] = 7  # Ours again.
        return sorted(self.manager._receiving)


def carry(source, sink):
    looked = ray.get(sink.look.remote(source.make.remote(100)), timeout=120)
    assert looked[1:] == (99.0, (4, 3)), looked
    return looked


def serve_many_jobs():
    """A detached actor has the servers of the jobs that wanted it last, and of its own."""
    class Server:
        def __init__(self, seed):
            self.seed = seed

        def stop(self, _):
            stopped.append(self.seed)

    stopped, transport = [], ray_transport.Transport()
    transport._seed, transport._start = "own", Server
    own = transport._started("own")
    for i in range(100):
        transport._started(str(i))
        assert transport._started("0").seed == "0"
    left = ray_transport._MOST_JOBS - 2  # Beside its own and that of "0".
    assert stopped == [str(i) for i in range(1, 100 - left)], stopped
    assert transport._started("own") is own and len(transport._servers) == ray_transport._MOST_JOBS


if sys.argv[1:2] == ["--first"]:
    ray.init(address=sys.argv[2], namespace="drivers", log_to_driver=False, logging_level="error")
    carry(Actor.remote(), Actor.options(name="kept", lifetime="detached").remote())
    sys.exit()

serve_many_jobs()
cluster = ray.init(num_cpus=4, namespace="drivers", include_dashboard=False, log_to_driver=False, logging_level="error")
subprocess.run([sys.executable, __file__, "--first", cluster.address_info["gcs_address"]], check=True, timeout=180)
source, sink, kept = Actor.remote(), Actor.remote(), ray.get_actor("kept")
looked = carry(source, sink)
carry(source, kept)  # Ray lets no method of a handle by name have a transport, so this one receives alone.

# Two fetches under way at once, the one that began first last; a third that is dropped.
manager = get_tensor_transport_manager("TRYST")
described = {name: ray.get(source.describe.remote(name, count), timeout=60) for name, count in (("a", 5), ("b", 9), ("c", 3), ("d", 4))}
meetings = {name: manager.get_communicator_metadata(source, sink) for name in described}
ray.get([sink.begin.remote(name, described[name], meetings[name]) for name in "abc"], timeout=60)
assert ray.get(sink.wait.remote("a", 0), timeout=60) == "TimeoutError"
assert ray.get(sink.wait.remote("b", 0.2), timeout=60) == "TimeoutError"
ray.get(source.send.remote("b", described["b"], meetings["b"]), timeout=60)
assert ray.get(sink.wait.remote("b", 60), timeout=90) == [9.0, 8.0]
assert ray.get(sink.wait.remote("b", 0), timeout=90) == [9.0, 8.0], "once more the same"
assert ray.get(sink.wait.remote("a", 0), timeout=60) == "TimeoutError"
left = ray.get(sink.drop.remote("c"), timeout=60)
assert left == ["a", "b"], f"the dropped one is {left}"
ray.get(source.send.remote("c", described["c"], meetings["c"]), timeout=60)
ray.get(source.send.remote("a", described["a"], meetings["a"]), timeout=60)
assert ray.get(sink.wait.remote("a", -1), timeout=90) == [5.0, 4.0]
ray.get(sink.drop.remote("a"), timeout=60)
assert ray.get(sink.drop.remote("b"), timeout=60) == [], "what has come is kept"
ray.get(sink.begin.remote("d", described["d"], meetings["d"]), timeout=60)
print("fetches: two at once, one dropped")
pid, source_pid = ray.get([sink.pid.remote(), source.pid.remote()])
made = source.make.remote(100)
ray.wait([made], timeout=60)
ray.kill(source)
until = time.monotonic() + 60
while os.path.exists(f"/proc/{source_pid}") and time.monotonic() < until:
    time.sleep(0.01)
began = time.perf_counter()
try:
    ray.get(sink.look.remote(made), timeout=120)
    raise SystemExit("a dead actor's tensor came")
except ray.exceptions.RayError as error:
    print(str(error).strip().splitlines()[-1][:200])
assert ray.get(sink.wait.remote("d", -1), timeout=90) in ("Unavailable", "Aborted"), "a dead source's tensors were waited for"
assert ray.get(sink.drop.remote("d"), timeout=60) == []
assert ray.get(sink.pid.remote(), timeout=60) == pid, "the other actor is another one"
print(f"{looked}; an error after {time.perf_counter() - began:.1f} s, and the other actor lives")
