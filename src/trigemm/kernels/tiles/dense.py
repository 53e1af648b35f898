"""A whole product: alpha * a @ b, (…,M,K) x (…,K,N) -> (…,M,N), by torch.

In half precision that is the BLAS's, which leads where nothing is to be left out: where the triangle is all of it, and in small
products whose rest may hold anything. It takes operands as they lie; what it would have to copy is left to the tiles.
"""

from functools import lru_cache
from math import inf, prod

import torch
from torch import Tensor

from trigemm.kernels.tiles.config import MULTIPROCESSORS
from trigemm.kernels.tiles.operand import Form, merge_batches
from trigemm.kernels.tiles.plan import PLANS

SMALL = 2 * 64**2 * MULTIPROCESSORS
"""Entries up to which a whole product takes as long as half of it: two tiles of 64 x 64 for each multiprocessor."""


def takes(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str, alpha: float) -> bool:
    """Whether torch serves a product, and serves it as the tiles would.

    Where alpha is 0, or would be in float32, a BLAS does not read its operands, and NaN in them would be lost; and asked to be
    deterministic, torch refuses a BLAS that it knows nothing about.
    """
    return (
        torch.finfo(torch.float32).tiny <= abs(alpha) < inf
        and _fits(a, b, c, device, diagonal, rest)
        and not torch.are_deterministic_algorithms_enabled()
    )


@lru_cache(PLANS)
def _fits(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str) -> bool:
    return (
        device.type == "cuda"
        and a.dtype in (torch.float16, torch.bfloat16)
        and (diagonal >= c.shape[-1] - 1 or (rest == "any" and prod(c.shape) <= SMALL))
        and all(x.in_blas_layout and max(*x.shape, *x.stride) < 2**31 for x in (a, b, c))
        and len(merge_batches(c.shape[:-2], [x.stride[:-2] for x in (a, b, c)])[0]) <= 1
    )


class Dense:
    """One call, of matrices or of a single batch of them: `views` are their shapes and strides."""

    def __init__(self, *views: tuple[tuple[int, ...], tuple[int, ...]]):
        self._views = views
        self._multiply = torch.baddbmm if len(views[0][0]) == 3 else torch.addmm

    def run(self, tensors: tuple[Tensor, Tensor, Tensor], alpha: float, _fill: float) -> None:
        a, b, out = (x.as_strided(*view) for x, view in zip(tensors, self._views, strict=True))
        self._multiply(out, a, b, beta=0, alpha=alpha, out=out)


@lru_cache(PLANS)
def plan(a: Form, b: Form, c: Form, _device: torch.device, _diagonal: int, _rest: str, _precision: str) -> Dense:
    sizes, strides = merge_batches(c.shape[:-2], [x.stride[:-2] for x in (a, b, c)])
    return Dense(*(((*sizes, *x.shape[-2:]), (*stride, *x.stride[-2:])) for x, stride in zip((a, b, c), strides, strict=True)))
