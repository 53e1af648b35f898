"""In which rounds the ranks work on one large matrix's product with its transpose: an order without any tensor.

Of the lower triangle a rank has the rows of its head and its tail. What it multiplies them with are its own rows and those of all
other ranks that lie above them: their heads, and the tails of later ranks, which its own tail meets; and the heads of earlier
ranks once more, which its own head meets. So each other rank has two blocks of products for it. In a round a rank computes a
piece of one, with rows that come from one other rank, while it sends its own to another: all are equally busy.
"""

from dataclasses import dataclass
from functools import lru_cache

from trigemm.distributed.split import rank_rows
from trigemm.triangle import ceil_div

NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class Round:
    """One rank's part of a round. Ranges are rows of the whole matrix.

    source    the rank whose rows are multiplied with, and whose mirror image is made
    comes     its rows that come in this round, if any; they are used in this one and perhaps the next
    slot      which of two places holds them
    own       this rank's rows, times
    columns   those of `source`: a product, all of it below the diagonal
    target    the rank that does the same with rows of this one
    sends     this rank's rows that it gets for it
    mirrored  and those it multiplies with `beside`, its own: the entries of this rank that mirror its product
    """

    source: int
    comes: range
    slot: int
    own: range
    columns: range
    target: int
    sends: range
    mirrored: range
    beside: range


@lru_cache
def rounds(length: int, ranks: int, rank: int, height: int) -> list[Round]:
    """All rounds of a rank, with pieces of `height` rows. What `comes` in the k-th is what the `source` `sends` in its k-th.

    >>> [(r.own, r.columns) for r in rounds(8, 2, 1, 2)]
    [(range(4, 6), range(0, 2)), (range(2, 4), range(0, 2))]
    """
    found, came = [], 0
    for step in range(1, ranks):
        source, target = (rank - step) % ranks, (rank + step) % ranks
        for first in range(0, ceil_div(ceil_div(length, ranks), 2), height):
            for second in (False, True):
                piece = slice(first, first + height)
                own, block = _product(length, ranks, rank, source, second)
                beside, mine = _product(length, ranks, target, rank, second)
                comes = _moved(length, ranks, rank, source, second, block[piece])
                sends = _moved(length, ranks, target, rank, second, mine[piece])
                came += bool(comes)
                found.append(Round(source, comes, came % 2, own, block[piece], target, sends, mine[piece], beside))
    return found


def _product(length: int, ranks: int, rank: int, source: int, second: bool) -> tuple[range, range]:
    """The rows of a rank and of a source that meet in the first or the second of their two blocks of products."""
    (head, tail), (their_head, their_tail) = (rank_rows(length, ranks, r) for r in (rank, source))
    if not second:
        return tail, their_head
    return (tail, their_tail) if source > rank else (head, their_head)


def _moved(length: int, ranks: int, rank: int, source: int, second: bool, rows: range) -> range:
    """The rows that come to a rank for a product: none where they came for the one before, or where it has no rows itself."""
    return rows if any(rank_rows(length, ranks, rank)) and (source > rank or not second) else NOTHING
