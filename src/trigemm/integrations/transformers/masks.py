"""What transformers' masks say of causal attention: how many keys are filled, and which of them are padding.

The library says what each query may see by a mask of T x S entries, or by none. Causal attention needs less: the number of keys
up to the last query's own (a static cache goes on behind it, unfilled), a mask (B,S) of the keys that are not padding, a window.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask


class Keys(NamedTuple):
    """What the queries may see: the first `filled` keys, of which the last is the last query's own, where `mask` is True."""

    filled: int
    mask: Tensor | None  # (B,filled) bool
    window: int | None


def padding_mask(
    *,
    kv_length: int,
    q_length: int = 1,
    q_offset: int | Tensor = 0,
    cache_position: Tensor | None = None,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> Tensor | None:
    """The mask of "trigemm", made where the library makes its masks. Arguments are those of its `AttentionMaskInterface`.

    Returns:
        None where all S keys are filled and none is padding; (B,1,1,L) bool, the first L keys are filled and True where they are
        not padding; or (B,1,T,S) bool for any other pattern, which the attention function takes or refuses.
    """
    others |= {"kv_length": kv_length, "kv_offset": kv_offset, "mask_function": mask_function, "local_size": local_size}
    others |= {"attention_mask": attention_mask, "allow_is_bidirectional_skip": False}
    if cache_position is None:
        others |= {"q_length": q_length, "q_offset": q_offset}
    else:  # releases before 5.4
        others |= {"cache_position": cache_position}
        q_length, q_offset = len(cache_position), cache_position[0]
    if q_length == 1:
        return _library_mask(allow_is_causal_skip=allow_is_causal_skip, **others)
    # The library allows itself to skip no mask of packed sequences and overlays; chunks it would skip where there is one only.
    chunked = getattr(others.get("config"), "attention_chunk_size", None) is not None
    if mask_function is not causal_mask_function and (chunked or not allow_is_causal_skip):
        return _library_mask(allow_is_causal_skip=False, **others)
    filled = kv_length if kv_length == q_length else int(q_offset) + q_length - kv_offset
    if attention_mask is not None:
        mask = attention_mask[:, kv_offset : kv_offset + filled]
        mask = torch.nn.functional.pad(mask, (0, filled - mask.shape[1]))
        if torch.compiler.is_compiling() or not mask.all():
            return mask[:, None, None]
    if filled == q_length == kv_length:
        return None
    device = others["device"] if cache_position is None else cache_position.device
    return torch.ones(others["batch_size"], 1, 1, filled, dtype=torch.bool, device=device)


def _library_mask(**arguments: Any) -> Tensor | None:
    mask: Tensor | None = sdpa_mask(**arguments)
    return mask


def visible_keys(mask: Any, queries: int, keys: int, window: int | None, *, bottom_right: bool, cut: bool = False) -> Keys:
    """What a layer's queries may see, of what the model hands to its attention function.

    Args:
        mask: None, (B,L), (B,1,1,L) or (B,1,T,S); bool, or a floating mask that is added to the scores.
        window: the layer's sliding window.
        bottom_right: how a missing mask is to be read: the last query's own key is the last one (as for flash attention), or
            the first query's own key is the first one, the rest being an unfilled cache (as for scaled_dot_product_attention).
        cut: whether the keys of one query end with the last one that is seen. Its mask is as long as a static cache, and to look
            into it is to wait for the device. The masks of more queries say by their length what is filled.

    Raises:
        TypeError: the mask is no tensor. ValueError: it is not causal, up to padding and the window.
    """
    window = None if queries == 1 else window  # the mask of one query has its window
    if mask is None:
        return Keys(keys if bottom_right or queries == 1 else queries, None, window)
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"trigemm attention: the mask must be a tensor, got {type(mask).__name__}; "
            'model.set_attn_implementation("sdpa") makes the model use one'
        )
    if mask.dim() == 2:
        mask = mask[:, None, None]
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] not in (1, queries):
        raise ValueError(
            f"trigemm attention: masks are (B,S), (B,1,1,S) or (B,1,T,S), the same for all heads; got {tuple(mask.shape)} "
            f"for T={queries} queries and S={keys} keys"
        )
    mask = _seen(mask[..., :keys])
    if mask.shape[2] == 1:
        mask = mask[:, 0, 0]
        if queries == 1 and cut:
            mask = mask[:, : int(_last(mask.any(0))) + 1]
        return Keys(mask.shape[-1], mask, window)
    return _fit(mask[:, 0], window)


def _seen(mask: Tensor) -> Tensor:
    """The mask as bool: True where a query sees the key."""
    if not mask.is_floating_point():
        return mask.bool()
    seen = mask == 0
    if not (seen | (mask <= torch.finfo(mask.dtype).min / 2)).all():
        raise ValueError("trigemm attention: a floating mask may hold zeros and -inf only; position biases are not supported")
    return seen


def _last(seen: Tensor) -> Tensor:
    """Where the last True of each row is; its last place if there is none."""
    return seen.shape[-1] - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)


def _fit(seen: Tensor, window: int | None) -> Keys:
    """The filled keys and the padding that make this mask (B,T,S) out of a causal one with a window."""
    queries, keys = seen.shape[1:]
    unpadded = seen.any(1)
    any_seen = seen.any(0)
    ahead = torch.where(any_seen.any(1), _last(any_seen) - torch.arange(queries, device=seen.device), 0)
    diagonal = max(0, int(ahead.max()))
    filled = diagonal + queries
    pattern = torch.ones(queries, keys, dtype=torch.bool, device=seen.device).tril_(diagonal)
    if window is not None:
        pattern = pattern.triu_(diagonal - window + 1)
    if filled > keys or not torch.equal(seen, pattern & unpadded[:, None]):
        raise ValueError(
            f"trigemm attention: the mask of {queries} queries and {keys} keys is not causal up to padding and "
            f"{'a missing window' if window is None else f'a window of {window}'}; packed sequences, prefixes, chunks and "
            'bidirectional blocks need model.set_attn_implementation("sdpa") or "eager"'
        )
    return Keys(filled, unpadded[:, :filled], window)
