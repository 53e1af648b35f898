"""Axes in another order, and stretched axes: out[i0, i1, i2, i3] = x[i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3].

A program moves a tile whose columns lie side by side in `out` and whose rows, where they can, lie side by side in `x`: so loads
and stores are both coalesced, and the transposition happens inside the tile.
"""

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import ELEMENTS, launch, own_tile, source_index, tile_shape
from trigemm.layout import RANK, Layout, merge


@triton.jit
def permute_kernel(
    x_ptr, out_ptr, size1, size2, x_stride0, x_stride1, x_stride2, x_stride3, stride0, stride1, stride2,
    rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    source = source_index(row, size1, size2, 1, x_stride0, x_stride1, x_stride2, 0) + column * x_stride3
    target = source_index(row, size1, size2, 1, stride0, stride1, stride2, 0) + column
    tl.store(out_ptr + target, tl.load(x_ptr + source, in_out), in_out)


def turned_tile_shape(rows: int, columns: int) -> tuple[int, int]:
    """(BM, BN) where rows of `out` are columns of `x`: as square as the sizes allow."""
    width = min(32, triton.next_power_of_2(max(1, columns)))
    height = min(ELEMENTS // width, triton.next_power_of_2(max(1, rows)))
    return height, ELEMENTS // height


def permute(x: Tensor, layout: Layout, out: Tensor) -> None:
    """The elements of `x` that `layout` names, in row-major order, into `out`."""
    source, target = merge(layout, Layout(layout.shape, Layout.contiguous(layout.shape).strides))
    order = list(range(RANK))
    turned = source.strides[-1] > 1 and 1 in source.strides[:-1]
    if turned:  # the axis that is side by side in x becomes the last of the rows
        axis = source.strides.index(1)
        order.insert(2, order.pop(axis))
    source, target = source.permute(order), target.permute(order)
    rows, columns = source.shape[0] * source.shape[1] * source.shape[2], source.shape[3]
    tile = turned_tile_shape(rows, columns) if turned else tile_shape(rows, columns)
    launch(permute_kernel, rows, columns, tile, x, out, *source.shape[1:3], *source.strides, *target.strides[:3])
