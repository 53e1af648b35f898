"""What is computed of whole rows of a matrix (R,N): softmax, log_softmax, cross-entropy, layer norm; all in float32.

A program owns BM rows and goes over them in steps of BN columns, once for each number that it needs of a row and once to write.
Only the first time do they come from the device's memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import tile_shape
from trigemm.triangle import ceil_div

ELEMENTS = 4096


@triton.jit
def load_rows(ptr, row, first, R, N, other, BN: tl.constexpr):
    """Columns `first` to first + BN of rows `row` [BM], with `other` beyond the border: [BM, BN]."""
    column = first + tl.arange(0, BN)
    in_matrix = (row < R)[:, None] & (column < N)[None, :]
    return tl.load(ptr + (row * N)[:, None] + column[None, :], in_matrix, other=other).to(tl.float32)


@triton.jit
def store_rows(ptr, value, row, first, R, N, BN: tl.constexpr):
    column = first + tl.arange(0, BN)
    in_matrix = (row < R)[:, None] & (column < N)[None, :]
    tl.store(ptr + (row * N)[:, None] + column[None, :], value.to(ptr.dtype.element_ty), in_matrix)


@triton.jit
def largest_and_sum(x_ptr, row, R, N, BM: tl.constexpr, BN: tl.constexpr):
    """The maximum of each row and Σ exp(x - max), [BM, 1] each: two numbers, kept apart."""
    top = tl.full([BM, BN], float("-inf"), tl.float32)
    for first in range(0, N, BN):
        top = tl.maximum(top, load_rows(x_ptr, row, first, R, N, float("-inf"), BN))
    largest = tl.max(top, 1)[:, None]
    powers = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        power = tl.exp(load_rows(x_ptr, row, first, R, N, float("-inf"), BN) - largest)
        powers += tl.where((first + tl.arange(0, BN) < N)[None, :], power, 0.0)
    return largest, tl.sum(powers, 1)[:, None]


@triton.jit
def softmax_kernel(x_ptr, out_ptr, LOG: tl.constexpr, R, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    largest, total = largest_and_sum(x_ptr, row, R, N, BM, BN)
    for first in range(0, N, BN):
        shifted = load_rows(x_ptr, row, first, R, N, 0.0, BN) - largest
        if LOG:
            store_rows(out_ptr, shifted - tl.log(total), row, first, R, N, BN)
        else:
            store_rows(out_ptr, tl.exp(shifted) / total, row, first, R, N, BN)


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, out_ptr, R, N, BM: tl.constexpr, BN: tl.constexpr):
    """A target outside the row gives NaN."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    largest, total = largest_and_sum(x_ptr, row, R, N, BM, BN)
    target = tl.load(target_ptr + row, row < R, other=0)
    in_row = (target >= 0) & (target < N) & (row < R)
    x = tl.load(x_ptr + row * N + target, in_row, other=float("nan")).to(tl.float32)[:, None]
    loss = tl.log(total) - (x - largest)  # [BM, 1]
    tl.store(out_ptr + row[:, None], loss.to(out_ptr.dtype.element_ty), (row < R)[:, None])


@triton.jit
def cross_entropy_backward_kernel(grad_ptr, x_ptr, target_ptr, out_ptr, R, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    largest, total = largest_and_sum(x_ptr, row, R, N, BM, BN)
    target = tl.load(target_ptr + row, row < R, other=0)
    grad = tl.load(grad_ptr + row, row < R, other=0.0).to(tl.float32)
    grad = tl.where((target >= 0) & (target < N), grad, float("nan"))[:, None]
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)
        share = tl.exp(load_rows(x_ptr, row, first, R, N, 0.0, BN) - largest) / total
        share -= (column[None, :] == target[:, None]).to(tl.float32)
        store_rows(out_ptr, grad * share, row, first, R, N, BN)


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, eps, R, N, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    sums = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        sums += load_rows(x_ptr, row, first, R, N, 0.0, BN)
    mean = tl.sum(sums, 1)[:, None] / N
    squares = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        centred = load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean
        squares += tl.where((first + tl.arange(0, BN) < N)[None, :], centred * centred, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(squares, 1)[:, None] / N + eps)
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)
        weight = tl.load(weight_ptr + column, column < N, other=0.0).to(tl.float32)[None, :]
        bias = tl.load(bias_ptr + column, column < N, other=0.0).to(tl.float32)[None, :]
        y = (load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean) * rstd * weight + bias
        store_rows(out_ptr, y, row, first, R, N, BN)
    tl.store(mean_ptr + row[:, None], mean, (row < R)[:, None])
    tl.store(rstd_ptr + row[:, None], rstd, (row < R)[:, None])


@triton.jit
def layer_norm_backward_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, out_ptr, term_ptr, R, N, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """The gradient of x, and grad * (x - mean) * rstd, whose sum over the rows is that of the weight."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    mean = tl.load(mean_ptr + row, row < R, other=0.0)[:, None]
    rstd = tl.load(rstd_ptr + row, row < R, other=0.0)[:, None]
    sums = tl.zeros([BM, BN], tl.float32)
    products = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)
        weight = tl.load(weight_ptr + column, column < N, other=0.0).to(tl.float32)[None, :]
        grad = load_rows(grad_ptr, row, first, R, N, 0.0, BN)
        normal = (load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean) * rstd
        sums += grad * weight
        products += grad * weight * normal
        store_rows(term_ptr, grad * normal, row, first, R, N, BN)
    inner = tl.sum(sums, 1)[:, None] / N
    along = tl.sum(products, 1)[:, None] / N
    for first in range(0, N, BN):
        column = first + tl.arange(0, BN)
        weight = tl.load(weight_ptr + column, column < N, other=0.0).to(tl.float32)[None, :]
        normal = (load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean) * rstd
        dx = (load_rows(grad_ptr, row, first, R, N, 0.0, BN) * weight - inner - normal * along) * rstd
        store_rows(out_ptr, dx, row, first, R, N, BN)


def _launch(kernel: Any, matrix: Tensor, *arguments: Any) -> None:
    """kernel(*arguments, R, N, BM, BN), a program for every BM rows of `matrix` (R,N)."""
    rows, columns = matrix.shape
    bm, bn = tile_shape(rows, columns, ELEMENTS)
    bm = min(bm, triton.next_power_of_2(max(1, rows)))
    with torch.cuda.device_of(matrix):
        if rows and columns:
            kernel[(ceil_div(rows, bm),)](*arguments, rows, columns, bm, bn, num_warps=8)


def softmax(x: Tensor, out: Tensor, *, log: bool) -> None:
    """softmax or log_softmax of the rows of (R,N)."""
    _launch(softmax_kernel, x, x, out, log)


def cross_entropy(x: Tensor, targets: Tensor, out: Tensor) -> None:
    """-log_softmax(x) at the target of each row: (R,N), (R) -> (R)."""
    _launch(cross_entropy_kernel, x, x, targets, out)


def cross_entropy_backward(grad: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> None:
    """grad * (softmax(x) - onehot(targets)): (R), (R,N), (R) -> (R,N)."""
    _launch(cross_entropy_backward_kernel, x, grad, x, targets, out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """weight * (x - mean) * rstd + bias of the rows of (R,N), with mean and rstd (R), float32."""
    _launch(layer_norm_kernel, x, x, weight, bias, out, mean, rstd, eps)


def layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, out: Tensor, terms: Tensor) -> None:
    """The gradient of x into `out`, and of each element what it adds to the weight's gradient into `terms`; both (R,N)."""
    _launch(layer_norm_backward_kernel, x, grad, x, weight, mean, rstd, out, terms)
