"""Rows of a table by their numbers, and the sums that undo it: (V,C), (R) -> (R,C), and (R,C), (R) -> (V,C)."""

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import launch, own_tile, tile_shape


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
def scatter_add_kernel(
    x_ptr, index_ptr, out_ptr, V, rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """An index outside the table adds nothing. The order of the additions is open."""
    row, column, in_out = own_tile(rows, columns, INDEX, BM, BN)
    number = tl.load(index_ptr + row, row < rows, other=-1)  # [BM, 1]
    in_table = (number >= 0) & (number < V)
    x = tl.load(x_ptr + row * columns + column, in_out, other=0.0).to(tl.float32)
    tl.atomic_add(out_ptr + number * columns + column, x, in_out & in_table, sem="relaxed")


def gather(table: Tensor, indices: Tensor, out: Tensor) -> None:
    """Rows `indices` (int64) of the table."""
    rows, columns = indices.numel(), table.shape[1]
    launch(gather_kernel, rows, columns, tile_shape(rows, columns), table, indices, out, table.shape[0])


def scatter_add(updates: Tensor, indices: Tensor, out: Tensor) -> None:
    """Add each row of the updates to row `indices[…]` of `out`, float32."""
    rows, columns = indices.numel(), out.shape[1]
    launch(scatter_add_kernel, rows, columns, tile_shape(rows, columns), updates, indices, out, out.shape[0])
