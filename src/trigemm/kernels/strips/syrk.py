"""A matrix times its transpose, of which one half is computed: (…,N,K) -> (…,N,N)."""

import torch
from torch import Tensor

from trigemm.kernels.strips.gemmt import triangle_product
from trigemm.kernels.strips.geometry import gpu_height, strips
from trigemm.kernels.strips.product import sum_dtype
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
    triangle_product(a, a.mT, sums, alpha, triangle)
    height = HEIGHT if out.device.type == "cpu" else gpu_height(triangle.rows)
    for strip in strips(triangle, height):
        left, right = slice(0, strip.rows.start), slice(strip.rows.stop, None)
        corner = sums[..., strip.rows, strip.rows]
        belongs = torch.ones(corner.shape[-2:], dtype=torch.bool, device=out.device).tril_()
        corner.copy_(torch.where(belongs, corner, corner.mT if uplo == "full" else 0.0))
        if uplo == "full":
            sums[..., left, strip.rows] = sums[..., strip.rows, left].mT
        else:
            sums[..., strip.rows, right] = 0.0
    if added is not None:
        sums.add_(added if uplo == "full" else added.tril(), alpha=beta)
        out.copy_(sums)
