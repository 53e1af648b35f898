"""What is printed: the ladder's table, the table of a launch, and a kernel's source with its counts beside it."""

from collections.abc import Mapping, Sequence
from linecache import getline
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trigemm.kernels.spec import KernelSpec
from trigemm.lab.traffic import ladder
from trigemm.lab.traffic.count import Counts
from trigemm.lab.traffic.log import Line
from trigemm.lab.traffic.result import Traffic
from trigemm.lab.traffic.source import first_line


def ladder_table(runs: Sequence[tuple[KernelSpec, Traffic]], shape: ladder.Shape) -> Table:
    """The rungs, each with its counts, its predictions, and what it saves against the rung above it."""
    sizes = " ".join(f"{name}={shape[name]}" for name in ("B", "T", "NH", "HS"))
    table = Table(title=f"global memory traffic, counted = predicted  {sizes}  float32", show_lines=True)
    table.add_column("kernel")
    for heading in ("load requests", "load sectors", "store requests", "store sectors", "shared wavefronts", "MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("saves against the rung above")
    before: Traffic | None = None
    for spec, traffic in runs:
        counted, expected = ladder.counted(traffic), ladder.predicted(spec, shape)
        cells = ["-"] * 5
        if expected is not None:
            cells = [_against(value, expected[name]) for name, value in counted.items()]
            shared = traffic.total("shared")
            conflicts = f"\n{shared.bank_conflicts:,} by conflicts" if shared.bank_conflicts else ""
            cells.append(f"{shared.wavefronts:,}{conflicts}" if shared.wavefronts else "-")
        comparable = before is not None and expected is not None
        saves = _savings(before, traffic) if before is not None and comparable else ""
        table.add_row(f"{spec.number} {spec.name}", *cells, _megabytes(traffic), saves)
        before = traffic if expected is not None else before
    return table


def _against(counted: int, predicted: int) -> str:
    return f"{counted:,}\n= {predicted:,}" if counted == predicted else f"[bold red]{counted:,}\n≠ {predicted:,}"


def _megabytes(traffic: Traffic) -> str:
    total = traffic.total("global")
    if not total.sectors:  # tile-level: the bytes that the masks let through
        switched_off = total.attempted_bytes - total.bytes
        return f"{total.bytes / 1e6:,.1f}" + (f"\n+{switched_off / 1e6:,.1f} masked" if switched_off else "")
    return f"{32 * total.sectors / 1e6:,.1f}"


def _savings(before: Traffic, after: Traffic) -> str:
    parts = []
    for name, ratio in ladder.savings(before, after).items():
        what = name.replace("_", " ")
        parts.append(f"{what} ÷ {ratio:.3g}" if ratio > 1 else f"{what} x {1 / ratio:.3g}")
    return "\n".join(parts)


def launch_table(traffic: Traffic) -> Table:
    """One launch: its counts by array and operation."""
    grid, block = (" x ".join(map(str, size)) for size in (traffic.grid, traffic.block))
    table = Table(title=f"{traffic.kernel}, grid {grid}, block {block}")
    table.add_column("array")
    table.add_column("operation")
    for heading in ("elements", "requests", "sectors", "per request", "wavefronts", "conflicts"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (space, array, operation), counts in traffic.by(lambda access: access[:3]).items():
        table.add_row(f"{array} ({space})", operation, f"{counts.elements:,}", f"{counts.requests:,}", *_quality(counts))
    if traffic.barriers:
        passed = sum(traffic.barriers.values())
        table.caption = f"{passed:,} barrier{'s' * (passed != 1)}"
    if traffic.flops is not None:
        table.caption = f"{table.caption or ''} {sum(traffic.flops.values()):,} floating-point operations".strip()
    return table


def _quality(counts: Counts) -> tuple[str, str, str, str]:
    """Sectors, sectors a request against the ideal, wavefronts, bank conflicts."""
    sectors = f"{counts.sectors:,}" if counts.sectors else ""
    each = f"{counts.sectors_per_request:.3g} (ideal {counts.ideal_sectors_per_request:.3g})" if counts.sectors else ""
    wavefronts = f"{counts.wavefronts:,}" if counts.wavefronts else ""
    return sectors, each, wavefronts, f"{counts.bank_conflicts:,}" if counts.wavefronts else ""


def waste(counts: Counts) -> int:
    """Bytes that were moved, or could have been, beyond what was asked for: 32 a sector, 128 a wavefront."""
    return 32 * (counts.sectors - counts.ideal_sectors) + 128 * counts.bank_conflicts


def annotated_source(traffic: Traffic) -> RenderableType:
    """The source of the functions that ran, each line with its counts; the line that wastes most is marked."""
    by_line = traffic.by(lambda access: access.line)
    worst = max(by_line, key=lambda line: waste(by_line[line]), default=None)
    if worst is not None and waste(by_line[worst]) == 0:
        worst = None
    functions: dict[tuple[str, str], list[int]] = {}
    for line in sorted(by_line):
        functions.setdefault((line.file, line.function), []).append(line.number)
    return Group(*(_annotated(traffic, worst, *key, numbers) for key, numbers in functions.items()))


def _annotated(traffic: Traffic, worst: Line | None, file: str, function: str, numbers: list[int]) -> Table:
    table = Table(title=f"{traffic.kernel}: {function} in {Path(file).name}", box=None, pad_edge=False, title_justify="left")
    for heading in ("line", "global requests", "sectors", "per request", "shared requests", "wavefronts", "conflicts"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True, overflow="ellipsis")
    by_line = traffic.by(lambda access: (access.line, access.space))
    for number in range(first_line(file, function, numbers[0]), numbers[-1] + 1):
        line = Line(file, number, function)
        moved, shared = (by_line.get((line, space), Counts()) for space in ("global", "shared"))
        cells = [_or_blank(moved.requests), *_quality(moved)[:2], _or_blank(shared.requests), *_quality(shared)[2:]]
        source = Text(getline(file, number).rstrip().expandtabs(4))
        if line == worst:
            source += Text("   ◀ worst", "bold")
        table.add_row(str(number), *cells, source, style="red" if line == worst else "bold" if number in numbers else "")
    return table


def _or_blank(number: int) -> str:
    return f"{number:,}" if number else ""


def findings_text(traffic: Traffic) -> Text:
    """What the sanitizer found, a line a finding."""
    return Text("\n".join(f"  {finding}" for finding in traffic.findings or ()), "bold red")


def comparison_table(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    """Counted beside measured, a row a counter."""
    table = Table(title="counted in the simulator, measured by Nsight Compute")
    table.add_column("kernel")
    table.add_column("counter")
    for heading in ("counted", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for comparison in comparisons:
        for i, (name, measured) in enumerate(comparison["measured"].items()):
            counted = comparison["counted"][name]
            if not counted and not measured:
                continue
            what = name.replace("_", " ")
            note = next((note.split(": ", 1)[1] for note in comparison["notes"] if note.startswith(f"{what}: ")), "equal")
            if note == "equal" and counted != measured:
                note = f"within 2% ({measured / counted - 1:+.2%})"
            table.add_row(comparison["kernel"] if i == 0 else "", what, f"{counted:,}", f"{measured:,}", note)
    return table
