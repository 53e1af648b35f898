"""Softmax over the lower triangle and its gradient, in strips of rows: (…,T,S) -> (…,T,S), zeros above the diagonal.

On the CPU a strip is made in scratch memory, by one of several threads, and goes through it while it is in that thread's cache.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import Strip, gpu_height, strips
from trigemm.kernels.strips.product import groups, set_outside, sum_dtype
from trigemm.kernels.strips.scratch import scratch
from trigemm.kernels.strips.workers import side_by_side
from trigemm.triangle import Triangle, ceil_div

HEIGHT = 128
ENTRIES = 2**18
"""Entries of a strip on the CPU: matrices go together until it has so many."""


def _each_strip(work: Callable[..., None], diagonal: int, *tensors: Tensor) -> None:
    """Calls work(strip, rows of every tensor) for the strips of each group of matrices."""
    *batch, rows, columns = tensors[0].shape
    device = tensors[0].device
    on_cpu = device.type == "cpu"
    height = min(HEIGHT, rows) if on_cpu else gpu_height(rows)

    def together(strip: Strip) -> int:
        """How many matrices."""
        return min(prod(batch), ceil_div(ENTRIES, height * max(1, strip.jagged.stop))) if on_cpu else prod(batch)

    items = [
        (strip, [x[..., strip.rows, :] for x in group])
        for strip in strips(Triangle(rows, columns, "lower", diagonal), height)
        for group in groups(together(strip), *tensors)
    ]
    items.reverse()  # the longest rows first
    side_by_side(lambda item: work(item[0], *item[1]), items, device)


def _seen(name: str, x: Tensor, strip: Strip, outside: float) -> Tensor:
    """A copy of the columns that belong to the triangle in some row of a strip, in the dtype of sums; `outside` in the others."""
    x = x[..., : strip.jagged.stop]
    dtype = sum_dtype(x.dtype)
    if x.device.type == "cpu":
        seen = torch.from_numpy(scratch(name, tuple(x.shape), str(dtype).removeprefix("torch.")))
        seen.copy_(x)
    else:
        seen = x.to(dtype, copy=True)
    set_outside(seen[..., strip.jagged], strip.inside, outside)
    return seen


def causal_softmax(scores: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""

    def write(strip: Strip, x: Tensor, y: Tensor) -> None:
        end = strip.jagged.stop
        if end:
            powers = _seen("powers", x, strip, -torch.inf)
            torch.softmax(powers, -1, out=powers)
            # A row that has nothing to sum is NaN now, and a row with a NaN is NaN above the diagonal too.
            if x.device.type != "cpu" or powers[..., 0].isnan().any():
                empty = _seen("scores", x, strip, -torch.inf).amax(-1, keepdim=True) == -torch.inf
                powers.masked_fill_(empty, 0.0)
                set_outside(powers[..., strip.jagged], strip.inside, 0.0)
            y[..., :end] = powers
        y[..., end:] = 0.0

    if out.numel():
        _each_strip(write, diagonal, scores, out)


def causal_softmax_backward(grad: Tensor, weights: Tensor, out: Tensor, *, diagonal: int) -> None:
    """See trigemm.kernels.spec."""

    def write(strip: Strip, g: Tensor, w: Tensor, y: Tensor) -> None:
        end = strip.jagged.stop
        if end:
            d, w = _seen("grad", g, strip, 0.0), w[..., :end].to(sum_dtype(w.dtype))
            d -= (w * d).sum(-1, keepdim=True)
            y[..., :end] = d.mul_(w)
        y[..., end:] = 0.0

    if out.numel():
        _each_strip(write, diagonal, grad, weights, out)
