"""Loads, products and stores of tiles: the inner part that all tile kernels share.

float32 products as accurate as a float32 GEMM's are made on tensor cores, from parts:

    bf16x6      three bfloat16 parts hold all bits of a float32; the six products that matter are added
    float16x2   a row is scaled by a power of two; two float16 parts hold 22 bits; three products at twice TF32's rate
    float16     the first of these parts alone: 11 bits, as many as TF32 has, and rounded to nearest, as TF32 products are not

Both have limits: parts must be normal numbers. A program that meets an element beyond them leaves a flag, and a second
launch of the same kernel computes flagged tiles again, without tensor cores ("ieee"); its other programs end at once.
"""

import triton
import triton.language as tl

from trigemm.kernels.tiles.operand import tile_pointers

# The last part of a float32 is up to 2^-24 of it and needs 8 bits of its own; the first may be rounded up. As float32 bits:
SMALLEST_SPLIT = tl.constexpr((127 - 100) << 23)  # 2^-100
LARGEST_SPLIT = tl.constexpr((127 + 126) << 23)  # 2^126

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
    """acc + a @ b in float32. PRECISION: "bf16x6", "bf16x3", "tf32", "ieee"; or "bfloat16", which rounds the operands.

    The interpreter multiplies no bfloat16.
    """
    if PRECISION == "bfloat16" and not INTERPRETED:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        return tl.dot(a, b, acc, input_precision="ieee" if INTERPRETED else PRECISION)


@triton.jit
def cannot_split(x, ORDER: tl.constexpr):
    """For each row of a tile (each column where ORDER is "column"), 1 if an element, not zero, is too small or too large, else 0.

    Elements that are contiguous lie in one warp, so nothing goes through shared memory; a loop joins its flags with |.
    """
    if ORDER == "column":
        x = tl.trans(x)
    bits = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    beyond = (bits - SMALLEST_SPLIT > LARGEST_SPLIT - SMALLEST_SPLIT) & (bits != 0)  # unsigned: smaller ones wrap around
    return tl.max(beyond.to(tl.int32), 1)


@triton.jit
def split_rows(x):
    """Two float16 parts of each row of a float32 tile [R, C], what undoes the row's scale [R], and a flag a row [R].

    x = (high + low / 2^11) * unscale, to 22 bits, unless the flag is set: an element, not zero, is 2^29 times smaller than the
    largest of its row or smaller than 2^-88, or one is larger than 2^61 or not finite.
    """
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(size, 1)
    smallest = tl.min((size - 1).to(tl.uint32, bitcast=True), 1)  # less 1, so that zero wraps around and does not count
    exponent = tl.minimum(tl.maximum(largest >> 23, 127 - 60), 127 + 60)
    scale = ((2 * 127 + 14 - exponent) << 23).to(tl.float32, bitcast=True)  # the largest becomes 2^14 to 2^15
    unscale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    y = x * scale[:, None]
    high = y.to(tl.float16)
    low = ((y - high.to(tl.float32)) * 2048.0).to(tl.float16)
    least = ((exponent - 28) << 23).to(tl.uint32, bitcast=True) - 1  # becomes 2^-14, the smallest normal float16
    beyond = (smallest < least) | (largest >= (127 + 61) << 23)
    return high, low, unscale, beyond.to(tl.int32)


@triton.jit
def no_flags(ROWS: tl.constexpr, COLUMNS: tl.constexpr, ORDER: tl.constexpr):
    """The flags of `cannot_split` for a tile [ROWS, COLUMNS], none of them set."""
    return tl.zeros([COLUMNS if ORDER == "column" else ROWS], tl.int32)


@triton.jit
def store_flag(flags_ptr, a_flags, b_flags):
    """Leave 1 for the second launch if this program's operands cannot be split, else 0."""
    flag = tl.maximum(tl.max(a_flags, 0), tl.max(b_flags, 0))
    tl.store(flags_ptr + tl.program_id(0), flag)


@triton.jit
def store_tile(ptr, value, rows, columns, n_rows, n_columns, stride_row, stride_column, ORDER: tl.constexpr, ALIGN: tl.constexpr):
    """Write a tile [len(rows), len(columns)], cut at the border of the matrix."""
    if ORDER == "row":
        in_matrix = (rows < n_rows)[:, None] & (columns < n_columns // ALIGN * ALIGN)[None, :]
    else:
        in_matrix = (rows < n_rows // ALIGN * ALIGN)[:, None] & (columns < n_columns)[None, :]
    pointers = tile_pointers(ptr, rows, columns, stride_row, stride_column, ORDER, ALIGN)
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=in_matrix)
