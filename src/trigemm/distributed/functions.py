"""What users call on sharded tensors. Where no sequence is sharded, these are the functions of trigemm itself."""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trigemm.distributed.attention import SequenceAttention
from trigemm.distributed.peers import Peers
from trigemm.distributed.scores import SequenceScores
from trigemm.distributed.sequence import sharded_alike, sharding_of, unshard_sequence
from trigemm.distributed.softmax import SoftmaxOfRows
from trigemm.distributed.syrk import SequenceSyrk, triangle_of_rows
from trigemm.ops import attention, products, scores, softmax
from trigemm.ops.checks import check_operands

WHOLE_SEQUENCE = ("key_lengths", "key_mask", "softcap", "window")
"""Options of attention that a sharded sequence does not have."""


def causal_scores(
    q: Tensor, k: Tensor, *, scale: float | None = None, fill: float | None = -math.inf, precision: str | None = None
) -> Tensor:
    """`trigemm.causal_scores`, also of a sharded sequence: every rank computes its rows, and gathers keys, some heads at a time.

    Args:
        q, k: as there; DTensors sharded over batch or heads, or over the sequence by `shard_sequence(x, mesh, 2)`; all alike.
            With S > T, queries and keys are each dealt out by their own length.
        scale, fill, precision: as there.

    Returns:
        (B,NH,T,S), sharded as q is. With a sharded sequence the rows are in head-tail order, and the columns in the order of the
        keys. Scores are never gathered. Differentiable once.

    Raises:
        NotImplementedError: the operands are not sharded alike, or in another way than this.
        TypeError, ValueError: as there.
        RuntimeError: another rank has stopped, or did not answer within the timeout of the process group.
    """
    sharding = sharding_of("causal_scores", 2, q=q, k=k)
    if sharding is None:
        return scores.causal_scores(q, k, scale=scale, fill=fill, precision=precision)
    (shape,) = _shapes(scores.causal_scores, _outline(q), _outline(k), scale=scale, fill=fill, precision=precision)
    local = _local("causal_scores", q=q, k=k)
    peers = Peers(sharding.group, "causal_scores")
    return sharding.wrap(_apply(SequenceScores, *local, peers, *shape[2:], _scale(scale, q), fill, precision), shape)


def causal_scores_qkvpacked(
    qkv: Tensor, *, scale: float | None = None, fill: float | None = -math.inf, precision: str | None = None
) -> Tensor:
    """`trigemm.causal_scores_qkvpacked`, also of a sequence that is sharded by `shard_sequence(qkv, mesh, 1)`.

    Returns:
        (B,NH,T,T): with Shard(2) where `qkv` (B,T,3,NH,HS) has Shard(1), and Shard(1) where it has Shard(3). See `causal_scores`.
    """
    if not isinstance(qkv, DTensor) or not any(p.is_shard(1) for p in qkv.placements):
        return scores.causal_scores_qkvpacked(qkv, scale=scale, fill=fill, precision=precision)
    _shapes(scores.causal_scores_qkvpacked, _outline(qkv), scale=scale, fill=fill, precision=precision)  # for what it refuses
    q, k = (qkv.select(2, i).transpose(1, 2) for i in range(2))
    return causal_scores(q, k, scale=scale, fill=fill, precision=precision)


def causal_softmax(scores: Tensor, *, diagonal: int | None = None) -> Tensor:
    """`trigemm.causal_softmax`, also of scores whose rows are sharded in head-tail order, as `causal_scores` gives them.

    Args:
        scores: (…,T,S). diagonal: that of the whole matrix, by default S - T.

    Returns:
        (…,T,S), sharded as `scores` is. Nothing is communicated. Differentiable once where rows are sharded.
    """
    sharding = sharding_of("causal_softmax", scores.dim() - 2, scores=scores)
    if sharding is None:
        return softmax.causal_softmax(scores, diagonal=diagonal)
    _shapes(softmax.causal_softmax, _outline(scores), diagonal=diagonal)
    rows, columns = scores.shape[-2:]
    edge = columns - rows if diagonal is None else diagonal
    return sharding.wrap(
        _apply(SoftmaxOfRows, *_local("causal_softmax", scores=scores), sharding.rows_of(rows), edge), scores.shape
    )


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    return_weights: bool | str | Sequence[int] = False,
    weights_dtype: torch.dtype | None = None,
    fill: float | None = 0.0,
    precision: str | None = None,
    **options: Any,
) -> Any:
    """`trigemm.causal_attention`, also of a sharded sequence: every rank gathers keys and values, some heads at a time.

    Args:
        q, k, v: as there; DTensors sharded over batch or heads, or over the sequence by `shard_sequence(x, mesh, 2)`; all alike.
        return_weights: as there. Heads that are sharded give the weights of all or of none. "columns" needs the whole sequence.
        scale, weights_dtype, fill, precision: as there.
        options: whatever else `trigemm.causal_attention` takes, where the sequence is whole.

    Returns:
        The output, or the output and the weights, sharded as q is. With a sharded sequence the rows of both are in head-tail
        order; weights stay with the rank that computes them. Differentiable once.

    Raises:
        NotImplementedError: the operands are not sharded alike, or in another way than this; an option needs the whole sequence.
        TypeError, ValueError: as there.
        RuntimeError: another rank has stopped, or did not answer within the timeout of the process group.

    Source: Vaswani et al. 2017, section 3.2.1; gathered keys and values: Llama team 2024, section 3.3.2 (context parallelism).
    """
    asked = attention.plain(return_weights)
    form: dict[str, Any] = {"scale": scale, "return_weights": asked, "weights_dtype": weights_dtype}
    form |= {"fill": fill, "precision": precision, **options}
    sharding = sharding_of("causal_attention", 2, q=q, k=k, v=v)
    if sharding is None:
        return _attention_by_heads(q, k, v, form)
    refused = [name for name in WHOLE_SEQUENCE if options.get(name) is not None]
    if isinstance(asked, str):
        refused.append(f"return_weights={asked!r}")
    if refused:
        raise NotImplementedError(f"causal_attention: {', '.join(refused)} works only where the sequence is not sharded")
    local = _local("causal_attention", q=q, k=k, v=v)
    heads = attention.heads_of(asked, local[0].shape[1])
    form["return_weights"] = asked if isinstance(asked, bool) else tuple(asked)
    shapes = _shapes(attention.causal_attention, *map(_outline, (q, k, v)), **form)
    if heads and asked is not True and any(p.is_shard(1) for p in q.placements):  # type: ignore[attr-defined]
        raise NotImplementedError("causal_attention: heads that are sharded give the weights of all or of none, not of a list")
    dtype = local[0].dtype if weights_dtype is None else weights_dtype
    peers = Peers(sharding.group, "causal_attention")
    results = _apply(SequenceAttention, *local, peers, q.shape[2], k.shape[2], _scale(scale, q), heads, dtype, fill, precision)
    wrapped = [sharding.wrap(x, shape) for x, shape in zip(results, shapes, strict=False)]
    return wrapped[0] if len(shapes) == 1 else tuple(wrapped)


def _attention_by_heads(q: Tensor, k: Tensor, v: Tensor, form: dict[str, Any]) -> Any:
    """Attention whose sequence is whole. All weights of sharded heads are, at each rank, those of all heads that are there."""
    if not isinstance(q, DTensor) or form["return_weights"] is not True or not any(p.is_shard(1) for p in q.placements):
        return attention.causal_attention(q, k, v, **form)
    sharding = sharded_alike("causal_attention", 2, None, q=q, k=k, v=v)
    options: dict[str, Any] = {name: x.to_local() if isinstance(x, DTensor) else x for name, x in form.items()}
    output, weights = attention.causal_attention(*_local("causal_attention", q=q, k=k, v=v), **options)
    return sharding.wrap(output, q.shape), sharding.wrap(weights, (*q.shape[:3], k.shape[2]))


def syrk(
    a: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    uplo: str = "full",
    precision: str | None = None,
    replicate: bool = False,
) -> Tensor:
    """`trigemm.syrk`, also of one large matrix whose rows are sharded by `shard_sequence(a, mesh)`.

    Every rank computes what of the lower triangle lies in its rows. For a full product, what mirrors into others' is sent there.

    Args:
        a, c: as there; DTensors sharded over the batch, or over the rows, alike.
        alpha, beta, uplo, precision: as there.
        replicate: whether every rank gets the whole result of sharded rows, in the order of the matrix.

    Returns:
        (…,N,N). With sharded rows these are in head-tail order and sharded as those of `a`, and columns are in the order of the
        matrix; or, with `replicate`, all of it on every rank. Differentiable once where rows are sharded.

    Raises:
        NotImplementedError: the operands are not sharded alike, or in another way than this.
        TypeError, ValueError: as there; `replicate` without sharded rows.
        RuntimeError: another rank has stopped, or did not answer within the timeout of the process group.
    """
    matrices = {"a": a} if c is None else {"a": a, "c": c}
    sharding = sharding_of("syrk", a.dim() - 2, **matrices)
    if sharding is None:
        if replicate:
            raise ValueError("syrk: replicate is for a matrix whose rows are sharded, by shard_sequence(a, mesh)")
        return products.syrk(a, alpha=alpha, beta=beta, c=c, uplo=uplo, precision=precision)
    like = None if c is None else _outline(c)
    (shape,) = _shapes(_syrk, _outline(a), like, alpha=alpha, beta=beta, uplo=uplo, precision=precision)
    rows, *added = _local("syrk", **matrices)
    batched = rows.reshape(rows.shape[:-2].numel(), *rows.shape[-2:])
    result = _apply(SequenceSyrk, batched, Peers(sharding.group, "syrk"), a.shape[-2], alpha, uplo, precision)
    result = result.view(*rows.shape[:-1], a.shape[-2])
    if c is not None and beta != 0:
        if c.shape != shape:
            raise NotImplementedError(f"syrk: with sharded rows c must be {tuple(shape)} like the result; got {tuple(c.shape)}")
        result = result + beta * (added[0] if uplo == "full" else triangle_of_rows(added[0], sharding.rows_of(shape[-2]), uplo))
    product = sharding.wrap(result, shape)
    return sharding.replicated(unshard_sequence(product)) if replicate else product


Outline = tuple[torch.Size, torch.dtype]


def _outline(x: Tensor) -> Outline:
    return x.shape, x.dtype


def _shapes(operation: Callable[..., Any], *operands: Outline | None, **form: Any) -> list[torch.Size]:
    """Shapes of an operation's results: it is called with tensors without memory, and refuses of them what it would of real ones.

    Kept, for that takes longer than all else that is done before the first message.
    """
    find = _kept_shapes if all(isinstance(x, Hashable) for x in form.values()) else _kept_shapes.__wrapped__
    return find(operation, *operands, **form)


@lru_cache(typed=True)
def _kept_shapes(operation: Callable[..., Any], *operands: Outline | None, **form: Any) -> list[torch.Size]:
    found = operation(*(x and torch.empty(x[0], dtype=x[1], device="meta") for x in operands), **form)
    return [x.shape for x in (found if isinstance(found, tuple) else (found,))]


def _syrk(a: Tensor, c: Tensor | None, **form: Any) -> Tensor:
    return products.syrk(a, c=c, **form)


def _local(operation: str, **operands: Any) -> list[Tensor]:
    """This rank's parts of DTensors, under autocast in its dtype."""
    return [x.to_local() for x in check_operands(operation, **operands)]


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)


def _scale(scale: float | None, q: Tensor) -> float:
    return (1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else scale
