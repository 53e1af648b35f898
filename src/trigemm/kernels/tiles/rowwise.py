"""What is computed of whole rows of a matrix (R,N): softmax, log_softmax, cross-entropy; all in float32. See also `layer_norm`.

A program owns BM rows. It keeps WHOLE rows in registers where they fit; longer ones it reads in steps of BN columns, once for
the numbers that it needs of a row and once more to write. Nothing lies between in memory.
"""

from functools import lru_cache
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import Form, Launch, form
from trigemm.kernels.tiles.plan import PLANS
from trigemm.triangle import ceil_div

ELEMENTS = 1024
"""Elements of a tile with several rows."""

LONGEST = 16384
"""Elements of the longest row that one program keeps: 16 for each of 1024 threads."""

STEP = 8192
"""Columns of a step along a longer row: 8 for each of 1024 threads. Few rows at a time leave the next step of all in the L2."""

SPREAD = 128
"""Programs at least, where there are as many rows: one for each multiprocessor."""


@triton.jit
def load_rows(ptr, row, first, R, N, other, BN: tl.constexpr, EVICT: tl.constexpr = tl.constexpr("evict_first")):  # noqa: B008
    """Columns `first` to first + BN of rows `row` [BM], with `other` beyond the border: [BM, BN]."""
    column = first + tl.arange(0, BN)
    in_matrix = (row < R)[:, None] & (column < N)[None, :]
    place = ptr + (row * N)[:, None] + column[None, :]
    return tl.load(place, in_matrix, other=other, eviction_policy=EVICT).to(tl.float32)


@triton.jit
def store_rows(ptr, value, row, first, R, N, BN: tl.constexpr):
    column = first + tl.arange(0, BN)
    in_matrix = (row < R)[:, None] & (column < N)[None, :]
    tl.store(ptr + (row * N)[:, None] + column[None, :], value.to(ptr.dtype.element_ty), in_matrix)


@triton.jit
def load_columns(ptr, first, N, BN: tl.constexpr):
    """Columns `first` to first + BN of a row that every program needs, zero beyond its end: [1, BN]."""
    column = first + tl.arange(0, BN)
    return tl.load(ptr + column, column < N, other=0.0, eviction_policy="evict_last").to(tl.float32)[None, :]


@triton.jit
def largest_and_sum(x):
    """The maximum of each row and Σ exp(x - max), [BM, 1] each: two numbers, kept apart."""
    largest = tl.max(x, 1)[:, None]
    return largest, tl.sum(tl.exp(x - largest), 1)[:, None]


@triton.jit
def largest_and_sum_in_steps(x_ptr, row, R, N, BM: tl.constexpr, BN: tl.constexpr):
    """As above, of rows read once: each lane keeps the maximum of its columns so far, and the sum taken relative to it."""
    top = tl.full([BM, BN], float("-inf"), tl.float32)
    powers = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        x = load_rows(x_ptr, row, first, R, N, float("-inf"), BN)
        higher = tl.maximum(top, x)
        base = tl.where(higher == float("-inf"), 0.0, higher)  # -inf - -inf is NaN
        powers = powers * tl.exp(top - base) + tl.exp(x - base)
        top = higher
    largest = tl.max(top, 1)[:, None]
    return largest, tl.sum(powers * tl.exp(top - largest), 1)[:, None]


@triton.jit
def softmax_kernel(x_ptr, out_ptr, R, N, LOG: tl.constexpr, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    if WHOLE:
        x = load_rows(x_ptr, row, 0, R, N, float("-inf"), BN, "")  # [BM, BN]
        largest, total = largest_and_sum(x)
        shifted = x - largest
        store_rows(out_ptr, shifted - tl.log(total) if LOG else tl.exp(shifted) / total, row, 0, R, N, BN)
    else:
        largest, total = largest_and_sum_in_steps(x_ptr, row, R, N, BM, BN)
        for first in range(0, N, BN):
            shifted = load_rows(x_ptr, row, first, R, N, 0.0, BN) - largest
            store_rows(out_ptr, shifted - tl.log(total) if LOG else tl.exp(shifted) / total, row, first, R, N, BN)


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, out_ptr, R, N, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A target outside the row gives NaN."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    if WHOLE:
        largest, total = largest_and_sum(load_rows(x_ptr, row, 0, R, N, float("-inf"), BN))
    else:
        largest, total = largest_and_sum_in_steps(x_ptr, row, R, N, BM, BN)
    target = tl.load(target_ptr + row, row < R, other=0)
    in_row = (target >= 0) & (target < N) & (row < R)
    x = tl.load(x_ptr + row * N + target, in_row, other=float("nan")).to(tl.float32)[:, None]
    loss = tl.log(total) - (x - largest)  # [BM, 1]
    tl.store(out_ptr + row[:, None], loss.to(out_ptr.dtype.element_ty), (row < R)[:, None])


@triton.jit
def store_entropy_gradient(out_ptr, grad, x, largest, total, target, row, first, R, N, BN: tl.constexpr):
    column = first + tl.arange(0, BN)
    share = tl.exp(x - largest) / total - (column[None, :] == target[:, None]).to(tl.float32)
    store_rows(out_ptr, grad * share, row, first, R, N, BN)


@triton.jit
def cross_entropy_backward_kernel(
    x_ptr, grad_ptr, target_ptr, out_ptr, R, N, WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    target = tl.load(target_ptr + row, row < R, other=0)
    grad = tl.load(grad_ptr + row, row < R, other=0.0).to(tl.float32)
    grad = tl.where((target >= 0) & (target < N), grad, float("nan"))[:, None]
    if WHOLE:
        x = load_rows(x_ptr, row, 0, R, N, float("-inf"), BN)
        largest, total = largest_and_sum(x)
        store_entropy_gradient(out_ptr, grad, x, largest, total, target, row, 0, R, N, BN)
    else:
        largest, total = largest_and_sum_in_steps(x_ptr, row, R, N, BM, BN)
        for first in range(0, N, BN):
            x = load_rows(x_ptr, row, first, R, N, 0.0, BN)
            store_entropy_gradient(out_ptr, grad, x, largest, total, target, row, first, R, N, BN)


@lru_cache(PLANS)
def _launch(kernel: Any, forms: tuple[Form, ...], options: tuple[Any, ...], device: Any) -> Launch:
    """kernel(*tensors, …, R, N, *options, WHOLE, BM, BN), a program for every BM rows of the first of the tensors, (R,N)."""
    rows, columns = forms[0][0]
    whole = columns <= LONGEST
    bn = triton.next_power_of_2(max(1, columns)) if whole else STEP
    bm = max(1, min(ELEMENTS // bn, triton.next_power_of_2(max(1, ceil_div(rows, SPREAD)))))
    warps = min(32, max(1, bm * bn // 512)) if whole else 32
    programs = ceil_div(rows, bm) if columns else 0
    return Launch(kernel, programs, rows, columns, *options, whole, bm, bn, num_warps=warps)


def run_rows(kernel: Any, *tensors: Tensor, scalars: tuple[float, ...] = (), options: tuple[Any, ...] = ()) -> None:
    _launch(kernel, tuple(map(form, tensors)), options, tensors[0].device)(*tensors, *scalars)


def softmax(x: Tensor, out: Tensor, *, log: bool) -> None:
    """softmax or log_softmax of the rows of (R,N)."""
    run_rows(softmax_kernel, x, out, options=(log,))


def cross_entropy(x: Tensor, targets: Tensor, out: Tensor) -> None:
    """-log_softmax(x) at the target of each row: (R,N), (R) -> (R)."""
    run_rows(cross_entropy_kernel, x, targets, out)


def cross_entropy_backward(grad: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> None:
    """grad * (softmax(x) - onehot(targets)): (R), (R,N), (R) -> (R,N)."""
    run_rows(cross_entropy_backward_kernel, x, grad, targets, out)
