"""Attention to some of the keys: what one block adds to the output of its rows, and to the gradients.

A row's softmax over all keys is put together from two numbers of each part, its largest score and the sum of the powers above it:

    m = max(m1, m2)      l = l1 exp(m1 - m) + l2 exp(m2 - m)      o = o1 exp(m1 - m) + o2 exp(m2 - m)      output = o / l

Everything is summed in float32 (float64 for float64). Products of half precision are made of float32 copies at precision "high",
which keeps all of their digits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trigemm.distributed import fused
from trigemm.distributed.scores import grouped, zeros_for_sums
from trigemm.distributed.split import Block
from trigemm.ops.products import gemmt, trmm

ENTRIES = 2**24
"""Entries of a block that are in memory at a time."""


@dataclass(frozen=True)
class Products:
    """The products of one call: the factor of its scores, and its precision."""

    scale: float
    precision: str | None

    def scores(self, q: Tensor, k: Tensor, diagonal: int) -> Tensor:
        """scale * q @ kᵀ, -inf above the diagonal: (…,G,T,HS) x (…,S,HS) -> (…,G,T,S)."""
        return self.lower(q, k, diagonal, self.scale, -torch.inf)

    def lower(self, a: Tensor, b: Tensor, diagonal: int, alpha: float = 1.0, fill: float = 0.0) -> Tensor:
        """The triangle of alpha * a @ bᵀ."""
        precision = self.precision_of(a)
        return gemmt(_wide(a), _wide(b).unsqueeze(-3).mT, alpha=alpha, diagonal=diagonal, fill=fill, precision=precision)

    def apply(self, triangle: Tensor, x: Tensor, diagonal: int, alpha: float = 1.0) -> Tensor:
        """alpha * triangle @ x: (…,G,T,S) x (…,S,HS) -> (…,G,T,HS)."""
        return trmm(triangle, _wide(x).unsqueeze(-3), alpha=alpha, diagonal=diagonal, precision=self.precision_of(x))

    def apply_transposed(self, triangle: Tensor, x: Tensor, diagonal: int, alpha: float = 1.0) -> Tensor:
        """alpha * triangleᵀ @ x, summed over a group: (…,G,T,S) x (…,G,T,HS) -> (…,S,HS)."""
        precision = self.precision_of(x)
        return trmm(triangle, _wide(x), alpha=alpha, diagonal=diagonal, transpose=True, precision=precision).sum(-3)

    def precision_of(self, x: Tensor) -> str | None:
        return self.precision if x.dtype == torch.float32 else "high"


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class Softmax:
    """The output and statistics of some rows (…,NH,T,·), as keys come in."""

    def __init__(self, q: Tensor):
        self._output = zeros_for_sums(q)
        self._largest = self._output.new_full((*q.shape[:-1], 1), -torch.inf)
        self._total = torch.zeros_like(self._largest)

    def add(self, q: Tensor, k: Tensor, v: Tensor, block: Block, products: Products) -> None:
        """Take a block of keys and values in."""
        found = fused.attend(q[..., block.own, :], k, v, block.diagonal, products.scale)
        if found is not None:
            output, largest = found
            self._merge(block.own, output, largest, torch.ones_like(largest))
            return
        for rows, diagonal in _strips(q, k, block):
            scores = products.scores(grouped(q[..., rows, :], k), k, diagonal)
            largest = scores.amax(-1, keepdim=True)
            powers = scores.sub_(_finite(largest)).exp_()
            parts = products.apply(powers, v, diagonal), largest, powers.sum(-1, keepdim=True)
            self._merge(rows, *(x.flatten(-4, -3) for x in parts))

    def _merge(self, rows: slice, output: Tensor, largest: Tensor, total: Tensor) -> None:
        before = self._largest[..., rows, :]
        after = torch.maximum(before, largest)
        old, new = ((x - _finite(after)).exp_() for x in (before, largest))
        for x, y in ((self._output, output), (self._total, total)):
            x[..., rows, :].mul_(old).add_(y * new)
        before.copy_(after)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and two numbers a row (…,NH,T,1): the largest score, and the logarithm of the sum above it.

        A row that has seen no key has output zero, and an infinite logarithm, which makes its weights zero.
        """
        empty = self._total == 0
        output = self._output.div_(self._total.masked_fill(empty, 1.0))
        return output, _finite(self._largest), self._total.log().masked_fill_(empty, torch.inf)


def write_weights(
    q: Tensor, k: Tensor, largest: Tensor, logarithm: Tensor, out: Tensor, block: Block, products: Products, fill: float | None
) -> None:
    """The weights of a block, into a rank's rows of them: q (…,NH,T,HS), k (…,NH,S,HS) -> out (…,NH,T,S_all)."""
    place = out[..., block.columns.start : block.columns.stop]
    if not block.live:
        if fill is not None:
            place[..., block.own, :].fill_(fill)
        return
    if fused.takes(q) and place.dtype == q.dtype:
        from trigemm.kernels.tiles.block_weights import block_weights

        queries, top, total, out = (x[..., block.own, :] for x in (q, largest, logarithm, place))
        block_weights(queries, k, top, total, out, scale=products.scale, diagonal=block.diagonal, fill=fill)
        return
    for rows, diagonal in _strips(q, k, block):
        weights = _weights(q, k, rows, diagonal, largest, logarithm, products).squeeze(-3)
        if fill and diagonal < len(block.columns) - 1:
            above = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).triu_(diagonal + 1)
            weights.masked_fill_(above, fill)
        place[..., rows, :] = weights


@dataclass(frozen=True)
class Upstream:
    """What the gradients of some heads need beside their operands; all but `products` have the rank's own rows.

    q, and the output and its gradient (…,NH,T,HS) or the gradient of the weights (…,NH,T,S_all); largest, logarithm and delta
    (…,NH,T,1), which is the sum over a row of weights times their gradients.
    """

    q: Tensor
    output: Tensor | None
    d_output: Tensor | None
    d_weights: Tensor | None
    largest: Tensor
    logarithm: Tensor
    delta: Tensor
    products: Products


def add_gradients(upstream: Upstream, k: Tensor, v: Tensor, block: Block, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
    """Add what a block gives to the gradients: to a rank's rows of dq, and to dk and dv of the block's keys."""
    q, products = upstream.q, upstream.products
    if upstream.output is not None and upstream.d_output is not None:
        of_rows = (upstream.d_output, q, upstream.output, upstream.largest + upstream.logarithm)
        above, queries, output, logarithm = (x[..., block.own, :] for x in of_rows)
        found = fused.gradients(above, queries, k, v, output, logarithm, block.diagonal, products.scale)
        if found is not None:
            for x, y in zip((dq[..., block.own, :], dk, dv), found, strict=True):
                x += y
            return
    for own, diagonal in _strips(q, k, block):
        weights = _weights(q, k, own, diagonal, upstream.largest, upstream.logarithm, products)
        d_weights = torch.zeros_like(weights)
        if upstream.d_output is not None:
            above = grouped(upstream.d_output[..., own, :], k)
            d_weights = products.lower(above, v, diagonal)
            dv += products.apply_transposed(weights, above, diagonal)
        if upstream.d_weights is not None:
            d_weights += grouped(upstream.d_weights[..., own, block.columns.start : block.columns.stop], k)
        d_scores = d_weights.sub_(grouped(upstream.delta[..., own, :], k)).mul_(weights)
        grouped(dq[..., own, :], k).add_(products.apply(d_scores, k, diagonal, products.scale))
        dk += products.apply_transposed(d_scores, grouped(q[..., own, :], k), diagonal, products.scale)


def _weights(q: Tensor, k: Tensor, rows: slice, diagonal: int, largest: Tensor, logarithm: Tensor, products: Products) -> Tensor:
    """exp(scores - largest - logarithm): zero above the diagonal. (…,NH_kv,G,rows,S)."""
    scores = products.scores(grouped(q[..., rows, :], k), k, diagonal)
    for x in (largest, logarithm):
        scores -= grouped(x[..., rows, :], k)
    return scores.exp_()


def _strips(q: Tensor, k: Tensor, block: Block) -> Iterator[tuple[slice, int]]:
    """A block's rows, among the rank's own, a few at a time, each time with the diagonal of these rows."""
    width = max(1, q.shape[:-2].numel() * k.shape[-2])
    height = max(16, ENTRIES // width)
    for top in range(block.own.start, block.own.stop, height):
        yield slice(top, min(top + height, block.own.stop)), block.diagonal + top - block.own.start


def _finite(x: Tensor) -> Tensor:
    return x.masked_fill(x == -torch.inf, 0.0)
