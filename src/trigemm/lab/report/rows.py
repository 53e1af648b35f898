"""Which records a report shows, in what order, and how it writes their figures."""

from collections.abc import Iterable, Sequence

from trigemm.kernels.catalogue import LADDER
from trigemm.lab.problem import DEFAULT_SHAPES
from trigemm.lab.records import Record

_REFERENCE = dict(zip(("B", "T", "NH", "HS"), DEFAULT_SHAPES[LADDER], strict=True))


def latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each kernel at each problem on each device, by the time of measurement, then by position."""
    found: dict[object, Record] = {}
    for record in sorted(records, key=lambda record: str(record.get("when", ""))):
        found[problem(record), record["kernel"], record["precision"]] = record
    return list(found.values())


def problem(record: Record) -> tuple[object, ...]:
    """What two records must share for their times to be set side by side."""
    return (
        device_name(record),
        record["operation"],
        tuple(sorted(record["shape"].items())),
        record["dtype"],
        # The baseline in TF32 is measured beside the kernels of full precision, as one more that they may be set against.
        "highest" if record["kernel"] == "baseline_tf32" else record["precision"],
        record["fill"],
        record.get("cold_l2"),
        record.get("mode"),
        record.get("heads"),
    )


def is_reference(record: Record) -> bool:
    return record["operation"] == LADDER and record["shape"] == _REFERENCE and record["fill"] is None


def order(record: Record) -> tuple[object, ...]:
    number = record.get("number")
    return (
        record["operation"] != LADDER,
        record["operation"],
        tuple(record["shape"].values()),
        # float32 first, it is the reference case.
        record["dtype"] != "float32",
        record["dtype"],
        number is not None and number > 0,
        number or 0,
        record["kernel"],
    )


def device_name(record: Record) -> str:
    return str(record.get("device_name") or record["device"])


def label(record: Record) -> str:
    """A kernel's name, with its number where it is a rung of the ladder."""
    return (
        record["kernel"]
        if record.get("number") is None or record["operation"] != LADDER
        else f"{record['number']} {record['kernel']}"
    )


def title(record: Record) -> str:
    """An operation, and which of its results was asked for."""
    return ", ".join(filter(None, (record["operation"].removeprefix("peers."), record.get("mode"))))


def arithmetic(record: Record) -> str:
    return f"{record['dtype']} {record['precision']}" if record["dtype"] == "float32" else str(record["dtype"])


def fastest_blas(records: Sequence[Record]) -> tuple[str, float] | None:
    """The library whose full product was the fastest of the same run, and its milliseconds; None where no record says."""
    best = next((record["blas_ms"] for record in records if record.get("blas_ms")), None)
    if best is None:
        return None
    by_numpy = any(record["kernel"] == "baseline_numpy" and record["median_ms"] == best for record in records)
    name = records[0]["versions"].get("numpy_blas" if by_numpy else "blas") or "the BLAS"
    return name, best


def sizes(record: Record) -> str:
    """What is multiplied, as products x rows x depth; where the shape has other letters, each with its size."""
    shape = record["shape"]
    if shape.keys() != {"B", "T", "NH", "HS"}:
        return " ".join(f"{name}={size}" for name, size in shape.items())
    return f"{shape['B'] * shape['NH']} x {shape['T']} x {shape['HS']}"


def caption(records: Sequence[Record]) -> str:
    """Device, versions and commits of all records of a table."""
    devices = distinct(map(device_name, records))
    shown = ("torch", "cuda", "driver", "triton", "numba-cuda", "numpy", "blas", "scipy", "cupy", "jax")
    versions = [
        f"{name} {' and '.join(values)}"
        for name in shown
        if (values := distinct(record["versions"].get(name) for record in records))
    ]
    commits = distinct(record["commit"] for record in records)
    caches = {True: "caches flushed between calls", False: "caches warm"}
    state = distinct(caches.get(record.get("cold_l2")) for record in records)  # type: ignore[arg-type]
    return f"{'; '.join([*devices, *state])}; {', '.join(versions)}; commit {', '.join(commits) or 'unknown'}."


def distinct(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value is not None))


def spread(record: Record, factor: float) -> str:
    median, p20, p80 = (record[name] * factor for name in ("median_ms", "p20_ms", "p80_ms"))
    return f"{digits(median)} [{digits(p20)}-{digits(p80)}]"


def digits(value: float | None) -> str:
    """Three significant digits, and all digits before the point."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
