"""A triangle times a matrix, strip by strip: (…,M,K) x (…,K,N) -> (…,M,N)."""

from torch import Tensor

from trigemm.kernels.strips.geometry import strips
from trigemm.kernels.strips.product import accumulator_dtype, is_target, multiply, operand, outside
from trigemm.triangle import Triangle, Uplo

HEIGHT = 256


def trmm(a: Tensor, b: Tensor, out: Tensor, *, alpha: float, uplo: Uplo, diagonal: int, precision: str) -> None:
    """alpha * tri(a) @ b into `out`; entries of `a` that are not of the triangle are multiplied with nothing."""
    triangle = Triangle(a.shape[-2], a.shape[-1], uplo, diagonal)
    a, b = operand(a), operand(b)
    direct = is_target(out)
    for strip in strips(triangle, HEIGHT):
        rows = out[..., strip.rows, :]
        sums = rows if direct else rows.new_empty(rows.shape, dtype=accumulator_dtype(out.dtype))
        multiply(a[..., strip.rows, strip.whole], b[..., strip.whole, :], sums)
        if strip.inside.columns:
            corner = a[..., strip.rows, strip.jagged].masked_fill(outside(strip.inside, a.device), 0.0)
            part = sums.new_empty(sums.shape)
            multiply(corner, b[..., strip.jagged, :], part)
            sums.add_(part)
        if alpha != 1.0:
            sums.mul_(alpha)
        if not direct:
            rows.copy_(sums)
