"""Causal attention with tiles, by keys: the column sums of the weights, and the gradients of keys and values.

Each program has BN keys of one head and goes through the queries that see them, BM at a time. It makes their weights again,
transposed [BN, BM], from the statistics of the queries' rows. Every result belongs to one program: nothing is added with atomics,
also where several query heads share a key head.

    columns    sums of a query head's weights
    keys       dv = sum of weightsᵀ @ d_output,  dk = scale * sum of d_scoresᵀ @ q, over the query heads of the group
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.attention_parts import (
    counted,
    exponents,
    key_scores,
    load_rows,
    multiply_into,
    scores_of,
    slope_of,
    statistics,
    take_queries,
)
from trigemm.kernels.tiles.multiply import load_tile, store_flag, store_tile

COLUMN_SCALARS = ["factor", "inner", "diagonal", "T", "S", "window", "all_heads", "batches", "group"]
COLUMN_STRIDES = [f"{x}_{dim}" for x in "qk" for dim in ("batch", "head", "row", "column")]
KEY_SCALARS = [*COLUMN_SCALARS, "scale", "heads"]
KEY_STRIDES = [f"{x}_{dim}" for x in ("q", "k", "v", "do", "dk", "dv", "dw") for dim in ("batch", "head", "row", "column")]


@triton.jit
def query_tiles(left, diagonal, T, length, window, WINDOW: tl.constexpr, EVERY: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Tiles of queries that keys from `left` on are seen by: (begin, inside, end). From `inside` on, all see all of them."""
    begin = tl.maximum(left - diagonal, 0) // BM
    end = tl.cdiv(T, BM)
    if WINDOW:
        end = tl.cdiv(tl.minimum(tl.maximum(left + BN - 1 + window - diagonal, 0), T), BM)
    if left >= length:
        end = begin
    inside = tl.minimum(tl.cdiv(tl.maximum(left + BN - 1 - diagonal, 0), BM), end)
    if EVERY:
        inside = end
    return begin, inside, end


@triton.jit
def transposed_weights(
    scores, rows, columns, top, log_sum, factor, diagonal, T, window, MASKED: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The weights of scores of keys and queries, [BN, BM]."""
    weights = tl.exp2(exponents(scores, factor, top[None, :]) - log_sum[None, :])
    if MASKED:
        distance = columns[:, None] - rows[None, :]
        sees = (distance <= diagonal) & (rows < T)[None, :]  # a query beyond the border may have any score
        if WINDOW:
            sees = sees & (distance > diagonal - window)
        weights = tl.where(sees, weights, 0.0)
    return weights


@triton.jit
def add_columns(
    sums, q_flags, keys, q, stats_ptr, matrices, matrix, batch, head, begin, end, columns,
    factor, inner, diagonal, T, window, q_batch, q_head, q_row, q_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    MASKED: tl.constexpr, SCORES: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """Sums of weights with tiles `begin` to `end` of the queries added."""
    for i in range(begin, end):
        rows = i * BM + tl.arange(0, BM)
        top, log_sum = statistics(stats_ptr, matrices, matrix, rows, T)
        scores, _, flags = key_scores(
            keys, q, q, q, batch, head, i * BM, factor, inner, T, q_batch, q_head, q_row, q_column,
            K_ORDER, K_ALIGN, Q_ORDER, Q_ALIGN, SCORES, PRECISION, SIZE, BN, BM, BK, CK,
        )  # fmt: skip
        weights = transposed_weights(scores, rows, columns, top, log_sum, factor, diagonal, T, window, MASKED, WINDOW)
        q_flags |= flags
        sums += tl.sum(weights, 1)
    return sums, q_flags


@triton.jit(do_not_specialize=[*COLUMN_SCALARS, *COLUMN_STRIDES])
def columns_kernel(
    q, k, stats_ptr, lengths_ptr, mask_ptr, sums_ptr, flags_ptr, factor, inner,
    diagonal, T, S, window, all_heads, batches, group,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    UNEVEN: tl.constexpr, SCORES: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr,
    PRECISION: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    EVERY: tl.constexpr = WINDOW or UNEVEN or PRECISION == "ieee"
    matrices = batches * all_heads
    matrix = tl.program_id(0) % matrices
    batch = matrix // all_heads
    head = matrix % all_heads
    left = tl.program_id(0) // matrices * BN  # the keys that most queries see first
    columns = left + tl.arange(0, BN)  # [BN]
    length = S
    if LENGTHS:
        length = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch), 0), S).to(tl.int32)
    if KEY_MASK:
        mask_ptr += batch.to(tl.int64) * S
    begin, inside, end = query_tiles(left, diagonal, T, length, window, WINDOW, EVERY, BM, BN)
    keys, k_flags = take_queries(
        k, batch, head // group, left, S, k_batch, k_head, k_row, k_column, K_ORDER, K_ALIGN, PRECISION, SIZE, BN, BK, CK
    )
    sums = tl.zeros([BN], tl.float32)
    q_flags = tl.zeros([BM], tl.int32)
    for masked in tl.static_range(2):
        first = begin if masked else inside
        last = inside if masked else end
        if masked or not EVERY:
            sums, q_flags = add_columns(
                sums, q_flags, keys, q, stats_ptr, matrices, matrix, batch, head, first, last, columns,
                factor, inner, diagonal, T, window, q_batch, q_head, q_row, q_column, Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN,
                masked, SCORES, WINDOW, PRECISION, SIZE, BM, BN, BK, CK,
            )  # fmt: skip
    sums = tl.where(counted(columns, length, mask_ptr, KEY_MASK), sums, 0.0)
    tl.store(sums_ptr + matrix.to(tl.int64) * S + columns, sums.to(sums_ptr.dtype.element_ty), mask=columns < S)
    if PRECISION == "float16x2":
        store_flag(flags_ptr, k_flags, tl.zeros([BN], tl.int32) | tl.max(q_flags, 0))


@triton.jit
def add_gradients(
    dk, dv, k, v, q, do, dw_ptr, stats_ptr, row_sums_ptr, d_sums, matrices, matrix, batch, head, slot, begin, end, columns,
    factor, inner, diagonal, T, S, window,
    q_batch, q_head, q_row, q_column, do_batch, do_head, do_row, do_column, dw_row, dw_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, DO_ORDER: tl.constexpr, DO_ALIGN: tl.constexpr,
    DW_ORDER: tl.constexpr, DW_ALIGN: tl.constexpr, D_OUTPUT: tl.constexpr, D_WEIGHTS: tl.constexpr, D_SUMS: tl.constexpr,
    MASKED: tl.constexpr, SCORES: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values [BN, BK] with tiles `begin` to `end` of one head's queries added."""
    for i in range(begin, end):
        rows = i * BM + tl.arange(0, BM)
        tile = load_rows(q, batch, head, i * BM, T, q_batch, q_head, q_row, q_column, SIZE, Q_ORDER, Q_ALIGN, BM, BK)
        top, log_sum = statistics(stats_ptr, matrices, matrix, rows, T)
        row_sums = tl.load(row_sums_ptr + matrix.to(tl.int64) * T + rows, mask=rows < T, other=0.0)
        scores, _ = scores_of(k, k, top, tile, inner, SCORES, PRECISION, BN, BM)
        weights = transposed_weights(scores, rows, columns, top, log_sum, factor, diagonal, T, window, MASKED, WINDOW)
        d_weights = tl.zeros([BN, BM], tl.float32) - row_sums[None, :]
        if D_OUTPUT:
            upstream = load_rows(
                do, batch, head, i * BM, T, do_batch, do_head, do_row, do_column, SIZE, DO_ORDER, DO_ALIGN, BM, BK
            )
            dv = multiply_into(weights, upstream, dv, PRECISION)
            d_weights = multiply_into(v, upstream.T, d_weights, PRECISION)
        if D_SUMS:
            d_weights += d_sums[:, None]
        if D_WEIGHTS:
            tile_rows = tl.where(slot >= 0, rows, T).to(tl.int64)
            d_weights += (
                load_tile(dw_ptr, tile_rows, columns.to(tl.int64), T, S, dw_row, dw_column, DW_ORDER, DW_ALIGN).to(tl.float32).T
            )
        d_scores = weights * d_weights * slope_of(scores, SCORES)
        if MASKED:  # what is not seen may be NaN upstream
            d_scores = tl.where(weights == 0, 0.0, d_scores)
        dk = multiply_into(d_scores, tile, dk, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=[*KEY_SCALARS, *KEY_STRIDES])
def keys_kernel(
    q, k, v, do, dw_ptr, stats_ptr, row_sums_ptr, d_sums_ptr, slots_ptr, lengths_ptr, mask_ptr, dk_ptr, dv_ptr, flags_ptr,
    factor, inner, scale, diagonal, T, S, window, all_heads, heads, batches, group,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
    do_batch, do_head, do_row, do_column, dk_batch, dk_head, dk_row, dk_column, dv_batch, dv_head, dv_row, dv_column,
    dw_batch, dw_head, dw_row, dw_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr, DO_ORDER: tl.constexpr, DO_ALIGN: tl.constexpr,
    DK_ORDER: tl.constexpr, DK_ALIGN: tl.constexpr, DV_ORDER: tl.constexpr, DV_ALIGN: tl.constexpr,
    DW_ORDER: tl.constexpr, DW_ALIGN: tl.constexpr, D_OUTPUT: tl.constexpr, D_WEIGHTS: tl.constexpr, D_SUMS: tl.constexpr,
    UNEVEN: tl.constexpr, SCORES: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr,
    PRECISION: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    EVERY: tl.constexpr = WINDOW or UNEVEN or PRECISION == "bf16x6"  # one loop compiles twice as fast
    kv_heads = all_heads // group
    matrices = batches * kv_heads
    batch = tl.program_id(0) % matrices // kv_heads
    kv_head = tl.program_id(0) % matrices % kv_heads
    left = tl.program_id(0) // matrices * BN  # the keys that most queries see first
    columns = left + tl.arange(0, BN)  # [BN]
    length = S
    if LENGTHS:
        length = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch), 0), S).to(tl.int32)
    if KEY_MASK:
        mask_ptr += batch.to(tl.int64) * S
    begin, inside, end = query_tiles(left, diagonal, T, length, window, WINDOW, EVERY, BM, BN)
    keys = load_rows(k, batch, kv_head, left, S, k_batch, k_head, k_row, k_column, SIZE, K_ORDER, K_ALIGN, BN, BK)
    values = keys
    if D_OUTPUT:
        values = load_rows(v, batch, kv_head, left, S, v_batch, v_head, v_row, v_column, SIZE, V_ORDER, V_ALIGN, BN, BK)
    dk, dv = tl.zeros([BN, BK], tl.float32), tl.zeros([BN, BK], tl.float32)
    for member in range(0, group):
        head = kv_head * group + member
        matrix = batch * all_heads + head
        d_sums = tl.zeros([BN], tl.float32)
        if D_SUMS:
            d_sums = tl.load(d_sums_ptr + matrix.to(tl.int64) * S + columns, mask=columns < S, other=0.0)
        slot = 0
        dw = dw_ptr
        if D_WEIGHTS:
            slot = tl.load(slots_ptr + head)
            dw = dw_ptr + (batch.to(tl.int64) * dw_batch + slot.to(tl.int64) * dw_head) * DW_ALIGN
        for masked in tl.static_range(2):
            first = begin if masked else inside
            last = inside if masked else end
            if masked or not EVERY:
                dk, dv = add_gradients(
                    dk, dv, keys, values, q, do, dw, stats_ptr, row_sums_ptr, d_sums,
                    batches * all_heads, matrix, batch, head, slot, first, last, columns,
                    factor, inner, diagonal, T, S, window, q_batch, q_head, q_row, q_column,
                    do_batch, do_head, do_row, do_column, dw_row, dw_column,
                    Q_ORDER, Q_ALIGN, DO_ORDER, DO_ALIGN, DW_ORDER, DW_ALIGN, D_OUTPUT, D_WEIGHTS, D_SUMS,
                    masked, SCORES, WINDOW, PRECISION, SIZE, BM, BN, BK,
                )  # fmt: skip
    counts = counted(columns, length, mask_ptr, KEY_MASK)[:, None]
    dk = tl.where(counts, dk * scale, 0.0)
    dv = tl.where(counts, dv, 0.0)
    dk_ptr += (batch.to(tl.int64) * dk_batch + kv_head.to(tl.int64) * dk_head) * DK_ALIGN
    dv_ptr += (batch.to(tl.int64) * dv_batch + kv_head.to(tl.int64) * dv_head) * DV_ALIGN
    store_tile(dk_ptr, dk, columns.to(tl.int64), tl.arange(0, BK), S, SIZE, dk_row, dk_column, DK_ORDER, DK_ALIGN)
    store_tile(dv_ptr, dv, columns.to(tl.int64), tl.arange(0, BK), S, SIZE, dv_row, dv_column, DV_ORDER, DV_ALIGN)
