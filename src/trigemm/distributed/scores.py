"""Causal scores of a sharded sequence: each rank has its rows of them, and keys come round."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from trigemm.distributed.ring import Ring
from trigemm.distributed.rotation import Rotation, Sums
from trigemm.distributed.split import Block
from trigemm.ops.products import gemmt, trmm


class RingScores(torch.autograd.Function):
    """scale * q @ kᵀ where a query may see the key, `fill` elsewhere: this rank's rows of it.

    q (…,NH,T_rank,HS), k (…,NH_kv,S_rank,HS) -> (…,NH,T_rank,S).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        group: ProcessGroup,
        queries: int,
        keys: int,
        scale: float,
        fill: float | None,
        precision: str | None,
    ) -> Tensor:
        rotation = Rotation.of(Ring(group, "causal_scores"), queries, keys, keys - queries, k)
        ctx.save_for_backward(q, k)
        ctx.rotation, ctx.scale, ctx.precision = rotation, scale, precision
        scores = q.new_empty((*q.shape[:-1], keys))
        for visit in rotation.visits(k):
            for block in visit.blocks:
                (part,) = visit.of(block)
                write_scores(q, part, scores, block, scale, fill, precision)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k = ctx.saved_tensors
        dq, dk = score_gradients(ctx.rotation, q, k, grad, ctx.scale, ctx.precision)
        return dq, dk, *[None] * 6


def write_scores(
    q: Tensor, k: Tensor, scores: Tensor, block: Block, scale: float, fill: float | None, precision: str | None
) -> None:
    """The scores of one block, into the rows of a rank."""
    out = scores[(..., *block.of)]
    if block.live:
        gemmt(
            grouped(q[..., block.own, :], k),
            k.unsqueeze(-3).mT,
            alpha=scale,
            diagonal=block.diagonal,
            fill=fill,
            precision=precision,
            out=grouped(out, k),
        )
    elif fill is not None:
        out.fill_(fill)


def score_gradients(
    rotation: Rotation, q: Tensor, k: Tensor, grad: Tensor, scale: float, precision: str | None
) -> tuple[Tensor, Tensor]:
    """Gradients of scale * q @ kᵀ, of which the triangle counts: of this rank's rows of q, and of its rows of k."""
    dq, dk = zeros_for_sums(q), zeros_for_sums(k)
    sums = Sums(rotation, dk)
    for visit in rotation.visits(k):
        share = sums.share(visit)
        for block in visit.blocks:
            if block.live:
                (part,) = visit.of(block)
                above = grouped(grad[(..., *block.of)], k)
                form: dict[str, Any] = {"alpha": scale, "diagonal": block.diagonal, "precision": precision}
                grouped(dq[..., block.own, :], k).add_(trmm(above, part.unsqueeze(-3), **form))
                of_keys = trmm(above, grouped(q[..., block.own, :], k), transpose=True, **form)
                share[block.visitor].add_(of_keys.sum(-3, dtype=dk.dtype))
        sums.pass_on(visit, share)
    sums.finish()
    return dq.to(q.dtype), dk.to(k.dtype)


def grouped(x: Tensor, k: Tensor) -> Tensor:
    """(…,NH,T,N) as (…,NH_kv,G,T,N): the query heads that share one of the key heads of k (…,NH_kv,S,HS)."""
    heads = k.shape[-3]
    groups: Tensor = x.unflatten(-3, (heads, x.shape[-3] // heads if heads else 1))
    return groups


def zeros_for_sums(x: Tensor) -> Tensor:
    """Zeros of the shape of x in the dtype that its products are summed in."""
    return torch.zeros(x.shape, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32, device=x.device)
