"""syrk with tiles: alpha * a @ aᵀ + beta * c, (…,N,K) -> (…,N,N).

A program computes one live tile of the lower triangle: a square [B, B], or where tiles are wide and it is all below the diagonal
[B, 2 B]; the squares come last. For uplo="full" it writes the tile and its mirror image; for uplo="lower" the mirror image is
written as zeros. Every entry of the result is written exactly once, and a @ aᵀ is symmetric to the bit.
"""

from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import triangle_config
from trigemm.kernels.tiles.descriptors import has_tma
from trigemm.kernels.tiles.multiply import load_tile, load_triangle, store_flag, store_tile
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, form_of, needs_64_bits, stride_arguments
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.kernels.tiles.product import batch_index, describe_operand, tile_product, tma_order
from trigemm.kernels.tiles.schedule import grouped_tile_of, schedule_arguments, tile_of
from trigemm.triangle import Triangle, ceil_div

SCALARS = ["alpha", "beta", "N", "K", "wholes", "tiles", "begin", "first", "slope_rows", "slope_tiles", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in ("a", "c", "out") for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit
def compute_tile(
    a, a_right, c_ptr, out_ptr, flags_ptr, alpha, beta, N, K, at, top, left,
    a_row, a_column, c_row, c_column, out_row, out_column,
    A_ORDER: tl.constexpr, RIGHT_ORDER: tl.constexpr, A_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, OUT_ORDER: tl.constexpr, OUT_ALIGN: tl.constexpr,
    HAS_C: tl.constexpr, MIRROR: tl.constexpr, BY_TMA: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    B: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the tile [B, BN] from (top, left) on, and write it and its mirror image."""
    # The mirror image is the one computed: ptxas would make each product of 256 columns wait for the one before.
    acc, left_flags, right_flags = tile_product(
        a_right, a, at, at, left, top, N, N, K, a_row, a_column, a_column, a_row,
        A_ORDER, A_ALIGN, RIGHT_ORDER, A_ALIGN, BY_TMA, PRECISION, INDEX, BN, B, BK,
    )  # fmt: skip
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, left_flags, right_flags)
    acc *= alpha
    rows, columns = top.to(INDEX) + tl.arange(0, B), left.to(INDEX) + tl.arange(0, BN)
    if BN == B and top == left:  # the tile is its own mirror image
        value = tl.where(columns[None, :] <= rows[:, None], acc, tl.trans(acc) if MIRROR else 0.0)
        if HAS_C and MIRROR:
            value += beta * load_tile(c_ptr, rows, columns, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
        elif HAS_C:
            c = load_triangle(c_ptr, rows, columns, N, N, c_row, c_column, 0, True, C_ORDER, C_ALIGN)
            value += beta * c.to(tl.float32)
        store_tile(out_ptr, value, rows, columns, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)
    else:
        below = tl.trans(acc)
        above = acc if MIRROR else tl.zeros([BN, B], tl.float32)
        if HAS_C:
            below += beta * load_tile(c_ptr, rows, columns, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
            if MIRROR:
                above += beta * load_tile(c_ptr, columns, rows, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
        store_tile(out_ptr, below, rows, columns, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)
        store_tile(out_ptr, above, columns, rows, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def syrk_kernel(
    a, a_right, c_ptr, out_ptr, flags_ptr, alpha, beta, N, K, wholes, tiles, begin, first, slope_rows, slope_tiles, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    out_batch0, out_batch1, out_batch2, out_row, out_column,
    A_ORDER: tl.constexpr, RIGHT_ORDER: tl.constexpr, A_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, OUT_ORDER: tl.constexpr, OUT_ALIGN: tl.constexpr,
    HAS_C: tl.constexpr, MIRROR: tl.constexpr, BY_TMA: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    B: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    batch = tl.program_id(0) // tiles
    number = tl.program_id(0) % tiles
    at = batch_index(batch, size1, size2, a_batch0, a_batch1, a_batch2)
    if not BY_TMA:
        a += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
        a_right = a
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    out_ptr += batch_offset(batch, size1, size2, out_batch0, out_batch1, out_batch2, OUT_ALIGN)
    if PRECISION == "bf16x6":
        tl.store(flags_ptr + tl.program_id(0), 0)

    if BN > B and number < wholes:
        tile_row, tile_column = grouped_tile_of(number, begin, first, slope_rows, slope_tiles, tl.cdiv(N, SIDE), B, BN, SIDE)
        top, left = tile_row.to(INDEX) * B, tile_column.to(INDEX) * BN
        if (left + BN <= top) & (top < N):
            compute_tile(
                a, a_right, c_ptr, out_ptr, flags_ptr, alpha, beta, N, K, at, top, left,
                a_row, a_column, c_row, c_column, out_row, out_column,
                A_ORDER, RIGHT_ORDER, A_ALIGN, C_ORDER, C_ALIGN, OUT_ORDER, OUT_ALIGN,
                HAS_C, MIRROR, BY_TMA, PRECISION, INDEX, B, BN, BK,
            )  # fmt: skip
    else:
        if BN > B:  # the squares between the wide tiles and the diagonal
            tile_row = ((number - wholes) // (BN // B)).to(tl.int64)
            tile_column = tile_row // (BN // B) * (BN // B) + (number - wholes) % (BN // B)
        else:
            tile_row, tile_column = tile_of(number, begin, first, 1, slope_rows, slope_tiles, tl.cdiv(N, B))
        if tile_column <= tile_row:
            compute_tile(
                a, a, c_ptr, out_ptr, flags_ptr, alpha, beta, N, K, at, tile_row.to(INDEX) * B, tile_column.to(INDEX) * B,
                a_row, a_column, c_row, c_column, out_row, out_column,
                A_ORDER, RIGHT_ORDER, A_ALIGN, C_ORDER, C_ALIGN, OUT_ORDER, OUT_ALIGN,
                HAS_C, MIRROR, BY_TMA, PRECISION, INDEX, B, B, BK,
            )  # fmt: skip


@lru_cache(PLANS)
def _plan(a: Form, c: Form, out: Form, device: torch.device, has_c: bool, uplo: str, precision: str) -> Plan:
    """One program a live tile of the lower triangle."""
    n, k = a.shape[-2:]
    can_tma = has_tma(device) and bool(tma_order(a))
    config = triangle_config("syrk", a.dtype, precision, prod(out.shape[:-2]) * Triangle(n, n).size, can_tma)
    by_tma = can_tma and config.by_tma
    block, bn, bk = config.blocks
    side = config.side or bn
    if bn > block:
        schedule = Triangle(n, n, "lower", -bn).tiles(side, side)
        wholes = len(schedule) * (side // block) * (side // bn)
        tiles = wholes + ceil_div(n, block) * (bn // block)
    else:
        schedule = Triangle(n, n).tiles(block, block)
        wholes = tiles = len(schedule)

    def launch(batches: Batches, precision: str) -> Launch:
        tma = by_tma and precision != "ieee"
        order = tma_order(a) if tma else a.order
        left = describe_operand(a, batches, 0, (block, bk), tma)
        right = describe_operand(a, batches, 0, (bn, bk), tma and bn > block)

        def describe(a_tensor: Tensor, c_tensor: Tensor, out_tensor: Tensor) -> tuple[Any, ...]:
            return left(a_tensor), right(a_tensor), c_tensor, out_tensor

        return Launch(
            syrk_kernel,
            batches.matrices * tiles,
            (
                n, k, wholes, tiles, *schedule_arguments(schedule), *batches.sizes[1:],
                *stride_arguments((a, c, out), batches),
                order, {"row": "column", "column": "row"}.get(order, order), a.align, c.order, c.align, out.order, out.align,
                has_c, uplo == "full", tma, precision, tl.int64 if needs_64_bits(a, c, out) else tl.int32, block, bn, bk, side,
            ),
            offsets=batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip

    return Plan(cut_batches(a, c, out), launch, config.precision)


def syrk(a: Tensor, c: Tensor | None, out: Tensor, *, alpha: float, beta: float, uplo: str, precision: str) -> None:
    """alpha * a @ aᵀ + beta * c into `out`."""
    if out.numel() == 0:
        return
    tensors = (a, out if c is None else c, out)
    plan = _plan(*map(form_of, tensors), out.device, c is not None, uplo, precision)
    plan.run(tensors, alpha, beta)
