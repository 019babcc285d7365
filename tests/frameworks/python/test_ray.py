#!/usr/bin/env python3
"""Ray's transport: nested tensors go from actor to actor, and one that waits for a dead actor gets an error and lives on."""
import os
import time

import ray

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


ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
source, sink = Actor.remote(), Actor.remote()
looked = ray.get(sink.look.remote(source.make.remote(100)), timeout=120)
assert looked[1:] == (99.0, (4, 3)), looked
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
assert ray.get(sink.pid.remote(), timeout=60) == pid, "the other actor is another one"
print(f"{looked}; an error after {time.perf_counter() - began:.1f} s, and the other actor lives")
