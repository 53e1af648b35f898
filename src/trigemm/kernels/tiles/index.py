"""How the kernels of single elements walk over tensors of four axes: as rows of columns, in tiles.

The first three axes are the rows, numbered through; where a row begins is `layout.source_index`. The last axis is the columns.
"""

from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl

from trigemm import layout
from trigemm.triangle import ceil_div

source_index = triton.jit(FunctionType(layout.source_index.__code__, globals(), "source_index"))
"""The plain function of the same name, as seen from here, where Triton's interpreter finds `tl`."""

ELEMENTS = 1024
"""Elements of a tile: four for each of 256 threads."""

WARPS = 8


@triton.jit
def own_tile(rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Row numbers [BM, 1], column numbers [1, BN], and whether they are inside [BM, BN], of this program's tile."""
    tile_columns = tl.cdiv(columns, BN)
    row = ((tl.program_id(0) // tile_columns).to(INDEX) * BM + tl.arange(0, BM))[:, None]
    column = ((tl.program_id(0) % tile_columns).to(INDEX) * BN + tl.arange(0, BN))[None, :]
    return row, column, (row < rows) & (column < columns)


def tile_shape(rows: int, columns: int, elements: int = ELEMENTS) -> tuple[int, int]:
    """(BM, BN), powers of two with `elements` elements, as wide as the columns need."""
    width = min(elements, triton.next_power_of_2(max(1, columns)))
    return elements // width, width


def launch(kernel: Any, rows: int, columns: int, tile: tuple[int, int], *arguments: Any) -> None:
    """kernel(*arguments, rows, columns, INDEX, BM, BN), a program a tile, on the device of the first argument."""
    programs = ceil_div(rows, tile[0]) * ceil_div(columns, tile[1])
    index = tl.int32 if rows * columns < 2**31 - ELEMENTS else tl.int64
    with torch.cuda.device_of(arguments[0]):
        if programs:
            kernel[(programs,)](*arguments, rows, columns, index, *tile, num_warps=WARPS)
