"""Triangles cut by halves into squares, for a GPU: the squares of one size are one batch of one BLAS call.

The largest square leaves two triangles of half the size, and so on down to strips of LEAF rows, whose jagged blocks are
multiplied whole: of n x n blocks n (n + 1) / 2, in log2(n) + 1 calls. Many matrices are as good a batch: then a call takes the
same block of all of them.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import blocks, length
from trigemm.kernels.strips.product import batches, masked, operand, set_outside, store, sum_dtype, takes_sums
from trigemm.triangle import Triangle

LEAF = 256
"""Rows of the lowest strips: lower ones would keep a GPU less busy than they save work."""


class Part(NamedTuple):
    """Rows or columns of each of some blocks: `size` from `start` on in the first, `step` further on in each after it."""

    start: int
    size: int
    step: int


@dataclass(frozen=True, slots=True)
class Run:
    """`count` blocks of one shape at even distances. All their entries belong to the triangle, or those in `inside`."""

    count: int
    rows: Part
    columns: Part
    inside: Triangle | None

    def cut(self, x: Tensor, rows: Part | None, columns: Part | None) -> Tensor:
        """The given rows and columns (None: all) of each block in each of (n,M,N) matrices, as a view (n,count,M,N)."""
        sizes, offset, step = list(x.shape), x.storage_offset(), 0
        for dim, part in ((1, rows), (2, columns)):
            if part is not None:
                sizes[dim] = part.size
                offset += part.start * x.stride(dim)
                step += part.step * x.stride(dim)
        return x.as_strided((sizes[0], self.count, *sizes[1:]), (x.stride(0), step, *x.stride()[1:]), offset)


@lru_cache(maxsize=64)
def runs(triangle: Triangle) -> tuple[Run, ...]:
    """Disjoint blocks that cover the triangle, in as few runs as can be.

    >>> for run in runs(Triangle(1024, 1024)):
    ...     print(run.count, *map(tuple, (run.rows, run.columns)), "whole" if run.inside is None else "jagged")
    4 (0, 256, 256) (0, 256, 256) jagged
    2 (256, 256, 512) (0, 256, 512) whole
    1 (512, 512, 0) (0, 512, 0) whole
    """
    heights = [LEAF]
    while 2 * heights[0] < triangle.rows:
        heights.insert(0, 2 * heights[0])
    alike = defaultdict(list)
    for block in blocks(triangle, tuple(heights)):
        alike[length(block.rows), length(block.columns), block.inside].append((block.rows.start, block.columns.start))
    found = []
    for (height, width, inside), corners in alike.items():
        while corners:
            steps = [(r - r0, c - c0) for (r0, c0), (r, c) in pairwise(corners)]
            count = 1 + next((i for i, step in enumerate(steps) if step != steps[0]), len(steps))
            down, across = steps[0] if count > 1 else (0, 0)
            (top, left), corners = corners[0], corners[count:]
            found.append(Run(count, Part(top, height, down), Part(left, width, across), inside))
    return tuple(found)


def _turns(*views: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views (n,count,M,N) as batches: of all matrices, or of all blocks of a run, whichever are more."""
    matrices, count = views[0].shape[:2]
    yield from zip(*(x.unbind(1 if matrices >= count else 0) for x in views), strict=True)


def gemmt_by_halves(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle, keep: bool) -> None:
    """alpha * a @ b into the entries of `out` that belong to the triangle; without `keep` the others may hold anything then."""
    direct = takes_sums(out)
    for left, right, target in batches(max(1, prod(out.shape[:-2])), operand(a), operand(b), out):
        for run in runs(triangle):
            views = run.cut(left, run.rows, None), run.cut(right, None, run.columns), run.cut(target, run.rows, run.columns)
            inside = run.inside if keep else None
            for x, y, z in _turns(*views):
                if direct and inside is None:
                    z.baddbmm_(x, y, beta=0, alpha=alpha)
                else:
                    sums = torch.bmm(x, y)
                    store(sums if alpha == 1.0 else sums.mul_(alpha), z, inside)


def trmm_by_halves(a: Tensor, b: Tensor, out: Tensor, alpha: float, triangle: Triangle) -> None:
    """alpha * tri(a) @ b into `out`."""
    sums = out if takes_sums(out) else torch.empty_like(out, dtype=sum_dtype(out.dtype))
    sums.zero_()
    for left, right, target in batches(max(1, prod(out.shape[:-2])), operand(a), operand(b), sums):
        for run in runs(triangle):
            views = run.cut(left, run.rows, run.columns), run.cut(right, run.columns, None), run.cut(target, run.rows, None)
            for x, y, z in _turns(*views):
                z.baddbmm_(x if run.inside is None else masked(x, run.inside), y, alpha=alpha)
    if sums is not out:
        out.copy_(sums)


def fill_by_halves(out: Tensor, triangle: Triangle, fill: float) -> None:
    """Set the entries of `out` that do not belong to the triangle."""
    for (target,) in batches(max(1, prod(out.shape[:-2])), out):
        for run in runs(triangle.complement):
            view = run.cut(target, run.rows, run.columns)
            if run.inside is None:
                view.fill_(fill)
            else:
                set_outside(view, run.inside.complement, fill)


def mirror_by_halves(x: Tensor, triangle: Triangle) -> None:
    """Copy what lies below the diagonal of square matrices to above it."""
    for (target,) in batches(max(1, prod(x.shape[:-2])), x):
        for run in runs(triangle):
            below = run.cut(target, run.rows, run.columns)
            above = run.cut(target, run.columns, run.rows).mT
            if run.inside is None:
                above.copy_(below)
            else:
                store(below.clone(), above, run.inside)
