"""Which bytes of an array are sent, fetched or filled; groups of fetches, and regions (docs/KV.md)."""

import array
import contextlib

from tryst import _tryst, errors

_SLICE_S = 0.2
_INDICES, _RUNS, _SPANS, _BOXES = 1, 2, 3, 4
REGIONS_STEP = -(2**63) + 46  # Fetches from regions that belong to no step of the program's.


def _numbers(source, code):
    """A buffer of unsigned numbers of that code of the module array, without a copy where it is one."""
    try:
        view = memoryview(source)
    except TypeError:
        view = None
    if view is not None and view.format in ((code,) if code == "I" else ("Q", "L")) and view.c_contiguous:
        return view
    if hasattr(source, "astype"):  # numpy's, and others that are like it.
        if source.size and (source.min() < 0 or int(source.max()) >> (32 if code == "I" else 64)):
            raise ValueError("a selection's numbers must not be negative, nor blocks' above 2**32 - 1")
        return memoryview(source.astype("uint32" if code == "I" else "uint64", order="C"))
    if hasattr(source, "tolist"):
        source = source.tolist()
    try:
        return array.array(code, source)
    except OverflowError as error:
        raise ValueError(f"a selection's numbers must not be negative, nor blocks' above 2**32 - 1: {error}") from None


class _Selection:
    """`packed` is what the extension takes. A selection can be used any number of times."""

    __slots__ = ("packed",)


class Blocks(_Selection):
    """Blocks of `block_bytes` each, by their numbers, as in a block table: a list or an array of integers."""

    __slots__ = ()

    def __init__(self, ids, block_bytes):
        self.packed = (_INDICES, block_bytes, _numbers(ids, "I"))


class _Rows(_Selection):
    __slots__ = ()

    def __init__(self, kind, rows, width):
        if not hasattr(rows, "astype"):
            rows = [number for row in rows for number in _row(row, width)]
        elif rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(f"the array of a selection must have {width} columns")
        self.packed = (kind, 0, _numbers(rows, "Q"))


def _row(row, width):
    row = tuple(row)
    if len(row) != width:
        raise ValueError(f"{row} is not of {width} numbers")
    return row


class Spans(_Rows):
    """Spans of bytes: (offset, bytes) of each, or an array with these columns."""

    __slots__ = ()

    def __init__(self, spans):
        super().__init__(_SPANS, spans, 2)


class Runs(_Rows):
    """Spans at equal distances: (offset, bytes, stride, count), or an array with these columns."""

    __slots__ = ()

    def __init__(self, runs):
        super().__init__(_RUNS, runs, 4)


class Box(_Selection):
    """The elements of `part`, a view of the array `of` that is sent or filled, in row-major order.

    Both are numpy's or torch's. Box.at() takes numbers: where the first element is, its bytes, how many there are in each
    dimension, and the bytes from one to the next there.
    """

    __slots__ = ()

    def __init__(self, part, of):
        at, extent, strides, element_bytes = _view(part)
        self._pack(at - _view(of)[0], element_bytes, extent, strides)

    @classmethod
    def at(cls, offset, element_bytes, extent, strides):
        box = cls.__new__(cls)
        box._pack(offset, element_bytes, extent, strides)
        return box

    def _pack(self, offset, element_bytes, extent, strides):
        if len(extent) != len(strides):
            raise ValueError(f"a box of {len(extent)} dimensions has {len(strides)} strides")
        self.packed = (_BOXES, 0, _numbers([offset, element_bytes, *extent, *strides], "Q"))


def _view(array):
    """Its address, extent, strides in bytes, and the bytes of an element."""
    if hasattr(array, "data_ptr"):
        size = array.element_size()
        return array.data_ptr(), tuple(array.shape), [stride * size for stride in array.stride()], size
    return array.ctypes.data, array.shape, array.strides, array.itemsize


def packed(selection):
    if selection is None:
        return None
    if not isinstance(selection, _Selection):
        raise TypeError(f"a selection is Blocks, Runs, Spans or a Box, and not {type(selection).__name__}")
    return selection.packed


def in_thread(loop, function, *args):
    """A future of what function(*args) gives on a thread of its own: the loop's executor may be full of others' waits."""
    import threading

    future = loop.create_future()

    def settle(result, error):
        if future.done():  # It was cancelled.
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run():
        result = failed = None
        try:
            result = function(*args)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run).start()
    return future


def over(loop, wait):
    """A future that is done when wait(seconds) says that it is over.

    The interpreter joins the thread that asks before it stops the servers, so that thread leaves when no other one is left that could run the loop.
    """
    import threading

    caller = threading.current_thread()
    others = [threading.main_thread()] if caller.daemon else [threading.main_thread(), caller]

    def ask():
        while not wait(_SLICE_S):
            if loop.is_closed() or not any(thread.is_alive() for thread in others):
                raise errors.Cancelled("the program ends, or has closed the event loop that waited")

    return in_thread(loop, ask)


class Group:
    """Fetches that are cancelled together. In a `with` they are at its end, and it waits until nothing lands any more."""

    def __init__(self):
        self.handle = _tryst.Group()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancel().wait()

    @property
    def under_way(self):
        return self.handle.under_way()

    @property
    def fenced(self):
        """Whether it was cancelled, and nothing lands any more."""
        return self.handle.fenced(0)

    def cancel_nowait(self):
        """What is under way ends with Cancelled, and what is started later is refused."""
        self.handle.cancel()

    def cancel(self):
        """The same; await what it returns, or call its wait(): nothing lands any more then."""
        self.handle.cancel()
        return Fence(self.handle)

    @property
    def report(self):
        """What became of the fetches, once it is fenced; None before."""
        text = self.handle.report()
        if text is None:
            return None
        import json

        return json.loads(text)


class Fence:
    """What a cancelled group still waits for."""

    __slots__ = ("_handle",)

    def __init__(self, handle):
        self._handle = handle

    def wait(self, timeout=None):
        """At most so many seconds: whether nothing lands any more. Ctrl-C ends the wait."""
        return self._handle.fenced(timeout)

    def __await__(self):
        if not self._handle.fenced(0):
            import asyncio

            yield from over(asyncio.get_running_loop(), self._handle.fenced)


class Region:
    """Memory that peers may fetch of, until it is closed: see Server.region()."""

    def __init__(self, handle, name):
        self._handle, self.name = handle, name

    @property
    def bytes_sent(self):
        """That peers were answered with so far, without what they copied by themselves (grants); whoever wants digests asks."""
        return self._handle.bytes_sent()

    def close(self, timeout=None):
        """Nobody is answered any more. Waits until nothing reads the memory, or what is read counts for nothing, which no peer can delay:
        whether it is so."""
        return self._handle.close(timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
