"""Filling, copying and turning parts of tensors: 16 bytes at a time where they allow it, for short entries take much longer."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

WIDE = torch.complex128
"""A dtype of 16 bytes: what is moved so is not computed with."""


def fill(x: Tensor, value: float) -> None:
    """Set all entries to a value."""
    if _may_be_wide(x):
        entries = torch.full((WIDE.itemsize // x.element_size(),), value, dtype=x.dtype)
        x.view(WIDE).fill_(entries.view(WIDE).item())
    else:
        x.fill_(value)


def copy(x: Tensor, into: Tensor) -> None:
    """Entries to another place."""
    if x.dtype == into.dtype and _may_be_wide(x) and _may_be_wide(into):
        x, into = x.view(WIDE), into.view(WIDE)
    into.copy_(x)


def copy_transposed(x: Tensor, into: Tensor) -> None:
    """Matrices (B,M,N) with contiguous rows to another place, (B,N,M), transposed."""
    if x.is_cuda and find_spec("triton"):
        _tiles().turn(x, into)
    else:
        into.copy_(x.mT)


def _may_be_wide(x: Tensor) -> bool:
    wide, size = WIDE.itemsize, x.element_size()
    return (
        x.stride(-1) == 1
        and x.data_ptr() % wide == x.storage_offset() * size % wide == 0
        and all(n * size % wide == 0 for n in (x.shape[-1], *x.stride()[:-1]))
    )


def _tiles() -> Any:
    """The module of the kernel, imported when it is first used."""
    return import_module("trigemm.kernels.tiles.permute")
