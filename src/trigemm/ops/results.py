"""Memory for results."""

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGE = 2**22
"""Bytes of a result from which huge pages are worth a call of the system."""


def new_result(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor on the device of `like`, of its dtype unless another is named; on the CPU in huge pages if large.

    Memory that is new to a process costs the CPU a fault for each of its pages. In pages of 4 KiB these take longer than a
    product of a short inner dimension, so Linux is asked for pages of 2 MiB, as NumPy asks for its arrays.

    >>> new_result(torch.ones(1), (2, 3), torch.float64).shape
    torch.Size([2, 3])
    """
    out = like.new_empty(shape, dtype=dtype)
    if type(out) is Tensor and out.is_cpu and out.nbytes >= LARGE and (advise := _madvise()):
        begin = -(-out.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        whole_pages = (out.data_ptr() + out.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(begin, whole_pages, mmap.MADV_HUGEPAGE)  # where it is refused, pages stay as they are
    return out


@cache
def _madvise() -> Any:
    """The system's madvise, or None where there are no huge pages to ask for."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise


def count_write(out: Tensor) -> None:
    """Tell autograd that `out` has been written to, so that it refuses gradients that need the old values."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
