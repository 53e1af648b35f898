"""Whole and square blocks of attention by torch's fused kernel, where there is one: half precision on CUDA.

Each function returns None for what the kernel does not take.
"""

import torch
from torch import Tensor

aten = torch.ops.aten


def takes(q: Tensor) -> bool:
    """Whether there are kernels for these queries (B,NH,T,HS) at all."""
    return q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and q.shape[3] <= 256


def attend(q: Tensor, k: Tensor, v: Tensor, diagonal: int, scale: float) -> tuple[Tensor, Tensor] | None:
    """Attention to these keys alone, and the logarithm of each row's sum of exp(score): (B,NH,T,HS), (B,NH,T,1) in float32."""
    causal = _causal(q, k, diagonal)
    if causal is None:
        return None
    group = q.shape[1] // k.shape[1]
    outputs, logarithms = zip(
        *(aten._scaled_dot_product_flash_attention(q[:, i::group], k, v, 0.0, causal, scale=scale)[:2] for i in range(group)),
        strict=True,
    )
    return _interleaved(outputs).float(), _interleaved(logarithms)[..., None]


def gradients(
    d_output: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, logarithm: Tensor, diagonal: int, scale: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of q, k and v, from the output and the logarithm (B,NH,T,1) that the rows have over all keys."""
    causal = _causal(q, k, diagonal)
    if causal is None:
        return None
    group = q.shape[1] // k.shape[1]
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # the state of a random generator, for dropout
    found = []
    for i in range(group):
        above, queries, result = (x[:, i::group].contiguous() for x in (d_output, q, output))
        lse = logarithm[:, i::group, :, 0].contiguous()
        found.append(
            aten._scaled_dot_product_flash_attention_backward(
                above, queries, k, v, result, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, unused, scale=scale
            )[:3]
        )
    dq, dk, dv = zip(*found, strict=True)
    return _interleaved(dq), sum(x.float() for x in dk), sum(x.float() for x in dv)


def _interleaved(parts: tuple[Tensor, ...]) -> Tensor:
    """Heads of each place in a group, put together: G times (B,NH_kv,…) -> (B,NH,…)."""
    return parts[0] if len(parts) == 1 else torch.stack(parts, 2).flatten(1, 2)


def _causal(q: Tensor, k: Tensor, diagonal: int) -> bool | None:
    """Whether the kernel's own triangle is what is asked for, or no triangle at all; None where neither is."""
    if not takes(q) or q.shape[3] % 8 or 0 in (q.numel(), k.numel()):
        return None
    if diagonal >= k.shape[2] - 1:
        return False
    return True if diagonal == 0 and q.shape[2] == k.shape[2] else None
