"""What all ranks have of some rows, put together at each of them; and what all have made for some rows, summed at their owner.

The whole has its rows first in memory: then each rank's two blocks of them are contiguous, and come straight to their place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trigemm.distributed.moves import copy
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.split import rank_rows

GROUP_BYTES = 2**27
"""What is gathered at a time: two such groups are in memory. The first, which little hides, is a quarter as large."""

PIECE_BYTES = 24 * 2**20
"""Rows of one large matrix that come at a time, two such pieces, where the result has no room for more."""

MIRRORED_BYTES = 2**23
"""Of its result, what is sent at a time and as much that comes: twice as much of both is in memory."""


@dataclass(frozen=True)
class Dealt:
    """A dimension of `length` rows that is dealt out to ranks: dimension -2 of tensors (B,H,rows,N)."""

    peers: Peers
    length: int

    def rows(self, rank: int) -> tuple[range, range]:
        return rank_rows(self.length, self.peers.size, rank)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.peers.size) if rank != self.peers.rank]

    def bytes_of_head(self, *tensors: Tensor) -> int:
        """What the whole of one head of some tensors (B,H,rows,N) takes."""
        return self.length * sum(x.shape[0] * x.shape[-1] * x.element_size() for x in tensors)

    def whole(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Uninitialised (B,H,length,N), rows first in memory."""
        batch, heads, _, size = like.shape
        return like.new_empty((self.length, batch, heads, size), dtype=dtype).permute(1, 2, 0, 3)

    def blocks(self, whole: Tensor, rank: int) -> list[Tensor]:
        """The rows of a rank, its head and its tail: contiguous (rows,B,H,N)."""
        by_rows = whole.permute(2, 0, 1, 3)
        return [by_rows[rows.start : rows.stop] for rows in self.rows(rank)]

    def gather(self, *parts: Tensor) -> tuple[list[Tensor], Transfer]:
        """Put together what each rank has of some tensors (B,H,rows of the rank,N): complete once the transfer is."""
        wholes = [self.whole(part) for part in parts]
        own = [block for whole in wholes for block in self.blocks(whole, self.peers.rank)]
        lengths = [len(rows) for rows in self.rows(self.peers.rank)]
        for block, rows in zip(own, [rows for part in parts for rows in part.split(lengths, -2)], strict=True):
            copy(rows.permute(2, 0, 1, 3), block)
        coming = {rank: [block for whole in wholes for block in self.blocks(whole, rank)] for rank in self.others}
        return wholes, self.peers.exchange(dict.fromkeys(self.others, own), coming)

    def sum(self, wholes: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Sum over all ranks what each has made (B,H,length,N), and give each rank its rows, always in the same order."""
        sent = {rank: [block for whole in wholes for block in self.blocks(whole, rank)] for rank in self.others}
        totals = [block for whole in wholes for block in self.blocks(whole, self.peers.rank)]
        coming = {rank: [torch.empty_like(total) for total in totals] for rank in self.others}
        self.peers.exchange(sent, coming).wait()
        for share in coming.values():
            for total, x in zip(totals, share, strict=True):
                total += x
        for i, part in enumerate(into):
            part.copy_(torch.cat(totals[2 * i : 2 * i + 2]).permute(1, 2, 0, 3))
