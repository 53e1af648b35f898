"""Softmax over the lower triangle and its gradient, in strips of rows: (…,T,S) -> (…,T,S), zeros above the diagonal."""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import Strip, gpu_height, strips
from trigemm.kernels.strips.product import groups, mask, sum_dtype, tensor
from trigemm.triangle import Triangle

HEIGHT = 128
ENTRIES = 2**20
"""Entries of a strip on the CPU: matrices go together until it has so many."""


def parts(diagonal: int, *tensors: Tensor) -> Iterator[tuple[Strip, tuple[Tensor, ...]]]:
    """The strips of each group of matrices, and the rows of every tensor that they cut."""
    rows, columns = tensors[0].shape[-2:]
    on_cpu = tensors[0].device.type == "cpu"
    height = HEIGHT if on_cpu else gpu_height(rows)
    limit = max(1, ENTRIES // (min(height, rows) * columns)) if on_cpu else prod(tensors[0].shape[:-2])
    for group in groups(limit, *tensors):
        for strip in strips(Triangle(rows, columns, "lower", diagonal), height):
            yield strip, tuple(x[..., strip.rows, :] for x in group)


def seen(x: Tensor, strip: Strip, outside: float) -> Tensor:
    """A copy of the columns that belong to the triangle in some row of a strip, in the dtype of sums; `outside` in the others."""
    x = x[..., : strip.jagged.stop].to(sum_dtype(x.dtype), copy=True)
    x[..., strip.jagged].masked_fill_(~tensor(mask(strip.inside, x if x.is_cuda else x.numpy())), outside)
    return x


def causal_softmax(scores: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""
    if out.numel() == 0:
        return
    for strip, (x, y) in parts(diagonal, scores, out):
        end = strip.jagged.stop
        if end:
            powers = seen(x, strip, -torch.inf)
            empty = powers.amax(-1, keepdim=True) == -torch.inf
            powers = torch.softmax(powers.masked_fill_(empty, 0.0), -1, out=powers).masked_fill_(empty, 0.0)
            y[..., :end] = seen(powers, strip, 0.0)  # a row with a NaN is NaN inside the triangle
        y[..., end:] = 0.0


def causal_softmax_backward(grad: Tensor, weights: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""
    if out.numel() == 0:
        return
    for strip, (g, w, y) in parts(diagonal, grad, weights, out):
        end = strip.jagged.stop
        if end:
            d, w = seen(g, strip, 0.0), w[..., :end].to(sum_dtype(w.dtype))
            d -= (w * d).sum(-1, keepdim=True)
            y[..., :end] = d * w
        y[..., end:] = 0.0
