"""What the fields that a report shows may hold. More fields may stand in a record.

A scheme is a test of a value, a list of one scheme (for every entry), or fields with a scheme each: a name that ends in "?" may
be missing or null, and `str` stands for every name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from reprlib import repr as shortened
from typing import Any, cast

from trigemm.lab.records import Record
from trigemm.lab.traffic.count import Counts
from trigemm.tiling import Device, plan

Scheme = Callable[[Any], bool] | list[Any] | Mapping[Any, Any]


def complaint(value: object, scheme: Scheme, place: str = "") -> str | None:
    """What does not fit a scheme, with its place, or None.

    >>> complaint({"tiles": [{"block": [16, 0]}]}, {"tiles": [{"block": [size]}]})
    'field "tiles[0].block[1]" cannot be 0'
    """
    wrong = f'field "{place}" cannot be {shortened(value)}' if place else f"not a JSON object but {type(value).__name__}"
    if callable(scheme):
        return None if scheme(value) else wrong
    if isinstance(scheme, list):
        if not isinstance(value, list):
            return wrong
        found = (complaint(entry, scheme[0], f"{place}[{i}]") for i, entry in enumerate(value))
        return next(filter(None, found), None)
    if not isinstance(value, dict):
        return wrong
    for key, inner in scheme.items():
        for name in value if key is str else [key]:
            optional = name.endswith("?") and key is not str
            name = name.removesuffix("?") if optional else name
            at = f"{place}.{name}" if place else name
            if optional and value.get(name) is None:
                continue
            if name not in value:
                return f'field "{at}" is missing'
            reason = complaint(value[name], inner, at)
            if reason is not None:
                return reason
    return None


def text(value: Any) -> bool:
    return isinstance(value, str)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def count(value: Any) -> bool:
    """A finite number that is not negative. The bound is for integers, which JSON lets be larger than any float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def positive(value: Any) -> bool:
    return count(value) and value > 0


def number(value: Any) -> bool:
    return count(value) and isinstance(value, int)


def size(value: Any) -> bool:
    return number(value) and value > 0


def error(value: Any) -> bool:
    return count(value) or value in ("nan", "inf")


def block(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(size, value))


def tile_dtype(value: Any) -> bool:
    """One that `trigemm.tiling.plan` takes."""
    return value in ("float16", "bfloat16", "float32")


_SIZES = {str: size}
_OF_A_TYPE = {str: text, int: size, float: positive, bool: flag}
_COUNTS = dict.fromkeys(Counts.__slots__, count)

MEASURED: Scheme = {"kernel": text, "shape": _SIZES, "counted": {str: count}, "measured": {str: count}, "device_name": text}
COUNTED: Scheme = {
    "kernel": text,
    "number?": number,
    "shape?": _SIZES,
    "grid": [size],
    "block": [size],
    "lines": [{"file": text, "line": size, "space": text, **_COUNTS}],
    "source": [{"file": text, "function": text, "first": size, "text": text}],
    "global?": {str: {str: count}},
    "shared?": {str: {str: count}},
}
SEARCH: Scheme = {
    **dict.fromkeys("mnk", size),
    "dtype": tile_dtype,
    "device": {field.name: _OF_A_TYPE[cast(type, field.type)] for field in fields(Device)},
    "device_name": text,
    "tiles": [{"block": block, "median_ms?": positive, "error_over_budget?": error}],
}
BENCHMARK: Scheme = {
    "number?": number,
    "shape?": _SIZES,
    "error_over_budget?": error,
    **dict.fromkeys(("baseline_ms?", "median_ms?", "p20_ms?", "p80_ms?", "alone_ms?", "blas_ms?", "floor_ms?"), positive),
    **dict.fromkeys(("torch_ms?", "numpy_ms?", "cupy_ms?", "speedup?", "speedup_blas?", "floor_share?"), positive),
    **dict.fromkeys(("useful_flops?", "useful_bytes?", "useful_tflops?", "gbps?"), positive),
    "ceilings?": dict.fromkeys(("copy_gbps", "fill_gbps", "read_gbps", "gemm_tflops"), positive),
    "cold_l2?": flag,
    "heads?": number,
    **dict.fromkeys(("idea?", "mode?", "gives?", "case?", "when?", "device_name?"), text),
    "skipped?": {str: text},
    "versions?": {str: lambda value: value is None or text(value)},
}
# Of the operations that have a table of their own, what it shows beside.
PEER: Scheme = {"error_over_budget": error, "skipped": {str: text}}
ATTENTION: Scheme = {"case": text, "mode": text, "heads": number, "shape": dict.fromkeys(("B", "NH", "T", "HS"), size)}


def search_contradiction(record: Record) -> str | None:
    """Why the tiles of a search, each field of the right type, cannot be shown; None where they can."""
    timed = [tile for tile in record["tiles"] if tile.get("median_ms")]
    if not timed:
        return 'no entry of "tiles" has a time'
    for tile in timed:
        if exceeds(tile.get("error_over_budget")):
            return f"the tile {tile['block']} has a time, and an error of {tile['error_over_budget']} times the budget"
    try:
        plan(record["m"], record["n"], record["k"], record["dtype"], device_of(record))
    except ValueError as reason:
        return str(reason)
    return None


def device_of(search: Record) -> Device:
    """The device of a search; its record may say more of it."""
    return Device(**{field.name: search["device"][field.name] for field in fields(Device)})


# Ratio -> the fields, and the power of ten, whose quotient it is.
_RATIOS = {
    "speedup_blas": ("blas_ms", 1.0),
    "useful_tflops": ("useful_flops", 1e9),
    "gbps": ("useful_bytes", 1e6),
}


def benchmark_contradiction(record: Record) -> str | None:
    """Where a benchmark lacks what its operation must say, or two of its fields cannot both be true; None where neither."""
    is_peers = record["operation"].startswith("peers.")
    scheme = PEER if is_peers else ATTENTION if record["operation"] == "causal_attention" and "case" in record else {}
    reason = complaint(record, scheme)
    if reason is not None:
        return reason
    median, own = record["median_ms"], not is_peers or record["kernel"] == "trigemm"
    if record["verdict"] == "pass" and median is None:
        return "a kernel that passed has no time"
    if record["verdict"] == "pass" and own and exceeds(record["error_over_budget"]):
        return f'"verdict" is "pass", and the error is {record["error_over_budget"]} times the budget'
    for ratio, (name, scale) in _RATIOS.items():
        if None in (record.get(ratio), record.get(name), median):
            continue
        if not math.isclose(record[ratio], record[name] / scale / median, rel_tol=1e-6):
            return f'"{ratio}" {record[ratio]} does not follow from "{name}" {record[name]} and "median_ms" {median}'
    return None


def exceeds(share: Any) -> bool:
    """Whether an error is beyond its budget; one that is no number is."""
    return share is not None and not float(share) <= 1
