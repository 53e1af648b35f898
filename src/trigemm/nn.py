"""Modules for people who write their own models."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trigemm.errors import describe
from trigemm.ops.attention import causal_attention

__all__ = ["CausalSelfAttention", "KeyValueCache"]


class KeyValueCache:
    """Keys and values of past positions in buffers of a fixed length, so that a further position copies only itself.

    `CausalSelfAttention.new_cache` makes one. It holds no gradients.

    >>> cache = KeyValueCache(torch.zeros(1, 2, 8, 16), torch.zeros(1, 2, 8, 16))
    >>> k, v = cache.append(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16))
    >>> k.shape, cache.length
    (torch.Size([1, 2, 3, 16]), 3)
    """

    def __init__(self, keys: Tensor, values: Tensor):
        """The buffers, (B,NH_kv,S,HS) each, of which nothing is filled yet."""
        self.keys, self.values, self.length = keys, values, 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B,NH_kv,T,HS) behind what is filled; return views of all that is filled now. ValueError if they don't fit."""
        end = self.length + k.shape[2]
        batch, heads, capacity, size = self.keys.shape
        if end > capacity or k.shape != (batch, heads, k.shape[2], size):
            raise ValueError(
                f"KeyValueCache: {self.length} of {capacity} positions are filled; "
                f"{describe(k=k)} does not fit {describe(keys=self.keys)}"
            )
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError("KeyValueCache: a cache holds no gradients; call the module under torch.no_grad()")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class CausalSelfAttention(nn.Module):
    """Causal self-attention on one packed projection, with the weights on request.

        q, k, v = split(qkv(x))        y = out(causal_attention(q, k, v))

    Queries, keys and values are read where the packed projection has written them: nothing is permuted or copied on the way in,
    nor on the way out.

    Args:
        embed_dim: C, the features of x. num_heads: NH. num_kv_heads: NH_kv, by default NH; a divisor of it.
        head_dim: HS, by default C / NH.
        bias: whether both projections have one.
        scale, softcap, window, precision: as for `trigemm.causal_attention`.
        rotate: positions, as a function of (x (B,heads,T,HS), first position) that is applied to queries and keys, such as a
            rotary embedding; None for a model that adds positions to x.
        device, dtype: of the parameters, as for torch.nn.Linear.

    The parameters are those of two torch.nn.Linear: `qkv`, of C to (NH + 2 NH_kv) HS features, queries first, then keys, then
    values, head by head (the order of nanoGPT's and GPT-2's `c_attn`); and `out`, of NH HS to C features. Both begin as
    torch.nn.Linear begins.

    Raises:
        ValueError: heads that do not divide.

    >>> import torch, trigemm.nn
    >>> attention = trigemm.nn.CausalSelfAttention(64, num_heads=4, num_kv_heads=2)
    >>> y, weights = attention(torch.randn(2, 5, 64), return_weights=True)
    >>> y.shape, weights.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
        precision: str | None = None,
        rotate: Callable[[Tensor, int], Tensor] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if min(embed_dim, num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads:
            raise ValueError(
                f"CausalSelfAttention: num_heads must be a multiple of num_kv_heads, all at least 1; got embed_dim={embed_dim}, "
                f"num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(
                f"CausalSelfAttention: embed_dim must be a multiple of num_heads where no head_dim is given; got {embed_dim} "
                f"and {num_heads}"
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.scale, self.softcap, self.window, self.precision, self.rotate = scale, softcap, window, precision, rotate
        self.qkv = nn.Linear(embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias, device, dtype)
        self.out = nn.Linear(num_heads * self.head_dim, embed_dim, bias, device, dtype)

    def forward(
        self,
        x: Tensor,
        *,
        return_weights: bool | str | Sequence[int] = False,
        key_lengths: Tensor | None = None,
        key_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """Attend from each position of x to itself and those before it.

        Args:
            x: (B,T,C). return_weights, key_lengths, key_mask: as for `trigemm.causal_attention`.
            cache: of `new_cache`: positions before x. Those of x are appended.

        Returns:
            y (B,T,C); or y and the weights, or their sums, as `trigemm.causal_attention` returns them; S is the number of cached
            positions and T.
        """
        if x.dim() != 3 or x.shape[2] != self.embed_dim:
            raise ValueError(f"CausalSelfAttention: x must be (B,T,{self.embed_dim}); got {describe(x=x)}")
        packed = self.qkv(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = packed.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], 1)
        if self.rotate is not None:
            start = 0 if cache is None else cache.length
            q, k = self.rotate(q, start), self.rotate(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        result = causal_attention(
            q,
            k,
            v,
            scale=self.scale,
            return_weights=return_weights,
            key_lengths=key_lengths,
            key_mask=key_mask,
            softcap=self.softcap,
            window=self.window,
            precision=self.precision,
        )
        attended, weights = (result, None) if isinstance(result, Tensor) else result
        y = self.out(attended.transpose(1, 2).flatten(2))
        return y if weights is None else (y, weights)

    def new_cache(self, batch_size: int, length: int) -> KeyValueCache:
        """An empty cache for `length` positions of `batch_size` sequences, on the device and of the dtype of the parameters."""
        weight = self.qkv.weight
        keys, values = (weight.new_zeros(batch_size, self.num_kv_heads, length, self.head_dim) for _ in range(2))
        return KeyValueCache(keys, values)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
