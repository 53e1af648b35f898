"""Rows of a table by their numbers, and the sums that undo it: (V,C), (R) -> (R,C), and (R,C), (R) -> (V,C).

The sums are the same in every run: the updates are sorted by number, equal ones in the order in which they came, and one program
adds up those of a row.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import Form, Launch, form, index_type, own_tile, tile_shape, tiles
from trigemm.kernels.tiles.plan import PLANS

SUMMED, WIDEST = 2048, 256
"""Elements of a tile of updates that are added at a time, and its columns at most."""


@triton.jit
def gather_kernel(
    table_ptr, index_ptr, out_ptr, V, rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """An index outside the table reads nothing and gives NaN."""
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    number = tl.load(index_ptr + row, row < rows, other=0)  # [BM, 1]
    in_table = (number >= 0) & (number < V)
    x = tl.load(table_ptr + number * columns + column, in_out & in_table, other=float("nan"))
    tl.store(out_ptr + row * columns + column, x, in_out)


@triton.jit
def segment_sum_kernel(
    x_ptr, order_ptr, begin_ptr, out_ptr, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Row v of out: the sum of rows order[begin[v]] to order[begin[v + 1] - 1] of x."""
    tile_columns = tl.cdiv(columns, BN)
    v = (tl.program_id(0) // tile_columns).to(INDEX)
    column = (tl.program_id(0) % tile_columns) * BN + tl.arange(0, BN)  # [BN]
    begin, end = tl.load(begin_ptr + v), tl.load(begin_ptr + v + 1)
    acc = tl.zeros([BM, BN], tl.float32)
    for first in range(begin, end, BM):
        place = first + tl.arange(0, BM)  # [BM]
        row = tl.load(order_ptr + place, place < end, other=0)
        in_updates = (place < end)[:, None] & (column < columns)[None, :]
        x = tl.load(x_ptr + (row * columns)[:, None] + column[None, :], in_updates, other=0.0, eviction_policy="evict_first")
        acc += x.to(tl.float32)
    tl.store(out_ptr + v * columns + column, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), column < columns)


@lru_cache(PLANS)
def _gather_launch(table: Form, indices: Form, device: torch.device) -> Launch:
    (length, columns), rows = table[0], indices[0].numel()
    tile = tile_shape(rows, columns)
    return Launch(
        gather_kernel, tiles(rows, columns, tile), length, rows, columns, index_type(max(rows, length) * columns), *tile
    )


@lru_cache(PLANS)
def _sum_launch(out: Form, x: Form, device: torch.device) -> Launch:
    rows, columns = out[0]
    bn = min(WIDEST, triton.next_power_of_2(max(1, columns)))
    programs = tiles(rows, columns, (1, bn))
    return Launch(segment_sum_kernel, programs, columns, index_type(rows * columns), SUMMED // bn, bn)


def gather(table: Tensor, indices: Tensor, out: Tensor) -> None:
    """Rows `indices` (int64) of the table."""
    _gather_launch(form(table), form(indices), table.device)(table, indices, out)


def segments(indices: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The places of the indices in the order of their values, and where in it each of the numbers 0 to `rows` begins.

    Other indices come before the first and after the last. A radix sort makes a pass for each byte, so all the numbers of a
    narrow dtype are used, from the least on.
    """
    narrow = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if rows + 1 < 2 ** (8 * dtype.itemsize))
    first = torch.iinfo(narrow).min + 1  # stands for 0
    numbers, order = torch.sort((indices.reshape(-1).clamp(-1, rows) + first).to(narrow), stable=True)
    return order, torch.searchsorted(numbers, torch.arange(first, first + rows + 1, dtype=narrow, device=indices.device))


def scatter_add(updates: Tensor, indices: Tensor, out: Tensor) -> None:
    """The sums of the updates of equal index (int64); an index that is no row of `out` adds nothing."""
    _sum_launch(form(out), form(updates), out.device)(updates, *segments(indices, len(out)), out)
