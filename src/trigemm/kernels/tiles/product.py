"""One tile of a @ b, the loop that gemmt and syrk share; operands come by TMA or by pointers."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.descriptors import addressable, describer
from trigemm.kernels.tiles.multiply import cannot_split, load_tile, multiply_add, no_flags
from trigemm.kernels.tiles.operand import Batches, Form


@triton.jit
def batch_index(batch, size1, size2, stride0, stride1, stride2):
    """Where a descriptor finds the matrix of one batch number. A dimension that the operand is stretched over is single in it."""
    inner, middle, outer = batch % size2, (batch // size2) % size1, batch // (size1 * size2)
    return outer * (stride0 != 0), middle * (stride1 != 0), inner * (stride2 != 0)


@triton.jit
def load_operand(
    x, at, row, column, n_rows, n_columns, stride_row, stride_column,
    ORDER: tl.constexpr, ALIGN: tl.constexpr, BY_TMA: tl.constexpr, INDEX: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Elements [ROWS, COLUMNS] of a matrix from (row, column) on, zero beyond its border.

    By TMA, `x` is a descriptor of the matrices as they lie in memory, of which `at` names one; else it points to the matrix.
    """
    if BY_TMA and ORDER == "row":
        return x.load([at[0], at[1], at[2], row.to(tl.int32), column.to(tl.int32)]).reshape(ROWS, COLUMNS)
    elif BY_TMA:
        return x.load([at[0], at[1], at[2], column.to(tl.int32), row.to(tl.int32)]).reshape(COLUMNS, ROWS).T
    else:
        rows, columns = row.to(INDEX) + tl.arange(0, ROWS), column.to(INDEX) + tl.arange(0, COLUMNS)
        return load_tile(x, rows, columns, n_rows, n_columns, stride_row, stride_column, ORDER, ALIGN)


@triton.jit
def tile_product(
    a, b, a_at, b_at, top, left, M, N, K, a_row, a_column, b_row, b_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    BY_TMA: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The entries [BM, BN] of a @ b from (top, left) on, in float32; and the flags of both operands (see `cannot_split`)."""
    acc = tl.zeros([BM, BN], tl.float32)
    a_flags, b_flags = no_flags(BM, BK, A_ORDER), no_flags(BK, BN, B_ORDER)
    for k in range(0, tl.cdiv(K, BK)):
        depth = k * BK
        left_tile = load_operand(a, a_at, top, depth, M, K, a_row, a_column, A_ORDER, A_ALIGN, BY_TMA, INDEX, BM, BK)
        right_tile = load_operand(b, b_at, depth, left, K, N, b_row, b_column, B_ORDER, B_ALIGN, BY_TMA, INDEX, BK, BN)
        acc = multiply_add(left_tile, right_tile, acc, PRECISION)
        if PRECISION == "bf16x6":
            a_flags |= cannot_split(left_tile, A_ORDER)
            b_flags |= cannot_split(right_tile, B_ORDER)
    return acc, a_flags, b_flags


def tma_order(x: Form) -> str:
    """The order in which TMA can address an operand: "row", "column" (its transposed matrices), or "" if in neither."""
    if 0 in x.shape:
        return ""
    return "row" if addressable(x) else "column" if addressable(x.mT) else ""


def describe_operand(x: Form, batches: Batches, which: int, block: tuple[int, int], by_tma: bool) -> Callable[[Tensor], Any]:
    """What makes of a tensor that which a kernel takes: its descriptor for blocks, or the tensor itself."""
    if not by_tma:
        return lambda tensor: tensor
    batched = x._replace(shape=(*batches.sizes, *x.shape[-2:]), stride=(*batches.strides[which], *x.stride[-2:]))
    return describer(batched, block) if tma_order(x) == "row" else describer(batched.mT, block[::-1])
