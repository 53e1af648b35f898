"""The sanitizer: faults of a kernel, read off the log of its launch.

Whether two accesses can meet is decided by what orders them (see `order`), never by the order in which the simulator ran threads
and blocks: it runs one thread at a time, and a wrong kernel may well return the right values in it.

    out-of-range        an index beyond the array
    negative-index      an index below zero, which counts from the end of the array
    misaligned          an access at an address that is no multiple of its size
    uninitialised-read  a read of shared or local memory that nothing wrote
    shared-race         two threads meet in shared memory between barriers, and one of them writes
    global-race         one thread of a block reads, with no barrier between, what another writes
    double-write        two threads of a block write one global element
    block-race          a block reads or writes what another writes, without atomics
    barrier             a barrier that not all threads of the block reach, or not the same one
    aliasing            two shared arrays that lie in the same memory
    unwritten-output    an element of an output that no thread wrote
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trigemm.lab.traffic.conflicts import ATOMIC, LOAD, OPERATIONS, STORE, Accesses, accesses, conflicting
from trigemm.lab.traffic.log import BlockLog, Integers, Line, Log, TracedMemory
from trigemm.lab.traffic.order import Moment, Order
from trigemm.lab.traffic.result import Finding
from trigemm.lab.traffic.unwritten import aliased_reads, unwritten_reads

PAIRS_LIMIT = 20_000  # conflicts of a block that are looked into one by one


@dataclass
class _Case:
    """One finding while it is put together: the same fault on the same lines, over threads and blocks."""

    index: str
    threads: set[int] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)


class Sanitizer:
    """Looks at the log of each block, then at all blocks together."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.order = Order()
        self._cases: dict[tuple[str, Line, str, str], _Case] = {}
        self._global: list[tuple[int, Accesses]] = []
        self._stored: list[Integers] = []
        self._log: Log | None = None

    def look(self, number: int, block: BlockLog) -> None:
        """Take in the log of one block."""
        self._log = block.log
        self.order.add(number, block.syncs)
        for fault in block.faults:
            self._add(fault.kind, fault.line, fault.array, fault.explanation, fault.index, [fault.thread], [number])
        if not len(block.address):
            return
        self._misaligned(number, block)
        shared = accesses(block, "shared")
        self._races(number, block, shared)
        self._unwritten(number, block, shared)
        self._aliases(number, block, shared)
        self._unwritten_local(number, block, accesses(block, "local"))
        everywhere = accesses(block, "global")
        self._races(number, block, _written_only(everywhere))
        self._global.append((number, _outline(everywhere)))

    def _add(
        self, kind: str, line: Line, array: str, why: str, index: str, threads: Iterable[int], blocks: Iterable[int]
    ) -> None:
        case = self._cases.setdefault((kind, line, array, why), _Case(index))
        case.threads.update(threads)
        case.blocks.update(blocks)

    def _misaligned(self, number: int, block: BlockLog) -> None:
        sites = block.log.sites
        sizes = np.array([site.size for site in sites])[block.site_number]
        in_memory = np.array([site.memory.space in ("global", "shared") for site in sites])[block.site_number]
        power_of_two = sizes & (sizes - 1) == 0
        for at in np.flatnonzero(in_memory & power_of_two & (block.address % sizes != 0))[:PAIRS_LIMIT].tolist():
            why = f"{sizes[at]} bytes at an address that is no multiple of {sizes[at]}"
            self._add_access("misaligned", block.log, block.place[at], block.address[at], why, [block.thread[at]], [number])

    def _add_access(
        self, kind: str, log: Log, place: Any, address: Any, why: str, threads: Iterable[Any], blocks: Sequence[int]
    ) -> None:
        memory = log.site(int(place)).memory
        self._add(kind, log.line(int(place)), memory.name, why, memory.index(int(address)), map(int, threads), blocks)

    def _races(self, number: int, block: BlockLog, found: Accesses) -> None:
        group = found.unit * (int(found.interval.max(initial=0)) + 1) + found.interval
        for met in conflicting(found, group, found.thread)[:PAIRS_LIMIT]:
            writes = met[found.operation[met] != LOAD]
            pair = self._unordered_pair(number, found, writes) or self._unordered_pair(number, found, met)
            if pair is None:
                continue
            both_write = LOAD not in found.operation[list(pair)]
            space = block.log.site(int(found.place[pair[0]])).memory.space
            kind = "shared-race" if space == "shared" else "double-write" if both_write else "global-race"
            self._report_pair(kind, block.log, found, *pair, [number], "with no barrier between")

    def _report_pair(
        self, kind: str, log: Log, found: Accesses, first: int, second: int, blocks: Sequence[int], how: str
    ) -> None:
        """A conflict, reported at the line that writes."""
        writer, other = (second, first) if found.operation[first] == LOAD else (first, second)
        verb = {LOAD: "reads", STORE: "writes", ATOMIC: "updates"}
        other_line = log.line(int(found.place[other])).number
        why = (
            f"one thread {verb[int(found.operation[writer])]} and another {verb[int(found.operation[other])]} it"
            f" (line {other_line}) {how}"
        )
        threads = [found.thread[writer], found.thread[other]]
        self._add_access(kind, log, found.place[writer], found.unit[writer] * found.size, why, threads, blocks)

    def _unordered_pair(self, block: int | Integers, found: Accesses, met: Integers) -> tuple[int, int] | None:
        """The first two of the accesses `met`, positions in `found`, that conflict and that nothing orders.

        Each is compared with the last store and the last atomic before it, and a write with the loads since. `block` is that
        of all accesses, or of each in `found`.
        """
        blocks = np.broadcast_to(block, len(found))
        last: dict[int, int] = {}
        loads: list[int] = []
        for now in met.tolist():
            operation = int(found.operation[now])
            earlier = [last[other] for other in (STORE, ATOMIC) if other in last and not operation == other == ATOMIC]
            for then in [*earlier, *(loads if operation != LOAD else ())]:
                moments = [Moment(int(blocks[at]), int(found.thread[at]), int(found.position[at])) for at in (then, now)]
                if moments[0][:2] != moments[1][:2] and not self.order.happens_before(*moments):
                    return then, now
            if operation == LOAD:
                loads.append(now)
            else:
                last[operation] = now
                loads = []
        return None

    def _unwritten(self, number: int, block: BlockLog, found: Accesses) -> None:
        certain, doubtful = unwritten_reads(found, private=False)
        if len(doubtful) and any(sync.kind == "warp" for sync in block.syncs):
            certain = np.append(certain, [read for read in doubtful.tolist() if self._comes_first(number, found, read)])
        self._report_reads(number, block, found, certain.astype(np.int64))

    def _comes_first(self, number: int, found: Accesses, read: int) -> bool:
        """Whether a read is ordered before the first write to its unit."""
        write = int(np.flatnonzero((found.unit == found.unit[read]) & (found.operation != LOAD))[0])
        moments = [Moment(number, int(found.thread[at]), int(found.position[at])) for at in (read, write)]
        return self.order.happens_before(moments[0], moments[1])

    def _unwritten_local(self, number: int, block: BlockLog, found: Accesses) -> None:
        self._report_reads(number, block, found, unwritten_reads(found, private=True)[0])

    def _report_reads(self, number: int, block: BlockLog, found: Accesses, reads: Integers) -> None:
        for read in reads[:PAIRS_LIMIT].tolist():
            address = found.unit[read] * found.size
            why = f"read of {block.log.site(int(found.place[read])).memory.space} memory that nothing wrote"
            self._add_access("uninitialised-read", block.log, found.place[read], address, why, [found.thread[read]], [number])

    def _aliases(self, number: int, block: BlockLog, found: Accesses) -> None:
        for read, write in aliased_reads(block, found)[:PAIRS_LIMIT]:
            other = block.log.site(int(found.place[write])).memory.name
            line = block.log.line(int(found.place[write])).number
            why = f"it reads what was written as {other} (line {line}), which lies in the same memory"
            address = found.unit[read] * found.size
            self._add_access("aliasing", block.log, found.place[read], address, why, [found.thread[read]], [number])

    def finish(self) -> None:
        """Look for races between blocks, once all of them have run."""
        if self._log is None or len(self._global) < 2:
            return
        size = int(np.gcd.reduce([found.size for _, found in self._global if len(found)] or [1]))
        parts = [(number, _cut(found, size)) for number, found in self._global]
        columns = ("unit", "position", "thread", "interval", "operation", "place")
        found = Accesses(size, *(np.concatenate([getattr(part, name) for _, part in parts]) for name in columns))
        blocks = np.repeat([number for number, _ in parts], [len(part) for _, part in parts])
        written = np.flatnonzero(np.isin(found.unit, np.unique(found.unit[found.operation != LOAD])))
        found, blocks = found[written], blocks[written]
        for met in conflicting(found, found.unit, blocks)[:PAIRS_LIMIT]:
            pair = self._unordered_pair(blocks, found, met)
            if pair is not None:
                self._report_pair("block-race", self._log, found, *pair, blocks[list(pair)].tolist(), "in another block")

    def stored(self) -> tuple[Integers, int]:
        """The addresses in global memory that were written, and how many bytes at each."""
        size = int(np.gcd.reduce([found.size for _, found in self._global if len(found)] or [1]))
        units = [part.unit[part.operation != LOAD] for part in (_cut(found, size) for _, found in self._global)]
        return np.unique(np.concatenate([*units, np.zeros(0, dtype=np.int64)])) * size, size

    def unwritten_outputs(self, name: str, memory: TracedMemory, line: Line, required: Integers) -> None:
        """Report those of the `required` element addresses of an output that no thread wrote."""
        missing = np.setdiff1d(required, self.stored()[0])
        if len(missing):
            why = f"{len(missing)} of {len(required)} elements are written by no thread"
            self._add("unwritten-output", line, name, why, memory.index(int(missing[0])), (), ())

    def findings(self) -> list[Finding]:
        """What was found, by line."""
        return [
            Finding(kind, self.kernel, line, array, case.index, tuple(sorted(case.threads)), tuple(sorted(case.blocks)), why)
            for (kind, line, array, why), case in sorted(self._cases.items(), key=lambda item: item[0][1])
        ]


def _written_only(found: Accesses) -> Accesses:
    """The accesses to units that some access writes."""
    written = np.unique(found.unit[found.operation != LOAD])
    return found[np.flatnonzero(np.isin(found.unit, written))]


def _outline(found: Accesses) -> Accesses:
    """Of the accesses to each unit by each operation, the first and the last, in little room."""
    key = found.unit * len(OPERATIONS) + found.operation
    _, first = np.unique(key, return_index=True)
    _, last = np.unique(key[::-1], return_index=True)
    kept = found[np.unique(np.concatenate([first, len(key) - 1 - last]))]
    small = (column.astype(np.int32) for column in (kept.position, kept.thread, kept.interval, kept.operation, kept.place))
    return Accesses(kept.size, kept.unit, *small)


def _cut(found: Accesses, size: int) -> Accesses:
    """The same accesses in smaller units."""
    times = found.size // size
    if times == 1:
        return found
    repeated = found[np.repeat(np.arange(len(found)), times)]
    unit = repeated.unit * times + np.tile(np.arange(times), len(found))
    return Accesses(size, unit, repeated.position, repeated.thread, repeated.interval, repeated.operation, repeated.place)
