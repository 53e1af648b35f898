"""One operation on every element, or on every pair: out = code(a), out = code(a, b), with broadcasting.

A program computes one block, in float32 whatever the dtype. Where shapes are equal the tensors are one row each, and all blocks
but the last are loaded and stored without a mask, 16 bytes at a time; where they are not, see `index` for the tiles.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import ELEMENTS, Form, Launch, form, index_type, own_tile, source_index, tile_shape, tiles
from trigemm.kernels.tiles.plan import PLANS
from trigemm.layout import Layout, merge
from trigemm.triangle import ceil_div

NO_INT64 = tl.constexpr(-(2**63))
"""What a NaN becomes as an integer: the smallest, which is no index."""


@triton.jit
def tanh(x):
    """(1 - e⁻²ˣ) / (1 + e⁻²ˣ), and a series near 0, where the difference would lose digits."""
    power = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0, -1.0, 1.0) * (1.0 - power) / (1.0 + power)
    s = x * x
    tail = s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835 - s * (1382 / 155925))))
    return tl.where(tl.abs(x) < 0.25, x * (1.0 + s * (-1 / 3 + tail)), tl.where(x == x, far, x))


@triton.jit
def compute_unary(x, CODE: tl.constexpr):
    if CODE == "neg":
        return x * -1.0  # -x would be 0 - x, which has no -0
    elif CODE == "exp":
        return tl.exp(x)
    elif CODE == "log":
        return tl.log(x)
    elif CODE == "sqrt":
        return tl.sqrt_rn(x)
    elif CODE == "tanh":
        return tanh(x)
    else:  # gelu
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))


@triton.jit
def compute_binary(a, b, param, CODE: tl.constexpr):
    if CODE == "add":
        return a + b
    elif CODE == "sub":
        return a - b
    elif CODE == "mul":
        return a * b
    elif CODE == "div":
        return tl.div_rn(a, b)
    elif CODE == "maximum":
        return tl.where((a > b) | (a != a), a, b)
    elif CODE == "less":
        return (a < b).to(tl.float32)
    elif CODE == "less_equal":
        return (a <= b).to(tl.float32)
    elif CODE == "equal":
        return (a == b).to(tl.float32)
    elif CODE == "masked_fill":
        return tl.where(b != 0.0, param, a)
    else:  # gelu_backward
        s = b * b
        t = tanh(0.7978845608028654 * b * (1.0 + 0.044715 * s))
        return a * (0.5 * (1.0 + t) + 0.5 * b * (1.0 - t * t) * (0.7978845608028654 * (1.0 + 0.134145 * s)))


@triton.jit
def unary_block(x_ptr, out_ptr, place, in_out, CODE: tl.constexpr):
    x = tl.load(x_ptr + place, in_out)
    if CODE != "cast":
        out = compute_unary(x.to(tl.float32), CODE)
    elif out_ptr.dtype.element_ty == tl.int64 and x.dtype.is_floating():
        out = tl.where(x == x, x.to(tl.int64), NO_INT64)
    else:
        out = x
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), in_out)


@triton.jit(do_not_specialize=["n"])
def unary_kernel(x_ptr, out_ptr, n, CODE: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) < n // BLOCK:
        unary_block(x_ptr, out_ptr, place, None, CODE)
    else:
        unary_block(x_ptr, out_ptr, place, place < n, CODE)


@triton.jit
def as_operand(number, x, CODE: tl.constexpr):
    """A number is compared with `x` in the dtype of `x`, and takes part in arithmetic in float32."""
    if CODE == "less" or CODE == "less_equal" or CODE == "equal":
        return number.to(x.dtype)
    else:
        return number


@triton.jit
def binary_block(a_ptr, b_ptr, out_ptr, param, place, in_out, CODE: tl.constexpr, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    """NUMBER says which operand is `param`, and is not read: "a", "b" or ""."""
    number = tl.full([BLOCK], param, tl.float32)
    if NUMBER == "a":
        b = tl.load(b_ptr + place, in_out)
        a = as_operand(number, b, CODE)
    elif NUMBER == "b":
        a = tl.load(a_ptr + place, in_out)
        b = as_operand(number, a, CODE)
    else:
        a = tl.load(a_ptr + place, in_out)
        b = tl.load(b_ptr + place, in_out)
    out = compute_binary(a.to(tl.float32), b.to(tl.float32), number, CODE)
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), in_out)


@triton.jit(do_not_specialize=["n"])
def binary_kernel(
    a_ptr, b_ptr, out_ptr, param, n,
    CODE: tl.constexpr, NUMBER: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) < n // BLOCK:
        binary_block(a_ptr, b_ptr, out_ptr, param, place, None, CODE, NUMBER, BLOCK)
    else:
        binary_block(a_ptr, b_ptr, out_ptr, param, place, place < n, CODE, NUMBER, BLOCK)


SIZES = ["size1", "size2", "rows", "columns"]
STRIDES = [f"{x}_stride{axis}" for x in "ab" for axis in range(3)]


@triton.jit(do_not_specialize=[*SIZES, *STRIDES])
def broadcast_kernel(
    a_ptr, b_ptr, out_ptr, param, size1, size2, rows, columns,
    a_stride0, a_stride1, a_stride2, b_stride0, b_stride1, b_stride2,
    A_STEP: tl.constexpr, B_STEP: tl.constexpr, ALIGN: tl.constexpr,
    CODE: tl.constexpr, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The step from one column to the next is 1, or 0 where a row is one element. Columns and strides are in units of ALIGN."""
    row, column, in_out = own_tile(rows, columns * ALIGN, INDEX, BM, BN)
    a_row = source_index(row, size1, size2, 1, a_stride0, a_stride1, a_stride2, 0)
    b_row = source_index(row, size1, size2, 1, b_stride0, b_stride1, b_stride2, 0)
    in_a = in_out if A_STEP else row < rows
    in_b = in_out if B_STEP else row < rows
    a = tl.load(a_ptr + (a_row * ALIGN + column if A_STEP else a_row), in_a)  # [BM, BN] or [BM, 1]
    b = tl.load(b_ptr + (b_row * ALIGN + column if B_STEP else b_row), in_b)
    a, b = a.to(tl.float32), b.to(tl.float32)
    out = compute_binary(a, b, tl.full([BM, BN], param, tl.float32), CODE)
    tl.store(out_ptr + row * (columns * ALIGN) + column, out.to(out_ptr.dtype.element_ty), in_out)


@lru_cache(PLANS)
def _unary_launch(code: str, x: Form, out: Form, n: int, device: torch.device) -> Launch:
    return Launch(unary_kernel, ceil_div(n, ELEMENTS), n, code, index_type(n), ELEMENTS)


def unary(code: str, x: Tensor, out: Tensor) -> None:
    """code(x) into `out`, of the same shape; "cast" converts to the dtype of `out`, a NaN to the smallest int64."""
    _unary_launch(code, form(x), form(out), x.numel(), x.device)(x, out)


@lru_cache(PLANS)
def _binary_launch(
    code: str, number: str, a: Form, b: Form,
    out: Form, device: torch.device,
) -> Launch:  # fmt: skip
    shape, n = out[0], out[0].numel()
    if number or a[0] == b[0]:
        return Launch(binary_kernel, ceil_div(n, ELEMENTS), n, code, number, index_type(n), ELEMENTS)
    layouts = (Layout.contiguous(x[0]).expand(shape) for x in (a, b))
    x, y, whole = merge(*layouts, Layout.contiguous(shape))
    rows, columns = whole.shape[0] * whole.shape[1] * whole.shape[2], whole.shape[3]
    tile = tile_shape(rows, columns)
    steps = x.strides[3], y.strides[3]
    wide = [strides[:3] for strides, step in ((x.strides, steps[0]), (y.strides, steps[1])) if step]
    align = 16 if columns % 16 == 0 and not any(stride % 16 for strides in wide for stride in strides) else 1
    strides = (stride // (align if step else 1) for z, step in ((x, steps[0]), (y, steps[1])) for stride in z.strides[:3])
    return Launch(
        broadcast_kernel, tiles(rows, columns, tile), *whole.shape[1:3], rows, columns // align, *strides,
        *steps, align, code, index_type(n), *tile,
    )  # fmt: skip


def binary(code: str, a: Tensor | float, b: Tensor | float, out: Tensor, param: float) -> None:
    """code(a, b) into `out`, of the shape that they broadcast to; the tensors are contiguous, one of them may be a number."""
    number = "" if isinstance(a, Tensor) and isinstance(b, Tensor) else "b" if isinstance(a, Tensor) else "a"
    if number:
        pointer, value = (a, b) if number == "b" else (b, a)
        a, b, param = pointer, pointer, value  # type: ignore[assignment]
    _binary_launch(code, number, form(a), form(b), form(out), out.device)(a, b, out, float(param))  # type: ignore[arg-type]
