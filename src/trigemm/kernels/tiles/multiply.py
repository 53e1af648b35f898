"""Loads, products and stores of tiles: the inner part that all tile kernels share.

float32 products are made on tensor cores from parts of 10 mantissa bits ("tf32x3": three products of a high and a low
part), which is as accurate as a float32 product as long as the low parts are normal numbers. `too_small` finds operands
for which they are not; a tile that meets one is computed again without tensor cores.
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.operand import tile_pointers

# Below this magnitude the low part of a float32 (2^-11 of it, with 10 bits of its own) comes near the end of the
# exponent's range.
SMALLEST_SPLIT = tl.constexpr(2.0**-100)


@triton.jit
def load_tile(ptr, rows, columns, n_rows, n_columns, stride_row, stride_column, ORDER: tl.constexpr, ALIGN: tl.constexpr):
    """Elements [len(rows), len(columns)] of a matrix, zero beyond its border."""
    if ORDER == "row":
        in_matrix = (rows < n_rows)[:, None] & (columns < n_columns // ALIGN * ALIGN)[None, :]
    else:
        in_matrix = (rows < n_rows // ALIGN * ALIGN)[:, None] & (columns < n_columns)[None, :]
    return tl.load(tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN), mask=in_matrix, other=0.0)


@triton.jit
def load_triangle(
    ptr, rows, columns, n_rows, n_columns, stride_row, stride_column, diagonal,
    LOWER: tl.constexpr, ORDER: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """As `load_tile`, for a tile that the diagonal may cross: zero, and not read, outside the triangle."""
    distance = columns[None, :] - rows[:, None]
    in_triangle = distance <= diagonal if LOWER else distance >= diagonal
    in_matrix = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    pointers = tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN)
    return tl.load(pointers, mask=in_matrix & in_triangle, other=0.0)


@triton.jit
def multiply_add(a, b, acc, PRECISION: tl.constexpr):
    """acc + a @ b in float32. PRECISION: "tf32x3", "tf32", "ieee", or "bfloat16", which rounds the operands first."""
    if PRECISION == "bfloat16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def too_small(x):
    """1 if some element is not zero and too small to be split, else 0."""
    size = tl.abs(x)
    return tl.max(tl.max(((size < SMALLEST_SPLIT) & (size > 0)).to(tl.int32), 1), 0)


@triton.jit
def store_tile(ptr, value, rows, columns, n_rows, n_columns, stride_row, stride_column, ORDER: tl.constexpr, ALIGN: tl.constexpr):
    """Write a tile [len(rows), len(columns)], cut at the border of the matrix."""
    if ORDER == "row":
        in_matrix = (rows < n_rows)[:, None] & (columns < n_columns // ALIGN * ALIGN)[None, :]
    else:
        in_matrix = (rows < n_rows // ALIGN * ALIGN)[:, None] & (columns < n_columns)[None, :]
    pointers = tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN)
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=in_matrix)
