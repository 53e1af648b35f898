"""Causal attention of a sharded sequence: each rank has its queries and their weights; keys and values come round.

The statistics of a row are known when every key has come by. Then the weights that are asked for are computed, once, where they
stay; for that, the keys of their heads come round again. The gradients make all weights again from the statistics.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from trigemm.distributed.partial import ENTRIES, Products, Softmax, Upstream, add_gradients, write_weights
from trigemm.distributed.ring import Ring
from trigemm.distributed.rotation import Rotation, Sums
from trigemm.distributed.scores import zeros_for_sums
from trigemm.distributed.split import rank_rows

LARGER = 8
"""Pieces of keys and values are so much larger than others: the output of a row is rescaled at each."""


class RingAttention(torch.autograd.Function):
    """The output, and the weights of some heads: this rank's rows of them.

    q (B,NH,T_rank,HS), k and v (B,NH_kv,S_rank,HS) -> (B,NH,T_rank,HS), (B,len(heads),T_rank,S).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: ProcessGroup,
        queries: int,
        keys: int,
        scale: float,
        heads: Sequence[int],
        weights_dtype: torch.dtype,
        fill: float | None,
        precision: str | None,
    ) -> tuple[Tensor, Tensor]:
        ring = Ring(group, "causal_attention")
        products = Products(scale, precision)
        softmax = Softmax(q)
        for visit in Rotation.of(ring, queries, keys, keys - queries, k, v, larger=LARGER).visits(k, v):
            for block in visit.blocks:
                if block.live:
                    keys_of, values_of = visit.of(block)
                    softmax.add(q, keys_of, values_of, block, products)
        output, largest, logarithm = softmax.result()
        output = output.to(q.dtype)
        del softmax
        weights = q.new_empty((q.shape[0], len(heads), q.shape[2], keys), dtype=weights_dtype)
        if heads:
            used, place = _key_heads(heads, q, k)
            sent = k[:, used]
            rows = [x[:, heads] for x in (q, largest, logarithm)]
            for visit in Rotation.of(ring, queries, keys, keys - queries, sent).visits(sent):
                for block in visit.blocks:
                    (part,) = visit.of(block)
                    write_weights(rows[0], part[:, place], rows[1], rows[2], weights, block, products, fill)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, output, largest, logarithm, weights)
        ctx.parameters = group, queries, keys, list(heads), products
        return output, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, d_weights: Tensor | None) -> tuple[Any, ...]:
        q, k, v, output, largest, logarithm, weights = ctx.saved_tensors
        group, queries, keys, heads, products = ctx.parameters
        ring = Ring(group, "causal_attention")
        dq, dk, dv = (zeros_for_sums(x) for x in (q, k, v))
        of_output = of_weights = None
        if d_output is not None:
            delta = (d_output.to(dq.dtype) * output).sum(-1, keepdim=True)
            of_output = Upstream(q, output, d_output, None, largest, logarithm, delta, products)
        if heads and d_weights is not None:
            delta = _row_sums(d_weights, weights, rank_rows(queries, ring.size, ring.rank), keys - queries)
            of_weights = Upstream(q[:, heads], None, None, d_weights, largest[:, heads], logarithm[:, heads], delta, products)
            dq_listed = zeros_for_sums(of_weights.q)
            key_heads = torch.tensor([head // (q.shape[1] // k.shape[1]) for head in heads], device=q.device)
        rotation = Rotation.of(ring, queries, keys, keys - queries, k, v, larger=LARGER)
        sums = Sums(rotation, dk, dv)
        for visit in rotation.visits(k, v):
            share = sums.share(visit)
            for block in visit.blocks:
                if not block.live:
                    continue
                (keys_of, values_of), (dk_of, dv_of) = visit.of(block), share[block.visitor :: 2]
                if of_output is not None:
                    add_gradients(of_output, keys_of, values_of, block, dq, dk_of, dv_of)
                if of_weights is not None:
                    listed = keys_of[:, key_heads]
                    dk_listed = zeros_for_sums(listed)
                    add_gradients(of_weights, listed, values_of, block, dq_listed, dk_listed, dv_of)
                    dk_of.index_add_(1, key_heads, dk_listed)
            sums.pass_on(visit, share)
        sums.finish()
        if of_weights is not None:
            dq[:, heads] += dq_listed
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *[None] * 8


def _key_heads(heads: Sequence[int], q: Tensor, k: Tensor) -> tuple[list[int], list[int]]:
    """The key heads that some query heads use, and which of these each query head uses."""
    of_head = [head // (q.shape[1] // k.shape[1]) for head in heads]
    used = sorted(set(of_head))
    return used, [used.index(head) for head in of_head]


def _row_sums(d_weights: Tensor, weights: Tensor, own: tuple[range, range], diagonal: int) -> Tensor:
    """The sum over each row of weights times their gradients, below the diagonal: (…,T_rank,S) -> (…,T_rank,1)."""
    sums, first = [], 0
    height = max(16, ENTRIES // max(1, weights.shape[:-2].numel() * weights.shape[-1]))
    for rows in own:
        for top in range(rows.start, rows.stop, height):
            strip = slice(first + top - rows.start, first + min(top + height, rows.stop) - rows.start)
            x, y = (z[..., strip, :].tril(diagonal + top) for z in (d_weights, weights))
            sums.append((x.to(zeros_for_sums(x[:0]).dtype) * y).sum(-1, keepdim=True))
        first += len(rows)
    return torch.cat(sums, -2) if sums else weights.new_zeros((*weights.shape[:-1], 1))
