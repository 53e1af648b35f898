"""Causal attention and its gradients, in strips of rows: (B,NH,T,HS), (B,NH_kv,S,HS) twice -> (B,NH,T,HS).

A strip holds whole rows of the weights, up to the last key that its last query sees. It is made in scratch memory by one product
and a softmax in place, used while it is in cache, and copied to where weights are asked for. The gradients make every strip
again, so nothing of a row is kept for them: `stats` is neither written nor read. The query heads that share a key head lie one
above another in one strip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trigemm.kernels.strips.geometry import length
from trigemm.kernels.strips.product import array, multiply, sum_dtype, torch_is_exact
from trigemm.kernels.strips.scratch import scratch

HEIGHT = 128
"""Queries in a strip on the CPU."""

ENTRIES = 2**19
"""Weights in a strip on the CPU: several key heads go together until it has so many."""

GPU_ENTRIES = 2**24


@dataclass(frozen=True)
class Problem:
    """The operands in the dtype of their sums, with batches and key heads merged: N matrices, G query heads to each.

    q [N, G, T, HS]; k and v [N, S, HS], zeros where a key does not count; hidden [N, S], True there.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    hidden: Tensor | None
    scale: float
    softcap: float | None
    window: int | None

    def strips(self) -> Iterator["Strip"]:
        matrices, group, queries, _ = self.q.shape
        keys = self.k.shape[1]
        height, entries = HEIGHT, ENTRIES
        if self.q.device.type != "cpu":
            height, entries = max(16, GPU_ENTRIES // max(1, keys)), GPU_ENTRIES
        together = max(2, entries // max(1, group * min(height, queries) * keys))
        for first in range(0, matrices, together):
            for top in range(0, queries, height):
                bottom, before = min(top + height, queries), keys - queries
                begin = 0 if self.window is None else max(0, top + before + 1 - self.window)
                yield Strip(
                    self, slice(first, min(first + together, matrices)), slice(top, bottom), slice(begin, bottom + before)
                )


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Problem:
    """The problem that operands of a call pose."""
    batch, kv_heads, keys, _ = k.shape
    if key_lengths is not None:
        key_mask = torch.arange(keys, device=k.device) < key_lengths[:, None]
    q, k, v = merged(q, kv_heads), merged(k, kv_heads).squeeze(1), merged(v, kv_heads).squeeze(1)
    hidden = None
    if key_mask is not None:
        hidden = (~key_mask)[:, None, :].expand(batch, kv_heads, keys).flatten(0, 1)
        k, v = (x.masked_fill(hidden[..., None], 0.0) for x in (k, v))
    return Problem(q, k, v, hidden, scale, softcap, window)


def merged(x: Tensor, kv_heads: int) -> Tensor:
    """(B,NH,…) as contiguous [B * NH_kv, G, …], in the dtype of sums."""
    x = x.to(sum_dtype(x.dtype)).resolve_neg().contiguous()
    return x.view(x.shape[0] * kv_heads, x.shape[1] // kv_heads if kv_heads else 1, *x.shape[2:])


@dataclass(frozen=True)
class Strip:
    """Some rows of some matrices, and the columns that one of these rows may see."""

    problem: Problem
    matrices: slice
    rows: slice
    columns: slice

    @property
    def k(self) -> Tensor:
        """[n, columns, HS]."""
        return self.problem.k[self.matrices, self.columns]

    @property
    def v(self) -> Tensor:
        """[n, columns, HS]."""
        return self.problem.v[self.matrices, self.columns]

    @property
    def edge(self) -> int:
        """The first column, counted in the strip, that some row does not see because it comes later."""
        return length(self.columns) - length(self.rows)

    def of_rows(self, x: Tensor) -> Tensor:
        """This strip's part of something [N, G, T, …], as contiguous [n, G * rows, …]."""
        return x[self.matrices, :, self.rows].flatten(1, 2).contiguous()

    def by_head(self, x: Tensor) -> Tensor:
        """[n, G * rows, …] as [n, G, rows, …]."""
        return x.view(x.shape[0], self.problem.q.shape[1], length(self.rows), *x.shape[2:])

    def above(self) -> Tensor:
        """[rows, rows], True above the diagonal, for the columns from `edge` on."""
        rows = length(self.rows)
        return torch.ones(rows, rows, dtype=torch.bool, device=self.problem.q.device).triu_(1)

    def hide(self, x: Tensor, value: float) -> None:
        """Set what a query of [n, G * rows, columns] may not see to `value`, whatever stands there."""
        problem, x = self.problem, self.by_head(x)
        rows, columns = x.shape[-2:]
        x[..., self.edge :].masked_fill_(self.above(), value)
        if problem.window is not None and columns > problem.window:
            before = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril_(self.edge - problem.window)
            x.masked_fill_(before, value)
        if problem.hidden is not None:
            x.masked_fill_(problem.hidden[self.matrices, None, None, self.columns], value)

    def weights(self, careful: bool = False) -> tuple[Tensor, Tensor | None]:
        """The weights [n, G * rows, columns], and with soft-capping its slope at each score; in scratch memory.

        A row that sees nothing has NaN after a plain softmax: where that may be, the strip is made with more care.
        """
        problem = self.problem
        scores = product(self.of_rows(problem.q), self.k.mT, "scores", problem.scale)
        slope = None
        if problem.softcap is not None:
            scores.div_(problem.softcap).tanh_()
            slope = scratch_for("slope", tuple(scores.shape), scores)
            torch.mul(scores, scores, out=slope).neg_().add_(1.0)
            scores.mul_(problem.softcap)
        self.hide(scores, -torch.inf)
        if not (careful or problem.hidden is not None or scores.device.type != "cpu"):
            torch.softmax(scores, -1, out=scores)
            return self.weights(careful=True) if scores[..., :1].isnan().any() else (scores, slope)
        empty = scores.amax(-1, keepdim=True) == -torch.inf
        torch.softmax(scores.masked_fill_(empty, 0.0), -1, out=scores)
        self.hide(scores.masked_fill_(empty, 0.0), 0.0)  # a row with a NaN is NaN where it sees something
        return scores, slope

    def listed(self, heads: Sequence[int], kv_heads: int) -> Iterator[tuple[int, int, int, int]]:
        """The listed heads that are in this strip: (matrix in the strip, head in its group) and (batch, place in the list)."""
        group = self.problem.q.shape[1]
        for matrix in range(self.matrices.start, self.matrices.stop):
            batch, kv_head = divmod(matrix, kv_heads)
            for place, head in enumerate(heads):
                if head // group == kv_head:
                    yield matrix - self.matrices.start, head % group, batch, place


def scratch_for(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uninitialised memory, which on the CPU the next call with the same name overwrites."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return torch.from_numpy(scratch(name, shape, str(like.dtype).removeprefix("torch.")))


def product(a: Tensor, b: Tensor, name: str, alpha: float = 1.0) -> Tensor:
    """alpha * a @ b of batches of matrices, in the scratch memory of that name."""
    out = scratch_for(name, (*a.shape[:-1], b.shape[-1]), a)
    if a.device.type != "cpu" or torch_is_exact(a):
        return torch.baddbmm(out, a, b, beta=0, alpha=alpha, out=out)
    multiply(array(a), array(b), array(out), alpha)
    return out


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    weights: Tensor,
    columns: Tensor,
    stats: Tensor,
    *,
    heads: Sequence[int],
    fill: float | None,
    precision: str,
    **form: Any,
) -> None:
    """See trigemm.kernels.spec."""
    problem, kv_heads = problem_of(q, k, v, **form), k.shape[1]
    results = torch.zeros_like(problem.q)
    sums = problem.q.new_zeros(*problem.q.shape[:2], k.shape[2]) if columns.numel() else None
    # All heads are stored in one go, a strip at a time.
    everyone = list(heads) == list(range(q.shape[1])) and weights.is_contiguous()
    squares = weights.view(*problem.q.shape[:3], -1) if everyone and weights.numel() else None
    for strip in problem.strips():
        made, _ = strip.weights()
        results[strip.matrices, :, strip.rows] = strip.by_head(product(made, strip.v, "product"))
        by_head = strip.by_head(made)
        if sums is not None:
            sums[strip.matrices, :, strip.columns] += by_head.sum(2)
        if squares is not None:
            store(by_head, squares[strip.matrices, :, strip.rows], strip, fill)
        else:
            for matrix, head, batch, place in strip.listed(heads, kv_heads):
                store(by_head[matrix, head], weights[batch, place, strip.rows], strip, fill)
    output.copy_(results.view(output.shape))
    if sums is not None:
        columns.copy_(sums.view(columns.shape))


def store(rows: Tensor, out: Tensor, strip: Strip, fill: float | None) -> None:
    """Write weights [..., rows, columns], zero above the diagonal, into rows [..., rows, S] of squares, with `fill` above it."""
    begin, end = strip.columns.start, strip.columns.stop
    out[..., :begin] = 0.0
    if fill is None:
        corner = out[..., begin + strip.edge : end]
        rows[..., strip.edge :] = torch.where(strip.above(), corner.to(rows.dtype), rows[..., strip.edge :])
    else:
        out[..., end:] = fill
        if fill != 0:
            rows[..., strip.edge :].masked_fill_(strip.above(), fill)
    out[..., begin:end] = rows


def causal_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    stats: Tensor,
    d_output: Tensor | None,
    d_weights: Tensor | None,
    d_columns: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    heads: Sequence[int],
    precision: str,
    **form: Any,
) -> None:
    """See trigemm.kernels.spec."""
    problem, kv_heads = problem_of(q, k, v, **form), k.shape[1]
    queries, keys, values = (torch.zeros_like(x) for x in (problem.q, problem.k, problem.v))
    upstream = torch.zeros_like(problem.q) if d_output is None else merged(d_output, kv_heads)
    d_sums = None if d_columns is None else merged(d_columns, kv_heads)
    for strip in problem.strips():
        weights, slope = strip.weights()
        above = strip.of_rows(upstream)
        d_made = product(above, strip.v.mT, "d_weights")
        by_head = strip.by_head(d_made)
        if d_sums is not None:
            by_head += d_sums[strip.matrices, :, None, strip.columns]
        if d_weights is not None:
            for matrix, head, batch, place in strip.listed(heads, kv_heads):
                by_head[matrix, head] += d_weights[batch, place, strip.rows, strip.columns]
        strip.hide(d_made, 0.0)
        values[strip.matrices, strip.columns] += product(weights.mT, above, "product")
        # d scores = weights * (d weights - sum over the row of weights * d weights)
        term = scratch_for("term", tuple(d_made.shape), d_made)
        d_made -= torch.mul(weights, d_made, out=term).sum(-1, keepdim=True)
        d_made *= weights
        if slope is not None:
            d_made *= slope
        queries[strip.matrices, :, strip.rows] = strip.by_head(product(d_made, strip.k, "product", problem.scale))
        keys[strip.matrices, strip.columns] += product(d_made.mT, strip.of_rows(problem.q), "product", problem.scale)
    for found, out in ((queries, dq), (keys, dk), (values, dv)):
        out.copy_(found.view(out.shape))
