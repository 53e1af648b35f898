"""syrk with tiles: alpha * a @ aᵀ + beta * c, (…,N,K) -> (…,N,N).

A program computes one live tile of the lower triangle, [B, B]. For uplo="full" it writes the tile and its mirror image; for
uplo="lower" the mirror image is written as zeros. Every entry of the result is written exactly once, and a @ aᵀ is symmetric to
the bit.
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
from trigemm.kernels.tiles.schedule import schedule_arguments, tile_of
from trigemm.triangle import Triangle

SCALARS = ["alpha", "beta", "N", "K", "tiles", "begin", "first", "slope_rows", "slope_tiles", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in ("a", "c", "out") for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def syrk_kernel(
    a_ptr, c_ptr, out_ptr, flags_ptr, alpha, beta, N, K, tiles, begin, first, slope_rows, slope_tiles, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    out_batch0, out_batch1, out_batch2, out_row, out_column,
    A_ORDER: tl.constexpr, TRANSPOSED_ORDER: tl.constexpr, A_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, OUT_ORDER: tl.constexpr, OUT_ALIGN: tl.constexpr,
    HAS_C: tl.constexpr, MIRROR: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    B: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    batch = tl.program_id(0) // tiles
    number = (tl.program_id(0) % tiles).to(tl.int64)
    tile_row, tile_column = tile_of(number, begin, first, 1, slope_rows, slope_tiles, tl.cdiv(N, B))
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    out_ptr += batch_offset(batch, size1, size2, out_batch0, out_batch1, out_batch2, OUT_ALIGN)
    rows = (tile_row * B).to(INDEX) + tl.arange(0, B)  # [B]
    columns = (tile_column * B).to(INDEX) + tl.arange(0, B)  # [B]

    acc = tl.zeros([B, B], tl.float32)
    left_flags, right_flags = no_flags(B, BK, A_ORDER), no_flags(BK, B, TRANSPOSED_ORDER)
    for k in range(0, tl.cdiv(K, BK)):
        depth = tl.arange(0, BK).to(INDEX) + k * BK
        left = load_tile(a_ptr, rows, depth, N, K, a_row, a_column, A_ORDER, A_ALIGN)  # [B, BK]
        right = load_tile(a_ptr, depth, columns, K, N, a_column, a_row, TRANSPOSED_ORDER, A_ALIGN)  # [BK, B]
        acc = multiply_add(left, right, acc, PRECISION)
        if PRECISION == "bf16x6":
            left_flags |= cannot_split(left, A_ORDER)
            right_flags |= cannot_split(right, TRANSPOSED_ORDER)
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, left_flags, right_flags)
    acc *= alpha

    if tile_row == tile_column:  # the tile is its own mirror image
        in_triangle = columns[None, :] <= rows[:, None]
        value = tl.where(in_triangle, acc, tl.trans(acc) if MIRROR else 0.0)
        if HAS_C:
            c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
            if MIRROR:
                value += beta * load_tile(c_ptr, rows, columns, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
            else:
                value += beta * load_triangle(c_ptr, rows, columns, N, N, c_row, c_column, 0, True, C_ORDER, C_ALIGN).to(
                    tl.float32
                )
        store_tile(out_ptr, value, rows, columns, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)
    else:
        below = acc
        above = tl.trans(acc) if MIRROR else tl.zeros([B, B], tl.float32)
        if HAS_C:
            c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
            below += beta * load_tile(c_ptr, rows, columns, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
            if MIRROR:
                above += beta * load_tile(c_ptr, columns, rows, N, N, c_row, c_column, C_ORDER, C_ALIGN).to(tl.float32)
        store_tile(out_ptr, below, rows, columns, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)
        store_tile(out_ptr, above, columns, rows, N, N, out_row, out_column, OUT_ORDER, OUT_ALIGN)


@lru_cache(PLANS)
def _plan(a: Form, c: Form, out: Form, device: torch.device, has_c: bool, uplo: str, precision: str) -> Plan:
    """One program a live tile of the lower triangle."""
    n, k = a.shape[-2:]
    config = product_config("syrk", a.dtype, precision)
    block, _, bk = config.blocks
    schedule = Triangle(n, n).tiles(block, block)

    def launch(batches: Batches, precision: str) -> Launch:
        return Launch(
            syrk_kernel,
            batches.matrices * len(schedule),
            (
                n, k, len(schedule), *schedule_arguments(schedule), *batches.sizes[1:],
                *stride_arguments((a, c, out), batches),
                a.order, a.mT.order, a.align, c.order, c.align, out.order, out.align,
                has_c, uplo == "full", precision, tl.int64 if needs_64_bits(a, c, out) else tl.int32, block, bk,
            ),
            offsets=batches.offsets,
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
