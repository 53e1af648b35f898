"""The triangle of a product, in strips of rows: (…,M,K) x (…,K,N) -> (…,M,N).

A strip of rows meets the triangle in a rectangle, which a BLAS writes where it belongs, and in a jagged part along the diagonal.
That part is cut into lower strips; what is jagged in these is computed apart and stored through a mask.
"""

from math import prod

import numpy
from torch import Tensor

from trigemm.kernels.strips.geometry import blocks, gpu_height, strips
from trigemm.kernels.strips.product import array, groups, multiply, operand, scaled, store, takes_sums, tensor, torch_is_exact
from trigemm.triangle import Triangle

GROUP = 16
"""Matrices that go through their strips together, so that what one strip read is still in cache for the next."""

GROUP_ENTRIES = 2**22
"""Entries of the output that a larger group of small matrices may have."""

BATCHED_SIZE = 512
"""Up to this many rows and columns, many matrices are faster with torch's batched product and a copy than with NumPy's loop."""


def strip_heights(matrices: int, rows: int, columns: int, depth: int) -> tuple[int, ...]:
    """Heights of strips, outer and inner, for matrices that go together; a strip must save more work than its calls cost.

    Measured with benchmarks/cpu_strips.py on two cores.
    """
    work = matrices * columns * depth
    if work < 2**15:
        return (max(1, rows),)
    if work < 2**17:
        return (256,)
    return (512 if depth >= 512 else 256, 64)


@numpy.errstate(all="ignore")
def triangle_product(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle) -> None:
    """alpha * a @ b into the entries of `out` that belong to the triangle; the others are not touched."""
    if abs(out.stride(-2)) < abs(out.stride(-1)):
        a, b, out, triangle = b.mT, a.mT, out.mT, triangle.transposed
    a, b = operand(a), operand(b)
    *batch, rows, depth = a.shape
    columns, matrices = b.shape[-1], prod(batch)
    batched = max(rows, columns, depth) <= BATCHED_SIZE and matrices >= GROUP and torch_is_exact(a)
    view = tensor if batched else array
    direct = takes_sums(out) and not batched
    limit = max(GROUP if direct else 1, GROUP_ENTRIES // (min(rows, 512) * columns))
    heights = (64,) if batched else strip_heights(min(limit, matrices), rows, columns, depth)
    if out.device.type != "cpu":
        limit, heights = matrices, (gpu_height(rows),)
    for a_part, b_part, out_part in groups(limit, a, b, out):
        left, right = view(a_part), view(b_part)
        left, factor = scaled(left, alpha, right) if 4 * depth <= columns else (left, alpha)
        target = array(out_part) if direct else None
        for block in blocks(triangle, heights):
            x, y = left[..., block.rows, :], right[..., block.columns]
            if target is not None and block.inside is None:
                multiply(x, y, target[..., block.rows, block.columns], factor)
            else:
                store(multiply(x, y, None, factor), out_part[..., block.rows, block.columns], block.inside)


def gemmt(
    a: Tensor, b: Tensor, out: Tensor, *, alpha: float, diagonal: int, fill: float | None, precision: str, keep: bool = True
) -> None:
    """The lower triangle of alpha * a @ b into `out`; the rest is set to `fill`, or not touched where it is None."""
    triangle = Triangle(out.shape[-2], out.shape[-1], "lower", diagonal)
    if out.numel() == 0:
        return
    if fill is not None:
        for strip in strips(triangle, 256):
            out[..., strip.rows, strip.rest].fill_(fill)
    triangle_product(a, b, out, alpha, triangle)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str, keep: bool = True) -> None:
    """scale * q . k for key positions up to the query's own: packed (B,T,3,NH,HS) -> (B,NH,T,T)."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    gemmt(q, k.mT, out, alpha=scale, diagonal=0, fill=fill, precision=precision, keep=keep)
