"""One operation on every element, or on every pair: out = code(a), out = code(a, b), with broadcasting.

A program computes one tile, in float32 whatever the dtype. Geometry: see `index`.
"""

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import launch, own_tile, source_index, tile_shape
from trigemm.layout import Layout, merge


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
        return -x
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
def unary_kernel(x_ptr, out_ptr, CODE: tl.constexpr, rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    place = row * columns + column
    x = tl.load(x_ptr + place, in_out)  # [BM, BN]
    if CODE == "cast":
        tl.store(out_ptr + place, x.to(out_ptr.dtype.element_ty), in_out)
    else:
        tl.store(out_ptr + place, compute_unary(x.to(tl.float32), CODE).to(out_ptr.dtype.element_ty), in_out)


@triton.jit
def binary_kernel(
    a_ptr, b_ptr, out_ptr, param, CODE: tl.constexpr, NUMBER: tl.constexpr, size1, size2,
    a_stride0, a_stride1, a_stride2, a_stride3, b_stride0, b_stride1, b_stride2, b_stride3,
    rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """NUMBER says which operand is `param` and is not read: "a", "b" or ""."""
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    number = tl.zeros([BM, BN], tl.float32) + param
    if NUMBER == "":
        a = tl.load(a_ptr + source_index(row, size1, size2, 1, a_stride0, a_stride1, a_stride2, 0) + column * a_stride3, in_out)
        b = tl.load(b_ptr + source_index(row, size1, size2, 1, b_stride0, b_stride1, b_stride2, 0) + column * b_stride3, in_out)
    elif NUMBER == "a":
        b = tl.load(b_ptr + row * columns + column, in_out)
        a = number.to(b_ptr.dtype.element_ty)
    else:
        a = tl.load(a_ptr + row * columns + column, in_out)
        b = number.to(a_ptr.dtype.element_ty)
    out = compute_binary(a.to(tl.float32), b.to(tl.float32), number, CODE)
    tl.store(out_ptr + row * columns + column, out.to(out_ptr.dtype.element_ty), in_out)


def unary(code: str, x: Tensor, out: Tensor) -> None:
    """code(x) into `out`, of the same shape; "cast" converts to the dtype of `out`."""
    n = x.numel()
    launch(unary_kernel, 1, n, tile_shape(1, n), x, out, code)


def binary(code: str, a: Tensor | float, b: Tensor | float, out: Tensor, param: float) -> None:
    """code(a, b) into `out`, of the shape that they broadcast to; the tensors are contiguous, one of them may be a number."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        layouts = (Layout.contiguous(x.shape).expand(out.shape) for x in (a, b))
        x, y, whole = merge(*layouts, Layout.contiguous(out.shape))
        rows, columns = whole.shape[0] * whole.shape[1] * whole.shape[2], whole.shape[3]
        tile = tile_shape(rows, columns)
        launch(binary_kernel, rows, columns, tile, a, b, out, param, code, "", *whole.shape[1:3], *x.strides, *y.strides)
    else:
        n, number = out.numel(), "a" if isinstance(b, Tensor) else "b"
        pointer = b if isinstance(b, Tensor) else a
        value = float(a if number == "a" else b)
        launch(binary_kernel, 1, n, tile_shape(1, n), pointer, pointer, out, value, code, number, 1, 1, *(0,) * 8)
