"""gemmt with rows of tiles, for a short inner dimension such as attention's: the lower triangle of alpha * a @ b.

A program computes one row of tiles: it keeps its tile of `a`, [BM, BK] with all of K, and streams the tiles of `b`,
[BK, BN], that its row of the triangle needs. Tiles are loaded by the tensor memory accelerator (TMA), which wants rows at
multiples of 16 bytes: `takes` says whether it can. They are stored by it or by the threads, whichever is faster; where the rows
of the result are not at such multiples, by the threads.

REST says what becomes of the rest: "fill", the program goes on to the end of its row; "keep", nothing above the diagonal is
written; "any", tiles that the diagonal crosses are written whole. Sectors of memory written in part cost more than whole ones.
"""

from functools import lru_cache
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import row_config
from trigemm.kernels.tiles.descriptors import addressable, describer, has_tma
from trigemm.kernels.tiles.multiply import multiply_add, split_rows, store_tile
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, tile_pointers
from trigemm.kernels.tiles.parts import ROWS, SplitFirst, single
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.triangle import ceil_div

LONGEST = 128
REPAIRED = 32  # columns of a tile in the launch that repairs
REPAIRS = tl.constexpr(8)  # rows of tiles that one of its programs looks after: there is seldom anything to do
SPLIT_ROWS = tl.constexpr(ROWS)
SCALARS = ["alpha", "fill", "diagonal", "M", "N", "group", "matrices", "programs", "size1", "size2"]
STEPS = [f"{x}_step{dim}" for x in "ab" for dim in range(3)]
STRIDES = ["c_batch0", "c_batch1", "c_batch2", "c_row"]


@triton.jit
def load_block(desc, batch0, batch1, batch2, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of one matrix, [ROWS, COLUMNS], zero beyond its border."""
    return desc.load([batch0, batch1, batch2, row, 0]).reshape(ROWS, COLUMNS)


@triton.jit
def multiply_parts(a, a_low, b, b_low):
    """The float32 product a @ bᵀ, [BM, BN], from the parts of `a` [BM, BK] and of `b` [BN, BK]; low x low is left out."""
    low = tl.dot(a, b_low.T)
    low = tl.dot(a_low, b.T, low)
    return tl.dot(a, b.T, low * 2.0**-11)


@triton.jit
def product(a, a_low, a_unscale, b, alpha, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """alpha * a @ bᵀ, [BM, BN], of `b` [BN, BK], and the flags of `b`. For "float16" and "float16x2", `a` has been split."""
    if PRECISION == "float16" or PRECISION == "float16x2":
        b_high, b_low, b_unscale, flags = split_rows(b)
        acc = multiply_parts(a, a_low, b_high, b_low) if PRECISION == "float16x2" else tl.dot(a, b_high.T)
        return acc * a_unscale[:, None] * b_unscale[None, :] * alpha, flags
    else:
        return multiply_add(a, b.T, tl.zeros([BM, BN], tl.float32), PRECISION) * alpha, tl.zeros([BN], tl.int32)


@triton.jit
def load_flags(ptr, n):
    """The largest of n flags, spread over [128]: for what comes later to wait for."""
    flags = tl.zeros([128], tl.int32)
    for i in range(0, n, 128):
        place = i + tl.arange(0, 128)
        flags = tl.maximum(flags, tl.load(ptr + place, mask=place < n, other=0))
    return flags


@triton.jit
def multiply_tile(
    a, a_low, a_unscale, b_desc, low_desc, unscale_ptr, batch0, batch1, batch2, column, N, alpha,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """alpha * a @ bᵀ for rows `column` to column + BN of one matrix of `b`, [BM, BN], and the flags of these rows.

    Where `a` has been split, alpha is in `a_unscale`. With PARTS, `b` has been split as well, and its flags are elsewhere.
    """
    b = load_block(b_desc, batch0, batch1, batch2, column, BN, BK)
    if PARTS:
        columns = column + tl.arange(0, BN)
        b_unscale = tl.load(unscale_ptr + columns, mask=columns < N, other=0.0)
        if PRECISION == "float16x2":
            acc = multiply_parts(a, a_low, b, load_block(low_desc, batch0, batch1, batch2, column, BN, BK))
        else:
            acc = tl.dot(a, b.T)
        return acc * a_unscale[:, None] * b_unscale[None, :], tl.zeros([BN], tl.int32)
    else:
        SPLIT: tl.constexpr = PRECISION == "float16" or PRECISION == "float16x2"
        return product(a, a_low, a_unscale, b, 1.0 if SPLIT else alpha, PRECISION, BM, BN)


@triton.jit
def store_sectors(ptr, value, rows, columns, M, N, diagonal, stride, VECTOR: tl.constexpr, ALIGN: tl.constexpr):
    """Write the sectors of a tile [BM, BN] that the triangle has a part in, and no other."""
    SECTOR: tl.constexpr = 32 // (ptr.dtype.element_ty.primitive_bitwidth // 8)
    in_triangle = columns[None, :] // SECTOR * SECTOR - rows[:, None] <= diagonal
    pointers = tile_pointers(ptr, rows, columns, stride, 1, "row", VECTOR)
    in_matrix = (rows < M)[:, None] & (columns < N // ALIGN * ALIGN)[None, :]
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=in_triangle & in_matrix)


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


@triton.jit
def longest_first(number, tile_rows, group, matrices):
    """Row of tiles and matrix of a program: a group of matrices at a time, which stay in the L2; in it the longest rows first."""
    first = number // (group * tile_rows) * group
    members = tl.minimum(group, matrices - first)
    turn = number - first * tile_rows
    return tile_rows - 1 - turn // members, first + turn % members


@triton.jit(do_not_specialize=[*SCALARS, *STEPS, *STRIDES])
def rows_kernel(
    a_desc, b_desc, low_desc, unscale_ptr, b_flags_ptr, c_desc, c_ptr, flags_ptr,
    alpha, fill, diagonal, M, N, group, matrices, programs, size1, size2,
    a_step0, a_step1, a_step2, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
    C_VECTOR: tl.constexpr, C_ALIGN: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    BY_TMA: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One row of tiles a program; to repair ("ieee"), those of REPAIRS rows that are flagged."""
    if PRECISION == "ieee":
        first = tl.program_id(0) * REPAIRS
        places = first + tl.arange(0, REPAIRS)
        if tl.max(tl.load(flags_ptr + places, mask=places < programs, other=0), 0) == 0:
            return
        for number in range(first, tl.minimum(first + REPAIRS, programs)):
            if tl.load(flags_ptr + number) != 0:
                row_of_tiles(
                    number, a_desc, b_desc, low_desc, unscale_ptr, b_flags_ptr, c_desc, c_ptr, flags_ptr,
                    alpha, fill, diagonal, M, N, group, matrices, size1, size2,
                    a_step0, a_step1, a_step2, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
                    C_VECTOR, C_ALIGN, REST, PRECISION, PARTS, BY_TMA, INDEX, BM, BN, BK, STAGES,
                )  # fmt: skip
    else:
        row_of_tiles(
            tl.program_id(0), a_desc, b_desc, low_desc, unscale_ptr, b_flags_ptr, c_desc, c_ptr, flags_ptr,
            alpha, fill, diagonal, M, N, group, matrices, size1, size2,
            a_step0, a_step1, a_step2, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
            C_VECTOR, C_ALIGN, REST, PRECISION, PARTS, BY_TMA, INDEX, BM, BN, BK, STAGES,
        )  # fmt: skip


@triton.jit
def row_of_tiles(
    number, a_desc, b_desc, low_desc, unscale_ptr, b_flags_ptr, c_desc, c_ptr, flags_ptr,
    alpha, fill, diagonal, M, N, group, matrices, size1, size2,
    a_step0, a_step1, a_step2, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
    C_VECTOR: tl.constexpr, C_ALIGN: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    BY_TMA: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile_rows = tl.cdiv(M, BM)
    tile_columns = tl.cdiv(N, BN)
    tile_row, batch = longest_first(number, tile_rows, group, matrices)
    batch2 = batch % size2
    batch1 = batch // size2 % size1
    batch0 = batch // (size1 * size2)
    top = tile_row * BM
    inside = tl.minimum(tl.maximum((top + diagonal + 1) // BN, 0), tile_columns)  # tiles wholly in the triangle
    live = tl.minimum(tl.maximum((tl.minimum(top + BM, M) - 1 + diagonal) // BN + 1, 0), tile_columns)
    # Rows are counted from `top`, so that offsets are short.
    rows = tl.arange(0, BM).to(INDEX)  # [BM]
    M -= top
    diagonal += top
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_VECTOR) + top.to(tl.int64) * c_row * C_VECTOR

    # A batch dimension that an operand is stretched over is single in its descriptor, and its step is 0.
    b0, b1, b2 = batch0 * b_step0, batch1 * b_step1, batch2 * b_step2
    SPLIT: tl.constexpr = PRECISION == "float16" or PRECISION == "float16x2"
    b_flags = tl.zeros([BN], tl.int32)
    if PARTS:
        matrix = ((b0 * (1 + (size1 - 1) * b_step1) + b1) * (1 + (size2 - 1) * b_step2) + b2).to(tl.int64)
        unscale_ptr += matrix * N
        b_flags = load_flags(b_flags_ptr + matrix * tl.cdiv(N, SPLIT_ROWS), tl.cdiv(tl.minimum(live * BN, N), SPLIT_ROWS))
    a = load_block(a_desc, batch0 * a_step0, batch1 * a_step1, batch2 * a_step2, top, BM, BK)  # [BM, BK]
    if SPLIT:
        a, a_low, a_unscale, a_flags = split_rows(a)
        a_unscale *= alpha
        size = tl.abs(a_unscale)
        a_flags |= ((size < 2.0**-100) | (size > 2.0**100)).to(tl.int32)
    else:
        a_low, a_unscale = a, alpha
    for j in tl.range(0, live, num_stages=STAGES):
        acc, flags = multiply_tile(
            a, a_low, a_unscale, b_desc, low_desc, unscale_ptr, b0, b1, b2, j * BN, N, alpha,
            PRECISION, PARTS, BM, BN, BK,
        )  # fmt: skip
        if SPLIT and not PARTS:
            b_flags |= flags
        columns = j * BN + tl.arange(0, BN)  # [BN]
        if REST == "fill" and j >= inside:
            acc = tl.where(columns[None, :] - rows[:, None] <= diagonal, acc, fill)
        if BY_TMA and (REST != "keep" or j < inside):
            c_desc.store([batch0, batch1, batch2, top, j * BN], acc.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
        elif REST == "fill" or j < inside:
            store_tile(c_ptr, acc, rows, columns, M, N, c_row, 1, "row", C_ALIGN)
        elif REST == "any":
            store_sectors(c_ptr, acc, rows, columns, M, N, diagonal, c_row, C_VECTOR, C_ALIGN)
        else:
            store_below(c_ptr, acc, rows, columns, M, N, diagonal, c_row, C_VECTOR, C_ALIGN)
    if REST == "fill":
        value = tl.full([BM, BN], fill, tl.float32)
        for j in range(live, tile_columns):
            if BY_TMA:
                c_desc.store([batch0, batch1, batch2, top, j * BN], value.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
            else:
                store_tile(c_ptr, value, rows, j * BN + tl.arange(0, BN), M, N, c_row, 1, "row", C_ALIGN)
    if SPLIT:
        tl.store(flags_ptr + number, tl.maximum(tl.max(a_flags, 0), tl.max(b_flags, 0)))


@lru_cache(PLANS)
def takes(a: Form, b: Form, c: Form, device: torch.device) -> bool:
    """Whether this kernel can serve a product: a short inner dimension, contiguous in both operands; contiguous rows; and TMA."""
    return 0 < a.shape[-1] <= LONGEST and has_tma(device) and addressable(a) and addressable(b.mT) and c.stride[-1] == 1


def _parts(x: Form, batches: Batches, depth: int) -> Form:
    """The form of the parts of the second operand, (…,N,depth), which are contiguous."""
    shape = (*single(batches.sizes, batches.strides[1]), x.shape[-2], depth)
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return Form(shape, strides, torch.float16, True)


def batched(x: Form, batches: Batches, which: int) -> Form:
    """The form of an operand's matrices as one launch counts them."""
    return x._replace(shape=(*batches.sizes, *x.shape[-2:]), stride=(*batches.strides[which], *x.stride[-2:]))


@lru_cache(PLANS)
def plan(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, rest: str, precision: str) -> Plan:
    """One program a row of tiles."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    described = addressable(c)
    config = row_config(a.dtype, precision, m, k, described)
    bm, bk = config.blocks[0], max(16, triton.next_power_of_2(k))
    vector, align = (c.vector, c.align) if described else (1, 1)

    def launch(batches: Batches, precision: str) -> Launch | SplitFirst:
        split = config.parts and precision != "ieee"
        # The launch that repairs what cannot be split is rare: small tiles compile fast.
        bn, stages = (REPAIRED, 1) if precision == "ieee" else (config.blocks[1], config.num_stages)
        options = {"maxnreg": config.registers} if config.registers and precision != "ieee" else {}
        describe_a = describer(batched(a, batches, 0), [bm, bk])
        describe_b = describer(batched(b.mT, batches, 1), [bn, bk])
        describe_c = describer(batched(c, batches, 2), [bm, bn]) if described else None
        describe_parts = describer(_parts(b.mT, batches, bk), [bn, bk])

        def describe(a: Tensor, b: Tensor, c: Tensor, *parts: Tensor) -> tuple[Any, ...]:
            # Where there is nothing to describe, another descriptor or tensor stands in its place, and is not used.
            second = (*map(describe_parts, parts[:2]), *parts[2:]) if parts else (describe_b(b),) * 2 + (c, c)
            return describe_a(a), *second, describe_c(c) if describe_c else second[0], c

        out_strides = [stride // vector for stride in (*batches.strides[2], c.stride[-2])]
        steps = [int(stride != 0) for strides in batches.strides[:2] for stride in strides]
        programs = batches.matrices * ceil_div(m, bm)
        product = Launch(
            rows_kernel,
            ceil_div(programs, REPAIRS.value) if precision == "ieee" else programs,
            (
                diagonal, m, n, config.group, batches.matrices, programs, *batches.sizes[1:], *steps, *out_strides,
                vector, align, rest, precision, split, described and (config.stores_by_tma or align == 1),
                tl.int64 if (bm + 1) * c.stride[-2] >= 2**31 else tl.int32, bm, bn, bk, stages,
            ),
            offsets=(*batches.offsets, 0, 0, 0, 0) if split else batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
            **options,
        )  # fmt: skip
        return SplitFirst(b.mT, batches, bk, precision == "float16x2", product) if split else product

    return Plan(cut_batches(a, b, c), launch, config.precision)
