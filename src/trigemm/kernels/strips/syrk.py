"""A matrix times its transpose, one half computed: (…,N,K) -> (…,N,N)."""

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import strips
from trigemm.kernels.strips.product import accumulator_dtype, is_target, multiply, operand, outside
from trigemm.triangle import Triangle

HEIGHT = 256


def syrk(a: Tensor, c: Tensor | None, out: Tensor, *, alpha: float, beta: float, uplo: str, precision: str) -> None:
    """alpha * a @ aᵀ + beta * c into `out`; uplo "lower" leaves zeros above the diagonal, "full" mirrors the lower half."""
    n = out.shape[-1]
    a = operand(a)
    if beta == 0:
        c = None
    direct = is_target(out) and c is None
    for strip in strips(Triangle(n, n), HEIGHT):
        live = out[..., strip.rows, strip.live]
        sums = live if direct else live.new_empty(live.shape, dtype=accumulator_dtype(out.dtype))
        multiply(a[..., strip.rows, :], a[..., strip.live, :].mT, sums, alpha)
        if uplo == "full":
            corner, left = sums[..., strip.rows], slice(0, strip.rows.start)
            height = corner.shape[-1]
            corner.copy_(torch.where(outside(Triangle(height, height), out.device), corner.mT, corner))
            mirrored = sums[..., left].mT
            out[..., left, strip.rows].copy_(mirrored if c is None else mirrored.add(c[..., left, strip.rows], alpha=beta))
        if c is not None:
            sums.add_(c[..., strip.rows, strip.live], alpha=beta)
        if uplo == "lower":
            sums[..., strip.jagged].masked_fill_(outside(strip.inside, out.device), 0.0)
            out[..., strip.rows, strip.dead].zero_()
        if not direct:
            live.copy_(sums)
