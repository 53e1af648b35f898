"""Weights of some queries over some keys from the statistics that the queries have over all keys, with tiles.

    weights = exp(scale * q . k - largest - logarithm) where c - r <= diagonal, `fill` elsewhere

q (B,NH,T,HS), k (B,NH,S,HS) in half precision, largest and logarithm (B,NH,T,1) in float32 -> out (B,NH,T,S), any strides. Each
program has BM queries of one head and SPAN keys, of which it takes BN at a time: it makes a tile of weights in its final form and
stores it once.
"""

from math import e, log2

import triton
import triton.language as tl
from torch import Tensor

from trigemm.triangle import ceil_div

BM, SPAN = 128, 1024


@triton.jit
def weights_kernel(
    q_ptr, k_ptr, largest_ptr, logarithm_ptr, out_ptr, scale, log2_e, fill, diagonal, T, S, heads,
    q_batch, q_head, q_row, q_column, k_batch, k_head, k_row, k_column, m_batch, m_head, m_row, l_batch, l_head, l_row,
    o_batch, o_head, o_row, o_column,
    SIZE: tl.constexpr, FILL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(2).to(tl.int64)
    batch, head = matrix // heads, matrix % heads
    rows = tl.program_id(1) * BM + tl.arange(0, BM)  # [BM]
    components = tl.arange(0, BK)  # [BK]
    in_rows, in_size = rows < T, components < SIZE
    wide_rows = rows.to(tl.int64)
    queries = q_ptr + batch * q_batch + head * q_head + wide_rows[:, None] * q_row + components[None, :] * q_column
    q = tl.load(queries, mask=in_rows[:, None] & in_size[None, :], other=0.0)  # [BM, BK]
    largest = tl.load(largest_ptr + batch * m_batch + head * m_head + wide_rows * m_row, mask=in_rows, other=0.0)  # [BM]
    logarithm = tl.load(logarithm_ptr + batch * l_batch + head * l_head + wide_rows * l_row, mask=in_rows, other=0.0)
    begin = tl.program_id(0) * SPAN
    for start in range(begin, tl.minimum(begin + SPAN, S), BN):
        columns = start + tl.arange(0, BN)  # [BN]
        in_columns, wide = columns < S, columns.to(tl.int64)
        inside = columns[None, :] - rows[:, None] <= diagonal  # [BM, BN]
        weights = tl.zeros([BM, BN], tl.float32)
        if start <= tl.program_id(1) * BM + BM - 1 + diagonal:
            keys = k_ptr + batch * k_batch + head * k_head + wide[:, None] * k_row + components[None, :] * k_column
            k = tl.load(keys, mask=in_columns[:, None] & in_size[None, :], other=0.0)  # [BN, BK]
            scores = tl.dot(q, k.T, input_precision="ieee") * scale
            weights = tl.exp2(((scores - largest[:, None]) - logarithm[:, None]) * log2_e)
        if FILL:
            weights = tl.where(inside, weights, fill)
            inside = inside | True
        stored = inside & in_rows[:, None] & in_columns[None, :]
        place = out_ptr + batch * o_batch + head * o_head + wide_rows[:, None] * o_row + wide[None, :] * o_column
        tl.store(place, weights.to(out_ptr.dtype.element_ty), mask=stored)


def block_weights(
    q: Tensor, k: Tensor, largest: Tensor, logarithm: Tensor, out: Tensor, *, scale: float, diagonal: int, fill: float | None
) -> None:
    """See above. `fill` None: nothing is stored above the diagonal."""
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    if out.numel() == 0:
        return
    bk = max(16, triton.next_power_of_2(size))
    grid = ceil_div(keys, SPAN), ceil_div(queries, BM), batch * heads
    weights_kernel[grid](
        q, k, largest, logarithm, out, scale, log2(e), fill or 0.0, diagonal, queries, keys, heads,
        *q.stride(), *k.stride(), *largest.stride()[:3], *logarithm.stride()[:3], *out.stride(),
        SIZE=size, FILL=fill is not None, BM=BM, BN=128 if bk <= 128 else 64, BK=bk, SPAN=SPAN, num_warps=8,
    )  # fmt: skip
