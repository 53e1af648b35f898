"""Causal attention scores: `gemmt` on views of queries and keys."""

import math

from torch import Tensor

from trigemm.errors import describe
from trigemm.ops.checks import check_fill, check_operands, check_out, check_scalars, check_words, refuse_overlap
from trigemm.ops.direct import needs_no_dispatch
from trigemm.ops.products import checked_gemmt


def causal_scores(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    fill: float | None = -math.inf,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Scores of causal attention: scale * q . k where a query may see the key, `fill` elsewhere.

    Query t sees keys 0 to t + S - T: the diagonal is aligned at the bottom right, so with S > T the first S - T keys are a cache
    that every query sees.

    Args:
        q: (B,NH,T,HS). k: (B,NH_kv,S,HS), S >= T; NH a multiple of NH_kv: query head h uses key head h // (NH / NH_kv), as in
            torch.nn.functional.scaled_dot_product_attention with enable_gqa=True. Any strides.
        scale: factor of the scores, by default 1/sqrt(HS).
        fill: value of the scores that do not count; None leaves them unwritten (see `gemmt`).
        precision, out: as for `gemmt`.

    Returns:
        (B,NH,T,S), of the operands' dtype.

    Raises:
        TypeError, ValueError: as for `gemmt`; heads that do not divide; S < T.

    Source: the first product of scaled dot-product attention, Vaswani et al. 2017, section 3.2.1.

    >>> import torch, trigemm
    >>> q = torch.ones(1, 2, 2, 4)
    >>> trigemm.causal_scores(q, torch.ones(1, 1, 3, 4))[0, 1]
    tensor([[2., 2., -inf],
            [2., 2., 2.]])
    """
    q, k = check_operands("causal_scores", autocast=out is None, q=q, k=k)
    return _scores("causal_scores", q, k, scale, fill, precision, out, q=q, k=k)


def causal_scores_qkvpacked(
    qkv: Tensor,
    *,
    scale: float | None = None,
    fill: float | None = -math.inf,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`causal_scores` of a packed projection: (B,T,3,NH,HS) -> (B,NH,T,T). Nothing is permuted or copied; values are not read.

    Args:
        qkv: (B,T,3,NH,HS), queries, keys and values along the third dimension. Any strides.
        scale, fill, precision, out: as for `causal_scores`.

    Returns:
        (B,NH,T,T), of the dtype of `qkv`.

    Raises:
        TypeError, ValueError: as for `causal_scores`; `qkv` is not (B,T,3,NH,HS).

    >>> import torch, trigemm
    >>> qkv = torch.ones(1, 2, 3, 1, 4)
    >>> trigemm.causal_scores_qkvpacked(qkv)[0, 0]
    tensor([[2., -inf],
            [2., 2.]])
    """
    (qkv,) = check_operands("causal_scores_qkvpacked", min_dim=5, autocast=out is None, qkv=qkv)
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"causal_scores_qkvpacked: qkv must be (B,T,3,NH,HS); got {describe(qkv=qkv)}")
    q, k = qkv.permute(2, 0, 3, 1, 4)[:2].unbind(0)
    return _scores("causal_scores_qkvpacked", q, k, scale, fill, precision, out, qkv=qkv)


def _scores(
    operation: str,
    q: Tensor,
    k: Tensor,
    scale: float | None,
    fill: float | None,
    precision: str | None,
    out: Tensor | None,
    /,
    **given: Tensor,
) -> Tensor:
    """`causal_scores` of acceptable operands, refused in the name of the operation that was called, and of what it was given."""
    if q.dim() != 4 or k.dim() != 4 or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{operation}: q must be (B,NH,T,HS) and k (B,NH_kv,S,HS); got {describe(q=q, k=k)}")
    batch, heads, queries, _ = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(f"{operation}: q's heads must be a multiple of k's; got {heads} and {kv_heads} ({describe(q=q, k=k)})")
    if keys < queries:
        raise ValueError(
            f"{operation}: there must be at least as many keys as queries (S >= T); got S={keys}, T={queries} "
            f"({describe(q=q, k=k)})"
        )
    if out is not None:
        check_out(operation, out, (batch, heads, queries, keys), q, k)
        if needs_no_dispatch(*given.values(), out):  # the product, which looks again, knows neither these names nor the values
            refuse_overlap(operation, out, **given)
    check_words(operation, uplo="lower", uplos=("lower",), precision=precision)
    check_fill(operation, fill, q.dtype)
    if scale is not None:
        check_scalars(operation, q.dtype, scale=scale)
    else:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    parameters = scale, "lower", keys - queries, fill, precision
    if heads == kv_heads:
        return checked_gemmt(q, k.mT, *parameters, out)
    by_group = 1, (kv_heads, heads // kv_heads)
    grouped_out = None if out is None else out.unflatten(*by_group)
    scores = checked_gemmt(q.unflatten(*by_group), k.unsqueeze(2).mT, *parameters, grouped_out)
    return scores.flatten(1, 2) if out is None else out
