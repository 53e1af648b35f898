"""Products in half precision by rows of tiles, as in `rows`, whose result has rows that begin anywhere, not only at multiples of
16 bytes: (…,M,K) x (…,K,N) -> (…,M,N), with N odd, say.

Memory is written fast in whole vectors of 16 bytes, VECTOR elements. Rows that are VECTOR apart begin at the same distance from
such a multiple, whatever their stride. So a program takes BM rows that far apart, and its tiles begin where the vectors of all of
them do:

    row i of the program is row top + VECTOR * i of the matrix; `first` is the first of its columns at a multiple of 16 bytes
    tile j has columns first + j * BN to first + (j + 1) * BN; it is stored in whole vectors
    the few columns before `first`, and those that are left at the end of a row, are two narrow tiles, stored one by one

Rows that far apart see more or fewer keys than their neighbours: a program computes what its last row needs, and stores for each
row the vectors that the triangle has a part in (FILLS false), or all.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import UNALIGNED_HALF
from trigemm.kernels.tiles.descriptors import addressable, describer
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, tile_pointers
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.kernels.tiles.rows import batched, load_block, longest_first
from trigemm.triangle import ceil_div

NARROW = 16  # columns of a narrow tile: the fewest that a product takes
SCALARS = ["alpha", "fill", "diagonal", "M", "N", "K", "group", "matrices", "size1", "size2"]
STEPS = [f"b_step{dim}" for dim in range(3)]
STRIDES = [f"{x}_{name}" for x in "ac" for name in ("batch0", "batch1", "batch2", "row")]


@triton.jit
def store_narrow(ptr, value, rows, columns, end, M, diagonal, fill, c_row, FILLS: tl.constexpr):
    """Columns of a narrow tile [BM, NARROW] up to `end`, one by one."""
    in_triangle = columns[None, :] - rows[:, None] <= diagonal
    mask = (rows < M)[:, None] & (columns < end)[None, :]
    if FILLS:
        value = tl.where(in_triangle, value, fill)
    else:
        mask &= in_triangle
    tl.store(ptr + rows[:, None] * c_row + columns[None, :], value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=[*SCALARS, *STEPS, *STRIDES])
def unaligned_kernel(
    a_ptr, b_desc, narrow_desc, c_ptr, flags_ptr, alpha, fill, diagonal, M, N, K, group, matrices, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, b_step0, b_step1, b_step2, c_batch0, c_batch1, c_batch2, c_row,
    FILLS: tl.constexpr, INDEX: tl.constexpr, VECTOR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NARROW: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BM rows a program. The strides of `a` are in units of VECTOR elements."""
    tile_row, batch = longest_first(tl.program_id(0), tl.cdiv(M, BM * VECTOR) * VECTOR, group, matrices)
    top = tile_row // VECTOR * (BM * VECTOR) + tile_row % VECTOR
    b0 = batch // (size1 * size2) * b_step0
    b1 = batch // size2 % size1 * b_step1
    b2 = batch % size2 * b_step2

    # From here on rows are counted from `top`, and columns from the beginning of a row.
    M -= top
    diagonal += top
    rows = tl.arange(0, BM).to(INDEX) * VECTOR  # [BM]
    at = batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, 1) + top.to(tl.int64) * c_row
    first = ((VECTOR - at % VECTOR) % VECTOR).to(tl.int32)
    first_ptr = c_ptr + (at + first) // VECTOR * VECTOR
    c_ptr += at
    needed = tl.minimum(tl.minimum(tl.cdiv(M, VECTOR), BM) * VECTOR - VECTOR + diagonal + 1, N)  # columns, for the last row
    whole = tl.maximum(N - first, 0) // VECTOR * VECTOR  # columns in whole vectors
    live = tl.cdiv(tl.maximum(tl.minimum(needed - first, whole), 0), BN)

    inner = tl.arange(0, BK)
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, VECTOR) + top.to(tl.int64) * a_row * VECTOR
    a_pointers = tile_pointers(a_ptr, rows, inner, a_row, 1, "row", VECTOR)
    a = tl.load(a_pointers, mask=(rows < M)[:, None] & (inner < K)[None, :], other=0.0)  # [BM, BK]
    for j in tl.range(0, live, num_stages=STAGES):
        b = load_block(b_desc, b0, b1, b2, first + j * BN, BN, BK)
        acc = tl.dot(a, b.T) * alpha
        places = j * BN + tl.arange(0, BN)  # [BN], from `first` on
        vectors = places // VECTOR * VECTOR
        mask = (rows < M)[:, None] & (vectors < whole)[None, :]
        beyond = first - rows[:, None] - diagonal  # [BM, 1], how far beyond the triangle place 0 is
        if FILLS:
            acc = tl.where(places[None, :] + beyond <= 0, acc, fill)
        else:
            mask &= vectors[None, :] + beyond <= 0
        pointers = tile_pointers(first_ptr, rows // VECTOR, places, c_row, 1, "row", VECTOR)
        tl.store(pointers, acc.to(c_ptr.dtype.element_ty), mask=mask)
    if FILLS:
        value = tl.full([BM, BN], fill, tl.float32).to(c_ptr.dtype.element_ty)
        for j in range(live, tl.cdiv(whole, BN)):
            places = j * BN + tl.arange(0, BN)
            mask = (rows < M)[:, None] & (places // VECTOR * VECTOR < whole)[None, :]
            tl.store(tile_pointers(first_ptr, rows // VECTOR, places, c_row, 1, "row", VECTOR), value, mask=mask)

    columns = tl.arange(0, NARROW)
    if (first > 0) & (FILLS | (needed > 0)):
        acc = tl.dot(a, load_block(narrow_desc, b0, b1, b2, 0, NARROW, BK).T) * alpha
        store_narrow(c_ptr, acc, rows, columns, tl.minimum(first, N), M, diagonal, fill, c_row, FILLS)
    left = first + whole
    if (left < N) & (FILLS | (needed > left)):
        acc = tl.dot(a, load_block(narrow_desc, b0, b1, b2, left, NARROW, BK).T) * alpha
        store_narrow(c_ptr, acc, rows, left + columns, N, M, diagonal, fill, c_row, FILLS)


@lru_cache(PLANS)
def takes(c: Form, rest: str) -> bool:
    """Whether this kernel serves a product that `rows` takes: where a triangle must be stored alone, that one is faster."""
    return c.dtype in (torch.float16, torch.bfloat16) and c.aligned and rest != "keep" and not addressable(c)


@lru_cache(PLANS)
def plan(a: Form, b: Form, c: Form, _device: torch.device, diagonal: int, rest: str, _precision: str) -> Plan:
    """One program for BM rows that are VECTOR apart."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    config, bk = UNALIGNED_HALF, max(16, triton.next_power_of_2(k))
    bm, bn, _ = config.blocks
    index = tl.int64 if (bm + 1) * c.vector * c.stride[-2] >= 2**31 else tl.int32

    def launch(batches: Batches, _precision: str) -> Launch:
        describe_b, describe_narrow = (describer(batched(b.mT, batches, 1), [rows, bk]) for rows in (bn, NARROW))
        a_strides = [stride // c.vector for stride in (*batches.strides[0], a.stride[-2])]
        steps = [int(stride != 0) for stride in batches.strides[1]]

        def describe(a: Tensor, b: Tensor, c: Tensor) -> tuple[Any, ...]:
            return a, describe_b(b), describe_narrow(b), c

        return Launch(
            unaligned_kernel,
            batches.matrices * ceil_div(m, bm * c.vector) * c.vector,
            (
                diagonal, m, n, k, config.group, batches.matrices, *batches.sizes[1:],
                *a_strides, *steps, *batches.strides[2], c.stride[-2],
                rest == "fill", index, c.vector, bm, bn, bk, NARROW, config.num_stages,
            ),
            offsets=batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)
