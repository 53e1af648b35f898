"""The referee: each operation as a float64 dense product and a mask. It is the only definition of what is right.

Nothing here is fast and nothing is clever. Every function takes tensors of any floating dtype, computes in float64 on the device
where they lie, and returns float64. `fill` stands outside the triangle. Called with absolute values (and `fill=0`), the same
functions give the magnitude |a| @ |b| that error budgets are measured against.
"""

import math

import torch
from torch import Tensor


def triangle_mask(rows: int, columns: int, uplo: str = "lower", diagonal: int = 0) -> Tensor:
    """Boolean (rows, columns): True where an entry belongs to the triangle, as in torch.tril and torch.triu.

    >>> triangle_mask(2, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.int32)
    """
    distance = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    return distance <= diagonal if uplo == "lower" else distance >= diagonal


def _masked(x: Tensor, uplo: str, diagonal: int, fill: float) -> Tensor:
    inside = triangle_mask(x.shape[-2], x.shape[-1], uplo, diagonal).to(x.device)
    return torch.where(inside, x, fill)


def gemmt(a: Tensor, b: Tensor, *, alpha: float = 1.0, uplo: str = "lower", diagonal: int = 0, fill: float = 0.0) -> Tensor:
    """tri(alpha * a @ b), `fill` elsewhere: (…,M,K) x (…,K,N) -> (…,M,N)."""
    return _masked(alpha * (a.double() @ b.double()), uplo, diagonal, fill)


def trmm(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    uplo: str = "lower",
    diagonal: int = 0,
    side: str = "left",
    transpose: bool = False,
) -> Tensor:
    """alpha * op(tri(a)) @ b, or alpha * b @ op(tri(a)) for side="right"; op transposes if `transpose`."""
    triangular = _masked(a.double(), uplo, diagonal, 0.0)
    if transpose:
        triangular = triangular.mT
    return alpha * (triangular @ b.double() if side == "left" else b.double() @ triangular)


def syrk(a: Tensor, *, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None, uplo: str = "full") -> Tensor:
    """alpha * a @ aᵀ + beta * c: (…,N,K) -> (…,N,N); for uplo "lower" or "upper" that triangle, zeros elsewhere."""
    result = alpha * (a.double() @ a.double().mT)
    if c is not None and beta != 0:
        result = result + beta * c.double()
    return result if uplo == "full" else _masked(result, uplo, 0, 0.0)


def causal_scores(q: Tensor, k: Tensor, *, scale: float | None = None, fill: float = -math.inf) -> Tensor:
    """scale * q . k for every key position that a query may see: (B,NH,T,HS), (B,NH_kv,S,HS) -> (B,NH,T,S)."""
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return gemmt(q, keys.mT, alpha=scale, diagonal=k.shape[-2] - q.shape[-2], fill=fill)


def causal_scores_qkvpacked(qkv: Tensor, *, scale: float | None = None, fill: float = -math.inf) -> Tensor:
    """`causal_scores` of the queries and keys inside a packed (B,T,3,NH,HS) -> (B,NH,T,T)."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return causal_scores(q, k, scale=scale, fill=fill)


def causal_softmax(scores: Tensor, *, diagonal: int | None = None) -> Tensor:
    """Softmax over the causal part of each row, zeros elsewhere: (…,T,S) -> (…,T,S). `diagonal` is S - T where none is given."""
    rows, columns = scores.shape[-2:]
    diagonal = columns - rows if diagonal is None else diagonal
    seen = _masked(scores.double(), "lower", diagonal, -math.inf)
    if scores.numel() == 0:
        return seen
    largest = seen.detach().amax(-1, keepdim=True)
    powers = (seen - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = powers.sum(-1, keepdim=True)
    return _masked(powers / total.masked_fill(total == 0, 1.0), "lower", diagonal, 0.0)  # a row with nothing to see is zeros


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    softcap: float | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scores) @ v and softmax(scores): (B,NH,T,HS), (B,NH_kv,S,HS) twice -> (B,NH,T,HS), (B,NH,T,S).

    `key_mask` (B,S) says which keys count; a query sees the last `window` of its keys; `softcap` bounds the scores by
    softcap * tanh(scores / softcap).
    """
    queries, keys = q.shape[-2], k.shape[-2]
    scores = causal_scores(q, k, scale=scale, fill=0.0)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    counts = torch.ones(keys, dtype=torch.bool, device=k.device) if key_mask is None else key_mask[:, None, None, :]
    if window is not None:
        counts = counts & triangle_mask(queries, keys, "upper", keys - queries - window + 1).to(k.device)
    if key_mask is not None:
        v = v.masked_fill(~key_mask[:, None, :, None], 0.0)
    weights = causal_softmax(scores.masked_fill(~counts, -math.inf)).masked_fill(~counts, 0.0)
    return weights @ v.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1), weights
