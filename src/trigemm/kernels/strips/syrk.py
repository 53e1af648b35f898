"""A matrix times its transpose, of which one half is computed: (…,N,K) -> (…,N,N)."""

import torch
from torch import Tensor

from trigemm.kernels.strips.gemmt import fill_outside, triangle_product
from trigemm.kernels.strips.geometry import Strip, strips
from trigemm.kernels.strips.halves import mirror_by_halves
from trigemm.kernels.strips.product import sum_dtype
from trigemm.kernels.strips.workers import side_by_side
from trigemm.triangle import Triangle

HEIGHT = 256
"""Rows that are mirrored together."""


def syrk(a: Tensor, c: Tensor | None, out: Tensor, *, alpha: float, beta: float, uplo: str, precision: str) -> None:
    """alpha * a @ aᵀ + beta * c into `out`; uplo "lower" leaves zeros above the diagonal, "full" mirrors the lower half."""
    if out.numel() == 0:
        return
    added = None if c is None or beta == 0 else c
    sums = out if added is None else torch.empty_like(out, dtype=sum_dtype(out.dtype))
    triangle = Triangle(out.shape[-2], out.shape[-1])
    triangle_product(a, a.mT, sums, alpha, triangle, keep=False)
    if uplo == "full":
        _mirror(sums, triangle)
    else:
        fill_outside(sums, triangle, 0.0)
    if added is not None:
        sums.add_(added if uplo == "full" else added.tril(), alpha=beta)
        out.copy_(sums)


def _mirror(x: Tensor, triangle: Triangle) -> None:
    """Copy what lies below the diagonal to above it."""
    if x.device.type != "cpu":
        mirror_by_halves(x, triangle)
        return

    def mirror(strip: Strip) -> None:
        x[..., : strip.rows.start, strip.rows] = x[..., strip.rows, : strip.rows.start].mT
        corner = x[..., strip.rows, strip.rows]
        belongs = torch.ones(corner.shape[-2:], dtype=torch.bool, device=x.device).tril_()
        corner.copy_(torch.where(belongs, corner, corner.mT))

    side_by_side(mirror, list(strips(triangle, HEIGHT)), x.device)
