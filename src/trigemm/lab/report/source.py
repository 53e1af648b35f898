"""The source of a counted kernel, each line with what it asks of memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trigemm.lab.records import Record
from trigemm.lab.traffic.count import Counts
from trigemm.lab.traffic.tables import waste

HEADINGS = ("requests", "sectors", "per request", "wavefronts", "conflicts")


@dataclass(frozen=True)
class Row:
    """A line of source. `cells` has a text for each of the headings; `heat` is its share of all that the kernel moves."""

    number: int
    code: str  # HTML
    cells: tuple[str, ...]
    heat: float
    worst: bool


@dataclass(frozen=True)
class Function:
    """A function that ran, from its first line to its last."""

    name: str
    file: str
    rows: list[Row]


def annotated(record: Record) -> Iterator[Function]:
    """The functions of a counted kernel, in the order of its source."""
    found: dict[tuple[str, int], dict[str, Counts]] = {}
    for line in record["lines"]:
        counts = Counts(**{name: line[name] for name in Counts.__slots__})
        spaces = found.setdefault((line["file"], line["line"]), {})
        spaces[line["space"]] = spaces.get(line["space"], Counts()) + counts
    moved = {place: sum(map(_moved, spaces.values())) for place, spaces in found.items()}
    wasted = {place: sum(map(waste, spaces.values())) for place, spaces in found.items()}
    most = max(wasted.values(), default=0)
    total = sum(moved.values()) or 1
    for function in record["source"]:
        rows = []
        for number, code in enumerate(_highlighted(function["text"]), start=function["first"]):
            place = (function["file"], number)
            spaces = found.get(place, {})
            heat = moved.get(place, 0) / total
            rows.append(Row(number, code, _cells(spaces), heat, wasted.get(place, 0) == most > 0))
        yield Function(function["function"], function["file"], rows)


def _moved(counts: Counts) -> int:
    """Bytes between the threads and memory: 32 a sector, 128 a wavefront; of tile-level kernels what the masks let through."""
    return 32 * counts.sectors + 128 * counts.wavefronts or counts.bytes


def _cells(spaces: dict[str, Counts]) -> tuple[str, ...]:
    moved, shared = spaces.get("global", Counts()), spaces.get("shared", Counts())
    each = f"{moved.sectors_per_request:.3g} (ideal {moved.ideal_sectors_per_request:.3g})" if moved.sectors else ""
    numbers = (moved.requests + shared.requests, moved.sectors, each, shared.wavefronts, shared.bank_conflicts)
    if moved.bytes and not moved.requests:  # tile-level: no thread is named, so there are bytes alone
        return f"{moved.bytes:,} bytes", *[""] * (len(HEADINGS) - 1)
    return tuple(number if isinstance(number, str) else f"{number:,}" if number else "" for number in numbers)


def _highlighted(text: str) -> list[str]:
    """Python as HTML, line by line."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    html: Any = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return list(html.rstrip("\n").split("\n"))
