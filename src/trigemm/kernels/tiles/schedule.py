"""The device copy of `trigemm.triangle.TileSchedule`: from the number of a live tile to its row and column of tiles."""

from typing import Any

import triton
import triton.language as tl

from trigemm.triangle import TileSchedule


@triton.jit
def tile_of(number, begin, first, step: tl.constexpr, slope_rows, slope_tiles, columns):
    """(tile row, tile column) of live tile `number`; the other arguments are a schedule's properties of the same names."""
    if number < slope_tiles:
        # Largest n with n * first + step * n (n - 1) / 2 <= number; rounding is mended by an integer step either way.
        b = (2 * first - step).to(tl.float64)
        n = ((tl.sqrt(b * b + 8.0 * step * number.to(tl.float64)) - b) / (2.0 * step)).to(tl.int64)
        n = tl.where(tiles_above(n, first, step) > number, n - 1, n)
        n = tl.where(tiles_above(n + 1, first, step) <= number, n + 1, n)
        row = begin + n
        column = number - tiles_above(n, first, step)
    else:
        row = begin + slope_rows + (number - slope_tiles) // columns
        column = (number - slope_tiles) % columns
    return row.to(tl.int64), column.to(tl.int64)


@triton.jit
def tiles_above(n, first, step: tl.constexpr):
    """Live tiles in the first n rows of the slope."""
    return n * first + step * ((n * (n - 1)) // 2)


def schedule_arguments(schedule: TileSchedule) -> tuple[Any, ...]:
    """begin, first, slope_rows, slope_tiles; `step` and `columns` follow from sizes that a kernel has already."""
    return schedule.begin, schedule.first, schedule.slope_rows, schedule.slope_tiles
