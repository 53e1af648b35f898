"""What the attention kernels share: loads of rows, scores, who sees what, and weights from the statistics of a row.

A score is `SCORES` of a product s = q . k, an increasing function of it, and its weight is made with powers of two:

    "raw"      s                      factor = scale * log2(e), for a positive scale
    "scaled"   s * inner              inner = scale, factor = log2(e)
    "capped"   tanh(s * inner)        inner = scale / softcap, factor = softcap * log2(e)

    weight = exp2(score * factor - top - log_sum)

`top`, the maximum of score * factor in the row, is taken out first, and `log_sum`, log2 of the row's sum of powers, after it.
Added up, the smaller of the two would lose its digits. A row that sees nothing has 0 for both.
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.multiply import load_tile, multiply_add, split_rows
from trigemm.kernels.tiles.parts import ROWS
from trigemm.kernels.tiles.rows import multiply_parts, product

PART_ROWS = tl.constexpr(ROWS)


@triton.jit
def load_rows(
    x, batch, head, top, n_rows, x_batch, x_head, x_row, x_column,
    SIZE: tl.constexpr, ORDER: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, left=0,
):  # fmt: skip
    """Rows from `top` and columns from `left` on of one head, [ROWS, COLUMNS], zero beyond its border.

    ORDER "tma": x is a descriptor.
    """
    if ORDER == "tma":
        return x.load([batch, head, top, left]).reshape(ROWS, COLUMNS)
    else:
        ptr = x + (batch.to(tl.int64) * x_batch + head.to(tl.int64) * x_head) * ALIGN
        rows = tl.arange(0, ROWS).to(tl.int64) + top
        return load_tile(ptr, rows, tl.arange(0, COLUMNS) + left, n_rows, SIZE, x_row, x_column, ORDER, ALIGN)


@triton.jit
def split_queries(q, PRECISION: tl.constexpr, BM: tl.constexpr):
    """A tile of queries as `product` takes it: (high part, low part, unscale, flags), the first alone where nothing is split."""
    if PRECISION == "float16x2" or PRECISION == "parts":
        return split_rows(q)
    else:
        return q, q, tl.zeros([BM], tl.float32), tl.zeros([BM], tl.int32)


@triton.jit
def tanh(x):
    """tanh to float32's accuracy: a polynomial where the closed form would cancel."""
    power = tl.exp2(tl.abs(x) * -2.8853900817779268)  # exp(-2|x|)
    far = (1.0 - power) / (1.0 + power)
    square = x * x
    near = 1.0 + square * (-0.333333333 + square * (0.133333333 + square * (-0.0539682540 + square * 0.0218694885)))
    return tl.where(square < 0.0625, x * near, tl.where(x < 0, -far, far))


@triton.jit
def shaped(scores, inner, SCORES: tl.constexpr):
    """The scores of products."""
    if SCORES != "raw":
        scores = scores * inner
    if SCORES == "capped":
        scores = tanh(scores)
    return scores


@triton.jit
def scores_of(q, q_low, q_unscale, k, inner, SCORES: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The scores of queries and keys, [BM, BN], and the flags of the keys."""
    scores, flags = product(q, q_low, q_unscale, k, 1.0, PRECISION, BM, BN)
    return shaped(scores, inner, SCORES), flags


@triton.jit
def take_queries(
    q, batch, head, row, T, q_batch, q_head, q_row, q_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """The queries from `row` on as `key_scores` takes them, and their flags [BM].

    Rows that registers hold are loaded and split once. Of longer ones, CK < BK components at a time are, for each tile of keys.
    """
    if CK == BK:
        queries = load_rows(q, batch, head, row, T, q_batch, q_head, q_row, q_column, SIZE, Q_ORDER, Q_ALIGN, BM, BK)  # [BM, BK]
        high, low, unscale, flags = split_queries(queries, PRECISION, BM)
        return (high, low, unscale), flags
    else:
        flags = tl.zeros([BM], tl.int32)
        for left in range(0, BK, CK):
            part = load_rows(
                q, batch, head, row, T, q_batch, q_head, q_row, q_column, SIZE, Q_ORDER, Q_ALIGN, BM, CK, left
            )  # fmt: skip
            flags |= split_queries(part, PRECISION, BM)[3]
        return (q, head, row, T, q_batch, q_head, q_row, q_column), flags


@triton.jit
def key_scores(
    queries, k, k_low, k_unscale_ptr, batch, kv_head, column, factor, inner, S, k_batch, k_head, k_row, k_column,
    Q_ORDER: tl.constexpr, Q_ALIGN: tl.constexpr, K_ORDER: tl.constexpr, K_ALIGN: tl.constexpr,
    SCORES: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """The scores of queries and of keys from `column` on, [BM, BN], the factors of their rows [BM], and the flags of the keys."""
    factors = tl.zeros([BM], tl.float32) + factor
    flags = tl.zeros([BN], tl.int32)
    if CK < BK:
        q, head, row, T, q_batch, q_head, q_row, q_column = queries
        scores = tl.zeros([BM, BN], tl.float32)
        for left in range(0, BK, CK):
            part = load_rows(q, batch, head, row, T, q_batch, q_head, q_row, q_column, SIZE, Q_ORDER, Q_ALIGN, BM, CK, left)
            high, low, unscale, _ = split_queries(part, PRECISION, BM)
            tile = load_rows(k, batch, kv_head, column, S, k_batch, k_head, k_row, k_column, SIZE, K_ORDER, K_ALIGN, BN, CK, left)
            added, found = product(high, low, unscale, tile, 1.0, PRECISION, BM, BN)
            scores += added
            flags |= found
        scores = shaped(scores, inner, SCORES)
    else:
        q, q_low, q_unscale = queries
        tile = load_rows(k, batch, kv_head, column, S, k_batch, k_head, k_row, k_column, SIZE, K_ORDER, K_ALIGN, BN, BK)
        if PRECISION == "parts":
            tile_low = load_rows(k_low, batch, kv_head, column, S, 0, 0, 0, 0, SIZE, "tma", 1, BN, BK)
            unscale = q_unscale * tl.load(k_unscale_ptr + column // PART_ROWS)
            scores = multiply_parts(q, q_low, tile, tile_low)
            if SCORES == "raw":  # powers of two: factors are exact
                factors *= unscale
            else:
                scores = shaped(scores * unscale[:, None], inner, SCORES)
        else:
            scores, flags = scores_of(q, q_low, q_unscale, tile, inner, SCORES, PRECISION, BM, BN)
    return scores, factors, flags


@triton.jit
def exponents(scores, factor, top):
    """scores * factor - top, rounded once: the rounding of `top` is the same for a whole row, and cancels in its weights."""
    return tl.fma(scores, tl.zeros_like(scores) + factor, tl.zeros_like(scores) - top)


@triton.jit
def counted(columns, length, mask_ptr, KEY_MASK: tl.constexpr):
    """Which keys count, [len(columns)]."""
    counts = columns < length
    if KEY_MASK:
        counts = counts & (tl.load(mask_ptr + columns, mask=counts, other=0) != 0)
    return counts


@triton.jit
def seen(rows, columns, counts, diagonal, window, WINDOW: tl.constexpr, COUNTED: tl.constexpr):
    """Which queries see which keys, [len(rows), len(columns)]. Without COUNTED all keys count, and those in sight lie in S."""
    distance = columns[None, :] - rows[:, None]
    sees = distance <= diagonal
    if COUNTED:
        sees = sees & counts[None, :]
    if WINDOW:
        sees = sees & (distance > diagonal - window)
    return sees


@triton.jit
def live_tiles(top, diagonal, T, length, window, WINDOW: tl.constexpr, EVERY: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Tiles of keys that rows from `top` on need: (begin, inside, end, triangle).

    Those from `begin` to `inside` are seen whole by every row, those up to `end` in part; those up to `triangle` touch the
    triangle but have no keys that count. EVERY: all are taken to be seen in part.
    """
    last = tl.minimum(top + BM, T) + diagonal
    end = tl.cdiv(tl.minimum(last, length), BN)
    begin = 0 * end
    inside = tl.minimum(top + diagonal + 1, length) // BN
    if WINDOW:
        begin = tl.minimum(tl.maximum(top + diagonal + 1 - window, 0) // BN, end)
    if EVERY:
        inside = begin
    return begin, inside, end, tl.cdiv(last, BN)


@triton.jit
def slope_of(scores, SCORES: tl.constexpr):
    """What soft-capping multiplies the gradient of scores by; nothing for the other kinds."""
    return 1.0 - scores * scores if SCORES == "capped" else 1.0


@triton.jit
def multiply_into(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b, with `a` in float32 rounded to the dtype of `b` if that is half precision."""
    if b.dtype == tl.float32:
        return multiply_add(a, b, acc, PRECISION)
    else:
        return tl.dot(a.to(b.dtype), b, acc)


@triton.jit
def split_weights(p):
    """Two float16 parts of 2^14 times weights in 0 to 1."""
    p = p * 16384.0
    high = p.to(tl.float16)
    return high, ((p - high.to(tl.float32)) * 2048.0).to(tl.float16)


@triton.jit
def weighted_sum(p, v, v_low, v_unscale, acc, PRECISION: tl.constexpr):
    """acc + p @ v for weights p in 0 to 1, and flags of `v`, one a column where it is split here."""
    if PRECISION == "parts":
        high, low = split_weights(p)
        parts = tl.dot(high, v_low)
        parts = tl.dot(low, v, parts)
        parts = tl.dot(high, v, parts * 2.0**-11)
        return tl.fma(parts, tl.zeros_like(parts) + v_unscale * 2.0**-14, acc), tl.zeros([v.shape[1]], tl.int32)
    elif PRECISION == "float16x2":
        v_high, v_low, v_unscale, flags = split_rows(v.T)  # [HS, BN]
        high, low = split_weights(p)
        parts = tl.dot(high, v_low.T)
        parts = tl.dot(low, v_high.T, parts)
        parts = tl.dot(high, v_high.T, parts * 2.0**-11)
        return acc + parts * (v_unscale * 2.0**-14)[None, :], flags
    else:
        flags = tl.zeros([v.shape[1]], tl.int32)
        return multiply_into(p, v, acc, PRECISION), flags


@triton.jit
def statistics(stats_ptr, matrices, matrix, rows, T):
    """`top` and `log_sum` of rows, [len(rows)] each. Beyond the border they make every weight 0."""
    places = stats_ptr + matrix.to(tl.int64) * T + rows
    in_rows = rows < T
    top = tl.load(places, mask=in_rows, other=0.0)
    return top, tl.load(places + matrices.to(tl.int64) * T, mask=in_rows, other=float("inf"))


@triton.jit
def store_statistics(stats_ptr, matrices, matrix, rows, T, top, log_sum):
    places = stats_ptr + matrix.to(tl.int64) * T + rows
    tl.store(places, top, mask=rows < T)
    tl.store(places + matrices.to(tl.int64) * T, log_sum, mask=rows < T)
