"""Axes in another order, and stretched axes: out[i0, i1, i2, i3] = x[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3]; and zeros around.

Where the last axis of `out` lies side by side in `x` too, or no axis does, rows are copied. Where another axis does, tiles
over these two axes are turned: loads run along one, stores along the other, and the transposition happens inside the tile.
A short axis is joined by the one whose steps in `x` follow it, so that the loads have longer runs.
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

TURNED, TURNED_WARPS = 4096, 8
"""Elements of a tile that is turned, and its warps."""


@triton.jit
def copy_kernel(
    x_ptr, out_ptr, size1, size2, x_stride0, x_stride1, x_stride2, x_stride3,
    rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    source = source_index(row, size1, size2, 1, x_stride0, x_stride1, x_stride2, 0) + column * x_stride3
    tl.store(out_ptr + row * columns + column, tl.load(x_ptr + source, in_out), in_out)


@triton.jit
def turn_kernel(
    x_ptr, out_ptr, size1, x_stride0, x_stride1, x_column, stride0, stride1, block, stride_block, stride_row,
    rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Rows lie side by side in `x`, columns in `out`; the other two axes number the matrices, size1 of them along the second.

    Blocks of so many rows are `stride_block` apart in `out`.
    """
    tile_rows, tile_columns = tl.cdiv(rows, BM), tl.cdiv(columns, BN)
    tile = tl.program_id(0)
    matrix = tile // (tile_rows * tile_columns)
    outer, inner = (matrix // size1).to(INDEX), (matrix % size1).to(INDEX)
    row = ((tile // tile_columns) % tile_rows).to(INDEX) * BM + tl.arange(0, BM)  # [BM]
    column = (tile % tile_columns).to(INDEX) * BN + tl.arange(0, BN)  # [BN]
    in_matrix = (row < rows)[:, None] & (column < columns)[None, :]
    x_ptr += outer * x_stride0 + inner * x_stride1
    out_ptr += outer * stride0 + inner * stride1
    x = tl.load(x_ptr + row[:, None] + column[None, :] * x_column, in_matrix)  # [BM, BN]
    target = row // block * stride_block + row % block * stride_row
    tl.store(out_ptr + target[:, None] + column[None, :], x, in_matrix)


@triton.jit(do_not_specialize=["n"])
def pad_kernel(x_ptr, out_ptr, begin, end, n, INDEX: tl.constexpr, BLOCK: tl.constexpr):
    """out[begin:end] = x, and zeros before and after."""
    first = tl.program_id(0).to(INDEX) * BLOCK
    place = first + tl.arange(0, BLOCK)
    if (first >= begin) & (first + BLOCK <= end):
        tl.store(out_ptr + place, tl.load(x_ptr + (place - begin)))
    else:
        in_x = (place >= begin) & (place < end)
        tl.store(out_ptr + place, tl.load(x_ptr + (place - begin), in_x, other=0), place < n)


def turned_tile_shape(rows: int, columns: int) -> tuple[int, int]:
    """(BM, BN): 64 x 64, or longer where the other side is shorter than that."""
    width = min(64, triton.next_power_of_2(columns))
    height = min(TURNED // width, triton.next_power_of_2(rows))
    return height, min(TURNED // height, triton.next_power_of_2(columns))


@lru_cache(PLANS)
def _launch(x: Form, layout: Layout, out: Form, device: torch.device) -> Launch:
    source, target = merge(layout, Layout(layout.shape, Layout.contiguous(layout.shape).strides))
    elements = source.shape[0] * source.shape[1] * source.shape[2] * source.shape[3]
    index = index_type(elements)
    if not elements or source.strides[-1] <= 1 or 1 not in source.strides:
        rows, columns = elements // max(1, source.shape[3]), source.shape[3]
        tile = tile_shape(rows, columns)
        programs = tiles(rows, columns, tile)
        return Launch(copy_kernel, programs, *source.shape[1:3], *source.strides, rows, columns, index, *tile)
    *others, last = zip(source.shape, source.strides, target.strides, strict=True)
    short, _, stride_row = others.pop(source.strides.index(1))
    others.sort(key=lambda axis: axis[1] == short)
    alone = 1, 0, 0
    outer, inner, joined = (alone, *others) if others[-1][1] == short else (*others, alone)
    rows, columns = short * joined[0], last[0]
    tile = turned_tile_shape(rows, columns)
    programs = outer[0] * inner[0] * tiles(rows, columns, tile)
    return Launch(
        turn_kernel, programs, inner[0], outer[1], inner[1], last[1], outer[2], inner[2], short, joined[2], stride_row,
        rows, columns, index, *tile, num_warps=TURNED_WARPS,
    )  # fmt: skip


def permute(x: Tensor, layout: Layout, out: Tensor) -> None:
    """The elements of `x` that `layout` names, in row-major order, into `out`."""
    _launch(form(x), layout, form(out), out.device)(x, out)


@lru_cache(PLANS)
def _turn(x: Form, x_strides: tuple[int, ...], out: Form, out_strides: tuple[int, ...], device: torch.device) -> Launch:
    matrices, rows, columns = out[0]
    reach = max(matrices * strides[0] + shape[1] * strides[1] for shape, strides in ((x[0], x_strides), (out[0], out_strides)))
    tile = turned_tile_shape(rows, columns)
    return Launch(
        turn_kernel, matrices * tiles(rows, columns, tile), 1, x_strides[0], 0, x_strides[1], out_strides[0], 0,
        max(1, rows), 0, out_strides[1], rows, columns, index_type(reach), *tile, num_warps=TURNED_WARPS,
    )  # fmt: skip


def turn(x: Tensor, out: Tensor) -> None:
    """Matrices x (B,M,N), transposed, into `out` (B,N,M). The rows of both are contiguous."""
    if out.numel():
        _turn(form(x), x.stride(), form(out), out.stride(), out.device)(x, out)


@lru_cache(PLANS)
def _pad(x: Form, out: Form, begin: int, device: torch.device) -> Launch:
    n = out[0].numel()
    return Launch(pad_kernel, ceil_div(n, ELEMENTS), begin, begin + x[0].numel(), n, index_type(n), ELEMENTS)


def pad(x: Tensor, begin: int, out: Tensor) -> None:
    """The elements of `x`, from element `begin` of `out` on, and zeros in the rest."""
    _pad(form(x), form(out), begin, out.device)(x, out)
