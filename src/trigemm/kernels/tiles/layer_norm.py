"""Layer norm of the rows of a matrix (R,N) and its gradients, in float32: weight * (x - mean) * rstd + bias.

Forwards a program owns BM rows, as in `rowwise`: WHOLE ones stay in registers, longer ones are read in steps of BN columns, once
for the mean, once for the variance and once more to write.

Backwards, with g = grad * weight and y = (x - mean) * rstd, the gradient of x is (g - mean(g) - y * mean(g * y)) * rstd, with
means over the row, that of weight Σ grad * y and that of bias Σ grad, over all rows. Rows that fit are read once: a few programs
take every so-manieth row and keep sums for all columns. Longer rows are read once for the means, and once more in tiles.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import Form, Launch, form
from trigemm.kernels.tiles.plan import PLANS
from trigemm.kernels.tiles.reduce import reduce
from trigemm.kernels.tiles.rowwise import load_columns, load_rows, run_rows, store_rows
from trigemm.triangle import ceil_div

LONGEST, ELEMENTS = 8192, 1024
"""Columns of the longest row for which a program can keep the sums of columns, and elements of a tile with several rows."""

RESIDENT, STAGES = 128, 2
"""Programs that keep 8192 columns, one for each multiprocessor, and rows that are loaded or computed at a time."""

TALL, WIDE, PROGRAMS = 16, 256, 1024
"""Rows and columns of a tile of longer rows, and programs at most, 8 for each multiprocessor."""


@triton.jit
def squared_distance(x, first, mean, N, BN: tl.constexpr):
    """(x - mean)², zero beyond the border: [BM, BN]."""
    centred = tl.where((first + tl.arange(0, BN) < N)[None, :], x - mean, 0.0)
    return centred * centred


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, eps, R, N,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    if WHOLE:
        x = load_rows(x_ptr, row, 0, R, N, 0.0, BN)
        mean = tl.sum(x, 1)[:, None] / N
        squares = squared_distance(x, 0, mean, N, BN)
    else:
        sums = tl.zeros([BM, BN], tl.float32)
        for first in range(0, N, BN):
            sums += load_rows(x_ptr, row, first, R, N, 0.0, BN)
        mean = tl.sum(sums, 1)[:, None] / N
        squares = tl.zeros([BM, BN], tl.float32)
        for first in range(0, N, BN):
            squares += squared_distance(load_rows(x_ptr, row, first, R, N, 0.0, BN), first, mean, N, BN)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(squares, 1)[:, None] / N + eps)
    if WHOLE:
        y = (x - mean) * rstd * load_columns(weight_ptr, 0, N, BN) + load_columns(bias_ptr, 0, N, BN)
        store_rows(out_ptr, y, row, 0, R, N, BN)
    else:
        for first in range(0, N, BN):
            normal = (load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean) * rstd
            y = normal * load_columns(weight_ptr, first, N, BN) + load_columns(bias_ptr, first, N, BN)
            store_rows(out_ptr, y, row, first, R, N, BN)
    tl.store(mean_ptr + row[:, None], mean, (row < R)[:, None])
    tl.store(rstd_ptr + row[:, None], rstd, (row < R)[:, None])


@triton.jit
def load_statistic(ptr, row, R):
    """One number for each of the rows: [BM, 1], zero beyond the last."""
    return tl.load(ptr + row, row < R, other=0.0)[:, None]


@triton.jit
def store_column_sums(partial_ptr, p, weight, bias, first, N, BN: tl.constexpr):
    """What program p adds to the gradients of weight and bias, of [BM, BN] each; partial is (programs, 2, N)."""
    column = first + tl.arange(0, BN)
    partial_ptr += p.to(tl.int64) * 2 * N + column
    tl.store(partial_ptr, tl.sum(weight, 0), column < N)
    tl.store(partial_ptr + N, tl.sum(bias, 0), column < N)


@triton.jit
def whole_rows_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, out_ptr, partial_ptr, R, N,
    STAGES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """All of the gradient of x, and the column sums of every so-manieth tile of rows [BM, BN]."""
    factor = load_columns(weight_ptr, 0, N, BN)  # [1, BN]
    weight = tl.zeros([BM, BN], tl.float32)
    bias = tl.zeros([BM, BN], tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, BM), tl.num_programs(0), num_stages=STAGES):
        row = (tile * BM + tl.arange(0, BM)).to(tl.int64)
        grad = load_rows(grad_ptr, row, 0, R, N, 0.0, BN)
        x = load_rows(x_ptr, row, 0, R, N, 0.0, BN)
        rstd = load_statistic(rstd_ptr, row, R)
        normal = (x - load_statistic(mean_ptr, row, R)) * rstd
        weight += grad * normal
        bias += grad
        grad *= factor
        inner = tl.sum(grad, 1)[:, None] / N
        along = tl.sum(grad * normal, 1)[:, None] / N
        store_rows(out_ptr, (grad - inner - normal * along) * rstd, row, 0, R, N, BN)
    store_column_sums(partial_ptr, tl.program_id(0), weight, bias, 0, N, BN)


@triton.jit
def row_means_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, inner_ptr, along_ptr, R, N,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """mean(g) and mean(g * y) of each row."""
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    mean, rstd = load_statistic(mean_ptr, row, R), load_statistic(rstd_ptr, row, R)
    sums = tl.zeros([BM, BN], tl.float32)
    products = tl.zeros([BM, BN], tl.float32)
    for first in range(0, N, BN):
        grad = load_rows(grad_ptr, row, first, R, N, 0.0, BN) * load_columns(weight_ptr, first, N, BN)
        sums += grad
        products += grad * (load_rows(x_ptr, row, first, R, N, 0.0, BN) - mean) * rstd
    tl.store(inner_ptr + row, tl.sum(sums, 1) / N, row < R)
    tl.store(along_ptr + row, tl.sum(products, 1) / N, row < R)


@triton.jit
def long_rows_kernel(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, inner_ptr, along_ptr, out_ptr, partial_ptr, R, N, piece,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN columns of the gradient of x in `piece` rows, and their column sums."""
    tiles = tl.cdiv(N, BN)
    first = (tl.program_id(0) % tiles) * BN
    p = (tl.program_id(0) // tiles).to(tl.int64)
    factor = load_columns(weight_ptr, first, N, BN)  # [1, BN]
    weight = tl.zeros([BM, BN], tl.float32)
    bias = tl.zeros([BM, BN], tl.float32)
    for begin in range(p * piece, tl.minimum(p * piece + piece, R), BM):
        row = begin + tl.arange(0, BM)
        grad = load_rows(grad_ptr, row, first, R, N, 0.0, BN)
        x = load_rows(x_ptr, row, first, R, N, 0.0, BN)
        rstd = load_statistic(rstd_ptr, row, R)
        normal = (x - load_statistic(mean_ptr, row, R)) * rstd
        weight += grad * normal
        bias += grad
        grad = grad * factor - load_statistic(inner_ptr, row, R) - normal * load_statistic(along_ptr, row, R)
        store_rows(out_ptr, grad * rstd, row, first, R, N, BN)
    store_column_sums(partial_ptr, p, weight, bias, first, N, BN)


@lru_cache(PLANS)
def _whole_rows(forms: tuple[Form, ...], device: torch.device) -> tuple[Launch, int]:
    """The launch, and the number of its programs, each of which makes a partial result."""
    rows, columns = forms[0][0]
    bn = triton.next_power_of_2(max(1, columns))
    bm = max(1, min(ELEMENTS // bn, triton.next_power_of_2(max(1, ceil_div(rows, RESIDENT)))))
    programs = min(ceil_div(rows, bm), RESIDENT * LONGEST // max(bm * bn, ELEMENTS)) if columns else 0
    warps = max(1, min(16, bm * bn // 256))
    return Launch(whole_rows_kernel, programs, rows, columns, STAGES, bm, bn, num_warps=warps), programs


@lru_cache(PLANS)
def _long_rows(forms: tuple[Form, ...], device: torch.device) -> tuple[Launch, int]:
    """The launch, and the number of pieces into which it cuts the rows, each of which makes a partial result."""
    rows, columns = forms[0][0]
    tiles = ceil_div(columns, WIDE)
    piece = ceil_div(ceil_div(rows, max(1, PROGRAMS // tiles)), TALL) * TALL
    pieces = ceil_div(rows, max(1, piece))
    return Launch(long_rows_kernel, tiles * pieces, rows, columns, piece, TALL, WIDE, num_warps=8), pieces


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, mean: Tensor, rstd: Tensor) -> None:
    """weight * (x - mean) * rstd + bias of the rows of (R,N), with mean and rstd (R), float32."""
    run_rows(layer_norm_kernel, x, weight, bias, out, mean, rstd, scalars=(float(eps),))


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, out: Tensor, weights_out: Tensor
) -> None:
    """The gradient of x into `out` (R,N), those of weight and bias into `weights_out` (2,N)."""
    operands = [grad, x, weight, mean, rstd]
    whole = x.shape[1] <= LONGEST
    if not whole:
        means = [torch.empty_like(mean) for _ in range(2)]
        run_rows(row_means_kernel, *operands, *means)
        operands += means
    launch, pieces = (_whole_rows if whole else _long_rows)(tuple(map(form, (*operands, out))), x.device)
    partial = torch.empty((pieces, 2 * x.shape[1]), dtype=torch.float32, device=x.device)
    launch(*operands, out, partial)
    reduce(partial, 1, pieces, partial.shape[1], weights_out)
