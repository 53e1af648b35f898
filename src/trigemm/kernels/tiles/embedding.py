"""Rows of a table by their numbers, and the sums that undo it: (V,C), (R) -> (R,C), and (R,C), (R) -> (V,C).

The sums are the same in every run: the updates are sorted by number, equal ones in the order in which they came, and one program
adds up those of a row. Where many are equal that would take long, so pieces of the sorted updates that lie within one row are
summed before, side by side, and the row's program adds these sums.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import Form, Launch, form, index_type, own_tile, tile_shape, tiles
from trigemm.kernels.tiles.plan import PLANS

PIECE = 32
"""Sorted updates that are summed by one program."""

PIECE_ROWS, JOINED_ROWS, WIDEST = 16, 4, 256
"""Updates that are added at a time, in pieces and beside them, and the columns of a tile at most."""


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
def add_rows(acc, x_ptr, order_ptr, begin, end, columns, column, ORDERED: tl.constexpr, BM: tl.constexpr):
    """acc [BM, BN] and rows `begin` to `end` of x, or rows order[begin] to order[end - 1] of it, BM at a time."""
    for first in range(begin, end, BM):
        place = first + tl.arange(0, BM)  # [BM]
        row = tl.load(order_ptr + place, place < end, other=0) if ORDERED else place.to(tl.int64)
        in_rows = (place < end)[:, None] & (column < columns)[None, :]
        acc += tl.load(x_ptr + (row * columns)[:, None] + column[None, :], in_rows, other=0.0).to(tl.float32)
    return acc


@triton.jit
def piece_sum_kernel(
    x_ptr, number_ptr, order_ptr, partial_ptr, columns, PIECE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Row p of partial: the sum of the p-th PIECE of sorted updates, if they are of one number; unwritten if not."""
    tile_columns = tl.cdiv(columns, BN)
    p = tl.program_id(0) // tile_columns
    column = (tl.program_id(0) % tile_columns) * BN + tl.arange(0, BN)  # [BN]
    begin = p * PIECE
    if tl.load(number_ptr + begin) == tl.load(number_ptr + begin + PIECE - 1):
        acc = tl.zeros([BM, BN], tl.float32)
        acc = add_rows(acc, x_ptr, order_ptr, begin, begin + PIECE, columns, column, True, BM)
        tl.store(partial_ptr + p.to(tl.int64) * columns + column, tl.sum(acc, 0), column < columns)


@triton.jit
def joined_sum_kernel(
    x_ptr, order_ptr, begin_ptr, partial_ptr, out_ptr, columns, PIECE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Row v of out: the sum of rows order[begin[v]] to order[begin[v + 1] - 1] of x, of whole pieces by their sums."""
    tile_columns = tl.cdiv(columns, BN)
    v = (tl.program_id(0) // tile_columns).to(tl.int64)
    column = (tl.program_id(0) % tile_columns) * BN + tl.arange(0, BN)  # [BN]
    begin, end = tl.load(begin_ptr + v), tl.load(begin_ptr + v + 1)
    first, last = tl.cdiv(begin, PIECE), end // PIECE
    acc = tl.zeros([BM, BN], tl.float32)
    if first < last:
        acc = add_rows(acc, x_ptr, order_ptr, begin, first * PIECE, columns, column, True, BM)
        acc = add_rows(acc, partial_ptr, order_ptr, first, last, columns, column, False, BM)
        begin = last * PIECE
    acc = add_rows(acc, x_ptr, order_ptr, begin, end, columns, column, True, BM)
    tl.store(out_ptr + v * columns + column, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), column < columns)


@lru_cache(PLANS)
def _gather_launch(table: Form, indices: Form, device: torch.device) -> Launch:
    (length, columns), rows = table[0], indices[0].numel()
    tile = tile_shape(rows, columns)
    return Launch(
        gather_kernel, tiles(rows, columns, tile), length, rows, columns, index_type(max(rows, length) * columns), *tile
    )


@lru_cache(PLANS)
def _sum_launches(out: Form, x: Form, pieces: int, device: torch.device) -> tuple[Launch, Launch]:
    rows, columns = out[0]
    tile = 1, min(WIDEST, triton.next_power_of_2(max(1, columns)))
    return (
        Launch(piece_sum_kernel, tiles(pieces, columns, tile), columns, PIECE, PIECE_ROWS, tile[1]),
        Launch(joined_sum_kernel, tiles(rows, columns, tile), columns, PIECE, JOINED_ROWS, tile[1], num_warps=1),
    )


def gather(table: Tensor, indices: Tensor, out: Tensor) -> None:
    """Rows `indices` (int64) of the table."""
    _gather_launch(form(table), form(indices), table.device)(table, indices, out)


def segments(indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The indices in the order of their values, their places, and where in that order each of the numbers 0 to `rows` begins.

    Other indices come before the first and after the last. A radix sort makes a pass for each byte, so all the numbers of a
    narrow dtype are used, from the least on, which stands for -1.
    """
    narrow = next(dtype for dtype in (torch.int16, torch.int32, torch.int64) if rows + 1 < 2 ** (8 * dtype.itemsize))
    first = torch.iinfo(narrow).min + 1  # stands for 0
    numbers, order = torch.sort((indices.reshape(-1).clamp(-1, rows) + first).to(narrow), stable=True)
    bounds = torch.arange(first, first + rows + 1, dtype=narrow, device=indices.device)
    return numbers, order, torch.searchsorted(numbers, bounds)


def scatter_add(updates: Tensor, indices: Tensor, out: Tensor) -> None:
    """The sums of the updates of equal index (int64); an index that is no row of `out` adds nothing."""
    numbers, order, begin = segments(indices, len(out))
    pieces = len(order) // PIECE
    partial = torch.empty(pieces, out.shape[1], device=out.device)
    sum_pieces, join = _sum_launches(form(out), form(updates), pieces, out.device)
    sum_pieces(updates, numbers, order, partial)
    join(updates, order, begin, partial, out)
