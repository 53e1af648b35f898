"""The device copy of `trigemm.triangle.TileSchedule`: from the number of a live tile to its row and column of tiles."""

from typing import Any

import triton
import triton.language as tl

from trigemm.triangle import TileSchedule


@triton.jit
def tile_of(number, begin, first, step: tl.constexpr, slope_rows, slope_tiles, columns):
    """(tile row, tile column) of live tile `number`; the other arguments are a schedule's properties of the same names."""
    if number < slope_tiles:
        # The root of n * first + step * n (n - 1) / 2 = number, in a form that cancels nothing; integer steps mend its rounding.
        b = (2 * first - step).to(tl.float32)
        x = number.to(tl.float32)
        n = (4.0 * x / tl.maximum(b + tl.sqrt(b * b + 8.0 * step * x), 1.0)).to(tl.int64)
        n = tl.where(tiles_above(n, first, step) > number, n - 1, n)
        n = tl.where(tiles_above(n + 1, first, step) <= number, n + 1, n)
        row = begin + n
        column = number - tiles_above(n, first, step)
    else:
        row = (begin + slope_rows + (number - slope_tiles) // columns).to(tl.int64)
        column = ((number - slope_tiles) % columns).to(tl.int64)
    return row, column


@triton.jit
def tiles_above(n, first, step: tl.constexpr):
    """Live tiles in the first n rows of the slope."""
    return n * first + step * ((n * (n - 1)) // 2)


@triton.jit
def grouped_tile_of(
    number, begin, first, slope_rows, slope_tiles, columns, BM: tl.constexpr, BN: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """(tile row, tile column) of tile `number`, where tiles are counted square by square, of SIDE x SIDE entries.

    The other arguments are those of the squares' schedule. Inside a square, tiles are counted column by column: programs that
    run at the same time share their operands in the L2. Squares that the diagonal crosses hold dead tiles as well.
    """
    HEIGHT: tl.constexpr = SIDE // BM
    WIDTH: tl.constexpr = SIDE // BN
    row, column = tile_of(number // (HEIGHT * WIDTH), begin, first, 1, slope_rows, slope_tiles, columns)
    inside = number % (HEIGHT * WIDTH)
    return row * HEIGHT + inside % HEIGHT, column * WIDTH + inside // HEIGHT


def schedule_arguments(schedule: TileSchedule) -> tuple[Any, ...]:
    """begin, first, slope_rows, slope_tiles; `step` and `columns` follow from sizes that a kernel has already."""
    return schedule.begin, schedule.first, schedule.slope_rows, schedule.slope_tiles
