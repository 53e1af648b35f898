"""gemmt with tiles: the lower triangle of alpha * a @ b, (…,M,K) x (…,K,N) -> (…,M,N).

A program computes one live tile, [BM, BN]. Where tiles are wide, BN = 2 BM, those of which only the left half is live are
computed as half tiles, after the others, so that the last wave of programs is short. REST says what becomes of the rest: "fill",
further programs write the dead tiles and do nothing else; "keep", nothing above the diagonal is written; "any", tiles that the
diagonal crosses are written whole.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles import dense, rows, unaligned
from trigemm.kernels.tiles.config import triangle_config
from trigemm.kernels.tiles.descriptors import has_tma
from trigemm.kernels.tiles.multiply import store_flag, store_tile
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
from trigemm.kernels.tiles.product import batch_index, describe_operand, tile_product, tma_order
from trigemm.kernels.tiles.schedule import grouped_tile_of, schedule_arguments, tile_of
from trigemm.triangle import Triangle, ceil_div

SCALARS = ["alpha", "fill", "diagonal", "M", "N", "K", "wholes", "live", "tiles", "size1", "size2"]
SCHEDULES = [f"{kind}_{name}" for kind in ("live", "dead") for name in ("begin", "first", "slope_rows", "slope_tiles")]
STRIDES = [f"{x}_{name}" for x in "abc" for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit
def compute_tile(
    a, b, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K, a_at, b_at, top, left,
    a_row, a_column, b_row, b_column, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr,
    REST: tl.constexpr, BY_TMA: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute and write the tile [BM, BN] from (top, left) on."""
    acc, a_flags, b_flags = tile_product(
        a, b, a_at, b_at, top, left, M, N, K, a_row, a_column, b_row, b_column,
        A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, BY_TMA, PRECISION, INDEX, BM, BN, BK,
    )  # fmt: skip
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, a_flags, b_flags)
    acc *= alpha
    rows = top.to(INDEX) + tl.arange(0, BM)  # [BM]
    columns = left.to(INDEX) + tl.arange(0, BN)  # [BN]
    if REST == "any" or left + BN - 1 <= top + diagonal:  # the whole tile may be written
        store_tile(c_ptr, acc, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
    else:
        in_triangle = columns[None, :] - rows[:, None] <= diagonal
        if REST == "fill":
            store_tile(c_ptr, tl.where(in_triangle, acc, fill), rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
        else:
            in_matrix = (rows < M)[:, None] & (columns < N)[None, :]
            pointers = tile_pointers(c_ptr, rows, columns, c_row, c_column, C_ORDER, C_ALIGN)
            tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=in_triangle & in_matrix)


@triton.jit(do_not_specialize=[*SCALARS, *SCHEDULES, *STRIDES])
def gemmt_kernel(
    a, b, b_half, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K,
    wholes, live, tiles, live_begin, live_first, live_slope_rows, live_slope_tiles,
    dead_begin, dead_first, dead_slope_rows, dead_slope_tiles, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr,
    REST: tl.constexpr, BY_TMA: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    HALF: tl.constexpr = BN // 2 if BN > BM else BN  # dead tiles are counted by halves of wide tiles
    batch = tl.program_id(0) // tiles
    number = tl.program_id(0) % tiles
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    if PRECISION == "bf16x6":
        tl.store(flags_ptr + tl.program_id(0), 0)

    if REST == "fill" and number >= live:
        half_columns = tl.cdiv(N, HALF)
        dead_row, dead_column = tile_of(
            number - live, dead_begin, dead_first, BM // HALF, dead_slope_rows, dead_slope_tiles, half_columns
        )
        rows = (tl.cdiv(M, BM) - 1 - dead_row).to(INDEX) * BM + tl.arange(0, BM)
        columns = (half_columns - 1 - dead_column).to(INDEX) * HALF + tl.arange(0, HALF)
        value = tl.full([BM, HALF], fill, tl.float32)
        store_tile(c_ptr, value, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)
        return

    a_at = batch_index(batch, size1, size2, a_batch0, a_batch1, a_batch2)
    b_at = batch_index(batch, size1, size2, b_batch0, b_batch1, b_batch2)
    if not BY_TMA:
        a += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
        b += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
        b_half = b
    if number < wholes:
        tile_row, tile_column = grouped_tile_of(
            number, live_begin, live_first, live_slope_rows, live_slope_tiles, tl.cdiv(N, SIDE), BM, BN, SIDE
        )
        top, left = tile_row.to(INDEX) * BM, tile_column.to(INDEX) * BN
        if (left + (BN - HALF) < tl.minimum(top + BM + diagonal, N)) & (top < M):
            compute_tile(
                a, b, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K, a_at, b_at, top, left,
                a_row, a_column, b_row, b_column, c_row, c_column,
                A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, C_ORDER, C_ALIGN, REST, BY_TMA, PRECISION, INDEX, BM, BN, BK,
            )  # fmt: skip
    elif BN > BM:
        top = (number - wholes).to(INDEX) * BM
        last = tl.minimum(top + BM + diagonal, N) - 1  # the last column that is live in some row of the tile
        left = last // BN * BN
        if last >= 0 and last < left + HALF:
            compute_tile(
                a, b_half, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K, a_at, b_at, top, left,
                a_row, a_column, b_row, b_column, c_row, c_column,
                A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, C_ORDER, C_ALIGN, REST, BY_TMA, PRECISION, INDEX, BM, HALF, BK,
            )  # fmt: skip


@lru_cache(PLANS)
def _plan(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str, precision: str) -> Plan:
    """One program a live tile, and one a dead tile where there is a fill."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    a_order, b_order = tma_order(a), tma_order(b)
    can_tma = has_tma(device) and bool(a_order and b_order)
    entries = prod(c.shape[:-2]) * Triangle(m, n, "lower", diagonal).size
    config = triangle_config("gemmt", a.dtype, precision, entries, can_tma)
    by_tma = can_tma and config.by_tma
    bm, bn, bk = config.blocks
    if bn > bm and b.order == "column":  # ptxas would make each product of 256 columns wait for the one before
        bm, bn = bn, bm
    half = bn // 2 if bn > bm else bn
    side = config.side or max(bm, bn)
    triangle = Triangle(ceil_div(m, bm) * bm, n, "lower", diagonal)
    squares = triangle.tiles(side, side)
    wholes = len(squares) * (side // bm) * (side // bn)
    live = wholes + (ceil_div(m, bm) if bn > bm else 0)
    dead = triangle.tiles(bm, half).dead if rest == "fill" else None
    tiles = live + (len(dead) if dead else 0)

    def launch(batches: Batches, precision: str) -> Launch:
        tma = by_tma and precision != "ieee"
        orders = (a_order, b_order) if tma else (a.order, b.order)

        def describe(a_tensor: Tensor, b_tensor: Tensor, c_tensor: Tensor) -> tuple[Any, ...]:
            return (*(each(a_tensor) for each in left), *(each(b_tensor) for each in right), c_tensor)

        left = [describe_operand(a, batches, 0, (bm, bk), tma)]
        right = [describe_operand(b, batches, 1, (bk, bn), tma), describe_operand(b, batches, 1, (bk, half), tma and bn > bm)]
        return Launch(
            gemmt_kernel,
            batches.matrices * tiles,
            (
                diagonal, m, n, k, wholes, live, tiles, *schedule_arguments(squares), *schedule_arguments(dead or squares),
                *batches.sizes[1:], *stride_arguments((a, b, c), batches),
                orders[0], a.align, orders[1], b.align, c.order, c.align,
                rest, tma, precision, tl.int64 if needs_64_bits(a, b, c) else tl.int32, bm, bn, bk, side,
            ),
            offsets=batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)


def gemmt(
    a: Tensor, b: Tensor, out: Tensor, *, alpha: float, diagonal: int, fill: float | None, precision: str, keep: bool = True
) -> None:
    """By rows of tiles where the inner dimension is short and TMA serves; by torch where that is no slower; else by tiles."""
    if out.numel() == 0:
        return
    m, n = out.shape[-2:]
    rest = "fill" if fill is not None else "keep" if keep else "any"
    key = form_of(a), form_of(b), form_of(out), out.device, max(-m, min(n, diagonal)), rest, precision
    plan: Callable[..., Plan | dense.Dense]
    if rows.takes(*key[:4]):
        plan = unaligned.plan if unaligned.takes(key[2], rest) else rows.plan
    else:
        plan = dense.plan if dense.takes(*key[:6], alpha) else _plan
    plan(*key).run((a, b, out), alpha, 0.0 if fill is None else fill)


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str, keep: bool = True) -> None:
    """The ladder's operation: scale * q . k of packed (B,T,3,NH,HS), by `gemmt` on views. Nothing is permuted."""
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    gemmt(q, k.mT, out, alpha=scale, diagonal=0, fill=fill, precision=precision, keep=keep)
