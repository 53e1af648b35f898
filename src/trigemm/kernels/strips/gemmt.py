"""The triangle of a product, in strips of rows: (…,M,K) x (…,K,N) -> (…,M,N).

A strip of rows meets the triangle in a rectangle, which a BLAS writes where it belongs, and in a jagged part along the diagonal.
That part is cut into lower strips; what is jagged in these is computed apart and stored through a mask, or written whole where
the rest of `out` may hold anything.
"""

from math import prod

import numpy
import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import ALIGN, Block, Strip, blocks, length, strips
from trigemm.kernels.strips.halves import fill_by_halves, gemmt_by_halves
from trigemm.kernels.strips.product import (
    CACHED_ENTRIES,
    array,
    batches,
    groups,
    multiply,
    multiply_batch,
    operand,
    scaled,
    set_outside,
    store,
    sum_dtype,
    takes_sums,
    torch_is_exact,
)
from trigemm.kernels.strips.workers import side_by_side
from trigemm.triangle import Triangle, ceil_div

# What follows is measured with benchmarks/cpu_strips.py on two cores.

SHORT_DEPTH = 128
"""Up to this inner size batches are multiplied by torch's BLAS, beyond it by NumPy's."""

SMALL_WORK = 2**22
"""Up to so many multiplications torch multiplies everything: the calls of strips would take longer."""

SMALL_AT_WILL = ((512, 2**40), (1024, 2**30), (2**40, 2**26))
"""The same where the rest of `out` may hold anything and the inner size is short: for up to so many rows and columns, up to so
many multiplications. What half of such a product would save is less than what a BLAS loses in smaller calls."""

SMALL_TO_FILL = ((256, 2**40), (512, 2**28), (2**40, 2**26))
"""The same where the rest is filled then."""

SMALL, MANY = 192, 16
"""From so many matrices of at most so many rows and columns on, all of each is multiplied, by one call for many of them."""

SMALL_ENTRIES = 2**20
"""Entries of small matrices that are made in scratch memory together."""

FEW, WORTH_WAKING = 4, 2**28
"""From so many matrices and useful flops on, strips are computed side by side."""

SIDE_BY_SIDE_COLUMNS = 2**15
"""Matrices have their strips computed together up to so many columns in sum."""

SIDE_HEIGHTS = 512, 128
"""Heights of strips that are computed side by side, the outer ones first, from 1024 columns on."""

FILL_HEIGHT = 64
"""Rows of a strip whose other entries are set together."""

GROUP = 16
"""Matrices that go through their strips one by one together, so that what one strip read is still in cache for the next."""


DEEP, LEAF = 512, 128
"""From this inner size on each strip is half as high as the one around it, down to this height: large products are worth most."""


def strip_heights(matrices: int, rows: int, columns: int, depth: int) -> tuple[int, ...]:
    """Heights of strips, the outer ones first, for matrices that go together; a strip must save more work than its calls cost.

    >>> strip_heights(1, 2048, 2048, 2048), strip_heights(16, 1024, 1024, 64)
    ((1024, 512, 256, 128), (256, 64))
    """
    work = matrices * columns * depth
    if work < 2**16:
        return (max(1, rows),)
    if work < 2**18:
        return (256,)
    if depth < DEEP:
        return 256, 64
    heights = [max(LEAF, ceil_div(rows, 2 * ALIGN) * ALIGN)]
    while heights[-1] > LEAF:
        heights.append(max(LEAF, ceil_div(heights[-1], 2 * ALIGN) * ALIGN))
    return tuple(heights)


@numpy.errstate(all="ignore")
def triangle_product(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, keep: bool = True) -> None:
    """alpha * a @ b into the entries of `out` that belong to the triangle; without `keep` the others may hold anything then."""
    if abs(out.stride(-2)) < abs(out.stride(-1)):
        a, b, out, triangle = b.mT, a.mT, out.mT, triangle.transposed
    if out.device.type != "cpu":
        gemmt_by_halves(a, b, out, alpha, triangle, keep)
        return
    a, b = operand(a), operand(b)
    *batch, rows, depth = a.shape
    columns, matrices = b.shape[-1], prod(batch)
    if depth <= SHORT_DEPTH and torch_is_exact(a):
        if max(rows, columns) <= SMALL and matrices >= MANY:
            _whole(a, b, out, alpha, triangle, keep)
            return
        if matrices >= FEW and matrices * triangle.flops(depth) >= WORTH_WAKING:
            _side_by_side(a, b, out, alpha, triangle, keep)
            return
    _one_by_one(a, b, out, alpha, triangle, keep)


def _whole(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, keep: bool) -> None:
    """All of each product, many matrices a call."""
    direct = takes_sums(out) and not keep
    limit = prod(out.shape[:-2]) if direct else SMALL_ENTRIES // (triangle.rows * triangle.columns)
    for left, right, target in batches(limit, a, b, out):
        if direct:
            multiply_batch(left, right, target, alpha)
        else:
            store(multiply_batch(left, right, None, alpha), target, triangle if keep else None)


def _side_by_side(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, keep: bool) -> None:
    """Each strip of some matrices by one thread, with torch's BLAS."""

    def write(item: tuple[tuple[Tensor, ...], Block]) -> None:
        (left, right, target), block = item
        x, y, z = left[:, block.rows], right[:, :, block.columns], target[:, block.rows, block.columns]
        inside = block.inside if keep else None
        if inside is None and takes_sums(z):
            multiply_batch(x, y, z, alpha)
        else:
            store(array(multiply_batch(x, y, None, alpha)), z, inside)

    limit = max(1, SIDE_BY_SIDE_COLUMNS // triangle.columns)
    heights = SIDE_HEIGHTS if triangle.columns >= 1024 else (128, 64)
    largest_first = sorted(blocks(triangle, heights), key=lambda block: -length(block.rows) * length(block.columns))
    side_by_side(write, [(x, block) for block in largest_first for x in batches(limit, a, b, out)], out.device)


def _one_by_one(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, keep: bool) -> None:
    """One strip after the other, each with all threads."""
    *batch, rows, depth = a.shape
    columns, matrices = b.shape[-1], prod(batch)
    direct = takes_sums(out)
    limit = max(1, GROUP if direct else 2**22 // (min(rows, 512) * columns))
    heights = strip_heights(min(limit, matrices), rows, columns, depth)
    for a_part, b_part, out_part in groups(limit, a, b, out):
        left, right = array(a_part), array(b_part)
        left, factor = scaled(left, alpha, right) if 4 * depth <= columns else (left, alpha)
        target = array(out_part) if direct else None
        for block in blocks(triangle, heights):
            x, y = left[..., block.rows, :], right[..., block.columns]
            inside = block.inside if keep else None
            if target is not None and inside is None:
                multiply(x, y, target[..., block.rows, block.columns], factor)
            else:
                store(multiply(x, y, None, factor), out_part[..., block.rows, block.columns], inside)


def _at_once(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, fill: float | None, keep: bool) -> None:
    """A small product, whole, and what does not belong to the triangle set after that."""
    if keep:
        sums = torch.matmul(a, b, out=torch.empty_like(out))  # without `out`, autocast would multiply in another dtype
        store(sums if alpha == 1.0 else sums.mul_(alpha), out, triangle)
        return
    # A few matrices at a time where the rest is set: while they are in cache.
    limit = out.numel() if fill is None else max(1, SMALL_ENTRIES // (triangle.rows * triangle.columns))
    to_fill = [] if fill is None else list(strips(triangle, FILL_HEIGHT))
    for left, right, target in groups(limit, a, b, out):
        torch.matmul(left, right, out=target)
        if alpha != 1.0:
            target.mul_(alpha)
        if fill is not None:
            for strip in to_fill:
                fill_strip(target, strip, fill)


def fill_strip(out: Tensor, strip: Strip, fill: float) -> None:
    """Set the entries of a strip of `out` that do not belong to the triangle."""
    if length(strip.beyond):
        out[..., strip.rows, strip.beyond].fill_(fill)
    if length(strip.jagged):
        set_outside(out[..., strip.rows, strip.jagged], strip.inside, fill)


def fill_outside(out: Tensor, triangle: Triangle, fill: float) -> None:
    """Set the entries of `out` that do not belong to the triangle."""
    if out.device.type != "cpu":
        fill_by_halves(out, triangle, fill)
        return
    side_by_side(lambda strip: fill_strip(out, strip, fill), list(strips(triangle, FILL_HEIGHT)), out.device)


def gemmt(
    a: Tensor, b: Tensor, out: Tensor, *, alpha: float, diagonal: int, fill: float | None, precision: str, keep: bool = True
) -> None:
    """See trigemm.kernels.spec."""
    if out.numel() == 0:
        return
    keep = keep and fill is None
    rows, columns = out.shape[-2:]
    depth, side = a.shape[-1], max(rows, columns)
    work = out.numel() * depth
    small = work <= SMALL_WORK and rows * columns <= CACHED_ENTRIES
    if not keep and depth <= SHORT_DEPTH:
        sizes = SMALL_AT_WILL if fill is None else SMALL_TO_FILL
        small = any(side <= longest and work <= most for longest, most in sizes)
    triangle = Triangle(rows, columns, "lower", diagonal)
    if small and out.dtype == sum_dtype(out.dtype) and torch_is_exact(out):
        _at_once(a, b, out, alpha, triangle, fill, keep)
        return
    triangle_product(a, b, out, alpha, triangle, keep)
    if fill is not None:
        fill_outside(out, triangle, fill)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str, keep: bool = True) -> None:
    """See trigemm.kernels.spec: the operation of the ladder."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    gemmt(q, k.mT, out, alpha=scale, diagonal=0, fill=fill, precision=precision, keep=keep)
