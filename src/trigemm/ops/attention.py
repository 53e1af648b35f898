"""Causal attention that gives its weights."""

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trigemm.errors import choice, describe
from trigemm.ops.attention_schema import causal_attention as _attention
from trigemm.ops.checks import DTYPES, PRECISIONS, check_fill, check_operands, check_scalars

OPERATION = "causal_attention"
CUDA_HEAD_SIZES = range(16, 257)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    return_weights: bool | str | Sequence[int] = False,
    weights_dtype: torch.dtype | None = None,
    fill: float | None = 0.0,
    key_lengths: Tensor | None = None,
    key_mask: Tensor | None = None,
    softcap: float | None = None,
    window: int | None = None,
    precision: str | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = True,
) -> Any:
    """Causal attention, and its weights: those of all heads, of some, or each key's sum of them.

        weights = softmax(scale * q @ k.mT) over the keys that a query sees        output = weights @ v

    Query t sees keys 0 to t + S - T: the diagonal is aligned at the bottom right, so with S > T the first S - T keys are a cache
    that every query sees. A matrix of T x S weights is stored for the heads that are asked for, and for no other.

    Args:
        q: (B,NH,T,HS). k, v: (B,NH_kv,S,HS), S >= T; NH a multiple of NH_kv: query head h uses key head h // (NH / NH_kv). Any
            strides; one dtype of float64, float32, float16 and bfloat16. Head sizes are 16 to 256 on CUDA, and any on the CPU.
        scale: factor of the scores, by default 1/sqrt(HS).
        return_weights: False: the output alone. True: the weights of all heads as well. A list of heads: theirs, in that order.
            "columns": the weights summed over the queries, for ranking keys.
        weights_dtype: of the weights or sums; by default that of `q`, for sums at least float32. No effect where neither is
            returned.
        fill: what stands above the diagonal of the weights, where weights are returned. None leaves it unwritten: that costs
            less time, and what stands there is not defined. A key before the diagonal that is not seen has weight 0.
        key_lengths: (B,) integers: only the first so many keys of a sequence count; below 0 none, beyond S all.
        key_mask: (B,S) bool, instead of key_lengths: True where a key counts. What lies at keys that don't count is not used:
            NaN there changes nothing. A query that sees no key gets zeros, in its output and in its weights.
        softcap: scores become softcap * tanh(scores / softcap).
        window: a query sees the last so many of its keys, itself among them.
        precision: as for `gemmt`.
        dropout_p, is_causal: for calls that were written for torch.nn.functional.scaled_dot_product_attention; attention here is
            causal and has no dropout.

    Returns:
        The output (B,NH,T,HS), of the dtype and with the order of dimensions in memory of `q`; or the output and the weights,
        (B,NH,T,S) or (B,len(heads),T,S); or the output and the sums (B,NH,S).

    All three have gradients, which cost no more memory than the operands' own: weights are made again from two numbers a row.
    On CUDA, float32 weights at "highest" need memory for a second `k` and `v` as long as the call takes.
    What is not finite in `v` also reaches queries that should not see it: it meets weights of zero.

    Raises:
        TypeError: an operand is not a dense floating tensor, or dtypes differ; masks are not what they should be.
        ValueError: shapes do not fit, S < T, heads that do not exist, or whatever is said above to be unsupported.

    Source: Vaswani et al. 2017, section 3.2.1; in one pass: Milakov and Gimelshein 2018, Dao et al. 2022.

    >>> import torch, trigemm
    >>> q, v = torch.zeros(1, 2, 3, 16), torch.arange(3.0).expand(1, 2, 16, 3).mT
    >>> output, weights = trigemm.causal_attention(q, q, v, return_weights=[1])
    >>> output[0, 1, :, 0], weights[0, 0]
    (tensor([0.0000, 0.5000, 1.0000]), tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]]))
    >>> trigemm.causal_attention(q, q, v, return_weights="columns")[1][0, 0]
    tensor([1.8333, 0.8333, 0.3333])
    """
    q, k, v = check_operands(OPERATION, q=q, k=k, v=v)
    _check_shapes(q, k, v)
    if not is_causal:
        raise ValueError(f"{OPERATION}: attention is causal here; for is_causal=False, scaled_dot_product_attention would work")
    if dropout_p != 0:
        raise ValueError(f"{OPERATION}: there is no dropout here, got dropout_p={dropout_p}; 0 would work")
    if precision is not None and precision not in PRECISIONS:
        raise choice(OPERATION, "precision", precision, (None, *PRECISIONS))
    _check_masks(q, k, key_lengths, key_mask)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    check_scalars(OPERATION, q.dtype, scale=scale)
    if softcap is not None:
        check_scalars(OPERATION, q.dtype, softcap=softcap)
        if not 0 < softcap < math.inf:
            raise ValueError(f"{OPERATION}: softcap must be positive and finite, got {softcap}; None leaves scores as they are")
    if window is not None:
        window = _positive("window", window)
    asked = plain(return_weights)
    sums = isinstance(asked, str)
    heads = heads_of(asked, q.shape[1])
    if weights_dtype is None:
        weights_dtype = torch.promote_types(q.dtype, torch.float32) if sums else q.dtype
    elif weights_dtype not in DTYPES:
        raise choice(OPERATION, "weights_dtype", weights_dtype, (None, *DTYPES))
    check_fill(OPERATION, fill, weights_dtype)
    output, weights, columns = _attention(
        q, k, v, key_lengths, key_mask, scale, softcap, window, heads, sums, weights_dtype, fill, precision
    )
    if sums:
        return output, columns
    return output if asked is False else (output, weights)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{OPERATION}: q must be (B,NH,T,HS), and k and v (B,NH_kv,S,HS); got {describe(q=q, k=k, v=v)}")
    heads, kv_heads, queries, keys = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError(
            f"{OPERATION}: q's heads must be a multiple of k's; got {heads} and {kv_heads} ({describe(q=q, k=k, v=v)})"
        )
    if keys < queries:
        raise ValueError(
            f"{OPERATION}: there must be at least as many keys as queries (S >= T); got S={keys}, T={queries} "
            f"({describe(q=q, k=k, v=v)})"
        )
    if q.device.type == "cuda" and q.dtype != torch.float64 and q.shape[3] not in CUDA_HEAD_SIZES:
        raise ValueError(
            f"{OPERATION}: head sizes are 16 to 256 on CUDA, got HS={q.shape[3]} ({describe(q=q, k=k, v=v)}); "
            "a smaller one can be padded with zeros, with `scale` given"
        )


def _check_masks(q: Tensor, k: Tensor, key_lengths: Tensor | None, key_mask: Tensor | None) -> None:
    if key_lengths is not None and key_mask is not None:
        raise ValueError(f"{OPERATION}: key_lengths and key_mask say the same thing; give one of them")
    batch, keys = k.shape[0], k.shape[2]
    for name, mask, shape, kind in (
        ("key_lengths", key_lengths, (batch,), "integer"),
        ("key_mask", key_mask, (batch, keys), "bool"),
    ):
        if mask is None:
            continue
        if not isinstance(mask, Tensor):
            raise TypeError(f"{OPERATION}: {name} must be a torch.Tensor, got {type(mask).__name__}")
        fits = mask.dtype == torch.bool if kind == "bool" else mask.dtype in (torch.int32, torch.int64)
        if not fits or tuple(mask.shape) != shape:
            meaning = "(B,S) bool" if kind == "bool" else "(B,) int32 or int64"
            raise ValueError(f"{OPERATION}: {name} must be {meaning}, here of shape {shape}; got {describe(**{name: mask})}")
        if mask.device != q.device:
            raise ValueError(f"{OPERATION}: {name} must be on {q.device} like q; got {mask.device}; move it with .to(device)")


def _positive(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{OPERATION}: {name} must be an int, got {type(value).__name__}") from None
    if number < 1:
        raise ValueError(f"{OPERATION}: {name} must be at least 1, got {number}; None sets no limit")
    return min(number, 2**62)  # what a schema takes, and as good as any larger one


def heads_of(return_weights: object, count: int) -> list[int]:
    """The heads whose weights are asked for."""
    if isinstance(return_weights, bool):
        return list(range(count)) if return_weights else []
    if isinstance(return_weights, str) and return_weights == "columns":
        return []
    if isinstance(return_weights, str) or not isinstance(return_weights, Sequence):
        raise ValueError(
            f'{OPERATION}: return_weights must be False, True, a list of heads, or "columns"; got {return_weights!r}'
        )
    heads = numbers(OPERATION, "heads", return_weights)
    if any(not 0 <= head < count for head in heads) or len(set(heads)) < len(heads):
        raise ValueError(f"{OPERATION}: heads must be different numbers of 0 to {count - 1}; got {heads}")
    return heads


def numbers(operation: str, name: str, given: Any) -> list[int]:
    """A list, an array or a tensor of ints as a list of them; a TypeError for anything else, flags among them."""
    given = plain(given)
    listed: list[Any] = [plain(x) for x in given] if isinstance(given, Sequence) else [None]
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in listed):
        raise TypeError(f"{operation}: {name} must be a list of ints, got {given!r}")
    return listed


def plain(x: Any) -> Any:
    """NumPy's and torch's numbers and arrays as Python's."""
    return x.tolist() if isinstance(x, Tensor | np.ndarray | np.generic) else x
