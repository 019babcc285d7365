# %% [markdown]
# # A tour in Python
#
# Two workers, here in one process, that meet by names. Every cell was run, in this order, to make this page:
# `examples/python/page.py examples/python/tour.py docs/examples/python_tour.md`.

# %%
import asyncio
import time

import numpy
import tryst

common = dict(listen="127.0.0.1:0", insecure=True, open_cluster=True)
ps = tryst.Server(job="ps", **common).start()
worker = tryst.Server(job="worker", join=f"{ps.worker}@{ps.address}", **common).start()

# %% [markdown]
# Whoever comes first waits: the order of the two calls does not matter. A step is one round, and its number is used once.

# %%
ps.step(1).send("weights", numpy.arange(6, dtype="f").reshape(2, 3), to="/job:worker/task:0")
weights = worker.step(1).recv("weights", frm="/job:ps/task:0", timeout=10)
print(weights)
print(weights.numpy())

# %% [markdown]
# A failure says what happened, to whom, and what one usually does then.

# %%
try:
    worker.step(1).recv("nobody sends this", frm="/job:ps/task:0", timeout=0.1)
except tryst.DeadlineExceeded as error:
    print(error)

# %% [markdown]
# In an event loop the same calls are awaited; a task that is cancelled cancels its receive.


# %%
async def gather():
    receives = [worker.step(2).arecv(f"part {i}", frm="/job:ps/task:0", timeout=10) for i in range(3)]
    tasks = [asyncio.ensure_future(one) for one in receives]
    ps.step(2).send_many({f"part {i}": numpy.full(2, i) for i in range(3)}, to="/job:worker/task:0")
    return [int(one.numpy().sum()) for one in await asyncio.gather(*tasks)]


print(asyncio.run(gather()))

# %% [markdown]
# How long does a pull take? In memory that the workers of a host share it does not depend on the size, where the receiver may
# look at the sender's memory; else it is the time of a copy.

# %%
sizes = [2**i for i in range(10, 27, 2)]
times = {"by reference": [], "as a copy of its own": []}
numbers = iter(range(10, 10**6))


def pull(source, **how):
    number = next(numbers)
    with ps.step(number) as out, worker.step(number) as back:
        out.send("x", source, to="/job:worker/task:0")
        began = time.perf_counter()
        got = back.recv("x", frm="/job:ps/task:0", timeout=60, **how)
        took = time.perf_counter() - began
        assert got.numpy()[-1] == 7
    return took * 1e6


for size in sizes:
    source = ps.empty((size // 4,), "float32")
    numpy.asarray(source)[:] = 7
    into = numpy.zeros(size // 4, "f")
    times["by reference"].append(min(pull(source, by_reference=True) for _ in range(9)))
    times["as a copy of its own"].append(min(pull(source, into=into) for _ in range(9)))
for name, took in times.items():
    print(f"{name}: " + ", ".join(f"{size >> 10} KiB {one:.0f} us" for size, one in zip(sizes, took)))

# %% plot
plot("microseconds of a pull", [f"{size >> 10} KiB" for size in sizes], times)

# %% [markdown]
# Which way a peer's tensors take, and why, is a question of its own.

# %%
print(worker.explain("/job:ps/task:0").splitlines()[1])
for server in worker, ps:
    server.stop()
