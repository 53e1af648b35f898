"""Geometry of a triangle in a matrix: membership, live tiles, and what must be computed and moved.

A triangle is a `rows x columns` matrix of which one side of a diagonal counts:

    lower: entry (r, c) belongs when c - r <= diagonal        (torch.tril)
    upper: entry (r, c) belongs when c - r >= diagonal        (torch.triu)

Cut into tiles, the *live* tiles are those that hold at least one entry of the triangle. They are numbered row by row from the
top left, and `TileSchedule` turns a number into a (tile row, tile column) and back, in closed form. Kernels carry a
device copy of `TileSchedule.tile`; this module is what they are tested against. It needs the standard library only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Literal

Uplo = Literal["lower", "upper"]


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below a / b, for b > 0.

    >>> ceil_div(7, 4), ceil_div(8, 4), ceil_div(-7, 4)
    (2, 2, -1)
    """
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Triangle:
    """One side of a diagonal of a `rows x columns` matrix, the diagonal included.

    >>> lower = Triangle(3, 4)
    >>> [list(lower.columns_of(r)) for r in range(3)]
    [[0], [0, 1], [0, 1, 2]]
    >>> (0, 1) in lower, (2, 1) in lower, lower.size
    (False, True, 6)
    """

    rows: int
    columns: int
    uplo: Uplo = "lower"
    diagonal: int = 0

    def __contains__(self, entry: tuple[int, int]) -> bool:
        row, column = entry
        inside = 0 <= row < self.rows and 0 <= column < self.columns
        distance = column - row - self.diagonal
        return inside and (distance <= 0 if self.uplo == "lower" else distance >= 0)

    def columns_of(self, row: int) -> range:
        """The columns that belong to the triangle in one row."""
        edge = row + self.diagonal
        if self.uplo == "lower":
            return range(max(0, min(self.columns, edge + 1)))
        return range(max(0, min(self.columns, edge)), self.columns)

    @property
    def size(self) -> int:
        """The number of entries that belong to the triangle."""
        if self.uplo == "upper":
            return self.rows * self.columns - self.complement.size
        # Row r has clamp(r + diagonal + 1, 0, columns) entries: none, then a slope, then whole rows.
        begin = min(self.rows, max(0, -self.diagonal))
        full = min(self.rows, max(begin, self.columns - self.diagonal - 1))
        slope = full - begin
        first = begin + self.diagonal + 1
        return slope * first + slope * (slope - 1) // 2 + (self.rows - full) * self.columns

    @property
    def complement(self) -> "Triangle":
        """The entries that do not belong, as a triangle of their own."""
        if self.uplo == "lower":
            return Triangle(self.rows, self.columns, "upper", self.diagonal + 1)
        return Triangle(self.rows, self.columns, "lower", self.diagonal - 1)

    @property
    def transposed(self) -> "Triangle":
        """The triangle that the entries form in the transposed matrix."""
        return Triangle(self.columns, self.rows, "upper" if self.uplo == "lower" else "lower", -self.diagonal)

    def flops(self, depth: int) -> int:
        """Useful floating-point operations of a product of inner size `depth`: one multiplication and one addition a term."""
        return 2 * self.size * depth

    def tiles(self, block_rows: int, block_columns: int) -> "TileSchedule":
        """The live tiles of a lower triangle cut into `block_rows x block_columns` tiles."""
        return TileSchedule(self, block_rows, block_columns)


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The live tiles of a lower triangle, numbered row by row.

    Tile row i has clamp(first + (i - begin) * step, 0, tile_columns) live tiles from row `begin` on: a slope of
    `slope_rows` rows, then rows that are live over their whole width. `block_rows` must be a multiple of
    `block_columns`, so that the slope rises by a whole number of tiles a row.

    >>> schedule = Triangle(5, 5).tiles(2, 2)
    >>> len(schedule), list(schedule)
    (6, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
    >>> schedule.number(2, 1)
    4
    """

    triangle: Triangle
    block_rows: int
    block_columns: int

    def __post_init__(self) -> None:
        if self.triangle.uplo != "lower":
            raise ValueError("a tile schedule is made of a lower triangle; transpose an upper one first (Triangle.transposed)")
        if self.block_columns <= 0 or self.block_rows % self.block_columns:
            raise ValueError(
                f"block_rows must be a positive multiple of block_columns, got {self.block_rows} and {self.block_columns}"
            )

    @property
    def tile_rows(self) -> int:
        return ceil_div(self.triangle.rows, self.block_rows)

    @property
    def tile_columns(self) -> int:
        return ceil_div(self.triangle.columns, self.block_columns)

    @property
    def step(self) -> int:
        return self.block_rows // self.block_columns

    def _live_if_whole(self, tile_row: int) -> int:
        """Live tiles of a row of tiles, as if the matrix did not end inside it; may be negative or exceed the width."""
        return (tile_row * self.block_rows + self.block_rows - 1 + self.triangle.diagonal) // self.block_columns + 1

    @property
    def begin(self) -> int:
        """The first row of tiles that has a live tile (`tile_rows` where there is none)."""
        if self.tile_columns == 0:
            return self.tile_rows
        return min(self.tile_rows, max(0, ceil_div(1 - self._live_if_whole(0), self.step)))

    @property
    def first(self) -> int:
        """Live tiles in row `begin`, before the width of the matrix limits them."""
        return self._live_if_whole(self.begin)

    @property
    def slope_rows(self) -> int:
        """Rows of tiles from `begin` on that are not live over their whole width."""
        return max(0, min(self.tile_rows - self.begin, ceil_div(self.tile_columns - self.first, self.step)))

    @property
    def slope_tiles(self) -> int:
        """Live tiles in the rows of the slope, were the last row of tiles whole."""
        n = self.slope_rows
        return n * self.first + self.step * (n * (n - 1) // 2)

    def live(self, tile_row: int) -> int:
        """Live tiles in one row of tiles: its columns 0 to live - 1."""
        last_row = min((tile_row + 1) * self.block_rows, self.triangle.rows) - 1
        return max(0, min(self.tile_columns, (last_row + self.triangle.diagonal) // self.block_columns + 1))

    def _before(self, tile_row: int) -> int:
        """Live tiles in all rows above `tile_row`."""
        n = max(0, tile_row - self.begin)
        slope = min(n, self.slope_rows)
        return slope * self.first + self.step * (slope * (slope - 1) // 2) + (n - slope) * self.tile_columns

    def __len__(self) -> int:
        if self.tile_rows == 0:
            return 0
        return self._before(self.tile_rows - 1) + self.live(self.tile_rows - 1)

    @property
    def dead(self) -> "TileSchedule":
        """The tiles that are not live, turned by half a circle so that they form a lower triangle of tiles as well.

        Its tile (i, j) is tile (tile_rows - 1 - i, tile_columns - 1 - j) of this schedule. The triangle must fill its
        last row of tiles: rows a multiple of block_rows.
        """
        rows, columns = self.tile_rows * self.block_rows, self.tile_columns * self.block_columns
        if rows != self.triangle.rows:
            raise ValueError(f"rows must be a multiple of block_rows ({self.block_rows}), got {self.triangle.rows}")
        # A turned tile is dead when even its entry nearest to the diagonal is outside the triangle.
        diagonal = columns - rows - self.triangle.diagonal + 1 - self.block_rows - self.block_columns
        return TileSchedule(Triangle(rows, columns, "lower", diagonal), self.block_rows, self.block_columns)

    def number(self, tile_row: int, tile_column: int) -> int:
        """The number of a live tile."""
        if not (0 <= tile_row < self.tile_rows and 0 <= tile_column < self.live(tile_row)):
            raise IndexError(f"tile ({tile_row}, {tile_column}) is not live")
        return self._before(tile_row) + tile_column

    def tile(self, number: int) -> tuple[int, int]:
        """The (tile row, tile column) of a live tile, from its number."""
        if not 0 <= number < len(self):
            raise IndexError(f"tile number {number} is outside 0 to {len(self) - 1}")
        if number >= self.slope_tiles:
            row, column = divmod(number - self.slope_tiles, self.tile_columns)
            return self.begin + self.slope_rows + row, column
        # Largest n with n * first + step * n (n - 1) / 2 <= number.
        b = 2 * self.first - self.step
        n = (isqrt(b * b + 8 * self.step * number) - b) // (2 * self.step)
        return self.begin + n, number - (n * self.first + self.step * (n * (n - 1) // 2))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((row, column) for row in range(self.tile_rows) for column in range(self.live(row)))
