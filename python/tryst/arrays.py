"""From and to the arrays of other libraries. Imports none of them by itself.

>>> import tryst
>>> tryst.tensor(b"abcd").shape
(4,)
>>> tryst.tensor(["a", "bc"]).strings()
['a', 'bc']
"""

import sys

from tryst import _tryst

Tensor = _tryst.Tensor
tensor = _tryst.tensor

# Types that numpy has only with ml_dtypes, and the types whose bytes carry theirs without it.
_CARRIERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8",
             "int4": "uint8", "uint4": "uint8"}


def _stream(source, number):
    """The address of the stream on which the library of a CUDA array works now; 0: the default stream."""
    name = type(source).__module__.partition(".")[0]
    address = 0
    if name == "torch":
        address = sys.modules["torch"].cuda.current_stream(number).cuda_stream
    elif name == "cupy":
        address = sys.modules["cupy"].cuda.get_current_stream().ptr
    elif hasattr(source, "__cuda_stream__"):
        address = source.__cuda_stream__()[1]
    return int(address)


def _uncommon(source):
    """The Tensor of what the extension does not know by its type: texts, numpy's arrays of objects."""
    if isinstance(source, str):
        return Tensor._of_strings([source.encode()], ())
    if isinstance(source, (list, tuple)) and source and isinstance(source[0], (str, bytes)):
        return _strings(source, (len(source),))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, (numpy.ndarray, numpy.generic)):
        return _of_numpy(numpy, source)
    return Tensor(source)


def _strings(texts, shape):
    if not all(isinstance(text, (str, bytes)) for text in texts):
        raise TypeError("a list, or an array of objects, can be sent only if all of its elements are str or bytes")
    return Tensor._of_strings([text.encode() if isinstance(text, str) else bytes(text) for text in texts],
                              shape)


def _of_numpy(numpy, array):
    if array.dtype.kind in "USO":
        flat = array.reshape(-1).tolist() if array.ndim else [array.item()]
        return _strings(flat, array.shape)
    if not array.flags.c_contiguous or not array.dtype.isnative:
        raise ValueError("the array's elements do not lie row by row, in this machine's byte order: send "
                         "numpy.ascontiguousarray(array, array.dtype.newbyteorder('='))")
    carrier = _CARRIERS.get(array.dtype.name)
    if carrier is None:
        return Tensor(array)
    return Tensor(array.view(carrier))._view(array.dtype.name)


def _numpy(self):
    """The tensor as a numpy array of the same memory; strings are copied, as objects.

    bfloat16 and float8 need the package ml_dtypes.
    """
    import numpy

    if self.dtype == "string":
        return numpy.array(self._strings(), dtype=object).reshape(self.shape)
    if self.dtype not in _CARRIERS:
        return numpy.asarray(memoryview(self))  # numpy.asarray(self) would forget the BufferError.
    import ml_dtypes

    return numpy.asarray(memoryview(self._view(_CARRIERS[self.dtype]))).view(getattr(ml_dtypes, self.dtype))


def _decoded(self):
    """The elements of a tensor of strings, row by row."""
    return [text.decode() for text in self._strings()]


def _repr(self):
    return f"tryst.Tensor({self.dtype}{list(self.shape)}, {'read-only, ' if self.readonly else ''}{self.nbytes} bytes)"


Tensor.numpy = _numpy
Tensor.strings = _decoded
Tensor.__repr__ = _repr
_tryst.set_array_helpers(_uncommon, _stream)
