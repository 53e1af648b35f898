"""Reads of shared and local memory that nothing wrote, and reads through one shared array of what was written through another."""

import numpy as np

from trigemm.lab.traffic.conflicts import ATOMIC, LOAD, STORE, Accesses
from trigemm.lab.traffic.log import BlockLog, Integers

NEVER = np.iinfo(np.int64).max


def unwritten_reads(found: Accesses, *, private: bool) -> tuple[Integers, Integers]:
    """Reads that no write precedes: those that are certain, and those that are only if another thread's write comes later.

    Both are positions in `found`. In private (local) memory each unit belongs to one thread. In shared memory a read in an
    interval in which another thread makes the first write is either ordered with that write or races with it.
    """
    _, unit = np.unique(found.unit, return_inverse=True)
    writes = found.operation != LOAD
    units = int(unit.max()) + 1 if len(unit) else 0
    first = np.full(units, NEVER)
    np.minimum.at(first, unit[writes], np.flatnonzero(writes))
    # An atomic reads before it writes. Log order within a thread is program order.
    reads = np.flatnonzero(found.operation != STORE)
    reads = reads[first[unit[reads]] >= reads]
    if private:
        return reads, reads[:0]
    writer = first[unit[reads]]
    written = writer != NEVER
    writer = np.where(written, writer, 0)
    same_interval = written & (found.interval[writer] == found.interval[reads])
    doubtful = same_interval & (found.thread[writer] != found.thread[reads])
    return reads[~doubtful], reads[doubtful]


def aliased_reads(block: BlockLog, found: Accesses) -> list[tuple[int, int]]:
    """Reads of shared memory of what was last written under another array's name: (read, write), positions in `found`.

    Two arrays in the dynamic shared memory alias when one function declares both. Two that one call made alias when a thread
    goes on to use the older one.
    """
    memories = [site.memory for site in block.log.sites]
    if not any(memory.dynamic or memory.generation for memory in memories if memory.space == "shared"):
        return []
    name = {id(memory): i for i, memory in enumerate(memories)}
    owner = np.array([name[id(memory)] for memory in memories])[block.site_number[found.position]]
    order = np.lexsort((np.arange(len(found)), found.unit))
    here = np.arange(len(order))
    last_write = np.maximum.accumulate(np.where(found.operation[order] != LOAD, here, -1))
    begins = np.flatnonzero(np.diff(found.unit[order], prepend=-1))
    begin = np.repeat(begins, np.diff(begins, append=len(order)))
    before = np.maximum.accumulate(np.append(-1, np.where(found.operation[order] != LOAD, here, -1))[:-1])
    source = np.where(found.operation[order] == ATOMIC, before, last_write)
    known = source >= begin
    differs = known & (owner[order] != owner[order[np.maximum(source, 0)]]) & (found.operation[order] != STORE)
    pairs = zip(order[differs].tolist(), order[source[differs]].tolist(), strict=True)
    made = {(event.thread, id(event.memory)): event.position for event in reversed(block.made)}
    aliases = []
    for read, write in pairs:
        mine, other = memories[owner[read]], memories[owner[write]]
        if mine.dynamic and other.dynamic:
            same_call = mine.name == other.name and mine.generation != other.generation
            alias = mine.declared_in is other.declared_in and not same_call
        else:
            position = made.get((int(found.thread[read]), id(other)), NEVER)
            alias = other.generation > mine.generation and position <= found.position[read]
        if alias:
            aliases.append((read, write))
    return aliases
