"""How strided, batched operands reach a tile kernel: no copies, and as much known at compile time as makes loads wide.

A kernel takes an operand as a pointer, strides, and two facts that decide how wide its loads can be: ORDER, which of
the two matrix dimensions is contiguous, and ALIGN, the number of elements in 16 bytes if every row starts and ends at
such a multiple, else 1. Strides are counted in units of ALIGN elements, so that the compiler sees what divides every
address.

Batch dimensions of any number are merged where strides allow; up to three go into the kernel, the rest into a loop of launches.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BATCH_DIMS = 3
VECTOR_BYTES = 16


@triton.jit
def batch_offset(batch, size1, size2, stride0, stride1, stride2, ALIGN: tl.constexpr):
    """Where the matrix of one batch number begins, in elements from the operand's pointer."""
    inner = batch % size2
    middle = (batch // size2) % size1
    outer = batch // (size1 * size2)
    return (outer.to(tl.int64) * stride0 + middle.to(tl.int64) * stride1 + inner.to(tl.int64) * stride2) * ALIGN


@triton.jit
def tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER: tl.constexpr, ALIGN: tl.constexpr):
    """Pointers [len(rows), len(columns)] to elements of a matrix. ORDER "row": the last stride is 1, "column": the one before."""
    if ORDER == "row":
        return ptr + rows[:, None] * (stride_row * ALIGN) + columns[None, :]
    elif ORDER == "column":
        return ptr + rows[:, None] + columns[None, :] * (stride_column * ALIGN)
    else:
        return ptr + rows[:, None] * stride_row + columns[None, :] * stride_column


class Form(NamedTuple):
    """What a launch needs to know of an operand beside its address: a key for plans."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    aligned: bool  # the address is a multiple of 16 bytes

    @property
    def mT(self) -> "Form":
        """The form of the transposed matrices."""
        shape, stride = self.shape, self.stride
        return self._replace(shape=(*shape[:-2], shape[-1], shape[-2]), stride=(*stride[:-2], stride[-1], stride[-2]))

    @property
    def vector(self) -> int:
        """16 bytes in elements."""
        return VECTOR_BYTES // self.dtype.itemsize

    @property
    def order(self) -> str:
        """Which matrix dimension is contiguous: "row" (the last), "column" (the one before), or "none"."""
        if self.stride[-1] == 1:
            return "row"
        return "column" if self.stride[-2] == 1 else "none"

    @property
    def in_blas_layout(self) -> bool:
        """Whether a BLAS takes the matrices as they lie: one dimension contiguous, and a stride of the other that spans it."""
        (rows, columns), (down, across) = self.shape[-2:], self.stride[-2:]
        return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))

    @property
    def align(self) -> int:
        """16 bytes in elements if every row (or column) starts and ends at a multiple of 16 bytes, else 1."""
        inner = len(self.shape) - (1 if self.order == "row" else 2)
        lengths = [n for dim, n in enumerate(self.stride) if self.shape[dim] > 1 and dim != inner]
        whole = self.order != "none" and self.aligned and not any(n % self.vector for n in [*lengths, self.shape[inner]])
        return self.vector if whole else 1


def form_of(x: Tensor) -> Form:
    return Form(tuple(x.shape), x.stride(), x.dtype, x.data_ptr() % VECTOR_BYTES == 0)


def needs_64_bits(*forms: Form) -> bool:
    """Whether an offset inside one matrix of some operand can exceed 31 bits, with room for a tile beyond the border."""
    border = 256
    return any((x.shape[-2] + border) * x.stride[-2] + (x.shape[-1] + border) * x.stride[-1] >= 2**31 for x in forms)


def merge_batches(batch: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Batch sizes and, per operand, batch strides, with neighbouring dimensions merged where every operand allows it.

    >>> merge_batches([2, 1, 3, 4], [[12, 5, 4, 1], [0, 7, 0, 0]])
    ([24], [[1], [0]])
    >>> merge_batches([2, 3], [[3, 1], [0, 5]])
    ([2, 3], [[3, 1], [0, 5]])
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for dim, size in enumerate(batch):
        if size == 1:
            continue
        if sizes and all(m[-1] == s[dim] * size for m, s in zip(merged, strides, strict=True)):
            sizes[-1] *= size
            for m, s in zip(merged, strides, strict=True):
                m[-1] = s[dim]
        else:
            sizes.append(size)
            for m, s in zip(merged, strides, strict=True):
                m.append(s[dim])
    return sizes, merged


class Batches(NamedTuple):
    """The matrices of one launch: where they start, how many there are, and how they lie, in three batch dimensions."""

    offsets: tuple[int, ...]  # per operand, in elements
    sizes: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]  # per operand

    @property
    def matrices(self) -> int:
        """How many there are."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]


def cut_batches(*forms: Form) -> Iterator[Batches]:
    """Cut a batched problem into launches of at most three batch dimensions."""
    sizes, strides = merge_batches(forms[0].shape[:-2], [x.stride[:-2] for x in forms])
    cut = max(0, len(sizes) - BATCH_DIMS)
    padding = [0] * max(0, BATCH_DIMS - len(sizes))
    outer, middle, inner = [1 for _ in padding] + sizes[cut:]
    inner_strides = tuple((s[0], s[1], s[2]) for s in (padding + s[cut:] for s in strides))
    for index in product(*map(range, sizes[:cut])):
        offsets = tuple(sum(i * stride for i, stride in zip(index, s, strict=False)) for s in strides)
        yield Batches(offsets, (outer, middle, inner), inner_strides)


def stride_arguments(forms: Sequence[Form], batches: Batches) -> list[int]:
    """For each operand, batch strides, row and column stride in units of its ALIGN elements (a unit stride has no use)."""
    return [
        stride // form.align
        for form, batch in zip(forms, batches.strides, strict=True)
        for stride in (*batch, form.stride[-2], form.stride[-1])
    ]
