"""One product of strided matrices: NumPy's BLAS on the CPU, torch's elsewhere.

NumPy's BLAS computes float32 as float32 whatever torch's global precision setting says.
"""

import numpy
import torch
from torch import Tensor

from trigemm.triangle import Triangle


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which products of `dtype` are summed: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _blas_layout(x: Tensor) -> bool:
    """Whether each matrix of `x` has one dimension of unit stride and a leading dimension that a BLAS takes."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def operand(x: Tensor) -> Tensor:
    """`x` in its accumulator dtype and in a layout that a BLAS reads in place; stretched batch dimensions stay so."""
    dtype = accumulator_dtype(x.dtype)
    if x.dtype == dtype and _blas_layout(x):
        return x
    base = x
    for dim in range(x.dim() - 2):
        if x.stride(dim) == 0 and x.shape[dim] > 1:
            base = base.narrow(dim, 0, 1)
    return base.to(dtype).contiguous().expand(x.shape)


def is_target(out: Tensor) -> bool:
    """Whether a BLAS can write its sums into `out` itself."""
    return out.dtype == accumulator_dtype(out.dtype) and _blas_layout(out)


def multiply(a: Tensor, b: Tensor, out: Tensor, alpha: float = 1.0) -> None:
    """out = alpha * a @ b, in a dtype that sums in itself."""
    if a.device.type == "cpu":
        numpy.matmul(a.numpy(), b.numpy(), out=out.numpy())
    else:
        torch.matmul(a, b, out=out)
    if alpha != 1.0:
        out.mul_(alpha)


def outside(triangle: Triangle, device: torch.device) -> Tensor:
    """Boolean mask of the entries that do not belong."""
    ones = torch.ones(triangle.rows, triangle.columns, dtype=torch.bool, device=device)
    rest = triangle.complement
    return ones.tril_(rest.diagonal) if rest.uplo == "lower" else ones.triu_(rest.diagonal)
