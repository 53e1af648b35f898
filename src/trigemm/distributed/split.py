"""How the rows of a sequence are dealt out to ranks, and which blocks of the triangle each rank then has.

A causal triangle has more to do in its later rows. The sequence is cut into 2W blocks of rows, and rank r of W has two of them,
the head r and the tail 2W - 1 - r: then all ranks have the same number of live tiles. This is the order
that PyTorch's context parallelism calls head-tail. Where the length is no multiple of 2W, the last ranks have fewer rows, as many
as DTensor gives them (torch.chunk). Nothing here needs a process group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from trigemm.distributed.moves import fill
from trigemm.triangle import Triangle, ceil_div


@lru_cache
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
    """Some of a rank's rows that follow each other, and the first so many columns: entry (r, c) counts when c - r <= diagonal."""

    own: slice  # among the rank's rows, its head before its tail
    columns: int
    diagonal: int


def causal_blocks(length: int, columns: int, ranks: int, rank: int) -> list[Block]:
    """A rank's part of a causal matrix of `length` rows, whose last row sees all columns: the block with the longest rows first.

    >>> for block in causal_blocks(8, 10, 2, 0):
    ...     print(block)
    Block(own=slice(2, 4, None), columns=10, diagonal=8)
    Block(own=slice(0, 2, None), columns=4, diagonal=2)
    """
    head, tail = rank_rows(length, ranks, rank)
    before = columns - length
    places = slice(0, len(head)), slice(len(head), len(head) + len(tail))
    found = [Block(own, rows.stop + before, rows.start + before) for own, rows in zip(places, (head, tail), strict=True) if rows]
    return found[::-1]


def fill_beyond(x: Tensor, blocks: Sequence[Block], value: float) -> None:
    """Set a rank's rows (…,rows,S) to a value beyond the columns of each block."""
    for block in blocks:
        fill(x[..., block.own, block.columns :], value)
