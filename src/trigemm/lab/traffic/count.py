"""From the log of a block to counts: accesses are grouped as a warp makes them, and what each group moves is counted.

A *request* is one instruction of one warp: the accesses that its lanes make at the same place, in the same interval between
barriers, for the same time (the first access of each lane, the second, …). For lanes that run in step this is the program's
order. Where a warp diverges, lanes that reach a place in different turns of a loop are grouped by how often they were there.

    sectors       distinct 32-byte sectors of a request
    ideal         sectors that the distinct bytes of the request would fill, were they adjacent
    wavefronts    shared memory: passes that serve a request. 32 banks, 4 bytes wide; a pass serves one word a bank and gives it
                  to all who ask. Accesses of 8 bytes go by half warps, of 16 bytes by quarter warps
"""

from dataclasses import astuple, dataclass

import numpy as np

from trigemm.lab.traffic.log import SECTOR, WARP, BlockLog, Integers, Site

BANKS = 32
BANK_WIDTH = 4  # bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """What the accesses at one place, or at several, add up to.

    `attempted_bytes` includes what a mask switches off, in kernels that have masks.

    >>> (Counts(elements=32, bytes=128, requests=1, sectors=4) * 3).sectors
    12
    """

    elements: int = 0
    bytes: int = 0
    attempted_bytes: int = 0
    requests: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "Counts":
        return Counts(*(value * times for value in astuple(self)))

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def ideal_sectors_per_request(self) -> float:
        return self.ideal_sectors / self.requests if self.requests else 0.0

    @property
    def bank_conflicts(self) -> int:
        """Passes beyond those that a conflict-free layout would take."""
        return self.wavefronts - self.ideal_wavefronts


def count(block: BlockLog) -> dict[int, Counts]:
    """The counts of one block, by place."""
    order = np.argsort(block.place, kind="stable")
    places, starts = np.unique(block.place[order], return_index=True)
    counts = {}
    for place, chosen in zip(places.tolist(), np.split(order, starts[1:]), strict=True):
        site = block.log.site(place)
        thread, interval, address = block.thread[chosen], block.interval[chosen], block.address[chosen]
        counts[place] = _count_place(site, thread, address, _requests(thread, interval))
    return counts


def _requests(thread: Integers, interval: Integers) -> Integers:
    """A number for each access, equal for those that make one request."""
    run = interval * (int(thread.max()) + 1) + thread
    order = None
    if np.any(np.diff(run) < 0):  # a warp-wide barrier interrupts the runs of a thread
        order = np.argsort(run, kind="stable")
        run, thread, interval = run[order], thread[order], interval[order]
    begins = np.flatnonzero(np.diff(run, prepend=-1))
    lengths = np.diff(begins, append=len(run))
    occurrence = np.arange(len(run)) - np.repeat(begins, lengths)
    warps = int(thread.max()) // WARP + 1
    request = (interval * warps + thread // WARP) * int(lengths.max()) + occurrence
    if order is not None:
        request[order] = request.copy()
    return request


def _count_place(site: Site, thread: Integers, address: Integers, request: Integers) -> Counts:
    size = site.size
    elements, number = len(address), len(_distinct(request))
    if site.memory.space == "local":
        # Local memory is interleaved: word w of lane l lies at 4 * (32 * w + l).
        address = site.memory.offset(address)
        address = (address // BANK_WIDTH * WARP + thread % WARP) * BANK_WIDTH + address % BANK_WIDTH
    total = Counts(elements=elements, bytes=elements * size, attempted_bytes=elements * size, requests=number)
    if site.memory.space == "shared":
        return total + _wavefronts(site, thread, address, request)
    distinct, _ = _distinct_pairs(request, address)
    bytes_each = np.diff(np.flatnonzero(np.diff(distinct, prepend=-1)), append=len(distinct)) * size
    _, sectors = _distinct_pairs(*_spread(request, address, size, SECTOR))
    return total + Counts(sectors=len(sectors), ideal_sectors=int(np.sum(-(-bytes_each // SECTOR))))


def _wavefronts(site: Site, thread: Integers, address: Integers, request: Integers) -> Counts:
    lanes = min(WARP, max(1, WARP * BANK_WIDTH // site.size))
    phases = WARP // lanes
    phase = request * phases + thread % WARP // lanes
    if phases > 1 and site.operation == "load":
        # Lanes that read in pairs what their neighbours read need half the passes: two phases become one.
        paired = _read_in_pairs(thread, address, request)
        phase = np.where(paired, phase // 2 * 2, phase)
    in_phase, word = _distinct_pairs(*_spread(phase, address, site.size, BANK_WIDTH))
    bank, passes = np.unique(in_phase * BANKS + word % BANKS, return_counts=True)
    begins = np.flatnonzero(np.diff(bank // BANKS, prepend=-1))
    words = np.diff(np.flatnonzero(np.diff(in_phase, prepend=-1)), append=len(in_phase))
    return Counts(
        wavefronts=int(np.maximum.reduceat(passes, begins).sum()),
        ideal_wavefronts=int(np.sum(-(-words // BANKS))),
    )


def _read_in_pairs(thread: Integers, address: Integers, request: Integers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True for each access of a request in which all lanes n and n ^ 1, or all lanes n and n ^ 2, read the same address."""
    _, row = np.unique(request, return_inverse=True)
    by_lane = np.full((int(row.max()) + 1, WARP), -1, dtype=np.int64)
    by_lane[row, thread % WARP] = address
    lane = np.arange(WARP)
    pairs: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.zeros(len(by_lane), dtype=np.bool_)
    for distance in (1, 2):
        other = by_lane[:, lane ^ distance]
        pairs |= np.all((by_lane == other) | (by_lane < 0) | (other < 0), axis=1)
    each: np.ndarray[tuple[int], np.dtype[np.bool_]] = pairs[row]
    return each


def _spread(group: Integers, address: Integers, size: int, unit: int) -> tuple[Integers, Integers]:
    """Each access as (group, unit of memory) pairs, one for each unit that it touches."""
    first, last = address // unit, (address + size - 1) // unit
    lengths = last - first + 1
    if np.all(lengths == 1):
        return group, first
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(group, lengths), np.repeat(first, lengths) + offsets


def _distinct(values: Integers) -> Integers:
    ordered = np.sort(values)
    distinct: Integers = ordered[np.diff(ordered, prepend=ordered[0] - 1) != 0]
    return distinct


def _distinct_pairs(group: Integers, value: Integers) -> tuple[Integers, Integers]:
    """The distinct (group, value) pairs, ordered by group, then by value."""
    least, groups = int(value.min()), int(group.min())
    width = int(value.max()) - least + 1
    if (int(group.max()) - groups + 1) * width >= 2**63:
        pairs = np.unique(np.stack([group, value], axis=1), axis=0)
        return pairs[:, 0], pairs[:, 1]
    packed = _distinct((group - groups) * width + (value - least))
    return packed // width + groups, packed % width + least
