"""Rung 0, the baseline: what one writes in PyTorch without a triangular product.

    q, k, v = split and permute qkv          (B,T,3,NH,HS) -> three of (B,NH,T,HS), copied
    out     = scale * q @ kᵀ                 (B,NH,T,HS) x (B,NH,HS,T) -> (B,NH,T,T)

One call of the BLAS, batched over B * NH. It computes and writes the *whole* square: with `fill=None`, unlike every other rung,
it overwrites the entries above the diagonal. Its parts are public, so that the product can be timed without the permutation.
"""

import torch
from torch import Tensor


def permuted(qkv: Tensor) -> Tensor:
    """A copy of the packed tensor with the batch and the heads in front: (B,T,3,NH,HS) -> (3,B,NH,T,HS)."""
    return qkv.permute(2, 0, 3, 1, 4).contiguous()


def product(left: Tensor, right: Tensor, out: Tensor, *, alpha: float, precision: str) -> None:
    """out = alpha * left @ right in one batched call: (…,M,K) x (…,K,N) -> contiguous (…,M,N)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        flat = out.flatten(0, -3)
        torch.baddbmm(flat, left.flatten(0, -3), right.flatten(0, -3), beta=0, alpha=alpha, out=flat)
    finally:
        torch.set_float32_matmul_precision(before)


def set_above_diagonal(out: Tensor, fill: float) -> None:
    """Sets the entries above the diagonal of each square matrix to `fill`."""
    length = out.shape[-1]
    out.masked_fill_(torch.ones(length, length, dtype=torch.bool, device=out.device).triu(1), fill)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """Writes the scores of a packed tensor into `out` (B,NH,T,T); all of it, as above."""
    q, k, _ = permuted(qkv)
    # The BLAS cannot write to a slice of something larger: it gets a square of its own.
    square = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    product(q, k.mT, square, alpha=scale, precision=precision)
    if square is not out:
        out.copy_(square)
    if fill is not None:
        set_above_diagonal(out, fill)
