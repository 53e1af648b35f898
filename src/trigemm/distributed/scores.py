"""Causal scores of a sharded sequence: each rank has its rows of them, and gathers the keys, a group of heads at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trigemm.distributed.gather import Dealt
from trigemm.distributed.heads import Group, groups
from trigemm.distributed.lanes import Lanes, in_turn
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.split import Block, causal_blocks, fill_beyond
from trigemm.kernels.strips.product import sum_dtype
from trigemm.ops.products import trmm
from trigemm.ops.schema import gemmt_write

HIDING = 10
"""How many times as long as what is gathered must be what is filled meanwhile: a GPU fills as much as ten links bring."""

PRIORITY = -1
"""Of products, before what is filled beside them."""

Gathered = tuple[list[Tensor], Transfer]


class SequenceScores(torch.autograd.Function):
    """scale * q @ kᵀ where a query may see the key, `fill` elsewhere: this rank's rows of it.

    q (B,NH,T_rank,HS), k (B,NH_kv,S_rank,HS) -> (B,NH,T_rank,S).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        peers: Peers,
        queries: int,
        keys: int,
        scale: float,
        fill: float | None,
        precision: str | None,
    ) -> Tensor:
        dealt, blocks = Dealt(peers, keys), causal_blocks(queries, keys, peers.size, peers.rank)
        filled = 0 if fill is None else queries * q.shape[1] // (2 * peers.size)  # about so many rows of S
        every = groups(q.shape[1], k.shape[1], dealt.bytes_of_head(k), hidden=filled >= HIDING * k.shape[1] * k.shape[3])
        ctx.save_for_backward(q, k)
        ctx.parameters = dealt, blocks, scale, precision
        scores = q.new_empty((*q.shape[:-1], keys))

        def compute(group: Group, gathered: Gathered) -> None:
            (whole,), transfer = gathered
            transfer.wait()
            of_queries, out = group.queries_of(q), group.queries_of(scores)
            with Lanes(q.device, PRIORITY) as beside:  # each block alone would leave a part of a GPU idle at its end
                for lane, block in enumerate(blocks):
                    with beside[lane]:
                        gemmt_write(
                            grouped(of_queries[:, :, block.own], whole),
                            whole[:, :, None, : block.columns].mT,
                            scale,
                            "lower",
                            block.diagonal,
                            fill,
                            precision,
                            out=grouped(out[:, :, block.own, : block.columns], whole),
                            keep=False,
                        )

        with Lanes(q.device, PRIORITY, PRIORITY) as lanes:
            if fill is not None:
                fill_beyond(scores, blocks, fill)  # first, but with the products before it where both could go on
            in_turn(lanes, (1, 2), every, lambda group: dealt.gather(group.keys_of(k)), compute)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k = ctx.saved_tensors
        dealt, blocks, scale, precision = ctx.parameters
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        parts = [
            Part(*(group.queries_of(x) for x in (q, grad, dq)), *(group.keys_of(x) for x in (k, dk)))  # views
            for group in groups(q.shape[1], k.shape[1], dealt.bytes_of_head(k))
        ]
        product_gradients(dealt, blocks, parts, scale, precision)
        return dq, dk, *[None] * 6


class Part(NamedTuple):
    """Operands and gradients of a product q @ kᵀ that are worked on at a time; dq and dk are written.

    q, dq (B,NH,T_rank,HS); grad (B,NH,T_rank,S); k, dk (B,NH_kv,S_rank,HS).
    """

    q: Tensor
    grad: Tensor
    dq: Tensor
    k: Tensor
    dk: Tensor


def product_gradients(dealt: Dealt, blocks: Sequence[Block], parts: Sequence[Part], alpha: float, precision: str | None) -> None:
    """Gradients of alpha * q @ kᵀ, of which the triangles of some blocks count."""

    def compute(part: Part, gathered: Gathered) -> None:
        (whole,), transfer = gathered
        memory, (sums,) = dealt.wholes([part.k], sum_dtype(part.k.dtype))
        memory.zero_()
        transfer.wait()
        for block in blocks:
            form: dict[str, Any] = {"alpha": alpha, "diagonal": block.diagonal, "precision": precision}
            above = grouped(part.grad[:, :, block.own, : block.columns], whole)
            of_queries, out = (grouped(x[:, :, block.own], whole) for x in (part.q, part.dq))
            trmm(above, whole[:, :, None, : block.columns], out=out, **form)
            sums[:, :, : block.columns] += trmm(above, of_queries, transpose=True, **form).sum(2, dtype=sums.dtype)
        dealt.sum(memory, [part.dk])

    with Lanes(parts[0].k.device, 0) as lanes:
        in_turn(lanes, (0, 1), parts, lambda part: dealt.gather(part.k), compute)


def grouped(x: Tensor, k: Tensor) -> Tensor:
    """(B,NH,T,N) as (B,NH_kv,G,T,N): the query heads that share one of the key heads of k (B,NH_kv,S,HS)."""
    heads = k.shape[1]
    groups: Tensor = x.unflatten(1, (heads, x.shape[1] // heads if heads else 1))
    return groups
