"""A triangle times a matrix, in strips of rows: (…,M,K) x (…,K,N) -> (…,M,N).

A strip of the triangle is a rectangle and a jagged part along the diagonal. The jagged part is cut into lower strips; what is
jagged in these is copied with zeros outside the triangle, so that nothing else of `a` is ever multiplied.
"""

import numpy
import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import blocks, length, strips
from trigemm.kernels.strips.halves import trmm_by_halves
from trigemm.kernels.strips.product import array, groups, masked, multiply, operand, store, sum_dtype, takes_sums
from trigemm.triangle import Triangle, Uplo

GROUP = 64
"""Matrices that go through their strips together."""

HEIGHTS = (256, 64)
"""Heights of the outer and the inner strips."""


@numpy.errstate(all="ignore")
def trmm(a: Tensor, b: Tensor, out: Tensor, *, alpha: float, uplo: Uplo, diagonal: int, precision: str) -> None:
    """alpha * tri(a) @ b into `out`; the other half of `a` changes nothing, whatever stands there."""
    triangle = Triangle(a.shape[-2], a.shape[-1], uplo, diagonal)
    if out.numel() == 0:
        return
    if out.device.type != "cpu":
        trmm_by_halves(a, b, out, alpha, triangle)
        return
    direct = takes_sums(out)
    for a_part, b_part, out_part in groups(GROUP, operand(a), operand(b), out):
        left, right = array(a_part), array(b_part)
        for strip in strips(triangle, HEIGHTS[0]):
            target = out_part[..., strip.rows, :]
            sums = array(target if direct else torch.empty_like(target, dtype=sum_dtype(out.dtype)))
            panel = left[..., strip.rows, :]
            if length(strip.whole):
                multiply(panel[..., strip.whole], right[..., strip.whole, :], sums)
            else:
                sums[...] = 0
            corner, below = panel[..., strip.jagged], right[..., strip.jagged, :]
            for block in blocks(strip.inside, HEIGHTS[1:]):
                piece = corner[..., block.rows, block.columns]
                if block.inside is not None:
                    piece = masked(piece, block.inside)
                part = sums[..., block.rows, :]
                part += multiply(piece, below[..., block.columns, :])
            if alpha != 1.0:
                sums *= alpha
            if not direct:
                store(sums, target)
