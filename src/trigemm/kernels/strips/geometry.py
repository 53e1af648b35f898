"""Strips of rows of a triangle: the columns that a strip shares, and the jagged rest along the diagonal."""

from collections.abc import Iterator
from dataclasses import dataclass

from trigemm.triangle import Triangle


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows of a triangle, cut at the columns where their membership changes.

    rows    the rows
    whole   columns that belong to the triangle in every row
    jagged  columns that belong in some rows only; they lie beside `whole`, towards the diagonal
    live    `whole` and `jagged` together
    dead    columns that belong in no row
    inside  the part of the triangle that lies in rows x jagged
    """

    rows: slice
    whole: slice
    jagged: slice
    live: slice
    dead: slice
    inside: Triangle


def strips(triangle: Triangle, height: int) -> Iterator[Strip]:
    """The triangle's rows in strips of `height`, from the top; a last strip may be lower.

    >>> [(s.rows, s.whole, s.jagged) for s in strips(Triangle(3, 3), 2)]
    [(slice(0, 2, None), slice(0, 1, None), slice(1, 2, None)), (slice(2, 3, None), slice(0, 3, None), slice(3, 3, None))]
    """
    for top in range(0, triangle.rows, height):
        bottom = min(top + height, triangle.rows)
        first, last = triangle.columns_of(top), triangle.columns_of(bottom - 1)
        if triangle.uplo == "lower":
            whole, live = slice(0, first.stop), slice(0, last.stop)
            jagged, dead = slice(first.stop, last.stop), slice(last.stop, triangle.columns)
        else:
            whole, live = slice(last.start, triangle.columns), slice(first.start, triangle.columns)
            jagged, dead = slice(first.start, last.start), slice(0, first.start)
        inside = Triangle(bottom - top, jagged.stop - jagged.start, triangle.uplo, triangle.diagonal + top - jagged.start)
        yield Strip(slice(top, bottom), whole, jagged, live, dead, inside)
