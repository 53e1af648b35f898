"""The report as one HTML file that needs nothing else: no network, no other file."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trigemm.kernels.catalogue import LADDER
from trigemm.lab.records import Record
from trigemm.lab.report import charts
from trigemm.lab.report.charts import Chart
from trigemm.lab.report.load import Loaded
from trigemm.lab.report.rows import (
    arithmetic,
    device_name,
    digits,
    distinct,
    fastest_blas,
    is_reference,
    label,
    latest,
    order,
    percent,
    problem,
    sizes,
    times,
)
from trigemm.lab.report.schemes import exceeds
from trigemm.lab.report.source import HEADINGS, Function, annotated
from trigemm.tiling import devices

_ASSETS = files("trigemm.lab.report") / "assets"


@dataclass(frozen=True)
class Card:
    """A figure that stands out: what it is, the number, and its circumstances."""

    title: str
    figure: str
    text: str


@dataclass(frozen=True)
class Table:
    """A sortable table. A cell is a text and the number by which it sorts (None: by its text)."""

    headings: Sequence[str]
    rows: Sequence[Sequence[tuple[str, float | None]]]


@dataclass(frozen=True)
class Listing:
    """The annotated source of a kernel."""

    title: str
    circumstances: str
    functions: list[Function]


def page(loaded: Loaded) -> str:
    """The report of some records, as HTML. Raises ValueError where its libraries are missing."""
    try:
        import jinja2

        library = _library()
    except ImportError as error:
        raise ValueError(f"the HTML report needs {error.name} (pip install 'trigemm[report]')") from None
    passed = [record for record in loaded.benchmarks if record["verdict"] == "pass" and record["median_ms"] is not None]
    shown = sorted(latest(passed), key=lambda record: (record["device"] != "cuda", not is_reference(record), order(record)))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    judged = sorted(latest(loaded.benchmarks), key=order)
    problems = _problems(shown)
    ladders = [group for group in problems if group[0]["operation"] == LADDER]
    return environment.from_string(_asset("page.html")).render(
        cards=list(_cards(shown)),
        ladders=[charts.ladder(group) for group in ladders if is_reference(group[0])],
        more_ladders=[charts.ladder(group) for group in ladders if not is_reference(group[0])],
        operations=[charts.ladder(group) for group in problems if group not in ladders],
        singles=list(_singles(shown)),
        rooflines=list(_rooflines(shown)),
        traffic=list(_traffic(loaded)),
        listings=list(_listings(loaded.counted)),
        listing_headings=HEADINGS,
        searches=list(_searches(loaded.searches)),
        errors=charts.errors(known) if (known := [r for r in judged if _is_judged(r)]) else None,
        devices=[devices.known(name) for name in devices.names()],
        environments=_environments(loaded.benchmarks),
        records=_records(judged),
        read=sum(map(len, (loaded.benchmarks, loaded.counted, loaded.measured, loaded.searches))),
        superseded=len(loaded.benchmarks) - len(judged),
        skipped=loaded.skipped,
        style=_asset("style.css"),
        script="\n".join(map(_asset, ("explorer.js", "page.js"))),
        library=library,
        as_json=_as_json,
    )


@cache
def _library() -> str:
    """Vega-Lite and all that it needs, as JavaScript; takes seconds to put together."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _as_json(chart: Chart) -> str:
    """A specification that can stand inside a script element."""
    return json.dumps(chart.spec, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _problems(records: Iterable[Record]) -> list[list[Record]]:
    """Records that may be compared, together, where there are at least two."""
    found: dict[object, list[Record]] = {}
    for record in records:
        found.setdefault(problem(record), []).append(record)
    return [group for group in found.values() if len(group) > 1]


def _singles(records: Sequence[Record]) -> Iterator[Chart]:
    """Problems of which one kernel was kept, with its speedup: a chart a device and family of operations."""
    compared = {problem(record) for group in _problems(records) for record in group}
    found: dict[str, list[Record]] = {}
    for record in records:
        if problem(record) not in compared and record["speedup"]:
            family, dot, _ = record["operation"].rpartition(".")
            found.setdefault(f"{family}{': ' if dot else ''}{device_name(record)}", []).append(record)
    return (charts.speedups(group, title) for title, group in found.items())


def _searches(records: Sequence[Record]) -> Iterator[Chart]:
    """A chart a device; of several searches of one product the last counts."""
    for name in distinct(record["device_name"] for record in records):
        found = {(r["m"], r["n"], r["k"], r["dtype"]): r for r in records if r["device_name"] == name}
        yield charts.tiles(list(found.values()), name)


def _cards(records: Sequence[Record]) -> Iterator[Card]:
    """The fastest kernel against the BLAS: a card an operation, arithmetic and device.

    Of the ladder's operation at the first of its shapes, the reference case where that was measured; of the others at the shape
    where it gains most.
    """
    found: dict[tuple[str, str], list[tuple[Record, str]]] = {}
    for group in _problems(records):
        kernels = [record for record in group if record.get("number") and record.get("speedup_blas")]
        blas = fastest_blas(group)
        if kernels and blas is not None:
            best = min(kernels, key=lambda record: float(record["median_ms"]))
            what = f"{best['operation']}, {arithmetic(best)}"
            found.setdefault((what, device_name(best)), []).append((best, blas[0]))
    for (what, where), cases in found.items():
        gains_most = max(cases, key=lambda case: float(case[0]["speedup_blas"]))
        record, library = cases[0] if cases[0][0]["operation"] == LADDER else gains_most
        text = f"{record['kernel']} against {library}'s full product, {sizes(record)}, on {where}"
        yield Card(what, times(record["speedup_blas"]), text)


def _rooflines(records: Sequence[Record]) -> Iterator[Chart]:
    for name in distinct(map(device_name, records)):
        chart = charts.roofline([record for record in records if device_name(record) == name], name)
        if chart is not None:
            yield chart


def _traffic(loaded: Loaded) -> Iterator[Chart]:
    """A chart for each shape whose traffic was counted or measured; a later record of a kernel replaces an earlier one."""
    counted: dict[str, dict[str, Record]] = {}
    measured: dict[str, dict[str, Record]] = {}
    devices: dict[str, set[str]] = {}
    for record in loaded.measured:
        where = _shape(record)
        for kind, found in (("counted", counted), ("measured", measured)):
            row = {_counter(name): value for name, value in record[kind].items()}
            found.setdefault(where, {})[record["kernel"]] = {"kernel": record["kernel"], **row}
        devices.setdefault(where, set()).add(record["device_name"])
    for record in loaded.counted:
        counted.setdefault(_shape(record), {})[record["kernel"]] = {"kernel": record["kernel"], **_counters(record)}
    for where, kernels in counted.items():
        rows = [row for row in kernels.values() if any(row.get(name) for name in charts.COUNTERS)]
        if rows:
            names = ", ".join(sorted(devices.get(where, ())))
            text = f"Bars were counted in the simulator; the strokes at their ends are what Nsight Compute measured on {names}."
            strokes = list(measured.get(where, {}).values())
            yield charts.traffic(rows, strokes, where, text if names else "Counted in the simulator.")


def _shape(record: Record) -> str:
    sizes = " ".join(f"{name}={size}" for name, size in (record.get("shape") or {}).items())
    return sizes or "Launches of scripts"


def _counter(name: str) -> str:
    """A counter as the chart calls it: shared_load_wavefronts -> shared loads."""
    return name.replace("_wavefronts", "s").replace("_", " ")


def _counters(record: Record) -> dict[str, int]:
    moved, shared = record.get("global", {}), record.get("shared", {})
    return {
        **{f"{kind} {what}": moved.get(kind, {}).get(what, 0) for kind in ("load", "store") for what in ("requests", "sectors")},
        **{f"shared {kind}s": shared.get(kind, {}).get("wavefronts", 0) for kind in ("load", "store")},
    }


def _listings(counted: Iterable[Record]) -> Iterator[Listing]:
    found = {(_shape(record), record["kernel"]): record for record in counted}
    for (where, kernel), record in found.items():
        number = record.get("number")
        title = kernel if number is None else f"{number} {kernel}"
        yield Listing(title, f"{where}, grid {_size(record['grid'])}, block {_size(record['block'])}", list(annotated(record)))


def _size(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _is_judged(record: Record) -> bool:
    """Whether the budget was for it: peers may be more wrong."""
    return record["error_over_budget"] is not None and not record["operation"].startswith("peers.")


def _environments(records: Sequence[Record]) -> Table:
    """The circumstances of the measurements, a row a device, set of versions and commit."""
    found: dict[str, tuple[dict[str, str], Record]] = {}
    for record in records:
        row = {"device": device_name(record), "commit": str(record["commit"] or "unknown")}
        found.setdefault(json.dumps([row, record["versions"]], sort_keys=True), (row, record))
    names = distinct(name for _, record in found.values() for name in record["versions"])
    rows = []
    for row, record in found.values():
        days = sorted({str(r.get("when", ""))[:10] for r in records if r["versions"] == record["versions"]} - {""})
        cells = [row["device"], *(str(record["versions"].get(name) or "") for name in names), row["commit"], ", ".join(days)]
        rows.append([(cell, None) for cell in cells])
    return Table(["device", *names, "commit", "day"], rows)


def _records(records: Sequence[Record]) -> Table:
    """Every benchmark record that counts."""
    rows = []
    for record in records:
        error = record["error_over_budget"]
        rows.append(
            [
                (record["operation"], None),
                (label(record), None),
                (device_name(record), None),
                (sizes(record), None),
                (arithmetic(record), None),
                ("beyond the budget" if record["verdict"] == "pass" and exceeds(error) else record["verdict"], None),
                ("" if error is None else percent(float(error)), _float(error)),
                _cell(record["median_ms"]),
                _cell(record["p20_ms"]),
                _cell(record["p80_ms"]),
                (times(record["speedup"]), record["speedup"]),
                (times(record.get("speedup_blas")), record.get("speedup_blas")),
                (percent(record["floor_share"]), record["floor_share"]),
                _cell(record.get("useful_tflops")),
                _cell(record.get("gbps")),
            ]
        )
    headings = ("operation", "kernel", "device", "problem", "arithmetic", "verified", "error / budget", "median, ms", "p20, ms")
    more = ("p80, ms", "vs baseline", "vs fastest BLAS", "of the floor", "useful TFLOP/s", "useful GB/s")
    return Table((*headings, *more), rows)


def _cell(value: float | None) -> tuple[str, float | None]:
    return digits(value), value


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
