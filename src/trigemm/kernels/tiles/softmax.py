"""Softmax over the lower triangle and its gradient, with tiles: (…,T,S) -> (…,T,S), zeros above the diagonal.

A program owns BM rows of one matrix. It keeps the columns that they have in the triangle in registers where they fit; longer rows
are read in steps of BN columns, once for maximum and sum, and once more to write. `out` may be the scores themselves.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.multiply import store_tile
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, form_of, stride_arguments, tile_pointers
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.triangle import ceil_div

ELEMENTS = 8192
"""Elements of a tile: 16 for each of 512 threads."""

SCALARS = ["diagonal", "M", "N", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in "ab" for name in ("batch0", "batch1", "batch2", "row", "column")]
GRADIENT_STRIDES = [*STRIDES, *(f"c_{name}" for name in ("batch0", "batch1", "batch2", "row", "column"))]


@triton.jit
def load_lower(
    ptr, rows, columns, M, N, stride_row, stride_column, diagonal, outside, ORDER: tl.constexpr, ALIGN: tl.constexpr
):  # fmt: skip
    """A tile of the lower triangle in float32, `outside` elsewhere. Where rows are aligned, whole vectors are loaded."""
    in_matrix = (rows < M)[:, None] & (columns < N)[None, :]
    vectors = (columns // ALIGN * ALIGN)[None, :] <= rows[:, None] + diagonal
    x = tl.load(tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN), mask=in_matrix & vectors, other=0.0)
    inside = in_matrix & (columns[None, :] <= rows[:, None] + diagonal)
    return tl.where(inside, x.to(tl.float32), outside)


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def softmax_kernel(
    a_ptr, b_ptr, flags_ptr, diagonal, M, N, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column, b_batch0, b_batch1, b_batch2, b_row, b_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """b = softmax of the lower triangle of a."""
    tile_rows = tl.cdiv(M, BM)
    batch = tl.program_id(0) // tile_rows
    top = (tl.program_id(0) % tile_rows).to(tl.int64) * BM
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    b_ptr += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
    rows = top + tl.arange(0, BM)  # [BM]
    offsets = tl.arange(0, BN).to(tl.int64)
    minus_infinity = float("-inf")
    if WHOLE:
        x = load_lower(a_ptr, rows, offsets, M, N, a_row, a_column, diagonal, minus_infinity, A_ORDER, A_ALIGN)  # [BM, BN]
        largest = tl.max(x, 1)
        powers = tl.exp(x - tl.where(largest == minus_infinity, 0.0, largest)[:, None])
        total = tl.sum(powers, 1)
        powers /= tl.where(total == 0, 1.0, total)[:, None]
        powers = tl.where(offsets[None, :] <= rows[:, None] + diagonal, powers, 0.0)  # a row with a NaN is NaN inside alone
        store_tile(b_ptr, powers, rows, offsets, M, N, b_row, b_column, B_ORDER, B_ALIGN)
    else:
        live = tl.minimum(tl.maximum(tl.minimum(top + BM, M) + diagonal, 0), N)
        largest = tl.full([BM], minus_infinity, tl.float32)
        total = tl.zeros([BM], tl.float32)
        for first in range(0, live, BN):
            x = load_lower(a_ptr, rows, first + offsets, M, N, a_row, a_column, diagonal, minus_infinity, A_ORDER, A_ALIGN)
            higher = tl.maximum(largest, tl.max(x, 1))
            base = tl.where(higher == minus_infinity, 0.0, higher)
            total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base[:, None]), 1)
            largest = higher
        largest = tl.where(largest == minus_infinity, 0.0, largest)[:, None]
        total = tl.where(total == 0, 1.0, total)[:, None]
        for first in range(0, live, BN):
            x = load_lower(a_ptr, rows, first + offsets, M, N, a_row, a_column, diagonal, minus_infinity, A_ORDER, A_ALIGN)
            powers = tl.where((first + offsets)[None, :] <= rows[:, None] + diagonal, tl.exp(x - largest) / total, 0.0)
            store_tile(b_ptr, powers, rows, first + offsets, M, N, b_row, b_column, B_ORDER, B_ALIGN)
        for first in range(tl.cdiv(live, BN) * BN, N, BN):
            store_tile(b_ptr, tl.zeros([BM, BN], tl.float32), rows, first + offsets, M, N, b_row, b_column, B_ORDER, B_ALIGN)


@triton.jit(do_not_specialize=[*SCALARS, *GRADIENT_STRIDES])
def gradient_kernel(
    a_ptr, b_ptr, c_ptr, flags_ptr, diagonal, M, N, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column, b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """c = b * (a - rowsum(b * a)) in the lower triangle, for a the gradient that reaches the weights b."""
    tile_rows = tl.cdiv(M, BM)
    batch = tl.program_id(0) // tile_rows
    top = (tl.program_id(0) % tile_rows).to(tl.int64) * BM
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    b_ptr += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    rows = top + tl.arange(0, BM)  # [BM]
    offsets = tl.arange(0, BN).to(tl.int64)
    if WHOLE:
        grad = load_lower(a_ptr, rows, offsets, M, N, a_row, a_column, diagonal, 0.0, A_ORDER, A_ALIGN)  # [BM, BN]
        weights = load_lower(b_ptr, rows, offsets, M, N, b_row, b_column, diagonal, 0.0, B_ORDER, B_ALIGN)
        value = weights * (grad - tl.sum(weights * grad, 1)[:, None])
        store_tile(c_ptr, value, rows, offsets, M, N, c_row, c_column, C_ORDER, C_ALIGN)
    else:
        live = tl.minimum(tl.maximum(tl.minimum(top + BM, M) + diagonal, 0), N)
        sums = tl.zeros([BM], tl.float32)
        for first in range(0, live, BN):
            grad = load_lower(a_ptr, rows, first + offsets, M, N, a_row, a_column, diagonal, 0.0, A_ORDER, A_ALIGN)
            weights = load_lower(b_ptr, rows, first + offsets, M, N, b_row, b_column, diagonal, 0.0, B_ORDER, B_ALIGN)
            sums += tl.sum(weights * grad, 1)
        for first in range(0, N, BN):
            grad = load_lower(a_ptr, rows, first + offsets, M, N, a_row, a_column, diagonal, 0.0, A_ORDER, A_ALIGN)
            weights = load_lower(b_ptr, rows, first + offsets, M, N, b_row, b_column, diagonal, 0.0, B_ORDER, B_ALIGN)
            value = weights * (grad - sums[:, None])
            store_tile(c_ptr, value, rows, first + offsets, M, N, c_row, c_column, C_ORDER, C_ALIGN)


@lru_cache(PLANS)
def _plan(forms: tuple[Form, ...], device: torch.device, diagonal: int) -> Plan:
    """One program for a few rows; forms of what is read, and of what is written."""
    m, n = forms[-1].shape[-2:]
    kernel: Any = softmax_kernel if len(forms) == 2 else gradient_kernel
    bn = min(ELEMENTS, triton.next_power_of_2(n))
    bm = min(triton.next_power_of_2(m), max(1, ELEMENTS // 2 // bn))

    def launch(batches: Batches, precision: str) -> Launch:
        return Launch(
            kernel,
            batches.matrices * ceil_div(m, bm),
            (
                diagonal, m, n, *batches.sizes[1:], *stride_arguments(forms, batches),
                *(fact for form in forms for fact in (form.order, form.align)), n <= bn, bm, bn,
            ),
            offsets=batches.offsets,
            num_warps=max(1, min(16, bm * bn // 512)),
        )  # fmt: skip

    return Plan(cut_batches(*forms), launch, "float32")


def causal_softmax(scores: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""
    _run((scores, out), diagonal)


def causal_softmax_backward(grad: Tensor, weights: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""
    _run((grad, weights, out), diagonal)


def _run(tensors: tuple[Tensor, ...], diagonal: int) -> None:
    m, n = tensors[-1].shape[-2:]
    if tensors[-1].numel():
        _plan(tuple(map(form_of, tensors)), tensors[-1].device, max(-m, min(n, diagonal))).run(tensors)
