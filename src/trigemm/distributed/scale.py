"""What more ranks bring, on paper: flops and bytes a rank, communication, and how much of it is hidden.

A ring has W steps. In each, a rank computes with one share of the columns while the next is on its way:

    time = computing + (W - 1) * max(0, message - computing / W) + tail
    computing = flops / rate + bytes / bandwidth        message = bytes received a step / link

with the part that nothing can hide, `tail`, for a mirrored product: its last piece. Sums are in the units of `Machine`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trigemm.distributed.rotation import PIECE_BYTES

HALF = 2
"""Bytes of an entry."""


@dataclass(frozen=True)
class Machine:
    """Rates of one GPU, flop/s in each case and bytes/s of its memory, and bytes/s of its links in one direction."""

    attention: float
    scores: float
    syrk: float
    memory: float
    link: float
    far_link: float
    near: int
    """Ranks that are joined by `link`; beyond so many, the slowest link of the ring is a `far_link`."""

    def link_of(self, ranks: int) -> float:
        return self.link if ranks <= self.near else self.far_link


H200 = Machine(attention=354e12, scores=354e12, syrk=545e12, memory=4567e9, link=450e9, far_link=50e9, near=8)
"""Recorded on one H200: `trmm` over a head's 128 components, `syrk`, and a fill. Links are what their makers name."""


@dataclass(frozen=True)
class Share:
    """What falls to one of `ranks` ranks."""

    ranks: int
    flops: float
    rate: float
    bytes_moved: float  # by the rank's own memory
    bytes_held: float  # operands and results
    bytes_received: float
    tail_bytes: float = 0.0

    def computing(self, machine: Machine) -> float:
        return self.flops / self.rate + self.bytes_moved / machine.memory

    def communication(self, machine: Machine) -> float:
        return self.bytes_received / machine.link_of(self.ranks)

    def exposed(self, machine: Machine) -> float:
        """Seconds of communication that no computing hides."""
        if self.ranks == 1:
            return 0.0
        link = machine.link_of(self.ranks)
        message = (self.bytes_received - self.tail_bytes) / (self.ranks - 1) / link
        return (self.ranks - 1) * max(0.0, message - self.computing(machine) / self.ranks) + self.tail_bytes / link

    def time(self, machine: Machine) -> float:
        return self.computing(machine) + self.exposed(machine)


def attention(
    ranks: int, machine: Machine = H200, *, length: int = 32768, heads: int = 32, size: int = 128, listed: int = 4
) -> Share:
    """Causal attention in half precision, with the weights of some heads: the second time, their scores alone are computed."""
    triangle = length * (length + 1) / 2
    operand = HALF * length * size
    weights = HALF * listed * length**2
    others = (ranks - 1) / ranks
    return Share(
        ranks,
        flops=2 * size * triangle * (2 * heads + listed) / ranks,
        rate=machine.attention,
        bytes_moved=(4 * heads * operand + weights) / ranks,
        bytes_held=(4 * heads * operand + weights) / ranks,
        bytes_received=(2 * heads + listed) * operand * others,
    )


def scores(ranks: int, machine: Machine = H200, *, length: int = 32768, heads: int = 8, size: int = 128) -> Share:
    """Causal scores in half precision, with what is above the diagonal filled."""
    operand, square = HALF * heads * length * size, HALF * heads * length**2
    return Share(
        ranks,
        flops=heads * size * length * (length + 1) / ranks,
        rate=machine.scores,
        bytes_moved=(2 * operand + square) / ranks,
        bytes_held=(2 * operand + square) / ranks,
        bytes_received=operand * (ranks - 1) / ranks,
    )


def syrk(ranks: int, machine: Machine = H200, *, rows: int = 16384, depth: int = 16384) -> Share:
    """A full product of a matrix with its transpose in half precision: half of it computed, the other half mirrored."""
    operand, square = HALF * rows * depth, HALF * rows**2
    others = (ranks - 1) / ranks
    pieces = max(1, operand / ranks / PIECE_BYTES)
    mirrored = square / 2 / ranks * others
    return Share(
        ranks,
        flops=depth * rows * (rows + 1) / ranks,
        rate=machine.syrk,
        bytes_moved=(operand + square) / ranks,
        bytes_held=(operand + square) / ranks,
        bytes_received=operand * others + mirrored,
        tail_bytes=mirrored / pieces / max(1, ranks - 1),
    )


CASES: dict[str, Callable[..., Share]] = {"attention": attention, "scores": scores, "syrk": syrk}
RANKS = [2**i for i in range(11)]
COLUMNS = ("ranks", "Gflop a rank", "GB held", "GB received", "computing, ms", "communication, ms", "hidden", "time, ms")


def table(case: str, machine: Machine = H200) -> str:
    """The shares of 1 to 1024 ranks in one problem, as a table in Markdown.

    >>> print(table("syrk").splitlines()[3])
    | 2 | 2,199 | 0.54 | 0.34 | 4.15 | 0.75 | 98% | 4.17 | 1.99x |
    """
    shares = [CASES[case](ranks, machine) for ranks in RANKS]
    alone = shares[0].time(machine)
    return _table(shares, machine, "speedup", [f"{alone / share.time(machine):.2f}x" for share in shares])


def growing_table(rows: int = 16384, machine: Machine = H200) -> str:
    """Attention without weights of a sequence that grows with the ranks, `rows` for each, as a table in Markdown.

    >>> print(growing_table().splitlines()[6])
    | 16 | 35,185 | 0.54 | 4.03 | 99.51 | 80.53 | 100% | 99.51 | 100% |
    """
    shares = [attention(ranks, machine, length=rows * ranks, listed=0) for ranks in RANKS]
    busy = [f"{share.computing(machine) / share.time(machine):.0%}" for share in shares]
    return _table(shares, machine, "of the time computing", busy)


def _table(shares: list[Share], machine: Machine, last: str, values: list[str]) -> str:
    rows = [[*COLUMNS, last], ["--:"] * (len(COLUMNS) + 1)]
    for share, value in zip(shares, values, strict=True):
        sent = share.communication(machine)
        rows.append(
            [
                str(share.ranks),
                f"{share.flops / 1e9:,.0f}",
                f"{share.bytes_held / 1e9:.2f}",
                f"{share.bytes_received / 1e9:.2f}",
                f"{1e3 * share.computing(machine):.2f}",
                f"{1e3 * sent:.2f}",
                f"{1 - share.exposed(machine) / sent:.0%}" if sent else "",
                f"{1e3 * share.time(machine):.2f}",
                value,
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
