"""How strided, batched operands reach a tile kernel: no copies, and as much known at compile time as makes loads wide.

A kernel takes an operand as a pointer, strides, and two facts that decide how wide its loads can be: ORDER, which of
the two matrix dimensions is contiguous, and ALIGN, the number of elements in 16 bytes if every row starts and ends at
such a multiple, else 1. Strides are counted in units of ALIGN elements, so that the compiler sees what divides every
address.

Batch dimensions of any number are merged where strides allow; up to three go into the kernel, the rest into a loop of launches.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

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


def order_of(x: Tensor) -> str:
    """Which matrix dimension of `x` is contiguous: "row" (the last), "column" (the one before), or "none"."""
    if x.stride(-1) == 1:
        return "row"
    return "column" if x.stride(-2) == 1 else "none"


def align_of(x: Tensor) -> int:
    """16 bytes in elements if every row (or column) of `x` starts and ends at a multiple of 16 bytes, else 1."""
    vector = VECTOR_BYTES // x.element_size()
    order = order_of(x)
    inner = -1 if order == "row" else -2
    lengths = [stride for dim, stride in enumerate(x.stride()) if x.shape[dim] > 1 and dim != x.dim() + inner]
    lengths.append(x.shape[inner])
    return vector if order != "none" and x.data_ptr() % VECTOR_BYTES == 0 and not any(n % vector for n in lengths) else 1


def needs_64_bits(*operands: Tensor) -> bool:
    """Whether an offset inside one matrix of some operand can exceed 31 bits, with room for a tile beyond the border."""
    border = 256
    return any((x.shape[-2] + border) * x.stride(-2) + (x.shape[-1] + border) * x.stride(-1) >= 2**31 for x in operands)


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


def launches(*operands: Tensor) -> Iterator[tuple[list[Tensor], int, list[int], list[list[int]]]]:
    """Cut a batched problem into launches of at most three batch dimensions.

    Yields operands (views whose first elements start the launch), the number of matrices, the sizes of the two inner batch
    dimensions, and three batch strides an operand.
    """
    sizes, strides = merge_batches(operands[0].shape[:-2], [x.stride()[:-2] for x in operands])
    cut = max(0, len(sizes) - BATCH_DIMS)
    padding = max(0, BATCH_DIMS - len(sizes))
    inner = [1] * padding + sizes[cut:]
    inner_strides = [[0] * padding + s[cut:] for s in strides]
    count = inner[0] * inner[1] * inner[2]
    for index in product(*map(range, sizes[:cut])):
        views = [
            x.as_strided(
                x.shape[-2:],
                x.stride()[-2:],
                x.storage_offset() + sum(i * stride for i, stride in zip(index, s, strict=False)),
            )
            for x, s in zip(operands, strides, strict=True)
        ]
        yield views, count, inner[1:], inner_strides


def stride_arguments(x: Tensor, batch: Sequence[int], align: int) -> tuple[int, ...]:
    """Batch strides, row stride and column stride of an operand in units of `align` elements (a unit stride has no use)."""
    return tuple(stride // align for stride in (*batch, x.stride(-2), x.stride(-1)))


def device_of(x: Tensor) -> Any:
    """A context in which kernels go to the device of `x` (nothing to do on the CPU, where the interpreter runs them)."""
    return torch.cuda.device(x.device) if x.is_cuda else torch.no_grad()
