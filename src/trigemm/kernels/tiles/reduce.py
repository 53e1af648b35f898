"""Sums and maxima over one axis: (outer, n, inner) -> (outer, inner), in float32.

A program takes at most PIECE elements of the axis. A longer axis is cut into pieces, and their results are reduced again: so the
rounding of a sum grows with the number of stages, and a long axis keeps the whole device busy.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.triangle import ceil_div

ELEMENTS = 2048
STEPS = 16


@triton.jit
def reduce_kernel(
    x_ptr, out_ptr, outer, n, inner, pieces, piece,
    MAXIMUM: tl.constexpr, BO: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """A tile [BO, BN, BI] that moves along the middle axis; out is (outer, pieces, inner)."""
    tiles = tl.cdiv(inner, BI)
    number = tl.program_id(0).to(tl.int64)
    i = (number % tiles) * BI + tl.arange(0, BI)  # [BI]
    p = (number // tiles) % pieces
    o = (number // (tiles * pieces)) * BO + tl.arange(0, BO)  # [BO]
    begin = p * piece
    end = tl.minimum(begin + piece, n)
    place = (o * n)[:, None, None] * inner + i[None, None, :]  # [BO, 1, BI]
    in_out = (o < outer)[:, None, None] & (i < inner)[None, None, :]
    empty = float("-inf") if MAXIMUM else 0.0
    acc = tl.full([BO, BN, BI], empty, tl.float32)
    for first in range(begin, end, BN):
        k = (first + tl.arange(0, BN))[None, :, None]  # [1, BN, 1]
        x = tl.load(x_ptr + place + k * inner, in_out & (k < end), other=empty).to(tl.float32)  # [BO, BN, BI]
        if MAXIMUM:
            acc = tl.where((acc > x) | (acc != acc), acc, x)
        else:
            acc += x
    if MAXIMUM:
        is_nan = tl.max((acc != acc).to(tl.int32), 1)
        result = tl.where(is_nan > 0, float("nan"), tl.max(tl.where(acc != acc, empty, acc), 1))  # [BO, BI]
    else:
        result = tl.sum(acc, 1)
    target = out_ptr + ((o * pieces + p) * inner)[:, None] + i[None, :]
    tl.store(target, result.to(out_ptr.dtype.element_ty), (o < outer)[:, None] & (i < inner)[None, :])


def reduce(x: Tensor, outer: int, n: int, inner: int, out: Tensor, *, maximum: bool = False) -> None:
    """Sums (or maxima) over the middle axis of the contiguous (outer, n, inner) into `out`."""
    if outer * inner == 0:
        return
    width = min(128, triton.next_power_of_2(inner))
    length = min(ELEMENTS // width, triton.next_power_of_2(max(1, n)))
    blocks = min(ELEMENTS // (width * length), triton.next_power_of_2(outer)), length, width
    piece = length * STEPS
    pieces = max(1, ceil_div(n, piece))
    target = out if pieces == 1 else torch.empty((outer, pieces, inner), dtype=torch.float32, device=x.device)
    programs = ceil_div(outer, blocks[0]) * pieces * ceil_div(inner, blocks[2])
    with torch.cuda.device_of(x):
        reduce_kernel[(programs,)](x, target, outer, n, inner, pieces, piece, maximum, *blocks)
    if pieces > 1:
        reduce(target, outer, pieces, inner, out, maximum=maximum)
