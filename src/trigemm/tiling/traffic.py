"""What a tiled product moves between global memory and the chip, in closed form.

c = a @ b, (M,K) x (K,N) -> (M,N), is cut into tiles [BM, BN] of c. Each is computed on its own: for every slice of depth BK, a
tile [BM, BK] of `a` and a tile [BK, BN] of `b` are loaded; at the end the tile of c is stored once. So an element of `a` is
loaded once for each column of tiles, an element of `b` once for each row of tiles:

    loads = M K ceil(N / BN) + K N ceil(M / BM)        stores = M N

Where blocks divide the sizes, that is (BM BK + BK BN) (M / BM) (N / BN) (K / BK). A tile that reaches beyond the border is filled
up with zeros: those elements are *masked*, neither loaded nor stored, and reported apart.
"""

from dataclasses import dataclass
from numbers import Integral

from trigemm.triangle import TileSchedule, Triangle, ceil_div


@dataclass(frozen=True, slots=True)
class Moved:
    """Elements of one matrix that were loaded or stored, their bytes, and the elements of its tiles that were masked."""

    elements: int
    bytes: int
    masked: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a product moves: elements loaded of `a` and `b`, elements stored of `c`, and the number of tiles of `c`."""

    a: Moved
    b: Moved
    c: Moved
    tiles: int

    @property
    def loads(self) -> int:
        """Elements loaded."""
        return self.a.elements + self.b.elements

    @property
    def stores(self) -> int:
        """Elements stored."""
        return self.c.elements

    @property
    def loaded_bytes(self) -> int:
        return self.a.bytes + self.b.bytes

    @property
    def stored_bytes(self) -> int:
        return self.c.bytes

    @property
    def masked(self) -> int:
        """Elements of tiles that were neither loaded nor stored: beyond the border, or, of `c`, outside the triangle."""
        return self.a.masked + self.b.masked + self.c.masked


def predicted_traffic(
    m: int, n: int, k: int, block_m: int, block_n: int, block_k: int, *, itemsize: int = 4, diagonal: int | None = None
) -> Traffic:
    """The traffic of `tiled_matmul`, exact for all sizes. `itemsize` is that of an element, in bytes.

    diagonal   None: the whole product. An integer: its lower triangle (`torch.tril`), of which only live tiles are computed;
               block_m must then be a multiple of block_n, as for all triangular kernels.

    Raises ValueError for a negative size, a block that is not positive, or blocks that do not suit a triangle.

    >>> traffic = predicted_traffic(15, 9, 12, 5, 3, 6)
    >>> traffic.loads, traffic.stores, traffic.tiles, traffic.masked
    (864, 135, 9, 0)
    >>> predicted_traffic(16, 10, 12, 5, 3, 6).a
    Moved(elements=768, bytes=3072, masked=192)
    """
    check_sizes(m, n, k, block_m, block_n, block_k)
    rows, columns, steps = ceil_div(m, block_m), ceil_div(n, block_n), ceil_div(k, block_k)
    if diagonal is None:
        tiles, of_last_row, of_last_column, stores = rows * columns, columns, rows, m * n
    else:
        schedule = live_tiles(m, n, block_m, block_n, diagonal)
        tiles, stores = len(schedule), schedule.triangle.size
        of_last_row = schedule.live(rows - 1) if rows else 0
        of_last_column = _rows_to_the_end(schedule)
    # Lines of `a` and of `b` that all tiles together need: a full block each, but for the last row and the last column of tiles.
    a_lines = tiles * block_m - of_last_row * (rows * block_m - m)
    b_lines = tiles * block_n - of_last_column * (columns * block_n - n)
    depth = steps * block_k

    def moved(elements: int, attempted: int) -> Moved:
        return Moved(elements, elements * itemsize, attempted - elements)

    return Traffic(
        a=moved(a_lines * k, tiles * block_m * depth),
        b=moved(b_lines * k, tiles * block_n * depth),
        c=moved(stores, tiles * block_m * block_n),
        tiles=tiles,
    )


def live_tiles(m: int, n: int, block_m: int, block_n: int, diagonal: int) -> TileSchedule:
    """The live tiles of a lower triangle."""
    return Triangle(m, n, "lower", diagonal).tiles(block_m, block_n)


def check_sizes(m: int, n: int, k: int, block_m: int, block_n: int, block_k: int) -> None:
    """Raises TypeError for sizes and blocks that are no integers, ValueError for those that make no product."""
    for size in (m, n, k, block_m, block_n, block_k):
        if not isinstance(size, Integral):
            raise TypeError(f"sizes and blocks must be integers; got {size!r}")
    if min(m, n, k) < 0 or min(block_m, block_n, block_k) < 1:
        raise ValueError(
            f"sizes must not be negative and blocks must be positive; got M, N, K = {m}, {n}, {k} "
            f"and BM, BN, BK = {block_m}, {block_n}, {block_k}"
        )


def _rows_to_the_end(schedule: TileSchedule) -> int:
    """Rows of tiles that are live up to the last column of tiles."""
    if schedule.tile_rows == 0 or schedule.tile_columns == 0:
        return 0
    last = schedule.tile_rows - 1  # its border may cut the triangle, so it is looked at by itself
    below = max(0, last - schedule.begin - schedule.slope_rows)
    return below + (schedule.live(last) == schedule.tile_columns)
