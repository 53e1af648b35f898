"""Tables made from records: a pure function of what was measured. Nothing is measured here.

Of several records of one kernel at one problem on one device the latest counts. Seven tables:

    cuda         the ladder's kernels on a GPU, at the reference case
    cpu          the ladder's operation and the others on the CPU, against the full products of torch and NumPy
    operations   the public operations on a GPU, against torch.matmul
    attention    attention with its weights on a GPU, against eager attention, torch.compile and SDPA
    peers        the public operations against other libraries, device by device
    tensor-cpu   the primitives of trigemm.tensor on the CPU, against torch and NumPy
    tensor-cuda  the same on a GPU, against torch and CuPy
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from trigemm.kernels.catalogue import LADDER
from trigemm.lab.records import Record
from trigemm.lab.report.rows import (
    arithmetic,
    caption,
    device_name,
    digits,
    is_reference,
    label,
    latest,
    order,
    percent,
    problem,
    sizes,
    spread,
    times,
    title,
)
from trigemm.lab.report.schemes import exceeds

_MARKERS = re.compile(r"(<!-- table:(\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
_NO_RECORDS = "No records.\n"


def table(name: str, records: Iterable[Record]) -> str:
    """One table in Markdown with its caption; a sentence where no record is for it. Raises ValueError for an unknown name."""
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](latest(record for record in records if record["verdict"] == "pass"))


def markdown(records: Iterable[Record]) -> str:
    """The tables that there are records for, each under its name."""
    kept = list(records)
    tables = {name: table(name, kept) for name in TABLES}
    return "\n".join(f"### {name}\n\n{made}" for name, made in tables.items() if made != _NO_RECORDS) or _NO_RECORDS


def update(text: str, records: Iterable[Record]) -> tuple[str, list[str]]:
    """`text` with what stands between <!-- table:NAME --> and <!-- /table --> made anew; and the tables left as they were.

    These are the ones that no record is for. Raises ValueError where there are no markers, or they do not pair.

    >>> update("<!-- table:cpu -->\\nold\\n<!-- /table -->", [])
    ('<!-- table:cpu -->\\nold\\n<!-- /table -->', ['cpu'])
    """
    kept = list(records)
    blocks = _MARKERS.findall(text)
    if len(blocks) != text.count("<!-- table:") or len(blocks) != text.count("<!-- /table -->"):
        raise ValueError("each <!-- table:NAME --> must stand on a line of its own and be closed by <!-- /table -->")
    if not blocks:
        raise ValueError(f"no <!-- table:NAME --> found; the names are {', '.join(TABLES)}")
    tables = {name: table(name, kept) for _, name, _, _ in blocks}
    left = [name for name, made in tables.items() if made == _NO_RECORDS]
    after = _MARKERS.sub(lambda block: block[0] if block[2] in left else block[1] + tables[block[2]] + block[4], text)
    return after, left


def _cuda(records: Sequence[Record]) -> str:
    """All rows of a dtype against its baseline in full precision; a second record of the baseline in TF32 is left out."""
    found = sorted((r for r in records if r["device"] == "cuda" and is_reference(r)), key=order)
    baselines = {(device_name(r), r["dtype"], r["precision"]): r["median_ms"] for r in found if r["kernel"] == "baseline"}
    in_tf32 = {(device, dtype) for device, dtype, precision in baselines if precision == "high"}
    rows = [r for r in found if r["kernel"] != "baseline_tf32" or (device_name(r), r["dtype"]) not in in_tf32]

    def against(row: Record) -> float | None:
        baseline = baselines.get((device_name(row), row["dtype"], "highest"))
        return None if baseline is None else float(baseline / row["median_ms"])

    return _table(
        ("kernel", "arithmetic", "µs, median [p20-p80]", "vs the dtype's baseline", "of the floor", "useful TFLOP/s", "idea"),
        [
            (
                label(row),
                arithmetic(row),
                spread(row, 1e3),
                times(against(row)),
                percent(row["floor_share"]),
                digits(row.get("useful_tflops")),
                str(row.get("idea", "")),
            )
            for row in rows
        ],
        rows,
    )


def _cpu(records: Sequence[Record]) -> str:
    rows = sorted((r for r in records if r["device"] == "cpu" and r.get("number")), key=order)
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
                sizes(row),
                row["dtype"],
                row["kernel"],
                digits(row["baseline_ms"]),
                digits(row.get("alone_ms")),
                digits(beside.get((_problem(row), "baseline_numpy"))),
                spread(row, 1),
                times(row["speedup"]),
                times(row.get("speedup_blas")),
            )
            for row in rows
        ],
        rows,
    )


def _operations(records: Sequence[Record]) -> str:
    rows = sorted((r for r in records if r["device"] == "cuda" and r["operation"] != LADDER and r.get("number") == 1), key=order)
    return _table(
        ("operation", "P x T x HS", "arithmetic", "torch.matmul, µs", "trigemm, µs, median [p20-p80]", "speedup", "of the floor"),
        [
            (
                row["operation"],
                sizes(row),
                arithmetic(row),
                digits(None if row["baseline_ms"] is None else 1e3 * row["baseline_ms"]),
                spread(row, 1e3),
                times(row["speedup"]),
                percent(row["floor_share"]),
            )
            for row in rows
        ],
        rows,
    )


_RETURNED = {
    "weights": "output and all weights",
    "unwritten": "the same, nothing above the diagonal",
    "output": "output alone",
    "columns": "output and each key's sum",
    "training": "gradients of a loss on both, with the forward",
}


def _attention(records: Sequence[Record]) -> str:
    by_case: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["operation"] == "causal_attention" and record["device"] == "cuda" and "case" in record:
            by_case.setdefault(str(record["case"]), {})[record["kernel"]] = record
    cases = [case for case in by_case.values() if "trigemm" in case]

    def microseconds(case: dict[str, Record], kernel: str) -> str:
        return digits(1e3 * case[kernel]["median_ms"]) if kernel in case else ""

    return _table(
        (
            "returned",
            "B x NH x T x HS",
            "arithmetic",
            "eager, µs",
            "torch.compile",
            "SDPA",
            "trigemm [p20-p80]",
            "vs eager",
            "of the floor",
        ),
        [
            (
                _RETURNED.get(ours["mode"], f"output and the weights of {ours['heads']} heads"),
                " x ".join(str(ours["shape"][name]) for name in ("B", "NH", "T", "HS")),
                arithmetic(ours),
                *(microseconds(case, kernel) for kernel in ("eager", "compiled", "sdpa")),
                spread(ours, 1e3),
                times(ours["speedup"]),
                percent(ours["floor_share"]),
            )
            for case in cases
            for ours in [case["trigemm"]]
        ],
        [case["trigemm"] for case in cases],
    )


_PEERS = {
    "eager": "PyTorch",
    "compiled": "torch.compile",
    "sdpa": "SDPA",
    "scipy": "SciPy's BLAS",
    "cupy": "CuPy",
    "jax": "JAX",
}


def _peers(records: Sequence[Record]) -> str:
    devices: dict[str, dict[object, dict[str, Record]]] = {}
    for record in records:
        if record["operation"].startswith("peers."):
            devices.setdefault(record["device"], {}).setdefault(problem(record), {})[record["kernel"]] = record
    return "\n".join(_peers_on(device, list(devices[device].values())) for device in sorted(devices)) or _table((), [], [])


def _peers_on(device: str, found: Sequence[dict[str, Record]]) -> str:
    """A row a problem, a column a library. What gives less than was asked for is not compared."""
    groups = [group for group in found if "trigemm" in group]
    unit, factor = ("µs", 1e3) if device == "cuda" else ("ms", 1.0)
    shown = [name for name in _PEERS if any(name in group or name in group["trigemm"]["skipped"] for group in groups)]

    def cell(group: dict[str, Record], name: str) -> str:
        if name not in group:
            return str(group["trigemm"]["skipped"].get(name, "")).split(":")[0]
        record = group[name]
        error = record["error_over_budget"]
        notes = [record.get("gives"), f"error {digits(float(error))}x the budget" if exceeds(error) else None]
        return " ".join((digits(factor * record["median_ms"]), *(f"({note})" for note in notes if note)))

    def against(group: dict[str, Record]) -> float | None:
        rivals = [record["median_ms"] for name, record in group.items() if name in _PEERS and not record.get("gives")]
        return min(rivals) / group["trigemm"]["median_ms"] if rivals else None

    return _table(
        (
            "operation",
            "P x T x HS",
            "arithmetic",
            f"trigemm, {unit} [p20-p80]",
            *(_PEERS[name] for name in shown),
            "vs the fastest",
        ),
        [
            (
                title(ours),
                sizes(ours),
                arithmetic(ours),
                spread(ours, factor),
                *(cell(group, name) for name in shown),
                times(against(group)),
            )
            for group in groups
            for ours in [group["trigemm"]]
        ],
        [record for group in groups for record in group.values()],
    )


def _tensor(device: str, other: str, records: Sequence[Record]) -> str:
    """A row a primitive and shape; `other` is the library of arrays beside torch."""
    rows = [r for r in records if r["device"] == device and r["kernel"] == "trigemm.tensor" and "axis0" in r["shape"]]

    def microseconds(row: Record, name: str) -> str:
        return digits(1e3 * row[name] if row.get(name) else None)

    return _table(
        ("primitive", "shape", "trigemm, µs [p20-p80]", "torch", other, "vs the faster", "of the floor"),
        [
            (
                row["operation"].removeprefix("tensor."),
                " x ".join(str(size) for name, size in row["shape"].items() if name.startswith("axis")),
                spread(row, 1e3),
                microseconds(row, "torch_ms"),
                microseconds(row, f"{other.lower()}_ms"),
                times(row["speedup"]),
                percent(row["floor_share"] if row.get("cold_l2") else None),
            )
            for row in rows
        ],
        rows,
    )


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "cuda": _cuda,
    "cpu": _cpu,
    "operations": _operations,
    "attention": _attention,
    "peers": _peers,
    "tensor-cpu": partial(_tensor, "cpu", "NumPy"),
    "tensor-cuda": partial(_tensor, "cuda", "CuPy"),
}


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
        return _NO_RECORDS
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{caption(records)}\n"
