"""gemmt with tiles: the lower triangle of alpha * a @ b, (…,M,K) x (…,K,N) -> (…,M,N).

A program computes one live tile, [BM, BN]; the tiles above the diagonal are not launched. REST says what becomes of the rest:
"fill", further programs write the dead tiles and do nothing else; "keep", nothing above the diagonal is written; "any", tiles
that the diagonal crosses are written whole.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles import rows
from trigemm.kernels.tiles.config import product_config
from trigemm.kernels.tiles.multiply import cannot_split, load_tile, multiply_add, no_flags, store_flag, store_tile
from trigemm.kernels.tiles.operand import (
    Batches,
    Form,
    batch_offset,
    cut_batches,
    form_of,
    needs_64_bits,
    stride_arguments,
    tile_pointers,
)
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.kernels.tiles.schedule import schedule_arguments, tile_of
from trigemm.triangle import Triangle, ceil_div

SCALARS = ["alpha", "fill", "diagonal", "M", "N", "K", "live", "tiles", "size1", "size2"]
SCHEDULES = [f"{kind}_{name}" for kind in ("live", "dead") for name in ("begin", "first", "slope_rows", "slope_tiles")]
STRIDES = [f"{x}_{name}" for x in "abc" for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit(do_not_specialize=[*SCALARS, *SCHEDULES, *STRIDES])
def gemmt_kernel(
    a_ptr, b_ptr, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K,
    live, tiles, live_begin, live_first, live_slope_rows, live_slope_tiles,
    dead_begin, dead_first, dead_slope_rows, dead_slope_tiles, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr,
    REST: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    batch = tl.program_id(0) // tiles
    number = (tl.program_id(0) % tiles).to(tl.int64)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    tile_columns = tl.cdiv(N, BN)

    if REST == "fill" and number >= live:
        dead_row, dead_column = tile_of(
            number - live, dead_begin, dead_first, BM // BN, dead_slope_rows, dead_slope_tiles, tile_columns
        )
        rows = ((tl.cdiv(M, BM) - 1 - dead_row) * BM).to(INDEX) + tl.arange(0, BM)
        columns = ((tile_columns - 1 - dead_column) * BN).to(INDEX) + tl.arange(0, BN)
        value = tl.full([BM, BN], fill, tl.float32)
        store_tile(c_ptr, value, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
        if PRECISION == "bf16x6":
            tl.store(flags_ptr + tl.program_id(0), 0)
        return

    tile_row, tile_column = tile_of(number, live_begin, live_first, BM // BN, live_slope_rows, live_slope_tiles, tile_columns)
    rows = (tile_row * BM).to(INDEX) + tl.arange(0, BM)  # [BM]
    columns = (tile_column * BN).to(INDEX) + tl.arange(0, BN)  # [BN]
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    b_ptr += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)

    acc = tl.zeros([BM, BN], tl.float32)
    a_flags, b_flags = no_flags(BM, BK, A_ORDER), no_flags(BK, BN, B_ORDER)
    for k in range(0, tl.cdiv(K, BK)):
        depth = tl.arange(0, BK).to(INDEX) + k * BK
        a = load_tile(a_ptr, rows, depth, M, K, a_row, a_column, A_ORDER, A_ALIGN)  # [BM, BK]
        b = load_tile(b_ptr, depth, columns, K, N, b_row, b_column, B_ORDER, B_ALIGN)  # [BK, BN]
        acc = multiply_add(a, b, acc, PRECISION)
        if PRECISION == "bf16x6":
            a_flags |= cannot_split(a, A_ORDER)
            b_flags |= cannot_split(b, B_ORDER)
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, a_flags, b_flags)
    acc *= alpha

    if REST == "any" or tile_column * BN + BN - 1 <= tile_row * BM + diagonal:  # the whole tile may be written
        store_tile(c_ptr, acc, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
    else:
        in_triangle = columns[None, :] - rows[:, None] <= diagonal
        if REST == "fill":
            store_tile(c_ptr, tl.where(in_triangle, acc, fill), rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
        else:
            in_matrix = (rows < M)[:, None] & (columns < N)[None, :]
            pointers = tile_pointers(c_ptr, rows, columns, c_row, c_column, C_ORDER, C_ALIGN)
            tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=in_triangle & in_matrix)


@lru_cache(PLANS)
def _plan(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str, precision: str) -> Plan:
    """One program a live tile, and one a dead tile where there is a fill."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    config = product_config("gemmt", a.dtype, precision)
    bm, bn, bk = config.blocks
    has_fill = rest == "fill"
    whole = ceil_div(m, bm) * bm if has_fill else m
    live = Triangle(whole, n, "lower", diagonal).tiles(bm, bn)
    dead = live.dead if has_fill else None
    tiles = len(live) + (len(dead) if dead else 0)

    def launch(batches: Batches, precision: str) -> Launch:
        return Launch(
            gemmt_kernel,
            batches.matrices * tiles,
            (
                diagonal, m, n, k, len(live), tiles, *schedule_arguments(live), *schedule_arguments(dead or live),
                *batches.sizes[1:], *stride_arguments((a, b, c), batches),
                a.order, a.align, b.order, b.align, c.order, c.align,
                rest, precision, tl.int64 if needs_64_bits(a, b, c) else tl.int32, bm, bn, bk,
            ),
            offsets=batches.offsets,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)


def gemmt(
    a: Tensor, b: Tensor, out: Tensor, *, alpha: float, diagonal: int, fill: float | None, precision: str, keep: bool = True
) -> None:
    """By rows of tiles where the inner dimension is short and TMA can serve, else tile by tile."""
    if out.numel() == 0:
        return
    m, n = out.shape[-2:]
    rest = "fill" if fill is not None else "keep" if keep else "any"
    key = form_of(a), form_of(b), form_of(out), out.device, max(-m, min(n, diagonal)), rest, precision
    plan = rows.plan if rows.takes(*key[:4]) else _plan
    plan(*key).run((a, b, out), alpha, 0.0 if fill is None else fill)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str, keep: bool = True) -> None:
    """The ladder's operation: scale * q . k of packed (B,T,3,NH,HS), by `gemmt` on views. Nothing is permuted."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    gemmt(q, k.mT, out, alpha=scale, diagonal=0, fill=fill, precision=precision, keep=keep)
