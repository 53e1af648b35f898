"""Causal attention for torch.library: its declaration, its gradients, and the way from a call to a kernel.

With S the scores, W = softmax(S) over what each query sees, O = W @ v and c the column sums of W, the gradient that reaches W is

    dW = dO @ vᵀ + what comes through the weights + what comes through the column sums
    dS = W * (dW - rowsum(W * dW))        dq = scale * dS @ k        dk = scale * dSᵀ @ q        dv = Wᵀ @ dO

A kernel of the backward makes W again from two numbers a row, its maximum and the logarithm of its sum: `stats`, (2,B,NH,T),
which are kept apart because their sum would lose the digits of the smaller one. (The strips of the CPU need not even these.)

Second derivatives, forward mode and the transforms of torch.func go by `dense`, which is made of torch's own operations and
holds the square.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trigemm.kernels.catalogue import serving
from trigemm.ops.direct import needs_no_dispatch
from trigemm.ops.gradients import transformed
from trigemm.ops.results import new_result
from trigemm.ops.schema import LIBRARY, resolve

FORM = "float scale, float? softcap, SymInt? window, int[] heads"
FORWARD = (
    "causal_attention(Tensor q, Tensor k, Tensor v, Tensor? key_lengths, Tensor? key_mask, "
    f"{FORM}, bool sums, ScalarType weights_dtype, float? fill, str? precision) -> (Tensor, Tensor, Tensor, Tensor)"
)
BACKWARD = (
    "causal_attention_backward(Tensor q, Tensor k, Tensor v, Tensor? key_lengths, Tensor? key_mask, Tensor output, Tensor stats, "
    f"Tensor? d_output, Tensor? d_weights, Tensor? d_sums, {FORM}, str? precision) -> (Tensor, Tensor, Tensor)"
)

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


def empty(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    heads: Sequence[int],
    sums: bool,
    weights_dtype: torch.dtype,
    *_: object,
) -> Four:
    """Output, weights (B,len(heads),T,S), column sums (B,NH,S) or (B,0,S), and the statistics of rows, none of them written."""
    batch, all_heads, queries, _size = q.shape
    keys = k.shape[2]
    return (
        torch.empty_like(q),
        new_result(q, (batch, len(heads), queries, keys), weights_dtype),
        q.new_empty((batch, all_heads if sums else 0, keys), dtype=weights_dtype),
        row_statistics(q),
    )


def row_statistics(q: Tensor) -> Tensor:
    """What the kernels of the backward need of each row, not yet written: (2,B,NH,T), or nothing where they need nothing."""
    keeps = q.device.type == "cuda" and q.dtype != torch.float64
    return q.new_empty((2, *q.shape[:3]) if keeps else (0,), dtype=torch.float32)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    heads: Sequence[int],
    sums: bool,
    weights_dtype: torch.dtype,
    fill: float | None,
    precision: str | None,
) -> Four:
    results = empty(q, k, v, key_lengths, key_mask, scale, softcap, window, heads, sums, weights_dtype)
    form = kernel_form(
        k.shape[2], key_lengths=key_lengths, key_mask=key_mask, scale=scale, softcap=softcap,
        window=window, heads=heads, precision=precision,
    )  # fmt: skip
    serving("causal_attention", q.device.type, q.dtype).run(q, k, v, *results, fill=fill, **form)
    return results


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    output: Tensor,
    stats: Tensor,
    d_output: Tensor | None,
    d_weights: Tensor | None,
    d_sums: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    heads: Sequence[int],
    precision: str | None,
) -> Three:
    results = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    kernel = serving("causal_attention_backward", q.device.type, q.dtype)
    form = kernel_form(
        k.shape[2], key_lengths=key_lengths, key_mask=key_mask, scale=scale, softcap=softcap,
        window=window, heads=heads, precision=precision,
    )  # fmt: skip
    kernel.run(q, k, v, output, stats, d_output, d_weights, d_sums, *results, **form)
    return results


def kernel_form(keys: int, *, window: int | None, heads: Sequence[int], precision: str | None, **form: Any) -> dict[str, Any]:
    """What kernels of both directions are told by name. A window of all keys is none: a larger number would not fit 32 bits."""
    window = None if window is None or window >= keys else window
    return {**form, "window": window, "heads": tuple(heads), "precision": resolve(precision)}


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    heads: Sequence[int],
    sums: bool,
    weights_dtype: torch.dtype,
    fill: float | None,
    precision: str | None,
) -> Three:
    """The same output, weights and column sums by torch's operations, which every transform and derivative knows."""
    dtype, (queries, keys), group = q.dtype, (q.shape[2], k.shape[2]), q.shape[1] // max(1, k.shape[1])
    if dtype != torch.float64:
        q, k, v = q.float(), k.float(), v.float()
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    above = hidden.triu(keys - queries + 1)
    hidden = above if window is None else above | hidden.tril(keys - queries - window)
    if key_lengths is not None:
        key_mask = torch.arange(keys, device=q.device) < key_lengths[:, None]
    if key_mask is not None:
        hidden = hidden | ~key_mask[:, None, None, :]
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (k, v))
    scores = scale * (q @ k.repeat_interleave(group, 1).mT)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(hidden, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(hidden | empty, 0.0)
    output = (weights @ v.repeat_interleave(group, 1)).to(dtype)
    listed = weights[:, list(heads)].masked_fill(above, 0.0 if fill is None else fill).to(weights_dtype)
    return output, listed, (weights.sum(-2) if sums else weights[:, :0, 0]).to(weights_dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    q, k, v, key_lengths, key_mask, *form, _sums, _dtype, _fill, precision = inputs
    out, _, _, stats = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(stats)
    ctx.save_for_backward(q, k, v, key_lengths, key_mask, out, stats)
    ctx.parameters = (*form, precision)


def _gradients(ctx: Any, d_output: Tensor | None, d_weights: Tensor | None, d_sums: Tensor | None, _: None) -> tuple[Any, ...]:
    d_weights, d_sums = (x if x is not None and x.shape[1] else None for x in (d_weights, d_sums))
    found = (None, None, None)
    if not (d_output is None and d_weights is None and d_sums is None):
        found = causal_attention_backward(*ctx.saved_tensors, d_output, d_weights, d_sums, *ctx.parameters)
    return (*found, *[None] * 10)


def _save_for_second(ctx: Any, inputs: tuple[Any, ...], output: Three) -> None:
    q, k, v, key_lengths, key_mask, _out, _stats, *upstream, scale, softcap, window, heads, _precision = inputs
    ctx.save_for_backward(q, k, v, key_lengths, key_mask, *upstream)
    ctx.parameters = scale, softcap, window, heads


def _second(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """Gradients of the gradients: `dense`, differentiated twice."""
    q, k, v, key_lengths, key_mask, *upstream = ctx.saved_tensors
    there = [x is not None for x in upstream]
    sums = there[2]
    widths = [x.dtype for x in upstream[1:] if x is not None]

    def results(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        dtype = widths[0] if widths else q.dtype
        scale, softcap, window, heads = ctx.parameters
        found = dense(q, k, v, key_lengths, key_mask, scale, softcap, window, heads, sums, dtype, 0.0, None)
        return tuple(x for x, wanted in zip(found, there, strict=True) if wanted)

    def gradients(q: Tensor, k: Tensor, v: Tensor, *upstream: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vjp(results, q, k, v)[1](upstream)
        return found

    given = [x for x in upstream if x is not None]
    of_q, of_k, of_v, *rest = torch.func.vjp(gradients, q, k, v, *given)[1](grads)
    of_upstream = iter(rest)
    return (of_q, of_k, of_v, *[None] * 4, *(next(of_upstream) if wanted else None for wanted in there), *[None] * 5)


def _define(declaration: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    LIBRARY.define(declaration)
    name = declaration.partition("(")[0]
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"trigemm::{name}", fake, lib=LIBRARY)
    operation: Callable[..., Any] = getattr(torch.ops.trigemm, name).default
    return operation


registered = _define(FORWARD, forward, empty)
causal_attention_backward = _define(
    BACKWARD, backward, lambda q, k, v, *_: (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
)
torch.library.register_autograd("trigemm::causal_attention", _gradients, setup_context=_save, lib=LIBRARY)
torch.library.register_autograd("trigemm::causal_attention_backward", _second, setup_context=_save_for_second, lib=LIBRARY)


def causal_attention(*arguments: Any) -> Three:
    """Output, weights and column sums, by the way that serves the derivatives asked for."""
    if transformed("causal_attention"):
        return dense(*arguments)
    output, weights, sums, _ = (forward if needs_no_dispatch(*arguments[:5]) else registered)(*arguments)
    return output, weights, sums
