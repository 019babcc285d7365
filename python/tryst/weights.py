"""Versions of sharded tensors: owners publish and seal them, members fetch them and serve the one that all agree on.

An owner, in each of two trainers:

    owner = server.weights("policy", role="owner", owners=["/job:trainer/task:0", "/job:trainer/task:1"])
    owner.declare([Layout("w", "bfloat16", (4096, 4096), placements=[Shard(0)])])
    with owner.version(105, label="step 105") as version:
        version.publish("w", rows, cast="bfloat16")  # The end of the block seals; an exception drops the version.
    owner.activate(105, mode="rolling", timeout=60)

A member, in each engine:

    engine = server.weights("policy", role="member", owners=[...])
    engine.follow(stage=lambda number: {"w": None}, switch=lambda number, tensors: model.load(tensors))  # On a thread.
    with engine.serving() as number:  # FailedPrecondition where nothing may be served.
        generate(number)

Each call that waits has a form to `await`, with an a before its name. Ctrl-C and a cancelled task end a wait; when it
has ended, nothing is written into the caller's arrays any more.
"""

import collections
import contextlib
import json
import sys
import threading
import time

from tryst import _tryst, arrays, errors

_MODES = {"rolling": 0, "barrier": 1}
_RELEASES = {"wait": 0, "copy": 1, "drop": 2}
_NUMBER, _NEWER, _ACTIVE = range(3)
_KINDS = ("sealed", "prepare", "hold", "active", "dropped", "headless")
_CUDA = 2  # What DLPack calls it.
_STAGED, _NOT_STAGED, _HELD, _SWITCHED = range(4)

Event = collections.namedtuple("Event", "kind number")
Event.__doc__ = """What a member hears: `kind` is "sealed", "prepare", "hold", "active", "dropped" or "headless"."""


class Shard:
    """Along this axis of the mesh the tensor is split in dimension `dim`, as torch.chunk does."""

    def __init__(self, dim):
        self.dim = dim


class Replicate:
    """Along this axis of the mesh all have the same."""

    dim = -1


class Layout:
    """Who owns what of a tensor, the same at all owners.

    `owners` are ranks that stand in a mesh of the shape `mesh` (by default one axis), outer axis first; each axis is
    placed by its entry of `placements`. Without owners they are all, and without placements each has the whole.
    Or `boxes` says it: pairs of a rank and a box, which is a tuple of slices.
    """

    def __init__(self, name, dtype, shape, owners=None, placements=(), mesh=None, boxes=()):
        self.name, self.dtype, self.shape = name, str(dtype), tuple(shape)
        self.owners = None if owners is None else tuple(owners)
        self.placements, self.mesh, self.boxes = tuple(placements), mesh, tuple(boxes)

    def _tuple(self, owners):
        ranks, placements = self.owners, [getattr(placement, "dim", placement) for placement in self.placements]
        if ranks is None and placements:
            ranks = tuple(range(owners))
        if ranks is None or self.boxes:
            mesh = ()
        else:
            mesh = (len(ranks),) if self.mesh is None else tuple(self.mesh)
            placements = placements or [-1] * len(mesh)
        boxes = tuple((rank, *_box(box, self.shape)) for rank, box in self.boxes)
        return self.name, self.dtype, self.shape, ranks or (), mesh, tuple(placements), boxes


def newer_than(number):
    """For Member.fetch(): the newest sealed version above that number, as soon as there is one."""
    return _Newer(number)


_Newer = collections.namedtuple("_Newer", "number")
_Holding = collections.namedtuple("_Holding", "number items")


def holding(number, items):
    """Items of a fetch whose arrays hold their boxes of version `number` already, so that only what changed need come.

    What they hold is checked: an array with other contents takes longer, and gets the right ones.
    """
    return _Holding(number, items)


class Fetched(dict):
    """Tensors by name, of the version `number` with its `label`."""

    def __init__(self, number, label, tensors):
        super().__init__(tensors)
        self.number, self.label = number, label


def _box(slices, shape):
    """(begin, extent) of a tuple of slices; None is the whole."""
    if slices is None:
        return (0,) * len(shape), tuple(shape)
    slices = slices if isinstance(slices, tuple) else (slices,)
    if len(slices) != len(shape):
        raise ValueError(f"the box has {len(slices)} slices and its tensor {len(shape)} dimensions: give one slice for each")
    ends = []
    for part, size in zip(slices, shape):
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ValueError(f"a box has to be made of slices without a step, and {part!r} is none")
        ends.append(part.indices(size)[:2])
    return tuple(begin for begin, _ in ends), tuple(max(end - begin, 0) for begin, end in ends)


def _dense(shape):
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def _lies(source):
    """The Tensor in whose memory the elements of `source` lie, where its first one is, and the strides."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        source = source.detach()
        shape, strides = tuple(source.shape), tuple(source.stride())
        if source.is_contiguous() or 0 in shape:
            return _tryst.tensor(source), 0, _dense(shape)
        span = 1 + sum((size - 1) * step for size, step in zip(shape, strides))
        return _tryst.tensor(torch.as_strided(source, (span,), (1,))), 0, strides
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, numpy.ndarray) and not source.flags.c_contiguous and source.size:
        size = source.itemsize
        if any(step % size for step in source.strides):
            raise ValueError("the array's strides are no multiples of the size of its elements: make the array contiguous first")
        # The memory from its lowest element to its highest one.
        turned = source[tuple(slice(None, None, -1 if step < 0 else 1) for step in source.strides)]
        span = 1 + sum((count - 1) * (step // size) for count, step in zip(turned.shape, turned.strides))
        memory = numpy.lib.stride_tricks.as_strided(turned, (span,), (size,), writeable=source.flags.writeable)
        offset = sum((count - 1) * (-step // size) for count, step in zip(source.shape, source.strides) if step < 0)
        return _tryst.tensor(memory), offset, tuple(step // size for step in source.strides)
    tensor = source if isinstance(source, _tryst.Tensor) else _tryst.tensor(source)
    return tensor, 0, _dense(tensor.shape)


def _stream(source, tensor):
    """The GPU in whose memory the tensor lies, and the address of the stream on which its library works; -1, 0 for the host's."""
    kind, gpu = tensor.__dlpack_device__()
    return (gpu, arrays._stream(source, gpu)) if kind == _CUDA else (-1, 0)


def _item(name, begin, extent, source, has=0):
    shape = tuple(getattr(source, "shape", ()))
    tensor, offset, strides = _lies(source)
    if not shape:
        shape = tuple(tensor.shape)
    if shape != tuple(extent):
        raise ValueError(f"the array has shape {shape}, and the box of tensor {name!r} has shape {tuple(extent)}")
    return name, begin, extent, tensor, offset, strides, has, *_stream(source, tensor)


def _countdown(timeout):
    """A function that gives what is left of `timeout`: None is for ever."""
    until = None if timeout is None else time.monotonic() + timeout
    return lambda: None if until is None else max(0.0, until - time.monotonic())


class _Call:
    """A call that waits, on a thread of its own. It keeps its end open, whatever becomes of whoever waits for it."""

    def __init__(self, end, function, args, ended):
        self._end, self._function, self._args, self._ended = end, function, args, ended
        self.cancellation = _tryst.Cancellation()
        self._result = self._error = None

    def start(self):
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            self._result = self._end._run(self._function, self._args, self.cancellation)
        except BaseException as error:  # It is raised where it is waited for.
            self._error = error
        self._ended()

    def result(self):
        if self._error is not None:
            raise self._error
        return self._result


class _End:
    """One end of a set. Closing it, which the end of a `with` does, leaves the set."""

    def __init__(self, server, name, owners, settings):
        self._server, self._owners = server, owners
        self._weights = server._server.weights(name, owners, settings)
        self._under_way, self._changed, self._closed = set(), threading.Condition(), False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @contextlib.contextmanager
    def _call(self, cancellation=None):
        """Keeps the end open. A call that was cancelled before it has begun does not begin."""
        cancellation = cancellation or _tryst.Cancellation()
        with self._changed:
            if self._closed:
                raise errors.FailedPrecondition("this Owner or Member is closed: open the set of weights again")
            if cancellation.cancelled():
                raise errors.Cancelled("the call was cancelled before it began")
            self._under_way.add(cancellation)
        try:
            yield
        finally:
            with self._changed:
                self._under_way.remove(cancellation)
                self._changed.notify_all()

    def _run(self, function, args, cancellation):
        with self._call(cancellation):
            return function(*args, cancellation)

    def _cancel(self, cancellation):
        with self._changed:
            cancellation.cancel()
            self._changed.notify_all()

    def _stop(self, cancellation):
        """Cancels a call, and returns when it has ended. What signals raise meanwhile is lost: one has ended the wait."""
        while True:
            try:
                self._cancel(cancellation)
                with self._changed:
                    self._changed.wait_for(lambda: cancellation not in self._under_way)
                return
            except BaseException:
                continue

    def _wait(self, function, *args):
        if threading.current_thread() is not threading.main_thread():
            return self._run(function, args, _tryst.Cancellation())
        ended = threading.Event()
        call = _Call(self, function, args, ended.set)
        try:
            call.start()
            ended.wait()
        except BaseException:  # A signal's handler has raised it.
            self._stop(call.cancellation)
            raise
        return call.result()

    async def _await(self, function, *args):
        import asyncio

        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end():
            with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
                loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(None))

        call = _Call(self, function, args, end)
        call.start()
        cancelled = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                cancelled = error
                self._cancel(call.cancellation)
        if cancelled is not None:
            raise cancelled
        return call.result()

    def close(self):
        """Leaves the set. Calls of other threads end with Cancelled, and are waited for."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for cancellation in self._under_way:
                cancellation.cancel()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._under_way)
        self._weights.close()

    def explain(self):
        """Who decides, and what this end waits for: as a text."""
        with self._call():
            return self._weights.explain()


class Owner(_End):
    """Publishes boxes of versions, seals them together with the other owners, and has them activated."""

    def __init__(self, server, name, owners, settings, rank):
        super().__init__(server, name, owners, settings)
        self.rank = rank
        self._layouts = {}

    def declare(self, layouts):
        """What the set has: all owners declare the same, once."""
        layouts = list(layouts)
        with self._call():
            self._weights.declare([layout._tuple(len(self._owners)) for layout in layouts])
        self._layouts = {layout.name: layout for layout in layouts}

    def layout(self, name):
        """What was declared of a tensor."""
        if name not in self._layouts:
            raise KeyError(f"tensor {name!r} was not declared")
        return self._layouts[name]

    def boxes(self, name):
        """This owner's boxes of a tensor: tuples of slices."""
        layout = self.layout(name)._tuple(len(self._owners))
        return [tuple(slice(low, low + size) for low, size in zip(begin, extent))
                for begin, extent in _tryst.weight_boxes(layout, len(self._owners), self.rank)]

    def version(self, number, label="", timeout=60.0):
        """A version to publish in a `with`, or an `async with`, whose end seals it."""
        return Version(self, number, label, timeout)

    def publish(self, number, name, source, box=None, cast=None, borrow=False):
        """Copies one of this owner's boxes, by default its only one; the array may change at once. Where it is of
        another type than the tensor, `cast` says the tensor's. With `borrow` nothing is copied: the array, which is
        contiguous and of the tensor's type, must not change before release() has returned."""
        layout = self.layout(name)
        if box is None:
            boxes = self.boxes(name)
            if len(boxes) != 1:
                raise ValueError(f"this owner has {len(boxes)} boxes of {name!r}: say with box= which one you publish")
            box = boxes[0]
        item = _item(name, *_box(box, layout.shape), source)
        if cast is not None and str(cast) != layout.dtype:
            raise ValueError(f"tensor {name!r} has elements of type {layout.dtype}, and cast asks for {cast}")
        if cast is None and item[3].dtype != layout.dtype:
            raise ValueError(f"the array has elements of type {item[3].dtype}, and tensor {name!r} of {layout.dtype}: say cast={layout.dtype!r}")
        with self._call():
            self._weights.publish(number, item, borrow)

    def release(self, number, how="wait", timeout=60.0):
        """Returns when no byte of what version `number` has borrowed is read any more. "wait": when later versions have
        replaced it; "copy": it is copied first, and stays; "drop": who asks for it from now on is told Aborted."""
        self._wait(self._weights.release, number, _RELEASES[how], timeout)

    async def arelease(self, number, how="wait", timeout=60.0):
        await self._await(self._weights.release, number, _RELEASES[how], timeout)

    def seal(self, number, label="", timeout=60.0):
        """All of this owner's boxes are published; returns when the version is sealed. Aborted: it was dropped."""
        self._wait(self._weights.seal, number, label, timeout)

    async def aseal(self, number, label="", timeout=60.0):
        await self._await(self._weights.seal, number, label, timeout)

    def members(self):
        """How many members the set has, as far as this owner has heard."""
        with self._call():
            return self._weights.members()

    def drop(self, number):
        """Lets go of a version that is not sealed."""
        with self._call():
            self._weights.drop(number)

    def activate(self, number, mode="rolling", timeout=60.0):
        """Has all members stage the version and then serve it; returns when all do. With the mode "barrier" no two
        versions are served at one moment. Members that are silent so long are put out. Aborted: it was dropped."""
        self._wait(self._weights.activate, number, _MODES[mode], timeout)

    async def aactivate(self, number, mode="rolling", timeout=60.0):
        await self._await(self._weights.activate, number, _MODES[mode], timeout)


class Version:
    """A version that an owner publishes."""

    def __init__(self, owner, number, label, timeout):
        self.owner, self.number, self._label, self._timeout = owner, number, label, timeout

    def publish(self, name, source, box=None, cast=None, borrow=False):
        """As Owner.publish()."""
        self.owner.publish(self.number, name, source, box, cast, borrow)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.owner.seal(self.number, self._label, self._timeout)
        else:
            self.owner.drop(self.number)

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, *_):
        if kind is None:
            await self.owner.aseal(self.number, self._label, self._timeout)
        else:
            self.owner.drop(self.number)


class _Events:
    def __init__(self, member):
        self._member = member

    def __iter__(self):
        return self

    def __next__(self):
        return self._member.next_event()

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await self._member.anext_event()


class Member(_End):
    """Fetches versions and, unless its role is "observer", serves the one that all members agree on."""

    def __init__(self, server, name, owners, settings):
        super().__init__(server, name, owners, settings)
        self._running = 0

    # What happens on the thread of a call: `cancellation` comes last.

    def _find(self, wanted, timeout, cancellation):
        how, number = _NUMBER, wanted
        if isinstance(wanted, _Newer):
            how, number = _NEWER, wanted.number
        elif isinstance(wanted, str):
            how, number = {"latest": _NEWER, "active": _ACTIVE}[wanted], 0
        return self._weights.find(how, number, timeout, cancellation)

    def _items(self, described, items):
        """The items in C, and what is returned of each."""
        tensors = {tensor["name"]: tensor for tensor in described["tensors"]}
        has = 0
        if isinstance(items, _Holding):
            has, items = items.number, items.items
        if not hasattr(items, "keys"):
            items = dict.fromkeys(tensors if items is None else items)
        made, results = [], {}
        for name, into in items.items():
            if name not in tensors:
                raise KeyError(f"version {described['number']} has no tensor {name!r}")
            parts = [self._part(made, tensors[name], one, has) for one in (into if isinstance(into, list) else [into])]
            results[name] = parts if isinstance(into, list) else parts[0]
        return made, Fetched(described["number"], described["label"], results)

    def _part(self, made, tensor, into, has):
        box = None
        if isinstance(into, tuple) and len(into) == 2 and isinstance(into[0], (tuple, slice, type(None))):
            box, into = into
        begin, extent = _box(box, tensor["shape"])
        if into is None and has:
            raise TypeError(f"holding({has}, ...) needs an array for {tensor['name']!r}: pass the one that has that version")
        if into is None:
            into = self._server.empty(extent, _DTYPES.get(tensor["dtype"], tensor["dtype"]))
        made.append(_item(tensor["name"], begin, extent, into, has))
        return into

    def _described(self, wanted, left, cancellation):
        version = self._find(wanted, left(), cancellation)
        return version, json.loads(self._weights.describe(version, left(), cancellation))

    def _prepared(self, wanted, items, left, cancellation):
        version, described = self._described(wanted, left, cancellation)
        return version, *self._items(described, items)

    def _describe(self, wanted, timeout, cancellation):
        _, described = self._described(wanted, _countdown(timeout), cancellation)
        layouts = [Layout(one["name"], _DTYPES.get(one["dtype"], one["dtype"]), one["shape"]) for one in described["tensors"]]
        return Fetched(described["number"], described["label"], {layout.name: layout for layout in layouts})

    def _fetch(self, wanted, items, timeout, cancellation):
        left = _countdown(timeout)
        version, made, fetched = self._prepared(wanted, items, left, cancellation)
        self._weights.fetch(version, made, left(), cancellation)
        return fetched

    def _stage(self, number, items, timeout, cancellation):
        left = _countdown(timeout)
        _, made, fetched = self._prepared(number, items, left, cancellation)
        self._weights.stage(number, made, left(), cancellation)
        return fetched

    def fetch(self, wanted, items=None, timeout=60.0):
        """Tensors of one version, by name: of a number, of "latest", of "active", or of newer_than(number).

        `items` are names, by default all, or a dictionary that has for a name the array to fill, a pair of a box (a
        tuple of slices) and an array, or None for a new Tensor; or a list of these; or holding(number, items). The
        arrays may be strided.
        """
        return self._wait(self._fetch, wanted, items, timeout)

    async def afetch(self, wanted, items=None, timeout=60.0):
        return await self._await(self._fetch, wanted, items, timeout)

    def describe(self, wanted, timeout=60.0):
        """What fetch() of the same would give, as Layouts of types and shapes alone."""
        return self._wait(self._describe, wanted, timeout)

    async def adescribe(self, wanted, timeout=60.0):
        return await self._await(self._describe, wanted, timeout)

    def stage(self, number, items=None, timeout=60.0):
        """fetch() of the version that the event "prepare" has named, as the set's log has sealed it; then vote()."""
        return self._wait(self._stage, number, items, timeout)

    async def astage(self, number, items=None, timeout=60.0):
        return await self._await(self._stage, number, items, timeout)

    def next_event(self, timeout=None):
        """The next Event: stage() at "prepare", held() after "hold", switched() after "active"."""
        kind, number = self._wait(self._weights.next_event, timeout)
        return Event(_KINDS[kind], number)

    async def anext_event(self, timeout=None):
        kind, number = await self._await(self._weights.next_event, timeout)
        return Event(_KINDS[kind], number)

    def events(self):
        """All events, for a `for` or an `async for`, without an end."""
        return _Events(self)

    def vote(self, number, staged=True):
        """Whether all of the version is staged; where one member says no, it is dropped for all."""
        with self._call():
            self._weights.answer(number, _STAGED if staged else _NOT_STAGED)

    def held(self, number):
        """Nothing runs any more that began before the event "hold"."""
        with self._call():
            self._weights.answer(number, _HELD)

    def switched(self, number):
        """What is served from now on is that version."""
        with self._call():
            self._weights.answer(number, _SWITCHED)

    def serves(self):
        """(number, confirmed) of what may be served now; (0, False): nothing may be."""
        how, number = self._weights.serve()
        return number, how == 1

    @contextlib.contextmanager
    def serving(self):
        """Work that serves a version, whose number it gives. FailedPrecondition: nothing may be served now."""
        with self._changed:
            self._running += 1
        try:
            number = self.serves()[0]
            if number == 0:
                raise errors.FailedPrecondition(f"this worker may serve no version now: {self.explain()}")
            yield number
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _quiet(self, cancellation):
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0 or cancellation.cancelled())
        if cancellation.cancelled():
            raise errors.Cancelled("the wait for work within serving() was cancelled")

    def follow(self, stage, switch, timeout=60.0):
        """Stages, votes, holds and switches as the set decides, until close() or Ctrl-C.

        `stage(number)` gives the items to fetch, as of fetch(); `switch(number, tensors)` has them served. Work within
        serving() is waited for before the member holds. An error of stage() or of the fetch is a vote of no, which
        `trouble` keeps; one of switch() leaves follow().
        """
        staged = None
        while (event := self._unless_closed(self.next_event)) is not None:
            if event.kind == "prepare":
                try:
                    staged = self.stage(event.number, stage(event.number), timeout)
                except Exception as error:
                    staged, self.trouble = None, error
            elif event.kind == "hold":
                self._unless_closed(lambda: self._wait(self._quiet))
            elif event.kind == "active":
                switch(event.number, staged)
            self._answer(event, staged)

    async def afollow(self, stage, switch, timeout=60.0):
        """follow() in an event loop, in which it calls `stage` and `switch`."""
        staged = None
        while (event := await self._aunless_closed(self.anext_event)) is not None:
            if event.kind == "prepare":
                try:
                    staged = await self.astage(event.number, stage(event.number), timeout)
                except Exception as error:
                    staged, self.trouble = None, error
            elif event.kind == "hold":
                await self._aunless_closed(lambda: self._await(self._quiet))
            elif event.kind == "active":
                switch(event.number, staged)
            self._answer(event, staged)

    trouble = None  # The last error of a stage.

    def _answer(self, event, staged):
        with contextlib.suppress(errors.FailedPrecondition):  # The version is wanted no more.
            if event.kind == "prepare":
                self.vote(event.number, staged is not None)
            elif event.kind == "hold":
                self.held(event.number)
            elif event.kind == "active":
                self.switched(event.number)

    def _unless_closed(self, function):
        try:
            return function()
        except errors.Error:
            if self._closed:
                return None
            raise

    async def _aunless_closed(self, function):
        try:
            return await function()
        except errors.Error:
            if self._closed:
                return None
            raise


# The library's names of types, where numpy has others.
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
