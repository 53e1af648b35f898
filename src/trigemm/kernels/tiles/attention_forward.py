"""Causal attention with tiles, forward: the output of some heads, with or without their weights.

Each program has BM queries of one head and streams the keys that they see, BN at a time.

    without weights   one pass: output and statistics of the rows grow together, rescaled when a row's maximum grows
    with weights      two passes: the first makes the statistics alone; the second makes the scores again, and so each weight in
                      its final form, stores it once and adds its part to the output

Tiles of weights that no key needs (above the diagonal, beyond a window or a length) are stored during the first pass, which
stores nothing else: one for each tile of keys, by the threads, and of another row of tiles, counted from the other end, since a
long row has few of them and many keys. Without a fill, what lies above the diagonal may hold anything: tiles are stored whole,
since sectors of memory written in part cost much more.

PRECISION "parts": `k` and `v` are high parts that were made before (see `parts`), each with its low parts, scales and flags.
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.attention_parts import (
    PART_ROWS,
    counted,
    exponents,
    key_scores,
    live_tiles,
    load_rows,
    seen,
    store_statistics,
    take_queries,
    weighted_sum,
)
from trigemm.kernels.tiles.multiply import store_flag, store_tile
from trigemm.kernels.tiles.rows import load_flags

SCALARS = ["factor", "inner", "fill", "diagonal", "T", "S", "window", "all_heads", "heads", "batches", "group"]
STRIDES = [f"{x}_{dim}" for x in "qkvo" for dim in ("batch", "head", "row", "column")]
STRIDES += [f"w_{dim}" for dim in ("batch", "head", "row")]


@triton.jit
def row_program(tile_rows, matrices, TOGETHER: tl.constexpr):
    """(row of tiles, matrix) of this program: the longest rows first, of so many matrices side by side, or of all (0)."""
    number = tl.program_id(0)
    if TOGETHER == 0:
        return tile_rows - 1 - number // matrices, number % matrices
    else:
        first = number // (TOGETHER * tile_rows) * TOGETHER
        members = tl.minimum(TOGETHER, matrices - first)
        turn = number - first * tile_rows
        return tile_rows - 1 - turn // members, first + turn % members


@triton.jit
def store_weights(
    w, w_ptr, value, batch, slot, top, j, T, S, w_row,
    W_ORDER: tl.constexpr, W_ALIGN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Store tile j of the weights. W_ORDER "tma": `w` is a descriptor."""
    if W_ORDER == "tma":
        w.store([batch, slot, top, j * BN], value.to(w_ptr.dtype.element_ty).reshape(1, 1, BM, BN))
    else:
        rows = top.to(tl.int64) + tl.arange(0, BM)
        columns = j * BN + tl.arange(0, BN)
        store_tile(w_ptr, value, rows, columns, T, S, w_row, 1, "row", W_ALIGN)


@triton.jit
def store_blank(
    w_ptr, top, place, before, after, fill, diagonal, T, S, w_row,
    W_ALIGN: tl.constexpr, ZEROS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Store the tile of weights that is number `place` of those that no key needs: tiles 0 to `before`, and from `after` on.

    Without ZEROS, all of these lie above the diagonal.
    """
    columns = tl.where(place < before, place, after + place - before) * BN + tl.arange(0, BN)
    rows = tl.arange(0, BM)
    value = tl.full([BM, BN], fill, tl.float32)
    if ZEROS:
        value = tl.where(columns[None, :] - rows[:, None] > diagonal + top, value, 0.0)
    w_ptr += top.to(tl.int64) * w_row * W_ALIGN
    store_tile(w_ptr, value, rows.to(tl.int64), columns, T - top, S, w_row, 1, "row", W_ALIGN)


@triton.jit
def add_statistics(
    top, total, k_flags, queries, k, w_ptr, batch, kv_head, begin, end, rows,
    k_low, k_unscale_ptr, start, other, before, after, blanks,
    factor, inner, fill, diagonal, T, S, window, length, mask_ptr, k_batch, k_head, k_row, k_column, w_row,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr, W_ALIGN: tl.constexpr,
    MASKED: tl.constexpr, SCORES: tl.constexpr,
    WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """First pass: maximum and sum of powers of each row, with tiles `begin` to `end` added.

    Tile j also stores number j - `start` of the `blanks` of the row of tiles at `other`.
    """
    for j in tl.range(begin, end, num_stages=STAGES):
        if j - start < blanks:
            store_blank(
                w_ptr, other, j - start, before, after, fill, diagonal, T, S, w_row,
                W_ALIGN, WINDOW or LENGTHS, BM, BN,
            )  # fmt: skip
        scores, factors, flags = key_scores(
            queries, k, k_low, k_unscale_ptr, batch, kv_head, j * BN, factor, inner, S,
            k_batch, k_head, k_row, k_column, Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, SCORES, PRECISION, SIZE, BM, BN, BK, CK,
        )  # fmt: skip
        k_flags |= flags
        if MASKED:
            columns = j * BN + tl.arange(0, BN)
            counts = counted(columns, length, mask_ptr, KEY_MASK)
            sees = seen(rows, columns, counts, diagonal, window, WINDOW, LENGTHS or KEY_MASK)
            scores = tl.where(sees, scores, float("-inf"))
        above = tl.maximum(top, tl.max(scores, 1) * factors)
        least = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp2(top - least) + tl.sum(tl.exp2(exponents(scores, factors[:, None], least[:, None])), 1)
        top = above
    return top, total, k_flags


@triton.jit
def add_weights(
    acc, v_flags, queries, k, v, w, w_ptr, batch, kv_head, slot, begin, end, row, rows, top, share,
    k_low, k_unscale_ptr, v_low, v_unscale_ptr,
    factor, inner, fill, diagonal, T, S, window, length, mask_ptr,
    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, w_row,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr, W_ORDER: tl.constexpr, W_ALIGN: tl.constexpr,
    MASKED: tl.constexpr, FILL: tl.constexpr, SCORES: tl.constexpr,
    WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """Second pass: weights of tiles `begin` to `end` stored, and their part of the output added."""
    for j in range(begin, end):
        values = load_rows(v, batch, kv_head, j * BN, S, v_batch, v_head, v_row, v_column, SIZE, V_ORDER, V_ALIGN, BN, BK)
        values_low, v_unscale = values, 1.0
        if PRECISION == "parts":
            values_low = load_rows(v_low, batch, kv_head, j * BN, S, 0, 0, 0, 0, SIZE, "tma", 1, BN, BK)
            v_unscale = tl.load(v_unscale_ptr + j * BN // PART_ROWS)
        scores, factors, _ = key_scores(
            queries, k, k_low, k_unscale_ptr, batch, kv_head, j * BN, factor, inner, S,
            k_batch, k_head, k_row, k_column, Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, SCORES, PRECISION, SIZE, BM, BN, BK, CK,
        )  # fmt: skip
        weights = tl.exp2(exponents(scores, factors[:, None], top[:, None])) * share[:, None]
        stored = weights
        if MASKED:
            columns = j * BN + tl.arange(0, BN)
            counts = counted(columns, length, mask_ptr, KEY_MASK)
            sees = seen(rows, columns, counts, diagonal, window, WINDOW, LENGTHS or KEY_MASK)
            weights = tl.where(sees, weights, 0.0)
            if LENGTHS or KEY_MASK:
                values = tl.where(counts[:, None], values, 0.0)
                values_low = tl.where(counts[:, None], values_low, 0.0)
            stored = weights
            if FILL:
                stored = tl.where(columns[None, :] - rows[:, None] > diagonal, fill, weights)
        store_weights(w, w_ptr, stored, batch, slot, row, j, T, S, w_row, W_ORDER, W_ALIGN, BM, BN)
        acc, flags = weighted_sum(weights, values, values_low, v_unscale, acc, PRECISION)
        v_flags |= flags
    return acc, v_flags


@triton.jit
def add_output(
    acc, top, total, k_flags, v_flags, queries, k, v, batch, kv_head, begin, end, rows,
    factor, inner, diagonal, S, window, length, mask_ptr,
    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr,
    WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr,
    PRECISION: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """The only pass where no weights are stored: statistics and output together."""
    for j in range(begin, end):
        values = load_rows(v, batch, kv_head, j * BN, S, v_batch, v_head, v_row, v_column, SIZE, V_ORDER, V_ALIGN, BN, BK)
        scores, factors, flags = key_scores(
            queries, k, k, k, batch, kv_head, j * BN, factor, inner, S, k_batch, k_head, k_row, k_column,
            Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, SCORES, PRECISION, SIZE, BM, BN, BK, CK,
        )  # fmt: skip
        k_flags |= flags
        if MASKED:
            columns = j * BN + tl.arange(0, BN)
            counts = counted(columns, length, mask_ptr, KEY_MASK)
            sees = seen(rows, columns, counts, diagonal, window, WINDOW, LENGTHS or KEY_MASK)
            scores = tl.where(sees, scores, float("-inf"))
            if LENGTHS or KEY_MASK:
                values = tl.where(counts[:, None], values, 0.0)
        above = tl.maximum(top, tl.max(scores, 1) * factors)
        least = tl.where(above == float("-inf"), 0.0, above)
        powers = tl.exp2(exponents(scores, factors[:, None], least[:, None]))
        shrink = tl.exp2(top - least)
        total = total * shrink + tl.sum(powers, 1)
        acc, flags = weighted_sum(powers, values, values, 1.0, acc * shrink[:, None], PRECISION)
        v_flags |= flags
        top = above
    return acc, top, total, k_flags, v_flags


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def attention_kernel(
    q, k, v, o_ptr, w, w_ptr, stats_ptr, heads_ptr, lengths_ptr, mask_ptr,
    k_low, k_unscale_ptr, k_flags_ptr, v_low, v_unscale_ptr, v_flags_ptr, flags_ptr, factor, inner, fill,
    diagonal, T, S, window, all_heads, heads, batches, group,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
    o_batch, o_head, o_row, o_column, w_batch, w_head, w_row,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    V_ORDER: tl.constexpr, V_ALIGN: tl.constexpr, O_ORDER: tl.constexpr, O_ALIGN: tl.constexpr,
    W_ORDER: tl.constexpr, W_ALIGN: tl.constexpr, WEIGHTS: tl.constexpr, FILL: tl.constexpr, LISTED: tl.constexpr,
    SCORES: tl.constexpr, WINDOW: tl.constexpr, LENGTHS: tl.constexpr, KEY_MASK: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
    TOGETHER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    EVERY: tl.constexpr = WINDOW or KEY_MASK or PRECISION == "ieee"
    tile_row, matrix = row_program(tl.cdiv(T, BM), batches * heads, TOGETHER)
    batch = matrix // heads
    slot = matrix % heads
    head = slot
    if LISTED:
        head = tl.load(heads_ptr + slot)
    kv_head = head // group
    length = S
    if LENGTHS:
        length = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch), 0), S).to(tl.int32)
    if KEY_MASK:
        mask_ptr += batch.to(tl.int64) * S
    row = tile_row * BM
    rows = row + tl.arange(0, BM)  # [BM]
    begin, inside, end, _ = live_tiles(row, diagonal, T, length, window, WINDOW, EVERY, BM, BN)
    other = (tl.cdiv(T, BM) - 1 - tile_row) * BM
    before, _, after, triangle = live_tiles(other, diagonal, T, length, window, WINDOW, EVERY, BM, BN)
    blanks = before + (tl.cdiv(S, BN) if FILL else triangle) - after
    if WEIGHTS:
        w_ptr += (batch.to(tl.int64) * w_batch + slot.to(tl.int64) * w_head) * W_ALIGN

    queries, q_flags = take_queries(
        q, batch, head, row, T, q_batch, q_head, q_row, q_column, Q_ORDER, Q_ALIGN, PRECISION, SIZE, BM, BK, CK
    )
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BK], tl.float32)
    k_flags, v_flags = tl.zeros([BN], tl.int32), tl.zeros([BK], tl.int32)
    if PRECISION == "parts":
        blocks = tl.cdiv(S, PART_ROWS)
        kv_blocks = (batch * (all_heads // group) + kv_head).to(tl.int64) * blocks
        k_unscale_ptr += kv_blocks
        v_unscale_ptr += kv_blocks
        used = tl.cdiv(tl.minimum(end * BN, S), PART_ROWS)
        split_flags = load_flags(k_flags_ptr + kv_blocks, used) | load_flags(v_flags_ptr + kv_blocks, used)
    for masked in tl.static_range(2):
        first = inside if masked else begin
        last = end if masked else inside
        if masked or not EVERY:
            if WEIGHTS:
                top, total, k_flags = add_statistics(
                    top, total, k_flags, queries, k, w_ptr, batch, kv_head, first, last, rows,
                    k_low, k_unscale_ptr, begin, other, before, after, blanks,
                    factor, inner, fill, diagonal, T, S, window, length, mask_ptr, k_batch, k_head, k_row, k_column, w_row,
                    Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, W_ALIGN, masked, SCORES, WINDOW, LENGTHS, KEY_MASK, PRECISION,
                    STAGES, SIZE, BM, BN, BK, CK,
                )  # fmt: skip
            else:
                acc, top, total, k_flags, v_flags = add_output(
                    acc, top, total, k_flags, v_flags, queries, k, v, batch, kv_head, first, last, rows,
                    factor, inner, diagonal, S, window, length, mask_ptr,
                    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column,
                    Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, V_ORDER, V_ALIGN,
                    masked, SCORES, WINDOW, LENGTHS, KEY_MASK, PRECISION, SIZE, BM, BN, BK, CK,
                )  # fmt: skip
    empty = total == 0
    top = tl.where(empty, 0.0, top)
    total = tl.where(empty, 1.0, total)
    store_statistics(stats_ptr, batches * all_heads, batch * all_heads + head, rows, T, top, tl.log2(total))
    if WEIGHTS:
        for place in range(end - begin, blanks):
            store_blank(
                w_ptr, other, place, before, after, fill, diagonal, T, S, w_row,
                W_ALIGN, WINDOW or LENGTHS, BM, BN,
            )  # fmt: skip
        for masked in tl.static_range(2):
            first = inside if masked else begin
            last = end if masked else inside
            if masked or not EVERY:
                acc, v_flags = add_weights(
                    acc, v_flags, queries, k, v, w, w_ptr, batch, kv_head, slot, first, last, row, rows,
                    top, 1.0 / total, k_low, k_unscale_ptr, v_low, v_unscale_ptr,
                    factor, inner, fill, diagonal, T, S, window, length, mask_ptr,
                    k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, w_row,
                    Q_ORDER, Q_ALIGN, K_ORDER, K_ALIGN, V_ORDER, V_ALIGN, W_ORDER, W_ALIGN,
                    masked, FILL, SCORES, WINDOW, LENGTHS, KEY_MASK, PRECISION, SIZE, BM, BN, BK, CK,
                )  # fmt: skip
    else:
        acc = acc / total[:, None]
    o_ptr += (batch.to(tl.int64) * o_batch + head.to(tl.int64) * o_head) * O_ALIGN
    store_tile(o_ptr, acc, rows.to(tl.int64), tl.arange(0, BK), T, SIZE, o_row, o_column, O_ORDER, O_ALIGN)
    if PRECISION == "parts":
        store_flag(flags_ptr, q_flags, split_flags)
    if PRECISION == "float16x2":
        flags = tl.maximum(tl.max(k_flags, 0), tl.max(v_flags, 0))
        store_flag(flags_ptr, q_flags, tl.zeros([BM], tl.int32) | flags)
