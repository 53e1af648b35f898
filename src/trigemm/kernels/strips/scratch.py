"""Scratch memory that a thread keeps between calls, for new pages cost more time than what is written there."""

import threading
from math import prod
from typing import Any

import numpy

KEPT_BYTES = 2**23
"""The largest buffer that is kept; what is larger is allocated anew."""

LINE = 64
"""Bytes in a cache line."""


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}


_buffers = _Buffers()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised numpy array, valid until this thread asks for the same name again.

    >>> scratch("example", (2, 3), numpy.float32).shape
    (2, 3)
    """
    size = prod(shape) * numpy.dtype(dtype).itemsize
    buffer = _buffers.by_name.get(name)
    if size > KEPT_BYTES or buffer is None or buffer.nbytes < size:
        buffer = _aligned(size)
        if size <= KEPT_BYTES:
            _buffers.by_name[name] = buffer
    return buffer[:size].view(dtype).reshape(shape)


def _aligned(size: int) -> Any:
    """New bytes that begin where a cache line does, as torch's: what a BLAS adds up, and in which order, may depend on it."""
    buffer = numpy.empty(size + LINE, numpy.uint8)
    begin = -buffer.ctypes.data % LINE
    return buffer[begin : begin + size]
