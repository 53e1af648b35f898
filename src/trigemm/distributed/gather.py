"""What all ranks have of some rows, put together at each of them; and what all have made for some rows, summed at their owner.

The whole has its rows first in memory: then each rank's two blocks of them are contiguous, and come straight to their place. What
is gathered together stands side by side in each row, so that there is one message for each block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trigemm.distributed.moves import copy
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.split import rank_rows

GROUP_BYTES = 2**27
"""What is gathered at a time: two such groups are in memory."""

FIRST_BYTES = 2**25
"""Of these the first, which little hides."""

PIECE_BYTES = 24 * 2**20
"""Rows of one large matrix that come at a time, two such pieces, where the result has no room for more."""

MIRRORED_BYTES = 12 * 2**20
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

    def wholes(self, like: Sequence[Tensor], dtype: torch.dtype | None = None) -> tuple[Tensor, list[Tensor]]:
        """Uninitialised memory (length,B,H,sum of N), and in it the whole of each of some tensors, (B,H,length,N)."""
        batch, heads = like[0].shape[:2]
        sizes = [x.shape[-1] for x in like]
        memory = like[0].new_empty((self.length, batch, heads, sum(sizes)), dtype=dtype)
        return memory, list(memory.permute(1, 2, 0, 3).split(sizes, -1))

    def blocks(self, memory: Tensor, rank: int) -> list[Tensor]:
        """The rows of a rank, its head and its tail: contiguous."""
        return [memory[rows.start : rows.stop] for rows in self.rows(rank)]

    def gather(self, *parts: Tensor) -> tuple[list[Tensor], Transfer]:
        """Put together what each rank has of some tensors (B,H,rows of the rank,N): complete once the transfer is."""
        memory, wholes = self.wholes(parts)
        head, tail = self.rows(self.peers.rank)
        for part, whole in zip(parts, wholes, strict=True):
            copy(part[:, :, : len(head)], whole[:, :, head.start : head.stop])
            copy(part[:, :, len(head) :], whole[:, :, tail.start : tail.stop])
        coming = {rank: self.blocks(memory, rank) for rank in self.others}
        return wholes, self.peers.exchange(dict.fromkeys(self.others, self.blocks(memory, self.peers.rank)), coming)

    def sum(self, memory: Tensor, into: Sequence[Tensor]) -> None:
        """Sum over all ranks what each has made in such memory, and give each rank its rows, always in the same order."""
        totals = self.blocks(memory, self.peers.rank)
        coming = {rank: [torch.empty_like(total) for total in totals] for rank in self.others}
        self.peers.exchange({rank: self.blocks(memory, rank) for rank in self.others}, coming).wait()
        for share in coming.values():
            for total, x in zip(totals, share, strict=True):
                total += x
        for part, x in zip(into, torch.cat(totals).permute(1, 2, 0, 3).split([x.shape[-1] for x in into], -1), strict=True):
            part.copy_(x)
