"""Strips of rows of a triangle, and the rectangles and corners that they are made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from trigemm.triangle import Triangle, ceil_div

ALIGN = 16
"""Strips are cut at multiples of this many columns: whole vectors and cache lines of every dtype for a BLAS."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows of a triangle, cut where the membership of columns changes.

    rows    the rows
    whole   columns that belong to the triangle in every row
    jagged  columns beside them that belong in some rows only (up to ALIGN - 1 columns more, for the alignment)
    beyond  columns that belong in no row
    inside  the part of the triangle that lies in rows x jagged
    """

    rows: slice
    whole: slice
    jagged: slice
    beyond: slice
    inside: Triangle


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of which all entries belong to a triangle (`inside` is None), or those in `inside`."""

    rows: slice
    columns: slice
    inside: Triangle | None


def gpu_height(rows: int) -> int:
    """Height of strips on a GPU, which wants few and large calls.

    >>> gpu_height(4096), gpu_height(100)
    (1024, 256)
    """
    return max(256, ceil_div(rows, 4))


def length(part: slice) -> int:
    """The number of indices in a slice with a start and a stop."""
    count: int = part.stop - part.start
    return count


def strips(triangle: Triangle, height: int) -> Iterator[Strip]:
    """The triangle's rows in strips of `height`, from the top; the last one may be lower.

    >>> [(s.rows, s.whole, s.jagged) for s in strips(Triangle(64, 64), 32)]
    [(slice(0, 32, None), slice(0, 0, None), slice(0, 32, None)), (slice(32, 64, None), slice(0, 32, None), slice(32, 64, None))]
    """
    for top in range(0, triangle.rows, height):
        bottom = min(top + height, triangle.rows)
        first, last = triangle.columns_of(top), triangle.columns_of(bottom - 1)
        if triangle.uplo == "lower":
            cut = first.stop if first.stop == last.stop else first.stop // ALIGN * ALIGN
            whole, jagged, beyond = slice(0, cut), slice(cut, last.stop), slice(last.stop, triangle.columns)
        else:
            cut = last.start if last.start == first.start else min(-(-last.start // ALIGN) * ALIGN, triangle.columns)
            whole, jagged, beyond = slice(cut, triangle.columns), slice(first.start, cut), slice(0, first.start)
        inside = replace(triangle, rows=bottom - top, columns=length(jagged), diagonal=triangle.diagonal + top - jagged.start)
        yield Strip(slice(top, bottom), whole, jagged, beyond, inside)


@lru_cache(maxsize=64)
def blocks(triangle: Triangle, heights: tuple[int, ...]) -> tuple[Block, ...]:
    """Disjoint blocks that cover the triangle: strips of the first height, their jagged parts in strips of the next, and so on.

    >>> [(b.rows, b.columns, b.inside is None) for b in blocks(Triangle(32, 32), (16,))]
    [(slice(0, 16, None), slice(0, 16, None), False), (slice(16, 32, None), slice(0, 16, None), True), \
(slice(16, 32, None), slice(16, 32, None), False)]
    """
    found = []
    for strip in strips(triangle, heights[0]):
        if length(strip.whole):
            found.append(Block(strip.rows, strip.whole, None))
        if length(strip.jagged) and len(heights) == 1:
            found.append(Block(strip.rows, strip.jagged, strip.inside))
        elif length(strip.jagged):
            top, left = strip.rows.start, strip.jagged.start
            for block in blocks(strip.inside, heights[1:]):
                rows = slice(block.rows.start + top, block.rows.stop + top)
                found.append(Block(rows, slice(block.columns.start + left, block.columns.stop + left), block.inside))
    return tuple(found)
