"""What more ranks bring, on paper: flops and bytes a rank, communication, and how much of it is hidden.

    time = computing + max(0, first - covered) + max(0, rest - computing) + last
    computing = flops / rate + bytes / bandwidth

A rank computes while what it needs next is on its way. Only what comes first is waited for, if there is nothing to do meanwhile
(`covered`), and what is sent last. A rank has messages from every other: those within its host share one link, those from
elsewhere another. Units are those of `Machine`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trigemm.distributed.gather import FIRST_BYTES, GROUP_BYTES, MIRRORED_BYTES
from trigemm.distributed.scores import HIDING

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
    """Ranks of one host, which are joined by `link`; all others by a `far_link`."""

    def message_time(self, size: float, ranks: int) -> float:
        """Seconds until so many bytes have come, as many from each other rank."""
        near, others = min(ranks, self.near) - 1, ranks - 1
        return size * max(near / self.link, (others - near) / self.far_link) / others if others else 0.0


H200 = Machine(attention=494e12, scores=456e12, syrk=776e12, memory=4567e9, link=450e9, far_link=50e9, near=8)
"""Measured on one H200; links are what their makers name."""


@dataclass(frozen=True)
class Share:
    """What falls to one of `ranks` ranks."""

    ranks: int
    flops: float
    rate: float
    bytes_moved: float  # by the rank's own memory
    bytes_held: float  # operands and results
    bytes_received: float
    first: float  # of these, bytes that come before anything else can be computed,
    covered: float  # while so many bytes are written,
    last: float = 0.0  # and bytes that come after everything else

    def computing(self, machine: Machine) -> float:
        return self.flops / self.rate + self.bytes_moved / machine.memory

    def communication(self, machine: Machine) -> float:
        return machine.message_time(self.bytes_received, self.ranks)

    def exposed(self, machine: Machine) -> float:
        """Seconds of communication that no computing hides."""
        first, last = (machine.message_time(x, self.ranks) for x in (self.first, self.last))
        rest = self.communication(machine) - first - last
        return max(0.0, first - self.covered / machine.memory) + max(0.0, rest - self.computing(machine)) + last

    def time(self, machine: Machine) -> float:
        return self.computing(machine) + self.exposed(machine)


def attention(
    ranks: int, machine: Machine = H200, *, length: int = 32768, heads: int = 32, size: int = 128, listed: int = 4
) -> Share:
    """Causal attention in half precision, with the weights of some heads: their scores are computed twice."""
    operand, square = HALF * length * size, HALF * listed * length**2
    others = (ranks - 1) / ranks
    held = (4 * heads * operand + square) / ranks
    return Share(
        ranks,
        flops=size * length * (length + 1) * (2 * heads + listed) / ranks,
        rate=machine.attention,
        bytes_moved=held,
        bytes_held=held,
        bytes_received=2 * heads * operand * others,
        first=min(2 * heads * operand, max(2 * operand, FIRST_BYTES)) * others,
        covered=_beyond(square, ranks),
    )


def scores(ranks: int, machine: Machine = H200, *, length: int = 32768, heads: int = 8, size: int = 128) -> Share:
    """Causal scores in half precision, with what is above the diagonal filled."""
    operand, square = HALF * heads * length * size, HALF * heads * length**2
    others = (ranks - 1) / ranks
    hidden = length // (2 * ranks) >= HIDING * size
    return Share(
        ranks,
        flops=heads * size * length * (length + 1) / ranks,
        rate=machine.scores,
        bytes_moved=(2 * operand + square) / ranks,
        bytes_held=(2 * operand + square) / ranks,
        bytes_received=operand * others,
        first=min(operand, max(operand / heads, GROUP_BYTES if hidden else FIRST_BYTES)) * others,
        covered=_beyond(square, ranks),
    )


def _beyond(square: float, ranks: int) -> float:
    """Of the bytes of a square, those that a rank fills beyond the columns of its two blocks."""
    return square / (2 * ranks) * (1 - 1 / (2 * ranks))


def syrk(ranks: int, machine: Machine = H200, *, rows: int = 16384, depth: int = 16384) -> Share:
    """A full product of a matrix with its transpose in half precision: half of it computed, the other half mirrored.

    A rank begins with products of its own rows, so that nothing is waited for. Of what is mirrored, the last piece is.
    """
    operand, square = HALF * rows * depth, HALF * rows**2
    others = (ranks - 1) / ranks
    mirrored = square / 2 / ranks * others
    return Share(
        ranks,
        flops=depth * rows * (rows + 1) / ranks,
        rate=machine.syrk,
        bytes_moved=(operand + square) / ranks,
        bytes_held=(operand + square) / ranks,
        bytes_received=operand * others + mirrored,
        first=0.0,
        covered=0.0,
        last=min(mirrored, MIRRORED_BYTES) if ranks > 1 else 0.0,
    )


CASES: dict[str, Callable[..., Share]] = {"attention": attention, "scores": scores, "syrk": syrk}
RANKS = [2**i for i in range(11)]
COLUMNS = ("ranks", "Gflop a rank", "GB held", "GB received", "computing, ms", "communication, ms", "hidden", "time, ms")


def table(case: str, machine: Machine = H200) -> str:
    """The shares of 1 to 1024 ranks in one problem, as a table in Markdown.

    >>> print(table("syrk").splitlines()[3])
    | 2 | 2,199 | 0.54 | 0.34 | 2.95 | 0.75 | 96% | 2.98 | 1.98x |
    """
    shares = [CASES[case](ranks, machine) for ranks in RANKS]
    alone = shares[0].time(machine)
    return _table(shares, machine, "speedup", [f"{alone / share.time(machine):.2f}x" for share in shares])


def growing_table(rows: int = 16384, machine: Machine = H200) -> str:
    """Attention without weights of a sequence that grows with the ranks, `rows` for each, as a table in Markdown.

    >>> print(growing_table().splitlines()[6])
    | 16 | 35,185 | 0.54 | 4.03 | 71.34 | 42.95 | 97% | 72.68 | 98% |
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
