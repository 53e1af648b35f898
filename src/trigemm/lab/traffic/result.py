"""What a traced launch says: `Traffic`, and its findings."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trigemm.lab.traffic.count import Counts
from trigemm.lab.traffic.log import Line, Operation, Space
from trigemm.lab.traffic.source import file_name, functions


class Access(NamedTuple):
    """What a row of counts belongs to."""

    space: Space
    array: str
    operation: Operation
    line: Line


@dataclass(frozen=True)
class Finding:
    """A fault of a kernel. `index` is that of the first element concerned, "" where there is none."""

    kind: str
    kernel: str
    line: Line
    array: str
    index: str
    threads: tuple[int, ...]
    blocks: tuple[int, ...]
    explanation: str

    def __str__(self) -> str:
        where = f"{self.array}[{self.index}]" if self.index else self.array
        who = [_some("thread", self.threads), _some("block", self.blocks)]
        place = "; ".join([f"{self.kernel}, line {self.line.number}", *filter(None, who)])
        return f"{self.kind}{' of ' * bool(where)}{where}: {self.explanation} ({place})"


def _some(what: str, numbers: tuple[int, ...]) -> str:
    """A few of the numbers, and how many there are.

    >>> _some("thread", (3,)), _some("block", (0, 1, 2, 3, 4))
    ('thread 3', '5 blocks: 0, 1, 2, …')
    """
    if len(numbers) < 2:
        return f"{what} {numbers[0]}" if numbers else ""
    shown = ", ".join(map(str, numbers[:3]))
    return f"{len(numbers)} {what}s: {shown}{', …' * (len(numbers) > 3)}"


@dataclass
class Traffic:
    """The counts of one launch, over all blocks of its grid.

    rows       Access -> Counts, one for each (space, array, operation, source line)
    barriers   times that a block passed a barrier, by source line
    flops      floating-point operations on loaded values, by source line; None where they were not counted
    blocks     in the grid; `traced` of them ran, and each stands for its kind
    findings   what the sanitizer found; None where it did not look
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    blocks: int
    traced: int = 0
    rows: dict[Access, Counts] = field(default_factory=dict)
    barriers: Counter[Line] = field(default_factory=Counter)
    flops: Counter[Line] | None = None
    findings: list[Finding] | None = None
    error: str | None = None

    def total(self, space: str | None = None, operation: str | None = None, array: str | None = None) -> Counts:
        """The sum of the rows of one space, operation and array (None: of all)."""
        wanted = (space, array, operation)
        chosen = (
            counts
            for access, counts in self.rows.items()
            if all(want is None or want == have for want, have in zip(wanted, access[:3], strict=True))
        )
        return sum(chosen, Counts())

    def by(self, key: Callable[[Access], Any]) -> dict[Any, Counts]:
        """The rows added up by what `key` says of their access."""
        sums: dict[Any, Counts] = {}
        for access, counts in self.rows.items():
            sums[key(access)] = sums.get(key(access), Counts()) + counts
        return sums

    def as_json(self) -> dict[str, Any]:
        """The counts as plain data; its keys are those of `Counts`."""
        return {
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "blocks": self.blocks,
            "blocks_traced": self.traced,
            **{
                space: {operation: _plain(counts) for (_, operation), counts in sorted(found.items())}
                for space in ("global", "shared", "local", "constant")
                if (found := {key: value for key, value in self.by(lambda a: (a.space, a.operation)).items() if key[0] == space})
            },
            "barriers": sum(self.barriers.values()),
            "flops": None if self.flops is None else sum(self.flops.values()),
            "arrays": [
                {"space": space, "array": array, "operation": operation, **_plain(counts)}
                for (space, array, operation), counts in self.by(lambda a: a[:3]).items()
            ],
            "lines": [
                {
                    "space": access.space,
                    "array": access.array,
                    "operation": access.operation,
                    "file": file_name(access.line.file),
                    "function": access.line.function,
                    "line": access.line.number,
                    **_plain(counts),
                }
                for access, counts in self.rows.items()
            ],
            "source": functions({access.line for access in self.rows}),
            "findings": None if self.findings is None else [_finding(finding) for finding in self.findings],
            "error": self.error,
        }


def _plain(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in Counts.__slots__}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "kernel": finding.kernel,
        "line": finding.line.number,
        "threads": list(finding.threads),
        "blocks": list(finding.blocks),
        "array": finding.array,
        "index": finding.index,
        "explanation": finding.explanation,
    }


def add_up(rows: Iterable[tuple[Access, Counts]]) -> dict[Access, Counts]:
    """Rows with equal keys become one."""
    sums: dict[Access, Counts] = {}
    for access, counts in rows:
        sums[access] = sums.get(access, Counts()) + counts
    return sums
