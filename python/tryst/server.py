"""A worker of a cluster, its steps, and receives under way."""

import array
import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import weakref

from tryst import _tryst, errors, selections

_BY_REFERENCE, _RECURRING = 1, 2
_COPY, _SEND_DIGESTS = 1, 2
_RECV_DIGESTS, _PARTIAL = 4, 8
_DEVICE = "/device:CPU:0"
_FIRST_ASK_S, _LONGEST_ASK_S = 0.1, 1.0
_AT_ONCE = 256  # How many operations one turn of an event loop ends at most.
_running = weakref.WeakSet()
_followers = weakref.WeakSet()  # They follow torch's allocator.


def _release_followers(*_):
    for server in list(_followers):
        if server in _running:
            server.release_gpu_memory()


def _running_loop():
    """The event loop of this thread. Where asyncio was never imported, which takes long, there is none."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _parsed(text):
    import json

    return json.loads(text)


def _full(worker):
    """ "/job:ps/task:0" with its replica."""
    job, slash, task = worker.partition("/task:")
    return worker if "/replica:" in worker or not slash else f"{job}/replica:0/task:{task}"


class Server:
    """A worker that sends tensors to others of its cluster and receives theirs.

    `cluster` maps each job to the addresses of its tasks. Every setting of docs/CONFIG.md is a
    keyword; True and False switch. Where the cluster has a name, which certificates say, `cluster`
    is the name and `cluster_spec` the map. Serves within a `with`, or between start() and stop().

    >>> import tryst
    >>> with tryst.Server(job="self", listen="127.0.0.1:0", insecure=True, open_cluster=True) as server:
    ...     step = server.step(1)
    ...     step.send("greeting", "hello", to=server.worker)
    ...     print(step.recv("greeting", frm=server.worker, timeout=10).strings())
    ['hello']
    """

    def __init__(self, job, task=0, cluster=None, **settings):
        settings = {"job": job, "task": task, **settings}
        if cluster is not None:
            settings["cluster" if isinstance(cluster, str) else "cluster_spec"] = cluster
        words = []
        for name, value in settings.items():
            if value is None:
                continue
            if name == "cluster_spec" and not isinstance(value, str):
                value = ";".join(f"{job}={','.join(addresses)}" for job, addresses in value.items())
            words.append(("--" if value else "--no") + name if isinstance(value, bool) else f"--{name}={value}")
        self._server = _tryst.Server(words)
        self._incarnations = {self.worker: self._server.incarnation}
        # The beginning of the keys of a peer's tensors, while its incarnation is known.
        self._sources = {}
        self._queues = weakref.WeakKeyDictionary()
        # By event loop and peer: receives that were made before the peer was known, in their order.
        self._not_begun = weakref.WeakKeyDictionary()
        self._order = threading.RLock()  # Threads may begin receives of a loop.
        self._searches = weakref.WeakKeyDictionary()  # By event loop and peer.

    def start(self):
        """Serves when it returns."""
        self._server.start()
        _running.add(self)
        return self

    def stop(self, deadline=10.0):
        """Ends what is under way: by itself until the deadline, in seconds, and then regardless; at once where it is below 0."""
        _running.discard(self)
        self._server.stop(deadline)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    @property
    def worker(self):
        """ "/job:worker/replica:0/task:0" """
        return self._server.worker

    @property
    def address(self):
        return self._server.address

    @property
    def incarnation(self):
        return self._server.incarnation

    def step(self, number):
        """The step of that number. A number is used once."""
        return Step(self, number)

    def empty(self, shape, dtype="float32"):
        """A Tensor to be filled, in memory that reaches workers of this host without a copy.

        Fill it by numpy.asarray() or torch.from_dlpack(), send it, and receive by_reference=True.
        """
        return self._server.allocate(str(dtype), tuple(shape))

    def release_gpu_memory(self):
        """Lets go of what is kept mapped of peers' GPU memory and no tensor uses: how many mappings.

        What a peer frees becomes free only then. Peers do so with ours when they next fetch out of it.
        """
        return self._server.release_gpu_memory()

    def follow_torch(self):
        """From now on release_gpu_memory() follows each torch.cuda.empty_cache(), and each time that torch finds no
        memory: too late for that allocation, but not for the next one. The backend cudaMallocAsync does not tell.
        """
        import torch

        _followers.add(self)
        if getattr(torch.cuda.empty_cache, "tells_tryst", False):
            return
        empty_cache = torch.cuda.empty_cache

        @functools.wraps(empty_cache)
        def empty_and_release():
            empty_cache()
            _release_followers()

        empty_and_release.tells_tryst = True
        torch.cuda.empty_cache = torch.cuda.memory.empty_cache = empty_and_release
        observe = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)  # Only builds for CUDA have it.
        if observe is not None:
            with contextlib.suppress(RuntimeError):  # The backend cudaMallocAsync takes no observer.
                observe(_release_followers)

    def explain(self, peer=""):
        """Which path leads to the peer, or to all of them, and why: as a text."""
        return self._server.explain(_full(peer))

    def paths(self, peer=""):
        """The same as a dictionary (docs/CLI.md)."""
        return _parsed(self._server.explain_json(_full(peer)))

    def waiting(self):
        """Who waits for what since when."""
        return _parsed(self._server.waiting_json())

    def stats(self):
        """Counters, by name."""
        return _parsed(self._server.stats_json())

    def setting(self, name):
        """What a setting is, as a text; KeyError where there is none of that name."""
        text = self._server.setting(name)
        if text is None:
            raise KeyError(name)
        return text

    def wait_for(self, peer, timeout=60.0):
        """Waits until the peer answers."""
        peer = _full(peer)
        if peer == self.worker:
            return
        found = self._ask(peer, timeout)
        if self._incarnations.get(peer) != found:
            self._forget(peer)
            self._incarnations[peer] = found

    def _ask(self, peer, timeout, wanted=None, failed=None):
        """The peer's incarnation, as soon as it answers; None when it is not `wanted` any more.

        The library is asked for a short time and then for longer ones: between them Ctrl-C is heard. `failed` is told
        why the peer has not answered yet.
        """
        until = _until(timeout)
        once = _FIRST_ASK_S
        while wanted is None or wanted():
            left = float("inf") if until is None else until - time.monotonic()
            last = left < 2 * once
            try:
                return self._server.peer_incarnation(peer, max(left, 0.0) if last else once)
            except (errors.DeadlineExceeded, errors.Unavailable) as error:
                if last:
                    raise
                if failed is not None:
                    failed(error)
            once = min(2 * once, _LONGEST_ASK_S)
        return None

    def _find(self, peer, timeout, wanted=None, failed=None):
        found = self._incarnations.get(peer)
        if found is None:
            found = self._ask(peer, timeout, wanted, failed)
            if found is not None:
                self._incarnations[peer] = found
        return found

    def _search(self, peer, loop):
        searches = self._searches.setdefault(loop, {})
        if peer not in searches:
            searches[peer] = _Search(self, peer, loop)
        return searches[peer]

    def _line_up(self, receive):
        """Until the receive's peer is found."""
        with self._order:
            lines = self._not_begun.setdefault(receive._loop, {})
            lines.setdefault(receive._peer, {})[id(receive)] = weakref.ref(receive)

    def _begin_lined_up(self, peer, incarnation, loop):
        """Begins them all, so that those of one name are in the order of their calls."""
        queued = loop if _running_loop() is loop else None  # Nobody else may touch the loop, which may be closed.
        with self._order:
            for reference in list(self._not_begun.get(loop, {}).pop(peer, {}).values()):
                receive = reference()
                if receive is not None:
                    with contextlib.suppress(Exception):  # It says so itself when it is waited for.
                        receive._start(incarnation, queued)

    def _source(self, frm, timeout):
        peer = _full(frm)
        worker = self.worker
        prefix = f"{peer}/device:CPU:0;{self._find(peer, timeout):016x};{worker}/device:CPU:0;"
        self._sources[frm] = prefix
        return prefix

    def _forget(self, peer):
        if peer != self.worker:
            self._sources.clear()
            self._incarnations.pop(peer, None)

    def plan(self, tensors, to=None, frm=None, by_reference=False, recurring=False):
        """What recurs in step after step, prepared once: a Plan.

        `tensors` are names, or a dictionary of arrays by their names, as a state dict is: what is sent `to` that
        worker, or what is filled by what comes `frm` it. Arrays in host memory are converted now, and not again.

        >>> import numpy, tryst
        >>> weights = {"w": numpy.ones(3), "b": numpy.zeros(1)}
        >>> with tryst.Server(job="self", listen="127.0.0.1:0", insecure=True, open_cluster=True) as server:
        ...     push = server.plan(weights, to=server.worker)
        ...     pull = server.plan(list(weights), frm=server.worker)
        ...     for number in range(1, 4):
        ...         with server.step(number) as step:
        ...             weights["w"] += 1
        ...             push.send(step)
        ...             w, b = pull.recv(step, timeout=10)
        >>> w.numpy().tolist()
        [4.0, 4.0, 4.0]
        """
        return Plan(self, tensors, to, frm, by_reference, recurring)

    def weights(self, name, role, owners, rank=None, keep=None, min_members=None, permit=None, on_headless=None,
                decider=None, hold_bytes=None, bytes_per_second=None):
        """One end of a set of weights (tryst.weights): of the role "owner", "member" or "observer".

        `owners` are workers' names, by rank, or how many tasks of this worker's job there are; the first one keeps the
        set's log. Each keeps that many sealed versions. With fewer than `min_members` the leader drops an activation.
        All have the same `permit`: for how many seconds a member may serve without hearing of the leader; "keep"
        `on_headless` has it go on then, knowing that nobody confirms it. With `decider` "etcd" the log is kept in the
        etcd that names the members, and another one of the first three owners leads when the one that did is gone. A
        member has up to `hold_bytes` of what it fetches for other members, in memory of its own. What a member or an
        observer fetches comes at `bytes_per_second` at most, which leaves the rest of the network to others.
        """
        from tryst import weights

        if isinstance(owners, int):
            owners = [f"{self.worker.partition('/task:')[0]}/task:{task}" for task in range(owners)]
        owners = [_full(owner) for owner in owners]
        settings = {"role": role, "keep": keep, "min_members": min_members, "on_headless": on_headless, "decider": decider,
                    "hold_bytes": hold_bytes, "bytes_per_second": bytes_per_second,
                    "permit_ms": None if permit is None else round(permit * 1000)}
        if role == "owner":
            if rank is None:
                rank = owners.index(self.worker) if self.worker in owners else len(owners)
            settings["rank"] = rank
        words = [f"{key}={value}" for key, value in settings.items() if value is not None]
        if role == "owner":
            return weights.Owner(self, name, owners, words, rank)
        return weights.Member(self, name, owners, words)

    def group(self):
        """Fetches that are cancelled together: a tryst.Group."""
        return selections.Group()

    def region(self, name, memory, readers=()):
        """Opens `memory`, an array, to peers until the Region is closed: they fetch of it, and nothing is sent.

        `readers` are workers' names or their beginnings up to a "/"; without them it is open to every worker that may
        receive from this one. The array may be written meanwhile; what is fetched then may be torn.
        """
        return selections.Region(self._server.region(name, memory, [_full(reader) for reader in readers]), name)

    def fetch_region(self, name, frm, wanted, into, select=None, timeout=None, group=None, digests=False, partial=False):
        """Fetches the bytes `wanted` (Blocks, Runs or Spans) of the peer's region into `into`, or into those that
        `select` says: a Gather. One that fails may have filled some of them, which it says. With `digests` the owner
        digests what it sends; what comes wrong is asked for once more.
        """
        return self._gather(selections.REGIONS_STEP, f"|region|{name}", frm, into, select, timeout, group,
                            digests, partial, selections.packed(wanted))

    def _gather(self, number, name, frm, into, select, timeout, group, digests, partial, wanted=None):
        flags = (_RECV_DIGESTS if digests else 0) | (_PARTIAL if partial else 0)
        peer, worker = _full(frm), self.worker
        landing = selections.packed(select)
        handle = None if group is None else group.handle

        def begin(incarnation, queue, left):
            key = f"{peer}{_DEVICE};{incarnation:016x};{worker}{_DEVICE};{name};0:0"
            return self._server.gather(number, key, wanted, into, landing, left, handle, queue, flags)

        return Gather(self, peer, timeout, begin)

    def _prepared(self, source, incarnation, sink, names):
        return self._server.plan(source + _DEVICE, incarnation, sink + _DEVICE, names)

    def _queue_of(self, loop):
        queue = self._queues.get(loop)
        if queue is None:
            queue = _Queue(loop)
            self._queues[loop] = queue
        return queue.queue


class _Search:
    """Finds a peer for all receives of one event loop that wait for it: on a thread of its own, which ends when none does."""

    def __init__(self, server, peer, loop):
        self._server, self._peer, self._loop = server, peer, weakref.ref(loop)
        self._waits = {}  # By the future of a receive, whether that is still wanted. The loop alone changes it.
        self._runs, self._why = False, None

    def wait(self, receive, loop):
        """The peer's incarnation, within the receive's own time; None when that is not wanted any more."""
        future, left = loop.create_future(), _left(receive._until)
        timer = None if left is None else loop.call_later(left, self._expire, future)
        self._waits[future] = _wanted_of(receive)
        if not self._runs:
            self._begin(loop)
        try:
            return (yield from future)
        finally:
            self._waits.pop(future, None)
            if timer is not None:
                timer.cancel()

    def _begin(self, loop):
        self._runs = True
        selections.in_thread(loop, self._server._find, self._peer, None, self._wanted, self._failed).add_done_callback(self._end)

    def _wanted(self):
        """On the thread, between two questions."""
        loop = self._loop()
        if loop is None or loop.is_closed() or not threading.main_thread().is_alive():
            return False
        waits = list(self._waits.items())
        left = [future for future, wanted in waits if not wanted()]
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            for future in left:
                loop.call_soon_threadsafe(_settle, future, None)
        return len(left) < len(waits)

    def _failed(self, error):
        self._why = error

    def _expire(self, future):
        if not future.done():
            future.set_exception(self._why or errors.DeadlineExceeded(f"{self._peer} has not answered in time"))

    def _end(self, found):
        self._runs = False
        error, loop = found.exception(), self._loop()
        for future, wanted in list(self._waits.items()):
            if future.done():
                pass
            elif error is not None:
                future.set_exception(error)
            elif found.result() is not None or not wanted():
                future.set_result(found.result())
            else:
                continue
            del self._waits[future]
        if self._waits:  # They have come when the search had found that nobody waited.
            self._begin(loop)
        else:
            self._server._searches.get(loop, {}).pop(self._peer, None)


def _settle(future, result):
    if not future.done():
        future.set_result(result)


class _Queue:
    """What finishes for one event loop."""

    def __init__(self, loop):
        self.queue = queue = _tryst.Queue()
        self._loop = weakref.ref(loop)
        loop.add_reader(queue.fileno(), _Queue._ready, queue)

    def __del__(self):
        # Its server is gone, perhaps on another thread. The descriptor stays open until the loop has left it.
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # It was closed meanwhile.
                loop.call_soon_threadsafe(_Queue._leave, loop, self.queue)

    @staticmethod
    def _leave(loop, queue):
        loop.remove_reader(queue.fileno())

    @staticmethod
    def _ready(queue):
        for operation in queue.take(_AT_ONCE):
            owner = operation.owner
            receive = owner() if owner is not None else None
            if receive is not None:
                receive._wake()


class Step:
    """One round of the workers: tensors meet by step and name. In a `with` it is over at its end."""

    __slots__ = ("_server", "number")

    def __init__(self, server, number):
        self._server = server
        self.number = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cleanup()

    def send(self, name, source, to, copy=False, select=None, digests=False):
        """Sends a tensor: anything with a buffer or with `__dlpack__`, strings, None for a dead one.

        Never waits and makes no copy: the tensor must not change until it is received, unless
        `copy` is true. With `select` (Blocks, Runs or Spans) those bytes are sent, and copied; for a gather with
        `digests`, and no other receive, with digests.
        """
        if select is None and not digests:
            return self.send_many({name: source}, to, copy)
        server = self._server
        key = f"{server.worker}{_DEVICE};{server.incarnation:016x};{_full(to)}{_DEVICE};{name};0:0"
        server._server.send_selected(self.number, key, source, selections.packed(select), _SEND_DIGESTS if digests else 0)

    def send_many(self, tensors, to, copy=False):
        """The same of a dictionary of tensors, in one call; in one for each where they are of several streams."""
        server = self._server
        if tensors:
            prepared = server._prepared(server.worker, server.incarnation, _full(to), list(tensors))
            prepared.send(self.number, tensors, _COPY if copy else 0)

    def recv(self, name, frm, timeout=None, into=None, by_reference=False, recurring=False):
        """Waits for a tensor and returns it; None for a dead one. `timeout` is in seconds.

        `into` is an array of the right type and shape to fill. With `by_reference` the tensor may
        be a view of the producer's memory, to be read only; an `into` is filled all the same.
        """
        server = self._server
        prefix = server._sources.get(frm)
        if prefix is None:  # The peer is to be found first, within the same time.
            until = _until(timeout)
            prefix = server._source(frm, timeout)
            timeout = _left(until)
        flags = (_BY_REFERENCE if by_reference else 0) | (_RECURRING if recurring else 0)
        try:
            return server._server.recv_one(self.number, f"{prefix}{name};0:0", timeout, flags, into)
        except (errors.Aborted, errors.Unavailable):
            server._forget(_full(frm))  # The peer may have restarted.
            raise

    def gather(self, name, frm, into, select=None, timeout=None, group=None, digests=False, partial=False):
        """A receive whose bytes fill those of `into` that `select` says (Blocks, Runs or Spans; without it all), and
        leave the rest as it is: a Gather, of one tensor, which is `into`. Wait with result() or `await`. With
        `digests`, which the send has then, too, spans are checked: one that is wrong makes it fail with DataLoss, or
        with `partial` is only told.

        >>> import tryst
        >>> pool, mine = bytearray(b"aabbccdd"), bytearray(8)
        >>> with tryst.Server(job="self", listen="127.0.0.1:0", insecure=True, open_cluster=True) as server:
        ...     with server.step(1) as step:
        ...         step.send("kv", pool, to=server.worker, select=tryst.Blocks([3, 1], 2))
        ...         got = step.gather("kv", frm=server.worker, into=mine, select=tryst.Blocks([0, 2], 2), timeout=10)
        ...         _ = got.result()
        >>> bytes(mine)
        b'dd\\x00\\x00bb\\x00\\x00'
        """
        return self._server._gather(self.number, name, frm, into, select, timeout, group, digests, partial)

    def recv_many(self, names, frm, timeout=None, into=None, by_reference=False, recurring=False):
        """Many tensors at once: `a, b = step.recv_many(...)` waits for them, and
        `a, b = await step.recv_many(...)` does so in an event loop. Cancelled when dropped.
        """
        return self.start(list(names), frm, timeout, into, by_reference, recurring)

    async def arecv(self, name, frm, **options):
        """recv() in an event loop."""
        into = options.pop("into", None)
        return (await self.recv_many([name], frm, into=None if into is None else [into], **options))[0]

    def start(self, names, frm, timeout=None, into=None, by_reference=False, recurring=False):
        server, peer, number = self._server, _full(frm), self.number
        flags = (_BY_REFERENCE if by_reference else 0) | (_RECURRING if recurring else 0)
        into = None if into is None else list(into)

        def begin(incarnation, queue, left):
            prepared = server._prepared(peer, incarnation, server.worker, names)
            return prepared.recv(number, into, left, flags, queue)

        return Receive(server, peer, timeout, begin)

    def abort(self, message="aborted by the program", code="ABORTED"):
        """Fails what waits in the step, and what comes later, here."""
        self._server._server.abort(self.number, errors.CODES[code], message)

    def cleanup(self):
        """The step is over here."""
        self._server._server.cleanup(self.number)


class Plan:
    """Names that recur, with the arrays that are sent or filled under them: see Server.plan()."""

    __slots__ = ("names", "_server", "_peer", "_arrays", "_flags", "_prepared", "_incarnation", "_sends")

    def __init__(self, server, tensors, to, frm, by_reference, recurring):
        if (to is None) == (frm is None):
            raise ValueError("a plan needs to= (a worker to send to) or frm= (one to receive from), and not both")
        self.names = list(tensors)
        self._server = server
        self._sends = to is not None
        self._peer = _full(to if self._sends else frm)
        self._arrays = tensors if hasattr(tensors, "keys") else None
        self._flags = (_BY_REFERENCE if by_reference else 0) | (_RECURRING if recurring else 0)
        self._prepared = self._incarnation = None
        if self._sends:
            self._prepare(server.worker, server.incarnation, self._peer)

    def _prepare(self, source, incarnation, sink):
        prepared = self._server._prepared(source, incarnation, sink, list(self.names))
        if self._arrays is not None:
            prepared.bind(self._arrays)
        self._prepared, self._incarnation = prepared, incarnation

    def send(self, step, tensors=None, copy=False):
        """Sends the plan's arrays in that step, or other `tensors`: a list in the order of the names, or a dictionary
        that has them. As Step.send_many().
        """
        if not self._sends:
            raise ValueError("this plan receives (it was made with frm=), and cannot send")
        self._prepared.send(_number(step), tensors, _COPY if copy else 0)

    def recv(self, step, timeout=None, into=None):
        """Fills the plan's arrays, or those of `into`: a list in the order of the names, or a dictionary that has
        them. A Receive, as of Step.recv_many().
        """
        if self._sends:
            raise ValueError("this plan sends (it was made with to=), and cannot receive")
        number = _number(step)

        def begin(incarnation, queue, left):
            if incarnation != self._incarnation:  # The peer has restarted, or is new.
                self._prepare(self._peer, incarnation, self._server.worker)
            return self._prepared.recv(number, into, left, self._flags, queue)

        return Receive(self._server, self._peer, timeout, begin)


def _until(timeout):
    if timeout != timeout:
        raise ValueError("a time to wait is nan: give seconds, or None for no limit")
    return None if timeout is None else time.monotonic() + timeout


def _left(until):
    return None if until is None else max(0.0, until - time.monotonic())


def _number(step):
    return step.number if isinstance(step, Step) else step


class Receive:
    """Receives under way. Wait with result(), by unpacking it, or with `await`."""

    __slots__ = ("_server", "_peer", "_until", "_begin", "_operation", "_loop", "_waiting", "_cancelled", "_taken",
                 "__weakref__")

    def __init__(self, server, peer, timeout, begin):
        self._server, self._peer = server, peer
        self._until = _until(timeout)
        self._begin = begin  # Called with the peer's incarnation, a queue or None, and the time that is left.
        self._operation = None
        self._waiting = []  # A future of each task that awaits it.
        self._cancelled = self._taken = False
        self._loop = _running_loop()
        # Before the first receive from a peer its incarnation must be found out. That is a call
        # that waits, so not in an event loop.
        if self._loop is None:
            self._start_now(server._find(peer, timeout), None)
        elif peer in server._incarnations:
            incarnation = server._incarnations[peer]
            if server._not_begun:
                server._begin_lined_up(peer, incarnation, self._loop)
            self._start_now(incarnation, self._loop)
        else:
            server._line_up(self)

    def _start(self, incarnation, loop):
        """Does nothing where somebody else has started it meanwhile."""
        with self._server._order:
            if self._operation is not None or self._taken:
                return
            if self._cancelled:
                raise errors.Cancelled("the receive was cancelled before its peer had answered")
            self._start_now(incarnation, loop)

    def _start_now(self, incarnation, loop):
        """In the queue of that loop, if any."""
        self._loop = loop
        queue = None if loop is None else self._server._queue_of(loop)
        self._operation = self._begin(incarnation, queue, _left(self._until))
        if queue is not None:
            self._operation.owner = weakref.ref(self)

    def __del__(self):
        if getattr(self, "_operation", None) is not None:
            self._operation.cancel()
        elif getattr(self, "_loop", None) is not None:
            self._server._not_begun.get(self._loop, {}).get(self._peer, {}).pop(id(self), None)

    def _wake(self):
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _results(self):
        if self._taken:
            raise errors.FailedPrecondition("the results of this receive were taken already, and can be taken only once: keep what the first call returned")
        self._taken = True
        operation, self._operation = self._operation, None
        try:
            return operation.results()
        except errors.Error as error:
            if isinstance(error, (errors.Aborted, errors.Unavailable)):
                self._server._forget(self._peer)  # The peer may have restarted.
            raise

    def cancel(self):
        """Ends it with Cancelled."""
        self._cancelled = True
        if self._operation is not None:
            self._operation.cancel()

    def wait(self, timeout=None):
        """Waits for all of them, at most so many seconds: whether they have ended. Ctrl-C ends the wait."""
        until = _until(timeout)
        if self._operation is None and not self._taken and not self._found(timeout):
            return False
        operation = self._operation
        return operation is None or operation.wait(_left(until))

    def _found(self, timeout):
        """Begins it as soon as its peer is found: whether that is within the time."""
        own = _left(self._until)
        short = timeout is not None and (own is None or max(timeout, 0.0) < own)
        try:
            incarnation = self._server._find(self._peer, max(timeout, 0.0) if short else own, _wanted_of(self))
        except (errors.DeadlineExceeded, errors.Unavailable):
            if short:
                return False
            raise
        loop = self._loop
        if incarnation is not None and loop is not None:
            self._server._begin_lined_up(self._peer, incarnation, loop)
        self._start(incarnation, loop if _running_loop() is loop else None)
        return True

    def result(self):
        """Waits for all of them; Ctrl-C ends the wait."""
        self.wait()
        return self._results()

    def __iter__(self):
        return iter(self.result())

    def __await__(self):
        loop = _running_loop()
        try:
            if self._operation is None and not self._taken:
                incarnation = self._server._incarnations.get(self._peer)
                if incarnation is None:
                    incarnation = yield from self._server._search(self._peer, loop).wait(self, loop)
                if incarnation is not None and self._loop is loop:
                    self._server._begin_lined_up(self._peer, incarnation, loop)
                self._start(incarnation, loop)
            operation = self._operation
            if operation is not None and not operation.wait(0):
                if loop is self._loop:
                    yield from self._woken(loop)
                else:  # It is in no queue of this loop's.
                    yield from selections.over(loop, operation.wait)
        except errors.Error:
            raise
        except BaseException:
            self.cancel()
            raise
        return self._results()

    def _woken(self, loop):
        future = loop.create_future()
        self._waiting.append(future)
        try:
            yield from future
        finally:
            self._waiting.remove(future)


class Gather(Receive):
    """A receive into spans of an array. Once it has ended, also by an error, it knows of each by its number.

    `failed`: a list of those that are not there as a whole, or came with a wrong digest. `digests`: the CRC-32C of
    each, if they were asked for; 0 of one that failed. A run's spans have a number each; without gaps it is one span.
    """

    __slots__ = ("failed", "digests")

    def __init__(self, *args):
        self.failed, self.digests = None, None
        super().__init__(*args)

    def _results(self):
        operation = self._operation
        try:
            return super()._results()
        finally:
            if operation is not None:
                self.failed, self.digests = (array.array("I", numbers) for numbers in operation.spans())
                self.failed = self.failed.tolist()


def _wanted_of(receive):
    """Whether somebody still waits for the receive: it was neither cancelled nor dropped."""
    this = weakref.ref(receive)

    def wanted():
        receive = this()
        return receive is not None and not receive._cancelled

    return wanted


@atexit.register
def _stop_all():
    """Servers that still run would otherwise end with the interpreter half gone."""
    for server in list(_running):
        try:
            server.stop(1.0)
        except errors.Error:
            pass
    _tryst.end()


def _forget_parent():
    _running.clear()


os.register_at_fork(after_in_child=_forget_parent)
