"""How the rows of a sequence are dealt out to ranks, and which blocks of the triangle each rank then has.

A causal triangle has more to do in its later rows. The sequence is cut into 2W blocks of rows, and rank r of W has two of them,
the head r and the tail 2W - 1 - r: then all ranks have the same number of live tiles, at every step of a ring. This is the order
that PyTorch's context parallelism calls head-tail. Where the length is no multiple of 2W, the last ranks have fewer rows, as many
as DTensor gives them (torch.chunk). Plain integers; nothing here needs a process group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trigemm.triangle import Triangle, ceil_div


def rank_rows(length: int, ranks: int, rank: int) -> tuple[range, range]:
    """The rows of a rank: its head and its tail.

    >>> [rank_rows(8, 2, r) for r in range(2)]
    [(range(0, 2), range(6, 8)), (range(2, 4), range(4, 6))]
    """
    chunk = max(1, ceil_div(length, ranks))
    whole = min(rank, length // chunk)  # ranks before this one that have a whole chunk; one more may have the rest
    rest = length % chunk if rank > whole else 0
    size = max(0, min(chunk, length - rank * chunk))
    head = whole * ceil_div(chunk, 2) + ceil_div(rest, 2)
    tail = length - whole * (chunk // 2) - rest // 2
    return range(head, head + ceil_div(size, 2)), range(tail - size // 2, tail)


def part(rows: range, index: int, parts: int) -> range:
    """One of nearly equal parts of a range.

    >>> [part(range(10, 15), i, 2) for i in range(2)]
    [range(10, 12), range(12, 15)]
    """
    return rows[len(rows) * index // parts : len(rows) * (index + 1) // parts]


def live_tiles(length: int, ranks: int, rank: int, tile: int) -> int:
    """Live tiles of a causal triangle that fall to a rank; each of its two blocks of rows is cut into tiles from its top."""
    return sum(len(Triangle(len(rows), length, "lower", rows.start).tiles(tile, tile)) for rows in rank_rows(length, ranks, rank))


def balance(length: int, ranks: int, *, tile: int | None = None) -> float:
    """How evenly a causal triangle is dealt out: the largest number of live tiles of a rank over the mean. 1.0 is even.

    Args:
        length: rows of the sequence. ranks: how many share it.
        tile: edge of a square tile; by default a block of rows, ceil(length / (2 * ranks)). With 1, entries are counted; with a
            kernel's own edge, what its launches come to.

    >>> balance(4096, 8), balance(4096, 8, tile=128), balance(4096, 8, tile=1)
    (1.0, 1.0, 1.0)
    >>> round(balance(6, 2, tile=1), 3)  # not a multiple of 2 * ranks
    1.143
    """
    if length < 1 or ranks < 1:
        raise ValueError(f"balance: length and ranks must be positive; got {length} and {ranks}")
    edge = ceil_div(length, 2 * ranks) if tile is None else tile
    tiles = [live_tiles(length, ranks, rank, edge) for rank in range(ranks)]
    return max(tiles) * ranks / sum(tiles)


@dataclass(frozen=True, slots=True)
class Block:
    """Where a range of a rank's rows meets a range of columns: entries (r, c) of the block are live when c - r <= diagonal."""

    rows: range  # of the whole matrix
    columns: range
    first: int  # which of the rank's own rows the block begins with, its head before its tail
    visitor: int  # which of the ranges of columns these are
    diagonal: int

    @property
    def live(self) -> bool:
        return self.diagonal > -len(self.rows)

    @property
    def own(self) -> slice:
        """The block's rows among the rank's own."""
        return slice(self.first, self.first + len(self.rows))

    @property
    def of(self) -> tuple[slice, slice]:
        """The block's place in what a rank has of the matrix: its own rows, and all columns."""
        return self.own, slice(self.columns.start, self.columns.stop)


def blocks(rows: Sequence[range], columns: Sequence[range], diagonal: int) -> Iterator[Block]:
    """The blocks that a rank's ranges of rows and some ranges of columns make, in a triangle with that diagonal.

    >>> [(b.rows, b.own, b.diagonal, b.live) for b in blocks([range(2), range(6, 8)], [range(2, 4)], 0)]
    [(range(0, 2), slice(0, 2, None), -2, False), (range(6, 8), slice(2, 4, None), 4, True)]
    """
    for visitor, keys in enumerate(columns):
        first = 0
        for own in rows:
            if own and keys:
                yield Block(own, keys, first, visitor, diagonal + own.start - keys.start)
            first += len(own)
