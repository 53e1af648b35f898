"""The triangle of a product, strip by strip: (…,M,K) x (…,K,N) -> (…,M,N)."""

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import strips
from trigemm.kernels.strips.product import accumulator_dtype, is_target, multiply, operand, outside
from trigemm.triangle import Triangle

HEIGHT = 256


def gemmt(a: Tensor, b: Tensor, out: Tensor, *, alpha: float, diagonal: int, fill: float | None, precision: str) -> None:
    """The lower triangle of alpha * a @ b into `out`; the rest is set to `fill`, or left alone where it is None."""
    triangle = Triangle(out.shape[-2], out.shape[-1], "lower", diagonal)
    a, b = operand(a), operand(b)
    if abs(out.stride(-2)) < abs(out.stride(-1)):
        a, b, out, triangle = b.mT, a.mT, out.mT, triangle.transposed
    direct = is_target(out)
    for strip in strips(triangle, HEIGHT):
        rows = out[..., strip.rows, :]
        if fill is not None:
            rows[..., strip.dead].fill_(fill)
        live = rows[..., strip.live]
        if live.numel() == 0:
            continue
        jagged = rows[..., strip.jagged]
        mask = outside(strip.inside, out.device)
        beyond = jagged.clone() if fill is None else torch.full_like(jagged, fill)
        sums = live if direct else live.new_empty(live.shape, dtype=accumulator_dtype(out.dtype))
        multiply(a[..., strip.rows, :], b[..., strip.live], sums, alpha)
        if not direct:
            live.copy_(sums)
        torch.where(mask, beyond, jagged, out=jagged)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """scale * q . k for key positions up to the query's own: packed (B,T,3,NH,HS) -> (B,NH,T,T)."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    gemmt(q, k.mT, out, alpha=scale, diagonal=0, fill=fill, precision=precision)
