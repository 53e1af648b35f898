"""What happens before what: the order that barriers, warp barriers and atomics behind fences impose on the threads of a launch.

Two accesses that nothing orders may come in either order on a GPU, whatever order the simulator took.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trigemm.lab.traffic.log import Sync


class Moment(NamedTuple):
    """An access: the number of its block, its thread, and its place in the block's log."""

    block: int
    thread: int
    position: int


class Order:
    """The events of the blocks of one launch, in the order in which the blocks ran.

    `relied_on_atomics`: an answer rested on the order in which atomics came in this run, which may be another in the next.
    """

    def __init__(self) -> None:
        self._blocks: list[int] = []
        self._rank: dict[int, int] = {}
        self._syncs: list[Sequence[Sync]] = []
        self._positions: list[list[int]] = []
        self.relied_on_atomics = False

    def add(self, block: int, syncs: Sequence[Sync]) -> None:
        """The events of the next block. Without a fence, atomics order nothing."""
        if not any(sync.kind == "fence" for sync in syncs):
            syncs = [sync for sync in syncs if sync.kind != "atomic"]
        self._rank[block] = len(self._blocks)
        self._blocks.append(block)
        self._syncs.append(syncs)
        self._positions.append([sync.position for sync in syncs])

    def happens_before(self, first: Moment, second: Moment) -> bool:
        """Whether `first` is over before `second` begins, in every run of the kernel."""
        if (first.block, first.thread) == (second.block, second.thread):
            return first.position <= second.position
        after = {(first.block, first.thread)}  # threads of which all that comes next happens after `first`
        fenced: set[tuple[int, int]] = set()
        published: set[int] = set()  # addresses
        by_atomics = False
        for block, sync in self._between(first, second):
            here = [(block, thread) for thread in sync.threads]
            if sync.kind in ("barrier", "warp"):
                if not after.isdisjoint(here):
                    after.update(here)
            elif sync.kind == "fence":
                fenced.update(after.intersection(here))
            else:
                if sync.address in published and here[0] not in after:
                    after.add(here[0])
                    by_atomics = True
                if here[0] in fenced:
                    published.add(sync.address)
        ordered = (second.block, second.thread) in after
        self.relied_on_atomics |= ordered and by_atomics
        return ordered

    def _between(self, first: Moment, second: Moment) -> Iterator[tuple[int, Sync]]:
        """The events after `first` and up to `second`, as the simulator ran them."""
        begin, end = self._rank[first.block], self._rank[second.block]
        for rank in range(begin, end + 1):
            positions = self._positions[rank]
            start = bisect_left(positions, first.position + 1) if rank == begin else 0
            stop = bisect_left(positions, second.position + 1) if rank == end else len(positions)
            for sync in self._syncs[rank][start:stop]:
                yield self._blocks[rank], sync
