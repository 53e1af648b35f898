"""The log of one block: every access to memory, in the order in which the simulator ran the block's threads.

An access is two numbers: an *address* in bytes, and a *place* that says which instruction made it. A place stands for one
(array, operation, function, size) and one offset into the function's bytecode, so two accesses on one source line stay apart.
Which thread made an access, and after how many barriers, follows from the *segments*: a thread runs alone until it waits.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from dis import get_instructions
from functools import cache, cached_property
from types import CodeType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Space = Literal["global", "shared", "local", "constant"]
Operation = Literal["load", "store", "atomic"]
Integers = NDArray[np.signedinteger[Any]]

SECTOR = 32  # bytes: what global memory moves
WARP = 32  # threads


@cache
def _instructions(code: CodeType) -> Integers:
    """For each two bytes of a function's bytecode, where the instruction begins that they belong to.

    The interpreter keeps a frame's place at the instruction or at the cache entries behind it, and changes its mind on the way.
    """
    begins = np.zeros(len(code.co_code) // 2, dtype=np.int64)
    offsets = [instruction.offset for instruction in get_instructions(code)]
    begins[np.array(offsets) // 2] = offsets
    begun: Integers = np.maximum.accumulate(begins)
    return begun


def instruction(code: CodeType, offset: int) -> int:
    """Where the instruction begins to which an offset into the bytecode belongs."""
    return int(_instructions(code)[offset // 2])


@dataclass(eq=False)
class TracedMemory:
    """An array under its name in the kernel.

    `log_address` and `log_place` append to the log. `load_code`, `load_base`, `store_code` and `store_base` remember, for the
    function that made the last access, where the places of its bytecode begin.
    """

    name: str
    space: Space
    log_address: Callable[[int], None]
    log_place: Callable[[int], None]
    load_code: CodeType | None = None
    load_base: int = 0
    store_code: CodeType | None = None
    store_base: int = 0
    starts: list[int] = field(default_factory=list)  # address of the first element; in local memory, of each thread's own
    dims: tuple[tuple[int, int], ...] = ()  # (length, stride in bytes)
    declared_in: CodeType | None = None  # the function that makes a shared array
    dynamic: bool = False  # in the shared memory whose size the launch gives
    generation: int = 0  # how many times its thread had made it before

    def offset(self, address: Integers) -> Integers:
        """How far addresses lie from the first element; in local memory, from the first of the thread's own array."""
        starts: Integers = np.array(self.starts, dtype=np.int64)
        return address - starts[np.searchsorted(starts, address, side="right") - 1]

    def index(self, address: int) -> str:
        """The index of the element at an address.

        >>> TracedMemory("a", "global", print, print, starts=[512], dims=((3, 16), (4, 4))).index(512 + 16 + 8)
        '1, 2'
        """
        rest, found = address - self.starts[bisect_right(self.starts, address) - 1], {}
        for axis, (length, stride) in sorted(enumerate(self.dims), key=lambda item: -abs(item[1][1])):
            found[axis] = min(rest // stride, length - 1) if stride and length > 1 else 0
            rest -= found[axis] * stride
        return ", ".join(str(found[axis]) for axis in sorted(found))


class Site(NamedTuple):
    """What all places of one stretch share."""

    memory: TracedMemory
    operation: Operation
    code: CodeType
    size: int  # bytes that one thread moves in one access


class Line(NamedTuple):
    """A line of source, and the function in which it stands."""

    file: str
    number: int
    function: str


@dataclass(frozen=True)
class Fault:
    """A fault that shows while the kernel runs: an index outside the array, a barrier that is not reached."""

    kind: str
    line: Line
    thread: int
    array: str
    index: str
    explanation: str


class Sync(NamedTuple):
    """An event that can order threads, when the log held `position` accesses.

    At a "barrier" (of the block) and at a "warp" barrier, what any of `threads` did before happens before what any of them
    does afterwards. A "fence" followed by an "atomic" access to `address` publishes what the thread did before the fence; a
    later atomic access to `address` takes it up.
    """

    kind: Literal["barrier", "warp", "fence", "atomic"]
    position: int
    threads: tuple[int, ...]
    address: int = 0


class Made(NamedTuple):
    """A thread came to the call that makes a shared array, when the log held `position` accesses."""

    thread: int
    memory: TracedMemory
    position: int


@dataclass(eq=False)
class Log:
    """What one block did. `addresses` and `places` run in parallel, one entry an access."""

    addresses: "array[int]" = field(default_factory=lambda: array("q"))
    places: "array[int]" = field(default_factory=lambda: array("i"))
    segment_threads: list[int] = field(default_factory=list)
    segment_intervals: list[int] = field(default_factory=list)
    segment_starts: list[int] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    bases: list[int] = field(default_factory=lambda: [0])
    faults: list[Fault] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    barriers: Counter[Line] = field(default_factory=Counter)
    interval: int = 0
    _known: dict[tuple[int, str, int, int], int] = field(default_factory=dict)
    _lines: dict[int, list[int]] = field(default_factory=dict)

    def base(self, memory: TracedMemory, operation: Operation, code: CodeType, size: int) -> int:
        """Where the places of this kind of access begin; add the offset into the bytecode."""
        key = (id(memory), operation, id(code), size)
        if key not in self._known:
            self._known[key] = self.bases[-1]
            self.sites.append(Site(memory, operation, code, size))
            self.bases.append(self.bases[-1] + len(code.co_code))
        return self._known[key]

    def begin_segment(self, thread: int) -> None:
        """From here on, accesses are made by `thread`."""
        self.segment_threads.append(thread)
        self.segment_intervals.append(self.interval)
        self.segment_starts.append(len(self.addresses))

    def line_of(self, code: CodeType, offset: int) -> Line:
        if id(code) not in self._lines:
            self._lines[id(code)] = [position[0] or code.co_firstlineno for position in code.co_positions()]
        return Line(code.co_filename, self._lines[id(code)][offset // 2], code.co_name)

    def site(self, place: int) -> Site:
        return self.sites[self._site_number(place)]

    def line(self, place: int) -> Line:
        number = self._site_number(place)
        return self.line_of(self.sites[number].code, place - self.bases[number])

    def _site_number(self, place: int) -> int:
        return int(np.searchsorted(self.bases, place, side="right")) - 1

    def close(self) -> "BlockLog":
        """The accesses since the last call, as arrays; the log is empty afterwards, and keeps its sites."""
        made = min(len(self.addresses), len(self.places))  # a launch may be stopped between the two halves of an access
        begins = [base + _instructions(site.code).repeat(2) for base, site in zip(self.bases, self.sites, strict=False)]
        block = BlockLog(
            self,
            np.array(self.addresses, dtype=np.int64)[:made],
            np.concatenate([*begins, np.zeros(0, dtype=np.int64)])[np.array(self.places, dtype=np.int64)[:made]],
            np.array(self.segment_threads, dtype=np.int64),
            np.array(self.segment_intervals, dtype=np.int64),
            np.array(self.segment_starts, dtype=np.int64),
            self.faults,
            self.syncs,
            self.made,
            self.barriers,
        )
        del self.addresses[:], self.places[:]
        self.segment_threads, self.segment_intervals, self.segment_starts = [], [], []
        self.faults, self.syncs, self.made = [], [], []
        self.barriers, self.interval = Counter(), 0
        return block


@dataclass(eq=False)
class BlockLog:
    """The log of a block that has ended, ready to be counted: `address`, `place`, `thread`, `interval`, one entry an access."""

    log: Log
    address: Integers
    place: Integers
    segment_threads: Integers
    segment_intervals: Integers
    segment_starts: Integers
    faults: list[Fault]
    syncs: list[Sync]
    made: list[Made]
    barriers: Counter[Line]

    def _spread(self, values: Integers) -> Integers:
        return np.repeat(values, np.diff(self.segment_starts, append=len(self.address)))

    @cached_property
    def thread(self) -> Integers:
        """The number of the thread in its block: x + y * width + z * width * height."""
        return self._spread(self.segment_threads)

    @cached_property
    def interval(self) -> Integers:
        """How many barriers the block had passed."""
        return self._spread(self.segment_intervals)

    @cached_property
    def site_number(self) -> Integers:
        """The index into `log.sites`."""
        return np.searchsorted(self.log.bases, self.place, side="right") - 1
