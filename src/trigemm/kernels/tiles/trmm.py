"""trmm with tiles: alpha * tri(a) @ b, (…,M,K) x (…,K,N) -> (…,M,N).

A program computes one output tile, [BM, BN], and walks along the live tiles of its row of the triangle: first those that lie
inside, then those that the diagonal crosses, whose other half is masked out of the load. Rows with the most work go first, so
that the last programs are short.

By TMA the product is computed transposed. What the masks and the rounding leave in registers is then the second operand of the
tensor cores, and goes to them through shared memory, behind the product before it. (Triton lets products run on while
it overwrites the registers that are their first operand, in a loop of loads into several buffers.)
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.config import trmm_config
from trigemm.kernels.tiles.descriptors import has_tma
from trigemm.kernels.tiles.multiply import (
    INTERPRETED,
    cannot_split,
    load_triangle,
    multiply_add,
    no_flags,
    store_flag,
    store_tile,
)
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
from trigemm.kernels.tiles.product import batch_index, describe_operand, load_operand, tma_order
from trigemm.triangle import ceil_div

SCALARS = ["alpha", "diagonal", "M", "N", "K", "group", "batches", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in "abc" for name in ("batch0", "batch1", "batch2", "row", "column")]
LARGEST_TF32 = tl.constexpr((2 - 2.0**-10) * 2.0**127)


@triton.jit
def round_to_tf32(x):
    """float32 whose first 11 bits, all that tensor cores look at, are its value to the nearest; infinities and NaN stay."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(tl.abs(x) < LARGEST_TF32, bits + 0x1000, bits)
    if INTERPRETED:  # its products look at all bits
        bits = tl.where(x == x, bits & -0x2000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_crossed(
    ptr, rows, columns, n_rows, n_columns, stride_row, stride_column, diagonal,
    LOWER: tl.constexpr, ORDER: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """As `load_triangle`: 16 bytes at a time where all of them are in the triangle, else one by one."""
    if ALIGN == 1:
        return load_triangle(ptr, rows, columns, n_rows, n_columns, stride_row, stride_column, diagonal, LOWER, ORDER, ALIGN)
    # The distance from the diagonal of the entry, and of that of its 16 bytes which is the first to leave the triangle.
    LAST: tl.constexpr = ALIGN - 1 if (ORDER == "row") == LOWER else 0
    distance = columns[None, :] - rows[:, None]
    if ORDER == "row":
        farthest = (columns // ALIGN * ALIGN + LAST)[None, :] - rows[:, None]
        in_matrix = (rows < n_rows)[:, None] & (columns < n_columns // ALIGN * ALIGN)[None, :]
    else:
        farthest = columns[None, :] - (rows // ALIGN * ALIGN + LAST)[:, None]
        in_matrix = (rows < n_rows // ALIGN * ALIGN)[:, None] & (columns < n_columns)[None, :]
    in_triangle = distance <= diagonal if LOWER else distance >= diagonal
    whole = farthest <= diagonal if LOWER else farthest >= diagonal
    pointers = tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN)
    pieces = tl.load(pointers, mask=in_matrix & whole, other=0.0)
    single = tl.load(pointers, mask=in_matrix & in_triangle & (whole == 0), other=0.0)
    return tl.where(whole, pieces, single)


@triton.jit
def multiply_tiles(a, b, acc, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr):
    """acc + a @ b, or its transposed product."""
    if PRECISION == "tf32" and a.dtype == tl.float32:
        a, b = round_to_tf32(a), round_to_tf32(b)
    if TRANSPOSED:
        return multiply_add(b.T, a.T, acc, PRECISION)
    else:
        return multiply_add(a, b, acc, PRECISION)


@triton.jit
def add_tiles(
    acc, a_flags, b_flags, a, a_ptr, b, a_at, b_at, top, left, begin, end, diagonal, M, N, K, a_row, a_column, b_row, b_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    A_TMA: tl.constexpr, B_TMA: tl.constexpr, LOWER: tl.constexpr, CROSSED: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """acc + the products of tiles `begin` to `end` of the inner dimension; CROSSED if the diagonal may cross them."""
    BY_TMA: tl.constexpr = A_TMA != ""
    B_FORM: tl.constexpr = B_TMA if BY_TMA else B_ORDER
    A_FORM: tl.constexpr = A_TMA if BY_TMA else A_ORDER
    for k in tl.range(begin, end, num_stages=STAGES):
        depth = k * BK
        if CROSSED:
            rows, columns = top.to(INDEX) + tl.arange(0, BM), tl.arange(0, BK).to(INDEX) + depth  # [BM], [BK]
            if BY_TMA:
                x = load_crossed(a_ptr, rows, columns, M, K, a_row, a_column, diagonal, LOWER, A_ORDER, A_ALIGN)  # [BM, BK]
            else:
                x = load_triangle(a_ptr, rows, columns, M, K, a_row, a_column, diagonal, LOWER, A_ORDER, A_ALIGN)
        else:
            x = load_operand(a, a_at, top, depth, M, K, a_row, a_column, A_FORM, A_ALIGN, BY_TMA, INDEX, BM, BK)
        y = load_operand(b, b_at, depth, left, K, N, b_row, b_column, B_FORM, B_ALIGN, BY_TMA, INDEX, BK, BN)  # [BK, BN]
        acc = multiply_tiles(x, y, acc, PRECISION, BY_TMA)
        if PRECISION == "bf16x6":
            a_flags |= cannot_split(x, A_ORDER)
            b_flags |= cannot_split(y, B_ORDER)
    return acc, a_flags, b_flags


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def trmm_kernel(
    a, a_ptr, b, c_ptr, flags_ptr, alpha, diagonal, M, N, K, group, batches, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, A_TMA: tl.constexpr, B_TMA: tl.constexpr,
    LOWER: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CROSSED_STAGES: tl.constexpr,
):  # fmt: skip
    if PRECISION == "ieee" and tl.load(flags_ptr + tl.program_id(0)) == 0:
        return
    tile_rows = tl.cdiv(M, BM)
    tile_columns = tl.cdiv(N, BN)
    # A group of matrices at a time; in it the longest rows first.
    first = tl.program_id(0) // (group * tile_rows * tile_columns) * group
    turn = tl.program_id(0) - first * tile_rows * tile_columns
    tile_column = turn % tile_columns
    members = tl.minimum(group, batches - first)
    batch = first + turn // tile_columns % members
    tile_row = turn // (tile_columns * members)
    if LOWER:
        tile_row = tile_rows - 1 - tile_row
    a_at = batch_index(batch, size1, size2, a_batch0, a_batch1, a_batch2)
    b_at = batch_index(batch, size1, size2, b_batch0, b_batch1, b_batch2)
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    if A_TMA == "":
        a = a_ptr
        b += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)
    top = tile_row.to(tl.int64) * BM
    left = tile_column.to(tl.int64) * BN

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

    acc = tl.zeros([BM, BN] if A_TMA == "" else [BN, BM], tl.float32)
    a_flags, b_flags = no_flags(BM, BK, A_ORDER), no_flags(BK, BN, B_ORDER)
    acc, a_flags, b_flags = add_tiles(
        acc, a_flags, b_flags, a, a_ptr, b, a_at, b_at, top, left, inside_begin.to(tl.int32), inside_end.to(tl.int32),
        diagonal, M, N, K, a_row, a_column, b_row, b_column,
        A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, A_TMA, B_TMA, LOWER, False, PRECISION, INDEX, BM, BN, BK, None,
    )  # fmt: skip
    acc, a_flags, b_flags = add_tiles(
        acc, a_flags, b_flags, a, a_ptr, b, a_at, b_at, top, left, crossed_begin.to(tl.int32), crossed_end.to(tl.int32),
        diagonal, M, N, K, a_row, a_column, b_row, b_column,
        A_ORDER, A_ALIGN, B_ORDER, B_ALIGN, A_TMA, B_TMA, LOWER, True, PRECISION, INDEX, BM, BN, BK, CROSSED_STAGES,
    )  # fmt: skip
    if PRECISION == "bf16x6":
        store_flag(flags_ptr, a_flags, b_flags)
    if A_TMA != "":
        acc = acc.T
    rows, columns = top.to(INDEX) + tl.arange(0, BM), left.to(INDEX) + tl.arange(0, BN)  # [BM], [BN]
    store_tile(c_ptr, acc * alpha, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)


@lru_cache(PLANS)
def _plan(a: Form, b: Form, c: Form, device: torch.device, uplo: str, diagonal: int, precision: str) -> Plan:
    """One program an output tile."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    orders = tma_order(a), tma_order(b)
    config = trmm_config(a.dtype, precision, m, has_tma(device) and all(orders))
    bm, bn, bk = config.blocks
    tiles = ceil_div(m, bm) * ceil_div(n, bn)
    options = {"maxnreg": config.registers} if config.registers else {}

    def launch(batches: Batches, precision: str) -> Launch:
        describe_a = describe_operand(a, batches, 0, (bm, bk), config.by_tma)
        describe_b = describe_operand(b, batches, 1, (bk, bn), config.by_tma)

        def describe(a_tensor: Tensor, b_tensor: Tensor, c_tensor: Tensor) -> tuple[Any, ...]:
            return describe_a(a_tensor), a_tensor, describe_b(b_tensor), c_tensor

        return Launch(
            trmm_kernel,
            batches.matrices * tiles,
            (
                diagonal, m, n, k, config.group or batches.matrices, batches.matrices, *batches.sizes[1:],
                *stride_arguments((a, b, c), batches),
                a.order, a.align, b.order, b.align, c.order, c.align, *(orders if config.by_tma else ("", "")),
                uplo == "lower", precision, tl.int64 if needs_64_bits(a, b, c) else tl.int32, bm, bn, bk, config.crossed_stages,
            ),
            offsets=batches.offsets,
            describe=describe,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            **options,
        )  # fmt: skip

    return Plan(cut_batches(a, b, c), launch, config.precision)


def trmm(a: Tensor, b: Tensor, out: Tensor, *, alpha: float, uplo: str, diagonal: int, precision: str) -> None:
    """alpha * tri(a) @ b into `out`."""
    if out.numel() == 0:
        return
    diagonal = max(-a.shape[-2], min(a.shape[-1], diagonal))
    plan = _plan(form_of(a), form_of(b), form_of(out), out.device, uplo, diagonal, precision)
    plan.run((a, b, out), alpha)
