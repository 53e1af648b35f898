"""Causal attention with tiles: which kernels a call launches. (B,NH,T,HS), (B,NH_kv,S,HS) twice -> (B,NH,T,HS).

    forward     the heads with weights, the heads without (attention_forward), and column sums (attention_keys);
                on Hopper, plain calls have their weights from kernels of its own (hopper_attention)
    backward    row sums and the gradient of the queries (attention_queries), then those of keys and values (attention_keys)

Nothing is added with atomics: results are the same bit for bit.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trigemm.kernels.tiles.attention_calls import (
    Call,
    Made,
    Operands,
    accelerated,
    call_of,
    held_at_once,
    loadable,
    on_device,
    plan_of,
    split_keys,
    stream_beside,
)
from trigemm.kernels.tiles.attention_config import Config, attention_config
from trigemm.kernels.tiles.attention_forward import attention_kernel
from trigemm.kernels.tiles.attention_keys import columns_kernel, keys_kernel
from trigemm.kernels.tiles.attention_queries import queries_kernel
from trigemm.kernels.tiles.descriptors import describer
from trigemm.kernels.tiles.hopper_attention import hopper_config, hopper_plan
from trigemm.kernels.tiles.operand import Form, form_of
from trigemm.kernels.tiles.parts import ROWS
from trigemm.kernels.tiles.plan import PLANS, Plan
from trigemm.triangle import ceil_div


@lru_cache(PLANS)
def forward_plan(
    q: Form,
    k: Form,
    v: Form,
    output: Form,
    weights: Form | None,
    heads: int,
    listed: bool,
    fill: bool,
    call: Call,
    config: Config,
) -> Plan:
    """The launch for some heads, with weights or without."""
    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    vector = weights.align if weights else 1
    w_strides = [stride // vector for stride in weights.stride[:3]] if weights else [0, 0, 0]
    store_fast = weights is not None and vector > 1 and weights.dtype.itemsize <= 4 and accelerated(weights, call.device)

    def make(cut: Config, bk: int, precision: str) -> Made:
        bm, bn = cut.bm, cut.bn
        ck = held_at_once(q.dtype, bk, precision)
        operands = Operands((q, k, v, output), ([bm, ck], [bn, ck], [bn, bk], None), call.device)
        whole = ROWS % bn == 0 and all(operands.describe[1:3])
        splits = split_keys(k, v, bk) if weights and precision == "float16x2" and whole and ck == bk else None
        if splits:
            precision = "parts"
            shape = (batch, kv_heads, keys, bk)
            strides = (kv_heads * keys * bk, keys * bk, bk, 1)
            parts = describer(Form(shape, strides, torch.float16, True), [bn, bk])
        store = describer(weights, [bm, bn]) if weights and store_fast else None

        def describe(q: Tensor, k: Tensor, v: Tensor, output: Tensor, weights: Tensor, *rest: Tensor) -> tuple[Any, ...]:
            first, *both, last = operands(q, k, v, output)
            made = [k] * 6  # what nothing is split for
            if splits:
                (k_high, k_low, *k_scales), (v_high, v_low, *v_scales) = splits(k, v)
                both = [parts(k_high), parts(v_high)]
                made = [parts(k_low), *k_scales, parts(v_low), *v_scales]
            return first, *both, last, store(weights) if store else weights, weights, *rest, *made

        arguments = (
            keys - queries, queries, keys, call.window or 0, all_heads, heads, batch, all_heads // max(1, kv_heads),
            *operands.strides, *w_strides, *operands.orders, "tma" if store_fast else "row", vector,
            weights is not None, fill, listed, call.scores, call.window is not None, call.lengths is not None, call.mask,
            precision, size, bm, bn, bk, ck, cut.together, cut.first_stages or cut.num_stages,
        )  # fmt: skip
        return ceil_div(queries, bm) * batch * heads, arguments, describe

    return plan_of(attention_kernel, "weights" if weights else "output", q, call, config, make)


@lru_cache(PLANS)
def columns_plan(q: Form, k: Form, dtype: torch.dtype, call: Call, config: Config) -> Plan:
    """The launch for column sums of that dtype."""
    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]

    def make(cut: Config, bk: int, precision: str) -> Made:
        bm, bn = cut.bm, cut.bn
        ck = held_at_once(q.dtype, bk, precision)
        operands = Operands((q, k), ([bm, ck], [bn, ck]), call.device)
        arguments = (
            keys - queries, queries, keys, call.window or 0, all_heads, batch, all_heads // max(1, kv_heads),
            *operands.strides, *operands.orders, queries % bm != 0,
            call.scores, call.window is not None, call.lengths is not None, call.mask, precision, size, bm, bn, bk, ck,
        )  # fmt: skip
        return ceil_div(keys, bn) * batch * all_heads, arguments, lambda q, k, *rest: (*operands(q, k), *rest)

    return plan_of(columns_kernel, "columns", q, call, config, make)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    weights: Tensor,
    columns: Tensor,
    stats: Tensor,
    *,
    heads: tuple[int, ...],
    fill: float | None,
    **options: Any,
) -> None:
    """See trigemm.kernels.spec."""
    if stats.numel():
        call, masks, scalars = call_of(q, stats, **options)
        everyone = tuple(range(q.shape[1]))
        others = everyone if not heads else tuple(head for head in everyone if head not in heads)
        q, k, v = (loadable(x) for x in (q, k, v))
        forms = form_of(q), form_of(k), form_of(v), form_of(output)

        def forward(part: tuple[int, ...], stored: Tensor | None) -> None:
            form, listed = None if stored is None else form_of(stored), part != everyone
            rows, by_tma = q.shape[0] * len(part) * q.shape[2], all(accelerated(x, call.device) for x in forms[:3])
            config = attention_config("weights" if form else "output", q.dtype, q.shape[-1], rows, by_tma=by_tma)
            plan = forward_plan(*forms, form, len(part), listed, fill is not None, call, config)
            hopper = hopper_config(forms, form, call) if form and not fill else None
            if form and hopper:
                plan = hopper_plan(*forms, form, len(part), listed, fill is not None, hopper, plan)
            numbers = on_device(part, q.device) if listed else stats
            plan.run((q, k, v, output, stats if stored is None else stored, stats, numbers, *masks), *scalars, fill or 0.0)

        if heads and others and q.is_cuda:  # each launch alone would leave a part of the GPU idle at its end
            current = torch.cuda.current_stream(q.device)
            side = stream_beside(current)
            side.wait_stream(current)
            forward(heads, weights)
            with torch.cuda.stream(side):
                forward(others, None)
            current.wait_stream(side)
        else:
            for part, stored in ((heads, weights), (others, None)):
                if part:
                    forward(part, stored)
        if columns.numel():
            config = attention_config("columns", q.dtype, q.shape[-1])
            columns_plan(*forms[:2], columns.dtype, call, config).run((q, k, stats, *masks, columns), *scalars)
    elif columns.numel():
        columns.zero_()


class Upstream(NamedTuple):
    """Which gradients reach a backward."""

    output: bool
    weights: bool
    sums: bool


@lru_cache(PLANS)
def queries_plan(forms: tuple[Form, ...], row_sums: bool, upstream: Upstream, heads: int, call: Call, config: Config) -> Plan:
    """The launch for row sums, or for the gradient of the queries; forms of q, k, v, d_output, output or dq, d_weights."""
    q, k = forms[:2]
    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]

    def make(cut: Config, bk: int, precision: str) -> Made:
        bm, bn = cut.bm, cut.bn
        operands = Operands(forms, ([bm, bk], [bn, bk], [bn, bk], [bm, bk], None, None), call.device)
        arguments = (
            keys - queries, queries, keys, call.window or 0, all_heads, heads, batch, all_heads // max(1, kv_heads),
            *operands.strides, *operands.orders, *upstream, row_sums,
            call.scores, call.window is not None, call.lengths is not None, call.mask, precision,
            size, bm, bn, bk, cut.together,
        )  # fmt: skip
        return ceil_div(queries, bm) * batch * all_heads, arguments, lambda *x: (*operands(*x[:6]), *x[6:])

    return plan_of(queries_kernel, "row_sums" if row_sums else "queries", q, call, config, make)


@lru_cache(PLANS)
def keys_plan(forms: tuple[Form, ...], upstream: Upstream, heads: int, call: Call, config: Config) -> Plan:
    """The launch for the gradients of keys and values; forms of q, k, v, d_output, dk, dv, d_weights."""
    q, k = forms[:2]
    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]

    def make(cut: Config, bk: int, precision: str) -> Made:
        bm, bn = cut.bm, cut.bn
        operands = Operands(forms, ([bm, bk], [bn, bk], [bn, bk], [bm, bk], None, None, None), call.device)

        def describe(*x: Tensor) -> tuple[Any, ...]:
            *loaded, dk, dv, d_weights = operands(*x[:4], *x[-2:], x[4])
            return *loaded, d_weights, *x[5:-2], dk, dv

        arguments = (
            keys - queries, queries, keys, call.window or 0, all_heads, heads, batch, all_heads // max(1, kv_heads),
            *operands.strides, *operands.orders, *upstream, queries % bm != 0,
            call.scores, call.window is not None, call.lengths is not None, call.mask, precision, size, bm, bn, bk,
        )  # fmt: skip
        return ceil_div(keys, bn) * batch * kv_heads, arguments, describe

    return plan_of(keys_kernel, "keys", q, call, config, make)


def causal_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    stats: Tensor,
    d_output: Tensor | None,
    d_weights: Tensor | None,
    d_columns: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    heads: tuple[int, ...],
    scale: float,
    **options: Any,
) -> None:
    """See trigemm.kernels.spec."""
    if stats.numel() == 0:
        dk.zero_()
        dv.zero_()
        return
    call, masks, scalars = call_of(q, stats, scale=scale, **options)
    upstream = Upstream(d_output is not None, d_weights is not None, d_columns is not None)
    places = {head: place for place, head in enumerate(heads)}
    slots = stats if d_weights is None else on_device(tuple(places.get(head, -1) for head in range(q.shape[1])), q.device)
    d_output = q if d_output is None else d_output
    d_weights = q if d_weights is None else d_weights
    d_sums = stats if d_columns is None else d_columns.to(torch.float32).contiguous()
    row_sums = torch.empty_like(stats[0])
    loaded = form_of(q), form_of(k), form_of(v), form_of(d_output)
    shared = stats, row_sums, d_sums, slots, *masks
    for target, sums in ((output, True), (dq, False)):
        config = attention_config("row_sums" if sums else "queries", q.dtype, q.shape[-1])
        plan = queries_plan((*loaded, form_of(target), form_of(d_weights)), sums, upstream, len(heads), call, config)
        plan.run((q, k, v, d_output, target, d_weights, *shared), *scalars, scale)
    forms = (*loaded, form_of(dk), form_of(dv), form_of(d_weights))
    config = attention_config("keys", q.dtype, q.shape[-1])
    keys_plan(forms, upstream, len(heads), call, config).run((q, k, v, d_output, d_weights, *shared, dk, dv), *scalars, scale)
