"""trmm with tiles: alpha * tri(a) @ b, (…,M,K) x (…,K,N) -> (…,M,N).

A program computes one output tile, [BM, BN], and walks along the live tiles of its row of the triangle: first those that lie
inside, then those that the diagonal crosses, whose other half is masked out of the load. Rows with the most work go first, so
that the last programs are short.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import product_config
from trigemm.kernels.tiles.multiply import (
    cannot_split,
    load_tile,
    load_triangle,
    multiply_add,
    no_flags,
    store_flag,
    store_tile,
)
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, form_of, needs_64_bits, stride_arguments
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.triangle import ceil_div

SCALARS = ["alpha", "diagonal", "M", "N", "K", "batches", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in "abc" for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit
def add_tiles(
    acc, a_flags, b_flags, a_ptr, b_ptr, rows, columns, begin, end, diagonal, M, N, K, a_row, a_column, b_row, b_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    LOWER: tl.constexpr, CROSSED: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """acc + the products of tiles `begin` to `end` of the inner dimension; CROSSED if the diagonal may cross them."""
    for k in range(begin, end):
        depth = tl.arange(0, BK).to(INDEX) + k * BK  # [BK]
        if CROSSED:
            a = load_triangle(a_ptr, rows, depth, M, K, a_row, a_column, diagonal, LOWER, A_ORDER, A_ALIGN)  # [BM, BK]
        else:
            a = load_tile(a_ptr, rows, depth, M, K, a_row, a_column, A_ORDER, A_ALIGN)
        b = load_tile(b_ptr, depth, columns, K, N, b_row, b_column, B_ORDER, B_ALIGN)  # [BK, BN]
        acc = multiply_add(a, b, acc, PRECISION)
        if PRECISION == "bf16x6":
            a_flags |= cannot_split(a, A_ORDER)
            b_flags |= cannot_split(b, B_ORDER)
    return acc, a_flags, b_flags


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def trmm_kernel(
    a_ptr, b_ptr, c_ptr, flags_ptr, alpha, diagonal, M, N, K, batches, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr,
    LOWER: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    tile_columns = tl.cdiv(N, BN)
    tile_column = tl.program_id(0) % tile_columns
    batch = (tl.program_id(0) // tile_columns) % batches
    tile_row = tl.program_id(0) // (tile_columns * batches)
    if LOWER:
        tile_row = tl.cdiv(M, BM) - 1 - tile_row
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    b_ptr += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    top = tile_row.to(tl.int64) * BM
    rows = top.to(INDEX) + tl.arange(0, BM)  # [BM]
    columns = (tile_column.to(tl.int64) * BN).to(INDEX) + tl.arange(0, BN)  # [BN]

    # Column `near` is where the diagonal leaves the whole rows of the tile, `far` where it leaves the triangle.
    if LOWER:
        near = tl.minimum(tl.maximum(top + diagonal + 1, 0), K)
        far = tl.minimum(tl.maximum(tl.minimum(top + BM, M) + diagonal, 0), K)
        inside_begin = 0 * near
        inside_end = near // BK
        crossed_begin = inside_end
        crossed_end = tl.cdiv(far, BK)
    else:
        near = tl.minimum(tl.maximum(tl.minimum(top + BM, M) - 1 + diagonal, 0), K)
        far = tl.minimum(tl.maximum(top + diagonal, 0), K)
        crossed_begin = far // BK
        crossed_end = tl.cdiv(near, BK)
        inside_begin = crossed_end
        inside_end = tl.cdiv(K, BK).to(tl.int64)

    acc = tl.zeros([BM, BN], tl.float32)
    a_flags, b_flags = no_flags(BM, BK, A_ORDER), no_flags(BK, BN, B_ORDER)
    acc, a_flags, b_flags = add_tiles(
        acc, a_flags, b_flags, a_ptr, b_ptr, rows, columns, inside_begin.to(tl.int32), inside_end.to(tl.int32), diagonal, M, N, K,
        a_row, a_column, b_row, b_column, A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, LOWER, False, PRECISION, INDEX, BK,
    )  # fmt: skip
    acc, a_flags, b_flags = add_tiles(
        acc, a_flags, b_flags, a_ptr, b_ptr, rows, columns, crossed_begin.to(tl.int32), crossed_end.to(tl.int32),
        diagonal, M, N, K,
        a_row, a_column, b_row, b_column, A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, LOWER, True, PRECISION, INDEX, BK,
    )  # fmt: skip
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, a_flags, b_flags)
    store_tile(c_ptr, acc * alpha, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)


@lru_cache(PLANS)
def _plan(a: Form, b: Form, c: Form, device: torch.device, uplo: str, diagonal: int, precision: str) -> Plan:
    """One program an output tile."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    config = product_config("trmm", a.dtype, precision)
    bm, bn, bk = config.blocks
    tiles = ceil_div(m, bm) * ceil_div(n, bn)

    def launch(batches: Batches, precision: str) -> Launch:
        return Launch(
            trmm_kernel,
            batches.matrices * tiles,
            (
                diagonal, m, n, k, batches.matrices, *batches.sizes[1:],
                *stride_arguments((a, b, c), batches),
                a.order, a.align, b.order, b.align, c.order, c.align,
                uplo == "lower", precision, tl.int64 if needs_64_bits(a, b, c) else tl.int32, bm, bn, bk,
            ),
            offsets=batches.offsets,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)


def trmm(a: Tensor, b: Tensor, out: Tensor, *, alpha: float, uplo: str, diagonal: int, precision: str) -> None:
    """alpha * tri(a) @ b into `out`."""
    if out.numel() == 0:
        return
    diagonal = max(-a.shape[-2], min(a.shape[-1], diagonal))
    plan = _plan(form_of(a), form_of(b), form_of(out), out.device, uplo, diagonal, precision)
    plan.run((a, b, out), alpha)
