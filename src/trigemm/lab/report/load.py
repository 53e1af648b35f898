"""Records of every kind that a report shows, told apart by what is in them; everything else is named by file and line.

    benchmarks   from `trigemm bench`
    counted      from `trigemm traffic`: what a kernel asks of memory, line by line, with its source
    measured     from `trigemm traffic --nsight`: the same beside what a GPU's counters say
    searches     from `benchmarks/tiles.py`: the times of all tiles that suit a product

Times that are set side by side must come from the same versions of everything: of one device and problem, what was measured with
other versions than the latest is left out, and named too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trigemm.lab import records as files
from trigemm.lab.records import Broken, Record
from trigemm.lab.report import schemes
from trigemm.lab.report.rows import problem

# Whose versions a time does not depend on, or depends on as it is meant to.
_OF_NO_ACCOUNT = {"python", "trigemm"}

# Where a checkout keeps what a report shows, below its folder of benchmarks.
FOLDERS = ("results", "traffic", "attention", "peers", "tiles", "tensor")


@dataclass
class Loaded:
    """What some files hold, in their order."""

    benchmarks: list[Record] = field(default_factory=list)
    counted: list[Record] = field(default_factory=list)
    measured: list[Record] = field(default_factory=list)
    searches: list[Record] = field(default_factory=list)
    skipped: list[Broken] = field(default_factory=list)


def default_files(benchmarks: Path) -> list[Path]:
    """The files of records that a report shows where none are named."""
    return [path for folder in FOLDERS for path in sorted((benchmarks / folder).glob("*.jsonl"))]


def load(paths: Iterable[Path]) -> Loaded:
    """Reads files of JSON lines. Raises ValueError for one that cannot be read."""
    found = Loaded()
    benchmarks: list[tuple[Path, int, Record]] = []
    for path, number, value in files.lines(paths):
        kind, reason = _kind(value)
        if reason is not None:
            found.skipped.append(Broken(path, number, reason))
        elif kind == "benchmarks":
            benchmarks.append((path, number, value))
        else:
            getattr(found, kind).append(value)
    newest: dict[object, Record] = {}
    for _, _, record in sorted(benchmarks, key=lambda row: str(row[2].get("when", ""))):
        newest[problem(record)] = record
    for path, number, record in benchmarks:
        reason = _other_versions(record, newest[problem(record)])
        if reason is None:
            found.benchmarks.append(record)
        else:
            found.skipped.append(Broken(path, number, reason))
    return found


def _kind(value: Any) -> tuple[str, str | None]:
    """Which list of `Loaded` a line belongs to, and what is wrong with it."""
    if isinstance(value, Broken):
        return "", value.reason
    fields = value if isinstance(value, dict) else {}
    if "measured" in fields:
        return "measured", schemes.complaint(value, schemes.MEASURED)
    if "tiles" in fields:
        return "searches", schemes.complaint(value, schemes.SEARCH) or schemes.search_contradiction(value)
    if "lines" in fields:
        return "counted", schemes.complaint(value, schemes.COUNTED)
    # The types come first: of numbers that are too large there are no quotients.
    reason = schemes.complaint(value, schemes.BENCHMARK) or files.complaint(value)
    return "benchmarks", reason or schemes.benchmark_contradiction(value)


def _other_versions(record: Record, newest: Record) -> str | None:
    theirs, ours = newest["versions"], record["versions"]
    names = (theirs.keys() | ours.keys()) - _OF_NO_ACCOUNT
    differing = sorted(name for name in names if theirs.get(name) != ours.get(name))
    if not differing:
        return None
    name = differing[0]
    return f"measured with {name} {ours.get(name)}; the latest record of this device and problem has {name} {theirs.get(name)}"
