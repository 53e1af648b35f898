"""Conflicts: accesses by different threads to one place in memory, of which at least one writes and not all are atomic."""

from dataclasses import dataclass

import numpy as np

from trigemm.lab.traffic.log import BlockLog, Integers, Operation, Space

LOAD, STORE, ATOMIC = 0, 1, 2
OPERATIONS: tuple[Operation, ...] = ("load", "store", "atomic")


@dataclass(eq=False)
class Accesses:
    """Some accesses of a block, cut into units of equal size: an access of 16 bytes is four of 4 bytes.

    `position` is the access's place in the block's log; `unit` its address in units of `size` bytes.
    """

    size: int
    unit: Integers
    position: Integers
    thread: Integers
    interval: Integers
    operation: Integers
    place: Integers

    def __len__(self) -> int:
        return len(self.unit)

    def __getitem__(self, chosen: Integers) -> "Accesses":
        columns = (self.unit, self.position, self.thread, self.interval, self.operation, self.place)
        return Accesses(self.size, *(column[chosen] for column in columns))


def accesses(block: BlockLog, space: Space) -> Accesses:
    """The accesses of a block to one space, in the order of its log."""
    sites = block.log.sites
    in_space = np.array([site.memory.space == space for site in sites], dtype=bool)
    operations = np.array([OPERATIONS.index(site.operation) for site in sites], dtype=np.int64)
    sizes = np.array([site.size for site in sites], dtype=np.int64)
    unit = int(np.gcd.reduce(sizes[in_space])) if in_space.any() else 1
    position = np.flatnonzero(in_space[block.site_number]) if len(sites) else np.zeros(0, dtype=np.int64)
    # A unit must divide addresses too, or an access that is not aligned would touch more units than its size.
    if len(position):
        unit = int(np.gcd.reduce(np.append(np.unique(block.address[position] % unit), unit)))
    site = block.site_number[position]
    lengths = sizes[site] // unit
    position = np.repeat(position, lengths)
    within = np.arange(len(position)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Accesses(
        unit,
        block.address[position] // unit + within,
        position,
        block.thread[position],
        block.interval[position],
        operations[block.site_number[position]],
        block.place[position],
    )


def conflicting(found: Accesses, group: Integers, owner: Integers) -> list[Integers]:
    """The groups of accesses in which different owners conflict, each as positions in `found`, in its order.

    `group` says which accesses meet (the same unit in the same interval), `owner` who makes them (thread or block).
    """
    order = np.lexsort((owner, group))
    group, owner, operation = group[order], owner[order], found.operation[order]
    begins = np.flatnonzero(np.diff(group, prepend=group[0] - 1)) if len(group) else np.zeros(0, dtype=np.int64)
    if not len(begins):
        return []
    ends = np.append(begins[1:], len(group))
    several = owner[begins] != owner[ends - 1]
    stores = np.add.reduceat(operation == STORE, begins)
    atomics = np.add.reduceat(operation == ATOMIC, begins)
    loads = (ends - begins) - stores - atomics
    faulty = several & ((stores > 0) | ((atomics > 0) & (loads > 0)))
    return [np.sort(order[begin:end]) for begin, end in zip(begins[faulty].tolist(), ends[faulty].tolist(), strict=True)]
