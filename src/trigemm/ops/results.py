"""Memory for results."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from trigemm.kernels.strips.scratch import aligned

HUGE_PAGES = 2**22
"""Bytes from which NumPy asks the system for huge pages."""


def new_result(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor on the device of `like`, of its dtype unless another is named.

    Memory that is new to a process costs the CPU a fault for each of its pages, which together take longer than a product of a
    short inner dimension. NumPy asks Linux for pages of 2 MiB where torch takes pages of 4 KiB: large results on the CPU lie in
    a NumPy array. Of a fake tensor the result is one too.

    >>> new_result(torch.ones(1), (2, 3), torch.float64).shape
    torch.Size([2, 3])
    """
    dtype = dtype or like.dtype
    size = prod(shape) * dtype.itemsize
    if type(like) is not Tensor or like.device.type != "cpu" or size < HUGE_PAGES:
        return like.new_empty(shape, dtype=dtype)
    return torch.from_numpy(aligned(size)).view(dtype).view(tuple(shape))


def count_write(out: Tensor) -> None:
    """Tell autograd that `out` has been written to, so that it refuses gradients that need the old values."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
