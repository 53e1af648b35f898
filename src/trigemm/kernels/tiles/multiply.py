"""Loads, products and stores of tiles: the inner part that all tile kernels share.

float32 products are made on tensor cores. "bf16x6" cuts a float32 into three bfloat16 parts that together hold all of its
bits, and adds the six products that matter: as accurate as a float32 product as long as each part is a normal number.
`cannot_split` finds operands for which they are not; a tile that meets one is computed again without tensor cores
("ieee").
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.operand import tile_pointers

# The last part of a float32 is up to 2^-24 of it and needs 8 bits of its own; the first may be rounded up.
SMALLEST_SPLIT = tl.constexpr(2.0**-100)
LARGEST_SPLIT = tl.constexpr(2.0**126)

# The interpreter computes every float32 product in float32, and does not know the names of the split ones.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


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
    """acc + a @ b in float32. PRECISION: "bf16x6", "bf16x3", "tf32", "ieee"; or "bfloat16", which rounds the operands."""
    if PRECISION == "bfloat16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        return tl.dot(a, b, acc, input_precision="ieee" if INTERPRETED else PRECISION)


@triton.jit
def cannot_split(x):
    """1 if some element of a tile, zero apart, is too small or too large to be split, else 0."""
    size = tl.abs(x)
    return tl.max(tl.max((((size < SMALLEST_SPLIT) & (size > 0)) | (size > LARGEST_SPLIT)).to(tl.int32), 1), 0)


@triton.jit
def store_tile(ptr, value, rows, columns, n_rows, n_columns, stride_row, stride_column, ORDER: tl.constexpr, ALIGN: tl.constexpr):
    """Write a tile [len(rows), len(columns)], cut at the border of the matrix."""
    if ORDER == "row":
        in_matrix = (rows < n_rows)[:, None] & (columns < n_columns // ALIGN * ALIGN)[None, :]
    else:
        in_matrix = (rows < n_rows // ALIGN * ALIGN)[:, None] & (columns < n_columns)[None, :]
    pointers = tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN)
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=in_matrix)
