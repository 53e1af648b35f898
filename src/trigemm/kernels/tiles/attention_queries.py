"""Causal attention with tiles, backward by queries: sums over the rows of weights * d_weights, and the gradient of the queries.

Each program has BM queries of one head and goes through the keys that they see, BN at a time.

    row_sums    rowsum(d_output * output) + rowsum(weights * what reaches the weights from outside)
    queries     dq = scale * d_scores @ k,  d_scores = weights * (d_weights - row_sums)
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.attention_forward import row_program
from trigemm.kernels.tiles.attention_parts import (
    counted,
    exponents,
    live_tiles,
    load_rows,
    multiply_into,
    scores_of,
    seen,
    slope_of,
    statistics,
)
from trigemm.kernels.tiles.multiply import load_tile, store_tile

SCALARS = ["factor", "inner", "scale", "diagonal", "T", "S", "window", "all_heads", "heads", "batches", "group"]
STRIDES = [f"{x}_{dim}" for x in ("q", "k", "v", "do", "o", "dw") for dim in ("batch", "head", "row", "column")]


@triton.jit
def add_tiles(
    sums, dq, q, upstream, k, v, dw_ptr, d_sums_ptr, row_sums, batch, kv_head, slot, begin, end, rows, top, log_sum,
    factor, inner, diagonal, T, S, window, length, mask_ptr,
    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, dw_row, dw_column,
    K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr, V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr,
    DW_ORDER: tl.constexpr, DW_ALIGN: tl.constexpr,
    D_OUTPUT: tl.constexpr, D_WEIGHTS: tl.constexpr, D_SUMS: tl.constexpr, ROW_SUMS: tl.constexpr,
    MASKED: tl.constexpr, SCORES: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr,
    PRECISION: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tiles `begin` to `end` added: to the row sums what is not made of the output, or to the gradient of the queries."""
    for j in range(begin, end):
        columns = j * BN + tl.arange(0, BN)
        tile = load_rows(k, batch, kv_head, j * BN, S, k_batch, k_head, k_row, k_column, SIZE, K_ORDER, K_ALIGN, BN, BK)
        scores, _ = scores_of(q, q, top, tile, inner, SCORES, PRECISION, BM, BN)
        weights = tl.exp2(exponents(scores, factor, top[:, None]) - log_sum[:, None])
        d_weights = tl.zeros([BM, BN], tl.float32) - row_sums[:, None]
        if D_OUTPUT and not ROW_SUMS:
            values = load_rows(v, batch, kv_head, j * BN, S, v_batch, v_head, v_row, v_column, SIZE, V_ORDER, V_ALIGN, BN, BK)
            d_weights = multiply_into(upstream, values.T, d_weights, PRECISION)
        if D_SUMS:
            d_weights += tl.load(d_sums_ptr + columns, mask=columns < S, other=0.0)[None, :]
        if D_WEIGHTS:
            tile_rows = tl.where(slot >= 0, rows, T).to(tl.int64)
            d_weights += load_tile(dw_ptr, tile_rows, columns.to(tl.int64), T, S, dw_row, dw_column, DW_ORDER, DW_ALIGN).to(
                tl.float32
            )
        term = weights * d_weights
        if not ROW_SUMS:
            term *= slope_of(scores, SCORES)
        if MASKED:
            counts = counted(columns, length, mask_ptr, KEY_MASK)
            term = tl.where(seen(rows, columns, counts, diagonal, window, WINDOW, LENGTHS or KEY_MASK), term, 0.0)
            if LENGTHS or KEY_MASK:
                tile = tl.where(counts[:, None], tile, 0.0)
        if ROW_SUMS:
            sums += tl.sum(term, 1)
        else:
            dq = multiply_into(term, tile, dq, PRECISION)
    return sums, dq


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def queries_kernel(
    q, k, v, do, o_ptr, dw_ptr, stats_ptr, row_sums_ptr, d_sums_ptr, slots_ptr, lengths_ptr, mask_ptr, flags_ptr,
    factor, inner, scale, diagonal, T, S, window, all_heads, heads, batches, group,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
    do_batch, do_head, do_row, do_column, o_batch, o_head, o_row, o_column, dw_batch, dw_head, dw_row, dw_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr, DO_ORDER: tl.constexpr, DO_ALIGN: tl.constexpr,
    O_ORDER: tl.constexpr, O_ALIGN: tl.constexpr, DW_ORDER: tl.constexpr, DW_ALIGN: tl.constexpr,
    D_OUTPUT: tl.constexpr, D_WEIGHTS: tl.constexpr, D_SUMS: tl.constexpr, ROW_SUMS: tl.constexpr,
    SCORES: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """ROW_SUMS: the row sums, with the output at `o_ptr`; else the gradient of the queries, written there."""
    EVERY: tl.constexpr = WINDOW or KEY_MASK or PRECISION == "bf16x6"  # one loop compiles twice as fast
    tile_row, matrix = row_program(tl.cdiv(T, BM), batches * all_heads, TOGETHER)
    batch = matrix // all_heads
    head = matrix % all_heads
    kv_head = head // group
    length = S
    if LENGTHS:
        length = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch), 0), S).to(tl.int32)
    if KEY_MASK:
        mask_ptr += batch.to(tl.int64) * S
    row = tile_row * BM
    rows = row + tl.arange(0, BM)  # [BM]
    sizes = tl.arange(0, BK)
    begin, inside, end, _ = live_tiles(row, diagonal, T, length, window, WINDOW, EVERY, BM, BN)
    slot = tl.full([], -1, tl.int32)
    if D_WEIGHTS:
        slot = tl.load(slots_ptr + head)
        dw_ptr += (batch.to(tl.int64) * dw_batch + slot.to(tl.int64) * dw_head) * DW_ALIGN
    if ROW_SUMS and not D_SUMS:  # a head without a gradient of its weights has its sums from the output
        inside = tl.where(slot >= 0, inside, begin)
        end = tl.where(slot >= 0, end, begin)
    if D_SUMS:
        d_sums_ptr += matrix.to(tl.int64) * S

    queries = load_rows(q, batch, head, row, T, q_batch, q_head, q_row, q_column, SIZE, Q_ORDER, Q_ALIGN, BM, BK)  # [BM, BK]
    top, log_sum = statistics(stats_ptr, batches * all_heads, matrix, rows, T)
    o_ptr += (batch.to(tl.int64) * o_batch + head.to(tl.int64) * o_head) * O_ALIGN
    upstream = queries
    if D_OUTPUT:
        upstream = load_rows(do, batch, head, row, T, do_batch, do_head, do_row, do_column, SIZE, DO_ORDER, DO_ALIGN, BM, BK)
    sums = tl.zeros([BM], tl.float32)
    row_sums = tl.zeros([BM], tl.float32)
    if not ROW_SUMS:
        row_sums = tl.load(row_sums_ptr + matrix.to(tl.int64) * T + rows, mask=rows < T, other=0.0)
    elif D_OUTPUT:
        output = load_tile(o_ptr, rows.to(tl.int64), sizes, T, SIZE, o_row, o_column, O_ORDER, O_ALIGN)
        sums = tl.sum(output.to(tl.float32) * upstream.to(tl.float32), 1)
    dq = tl.zeros([BM, BK], tl.float32)
    for masked in tl.static_range(2):
        first = inside if masked else begin
        last = end if masked else inside
        if masked or not EVERY:
            sums, dq = add_tiles(
                sums, dq, queries, upstream, k, v, dw_ptr, d_sums_ptr, row_sums, batch, kv_head, slot, first, last, rows,
                top, log_sum, factor, inner, diagonal, T, S, window, length, mask_ptr,
                k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, dw_row, dw_column,
                K_ORDER, K_ALIGN, V_ORDER, V_ALIGN, DW_ORDER, DW_ALIGN, D_OUTPUT, D_WEIGHTS, D_SUMS, ROW_SUMS,
                masked, SCORES, WINDOW, LENGTHS, KEY_MASK, PRECISION, SIZE, BM, BN, BK,
            )  # fmt: skip
    if ROW_SUMS:
        tl.store(row_sums_ptr + matrix.to(tl.int64) * T + rows, sums, mask=rows < T)
    else:
        store_tile(o_ptr, dq * scale, rows.to(tl.int64), sizes, T, SIZE, o_row, o_column, O_ORDER, O_ALIGN)
