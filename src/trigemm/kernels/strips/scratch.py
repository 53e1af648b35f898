"""Memory in which new pages cost little: scratch that a thread keeps between calls, and large new tensors in huge pages."""

import mmap
import threading
from math import prod
from typing import Any

import numpy
import torch
from torch import Tensor

KEPT_BYTES = 2**23
"""The largest buffer that is kept; what is larger is allocated anew."""

HUGE_BYTES = 2**23
"""Tensors of this size and above are put in huge pages."""


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
    if size > KEPT_BYTES:
        return numpy.empty(shape, dtype)
    buffer = _buffers.by_name.get(name)
    if buffer is None or buffer.nbytes < size:
        buffer = _buffers.by_name[name] = numpy.empty(size, numpy.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, as torch.empty, in huge pages where it is large and the system has them.

    A large tensor's pages come into being as it is first written, and 4 KiB pages then cost more time than the product.

    >>> empty((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    size = prod(shape) * dtype.itemsize
    if size < HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
