"""Tables made from records: a pure function of what was measured. Nothing is measured here.

Of several records of one kernel at one problem on one device the latest counts. Three tables:

    cuda         the ladder's kernels on a GPU, at the reference case
    cpu          the ladder's operation and the others on the CPU, against the full products of torch and NumPy
    operations   the public operations on a GPU, against torch.matmul
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trigemm.kernels.catalogue import LADDER
from trigemm.kernels.spec import ALL_DTYPES
from trigemm.lab.problem import DEFAULT_SHAPES
from trigemm.lab.records import Record

_MARKERS = re.compile(r"(<!-- table:(\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
_REFERENCE = dict(zip(("B", "T", "NH", "HS"), DEFAULT_SHAPES[LADDER], strict=True))


def table(name: str, records: Iterable[Record]) -> str:
    """One table in Markdown with its caption; a sentence where no record is for it. Raises ValueError for an unknown name."""
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](_latest(record for record in records if record["verdict"] == "pass"))


def markdown(records: Iterable[Record]) -> str:
    """All tables, each under its name."""
    kept = list(records)
    return "\n".join(f"### {name}\n\n{table(name, kept)}" for name in TABLES)


def update(text: str, records: Iterable[Record]) -> str:
    """`text` with what stands between <!-- table:NAME --> and <!-- /table --> made anew.

    Raises ValueError where there are no markers, or they do not pair.

    >>> print(update("<!-- table:cpu -->\\nold\\n<!-- /table -->", []))
    <!-- table:cpu -->
    No records.
    <!-- /table -->
    """
    kept = list(records)
    blocks = _MARKERS.findall(text)
    if len(blocks) != text.count("<!-- table:") or len(blocks) != text.count("<!-- /table -->"):
        raise ValueError("each <!-- table:NAME --> must stand on a line of its own and be closed by <!-- /table -->")
    if not blocks:
        raise ValueError(f"no <!-- table:NAME --> found; the names are {', '.join(TABLES)}")
    return _MARKERS.sub(lambda block: block[1] + table(block[2], kept) + block[4], text)


def check_plot(path: Path) -> None:
    """Raises ValueError where no chart could be written to `path`; to be called before work is done."""
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"cannot plot to {path}: its name must end in one of {', '.join(f'.{name}' for name in formats)}")
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise ValueError(f"cannot plot to {path}: give a file in an existing folder")


def plot(records: Iterable[Record], path: Path) -> None:
    """A bar chart of the GPU ladder at the reference case, or of the CPU's where no GPU was measured: times with their spread."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    passed = _latest(record for record in records if record["verdict"] == "pass")
    at_reference = [record for record in passed if _is_reference(record)]
    chosen = [record for record in at_reference if record["device"] == "cuda"] or at_reference
    if not chosen:
        raise ValueError("there is no record of the reference case to plot")
    chosen.sort(key=_order)
    labels = [f"{_name(record)}\n{_arithmetic(record)}" for record in chosen]
    medians = [record["median_ms"] for record in chosen]
    spread = [
        [record["median_ms"] - record["p20_ms"] for record in chosen],
        [record["p80_ms"] - record["median_ms"] for record in chosen],
    ]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(chosen) + 1.5), layout="constrained")
    axes.barh(labels, medians, xerr=spread)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("ms, median with 20th and 80th percentile")
    axes.set_title(_caption(chosen), fontsize="x-small", wrap=True)
    figure.savefig(path)
    plt.close(figure)


def _latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each kernel at each problem on each device, by the time of measurement, then by position."""
    found: dict[object, Record] = {}
    for record in sorted(records, key=lambda record: str(record.get("when", ""))):
        fields = (record[name] for name in ("operation", "kernel", "device", "dtype", "precision", "fill"))
        found[(*fields, tuple(sorted(record["shape"].items())), record.get("device_name"), record.get("cold_l2"))] = record
    return list(found.values())


def _is_reference(record: Record) -> bool:
    return record["operation"] == LADDER and record["shape"] == _REFERENCE and record["fill"] is None


def _order(record: Record) -> tuple[object, ...]:
    number = record.get("number")
    sizes = record["shape"].values()
    return (
        record["operation"] != LADDER,
        record["operation"],
        tuple(sizes),
        # float32 first, it is the reference case.
        ("float32", *ALL_DTYPES).index(record["dtype"]),
        number is not None and number > 0,
        number or 0,
        record["kernel"],
    )


def _name(record: Record) -> str:
    return record["kernel"] if record.get("number") is None else f"{record['number']} {record['kernel']}"


def _arithmetic(record: Record) -> str:
    return f"{record['dtype']} {record['precision']}" if record["dtype"] == "float32" else str(record["dtype"])


def _sizes(record: Record) -> str:
    """What is multiplied, as (batch x) rows x depth, by the operation's own letters."""
    B, T, NH, HS = (record["shape"][name] for name in ("B", "T", "NH", "HS"))
    return f"{B * NH} x {T} x {HS}"


def _cuda(records: Sequence[Record]) -> str:
    rows = sorted((r for r in records if r["device"] == "cuda" and _is_reference(r)), key=_order)
    return _table(
        ("kernel", "arithmetic", "µs, median [p20-p80]", "vs baseline", "of the floor", "useful TFLOP/s", "idea"),
        [
            (
                _name(row),
                _arithmetic(row),
                _spread(row, 1e3),
                _times(row["speedup"]),
                _percent(row["floor_share"]),
                _number(row.get("useful_tflops")),
                str(row.get("idea", "")),
            )
            for row in rows
        ],
        rows,
    )


def _cpu(records: Sequence[Record]) -> str:
    rows = sorted((r for r in records if r["device"] == "cpu" and r.get("number")), key=_order)
    beside = {(_problem(r), r["kernel"]): r["median_ms"] for r in records}
    return _table(
        (
            "operation",
            "P x T x HS",
            "dtype",
            "kernel",
            "torch, ms",
            "torch without permutation, ms",
            "NumPy, ms",
            "ms, median [p20-p80]",
            "vs torch",
            "vs the fastest",
        ),
        [
            (
                row["operation"],
                _sizes(row),
                row["dtype"],
                row["kernel"],
                _number(row["baseline_ms"]),
                _number(row.get("alone_ms")),
                _number(beside.get((_problem(row), "baseline_numpy"))),
                _spread(row, 1),
                _times(row["speedup"]),
                _times(row.get("speedup_blas")),
            )
            for row in rows
        ],
        rows,
    )


def _operations(records: Sequence[Record]) -> str:
    rows = sorted((r for r in records if r["device"] == "cuda" and r["operation"] != LADDER and r.get("number")), key=_order)
    return _table(
        ("operation", "P x T x HS", "arithmetic", "torch.matmul, µs", "trigemm, µs, median [p20-p80]", "speedup", "of the floor"),
        [
            (
                row["operation"],
                _sizes(row),
                _arithmetic(row),
                _number(None if row["baseline_ms"] is None else 1e3 * row["baseline_ms"]),
                _spread(row, 1e3),
                _times(row["speedup"]),
                _percent(row["floor_share"]),
            )
            for row in rows
        ],
        rows,
    )


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {"cuda": _cuda, "cpu": _cpu, "operations": _operations}


def _problem(record: Record) -> tuple[object, ...]:
    """What makes two records comparable: the same problem in the same run."""
    return (
        record["operation"],
        record["dtype"],
        record["fill"],
        tuple(sorted(record["shape"].items())),
        record.get("device_name"),
        record.get("when"),
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], records: Sequence[Record]) -> str:
    if not rows:
        return "No records.\n"
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{_caption(records)}\n"


def _caption(records: Sequence[Record]) -> str:
    """Device, versions and commits of all records of a table."""
    devices = _distinct(record.get("device_name") or record["device"] for record in records)
    shown = ("torch", "cuda", "driver", "triton", "numba-cuda", "numpy", "blas")
    versions = [
        f"{name} {' and '.join(values)}"
        for name in shown
        if (values := _distinct(record["versions"].get(name) for record in records))
    ]
    commits = _distinct(record["commit"] for record in records)
    caches = {True: "caches flushed between calls", False: "caches warm"}
    state = _distinct(caches.get(record.get("cold_l2")) for record in records)  # type: ignore[arg-type]
    return f"{'; '.join([*devices, *state])}; {', '.join(versions)}; commit {', '.join(commits) or 'unknown'}."


def _distinct(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value is not None))


def _spread(record: Record, factor: float) -> str:
    median, p20, p80 = (record[name] * factor for name in ("median_ms", "p20_ms", "p80_ms"))
    return f"{_number(median)} [{_number(p20)}-{_number(p80)}]"


def _number(value: float | None) -> str:
    """Three significant digits, and all digits before the point."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
