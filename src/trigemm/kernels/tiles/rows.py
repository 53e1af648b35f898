"""gemmt with rows of tiles, for a short inner dimension such as attention's: the lower triangle of alpha * a @ b.

A program computes one row of tiles: it keeps its tile of `a`, [BM, BK] with all of K, and streams the tiles of `b`,
[BK, BN], that its row of the triangle needs. Tiles are loaded by the tensor memory accelerator (TMA), which wants rows at
multiples of 16 bytes: `takes` says whether it can. They are stored by it or by the threads, whichever is faster; where the rows
of the result are not at such multiples, by the threads.

REST says what becomes of the rest: "fill", the program goes on to the end of its row; "keep", nothing above the diagonal is
written; "any", tiles that the diagonal crosses are written whole. Sectors of memory written in part cost more than whole ones.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import row_config
from trigemm.kernels.tiles.descriptors import addressable, describer, has_tma
from trigemm.kernels.tiles.multiply import multiply_add, split_rows, store_flag, store_tile
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, tile_pointers
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.triangle import ceil_div

LONGEST = 128
SCALARS = ["alpha", "fill", "diagonal", "M", "N", "group", "matrices", "size1", "size2"]
STEPS = [f"{x}_step{dim}" for x in "ab" for dim in range(3)]
STRIDES = ["c_batch0", "c_batch1", "c_batch2", "c_row"]


@triton.jit
def load_block(desc, batch0, batch1, batch2, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of one matrix, [ROWS, COLUMNS], zero beyond its border."""
    return desc.load([batch0, batch1, batch2, row, 0]).reshape(ROWS, COLUMNS)


@triton.jit
def product(a, a_low, a_unscale, b, alpha, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """alpha * a @ bᵀ, [BM, BN], of `b` [BN, BK], and the flags of `b`. For "float16" and "float16x2", `a` has been split."""
    if PRECISION == "float16x2":
        b_high, b_low, b_unscale, flags = split_rows(b)
        low = tl.dot(a, b_low.T)
        low = tl.dot(a_low, b_high.T, low)
        acc = tl.dot(a, b_high.T, low * 2.0**-11)
        return acc * a_unscale[:, None] * b_unscale[None, :] * alpha, flags
    elif PRECISION == "float16":
        b_high, _, b_unscale, flags = split_rows(b)
        return tl.dot(a, b_high.T) * a_unscale[:, None] * b_unscale[None, :] * alpha, flags
    else:
        return multiply_add(a, b.T, tl.zeros([BM, BN], tl.float32), PRECISION) * alpha, tl.zeros([BN], tl.int32)


@triton.jit
def store_below(ptr, value, rows, columns, M, N, diagonal, stride, VECTOR: tl.constexpr, ALIGN: tl.constexpr):
    """Write the entries [BM, BN] of a tile that are in the triangle: 16 bytes at a time where all of them are, else one by one.

    The stride is in units of VECTOR elements.
    """
    last = columns // ALIGN * ALIGN + ALIGN - 1
    whole = (last[None, :] - rows[:, None] <= diagonal) & (rows < M)[:, None] & (last < N)[None, :]
    pointers = tile_pointers(ptr, rows, columns, stride, 1, "row", VECTOR)
    value = value.to(ptr.dtype.element_ty)
    tl.store(pointers, value, mask=whole)
    if ALIGN > 1:
        in_triangle = columns[None, :] - rows[:, None] <= diagonal
        tl.store(pointers, value, mask=in_triangle & (rows < M)[:, None] & (columns < N)[None, :] & (whole == 0))


@triton.jit(do_not_specialize=[*SCALARS, *STEPS, *STRIDES])
def rows_kernel(
    a_desc, b_desc, c_desc, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, group, matrices, size1, size2,
    a_step0, a_step1, a_step2, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
    C_VECTOR: tl.constexpr, C_ALIGN: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr, BY_TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    tile_rows = tl.cdiv(M, BM)
    tile_columns = tl.cdiv(N, BN)
    # A group of matrices at a time, which stay in the L2; in it the longest rows first.
    first = tl.program_id(0) // (group * tile_rows) * group
    members = tl.minimum(group, matrices - first)
    turn = tl.program_id(0) - first * tile_rows
    tile_row = tile_rows - 1 - turn // members
    batch = first + turn % members
    batch2 = batch % size2
    batch1 = batch // size2 % size1
    batch0 = batch // (size1 * size2)
    top = tile_row * BM
    inside = tl.minimum(tl.maximum((top + diagonal + 1) // BN, 0), tile_columns)  # tiles wholly in the triangle
    live = tl.minimum(tl.maximum((tl.minimum(top + BM, M) - 1 + diagonal) // BN + 1, 0), tile_columns)
    if REST == "any":
        inside = live
    rows = top + tl.arange(0, BM)  # [BM]
    wide_rows = rows.to(tl.int64)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_VECTOR)

    # A batch dimension that an operand is stretched over is single in its descriptor, and its step is 0.
    a = load_block(a_desc, batch0 * a_step0, batch1 * a_step1, batch2 * a_step2, top, BM, BK)  # [BM, BK]
    a_flags, b_flags = tl.zeros([BM], tl.int32), tl.zeros([BN], tl.int32)
    SPLIT: tl.constexpr = PRECISION == "float16" or PRECISION == "float16x2"
    if SPLIT:
        a, a_low, a_unscale, a_flags = split_rows(a)
    else:
        a_low, a_unscale = a, alpha
    for j in tl.range(0, inside, num_stages=STAGES):
        b = load_block(b_desc, batch0 * b_step0, batch1 * b_step1, batch2 * b_step2, j * BN, BN, BK)  # [BN, BK]
        acc, flags = product(a, a_low, a_unscale, b, alpha, PRECISION, BM, BN)
        b_flags |= flags
        if BY_TMA:
            c_desc.store([batch0, batch1, batch2, top, j * BN], acc.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
        else:
            store_tile(c_ptr, acc, wide_rows, j * BN + tl.arange(0, BN), M, N, c_row, 1, "row", C_ALIGN)
    for j in tl.range(inside, live, num_stages=1):  # the diagonal crosses these
        b = load_block(b_desc, batch0 * b_step0, batch1 * b_step1, batch2 * b_step2, j * BN, BN, BK)
        acc, flags = product(a, a_low, a_unscale, b, alpha, PRECISION, BM, BN)
        b_flags |= flags
        columns = j * BN + tl.arange(0, BN)  # [BN]
        if REST == "keep":
            store_below(c_ptr, acc, wide_rows, columns, M, N, diagonal, c_row, C_VECTOR, C_ALIGN)
        else:
            value = tl.where(columns[None, :] - rows[:, None] <= diagonal, acc, fill)
            if BY_TMA:
                c_desc.store([batch0, batch1, batch2, top, j * BN], value.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
            else:
                store_tile(c_ptr, value, wide_rows, columns, M, N, c_row, 1, "row", C_ALIGN)
    if REST == "fill":
        value = tl.full([BM, BN], fill, tl.float32)
        for j in range(live, tile_columns):
            if BY_TMA:
                c_desc.store([batch0, batch1, batch2, top, j * BN], value.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
            else:
                store_tile(c_ptr, value, wide_rows, j * BN + tl.arange(0, BN), M, N, c_row, 1, "row", C_ALIGN)
    if SPLIT:
        store_flag(flags_ptr, a_flags, b_flags)


@lru_cache(PLANS)
def takes(a: Form, b: Form, c: Form, device: torch.device) -> bool:
    """Whether this kernel can serve a product: a short inner dimension, contiguous in both operands; contiguous rows; and TMA."""
    return 0 < a.shape[-1] <= LONGEST and has_tma(device) and addressable(a) and addressable(b.mT) and c.stride[-1] == 1


def _batched(x: Form, batches: Batches, which: int) -> Form:
    """The form of an operand's matrices as one launch counts them."""
    return x._replace(shape=(*batches.sizes, *x.shape[-2:]), stride=(*batches.strides[which], *x.stride[-2:]))


@lru_cache(PLANS)
def plan(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str, precision: str) -> Plan:
    """One program a row of tiles."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    described = addressable(c)
    config = row_config(a.dtype, precision, described)
    (bm, bn, _), bk = config.blocks, max(16, triton.next_power_of_2(k))
    vector, align = (c.vector, c.align) if described else (1, 1)

    def launch(batches: Batches, precision: str) -> Launch:
        describe_a = describer(_batched(a, batches, 0), [bm, bk])
        describe_b = describer(_batched(b.mT, batches, 1), [bn, bk])
        describe_c = describer(_batched(c, batches, 2), [bm, bn]) if described else None

        def describe(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
            b_desc = describe_b(b)
            return describe_a(a), b_desc, describe_c(c) if describe_c else b_desc, c  # in its place, and unused

        out_strides = [stride // vector for stride in (*batches.strides[2], c.stride[-2])]
        steps = [int(stride != 0) for strides in batches.strides[:2] for stride in strides]
        return Launch(
            rows_kernel,
            batches.matrices * ceil_div(m, bm),
            (
                diagonal, m, n, config.group, batches.matrices, *batches.sizes[1:], *steps, *out_strides,
                vector, align, rest, precision, described and (config.stores_by_tma or align == 1), bm, bn, bk, config.num_stages,
            ),
            offsets=batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
            **({"maxnreg": config.registers} if config.registers else {}),
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)
