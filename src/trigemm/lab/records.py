"""Measurements on disk: JSON lines, one record a line, appended one by one so that an interrupted run keeps what it has.

JSON has no NaN or infinity; those three values are written as the strings "nan", "inf" and "-inf".
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]

_NUMBER = (int, float)
_NOT_FINITE = ("nan", "inf", "-inf")

# Field -> the types that its value may have. More fields may stand in a record; these must.
REQUIRED: Mapping[str, tuple[type, ...]] = {
    "operation": (str,),
    "kernel": (str,),
    "device": (str,),
    "dtype": (str,),
    "precision": (str,),
    "fill": (*_NUMBER, str, type(None)),
    "shape": (dict,),
    "verdict": (str,),
    "error_over_budget": (*_NUMBER, str, type(None)),
    "median_ms": (*_NUMBER, type(None)),
    "p20_ms": (*_NUMBER, type(None)),
    "p80_ms": (*_NUMBER, type(None)),
    "baseline_ms": (*_NUMBER, type(None)),
    "speedup": (*_NUMBER, type(None)),
    "floor_ms": (*_NUMBER, type(None)),
    "floor_share": (*_NUMBER, type(None)),
    "versions": (dict,),
    "commit": (str, type(None)),
}


class Broken(NamedTuple):
    """A line that is no record, and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def encode(record: Mapping[str, Any]) -> str:
    """A record as one line of JSON.

    >>> encode({"fill": -math.inf, "median_ms": 1.5})
    '{"fill": "-inf", "median_ms": 1.5}'
    """
    return json.dumps(_finite(record), allow_nan=False)


def complaint(record: object) -> str | None:
    """What is wrong with a decoded record, or None.

    >>> complaint({"operation": "gemmt", "verdict": "pass"})
    'field "kernel" is missing'
    """
    if not isinstance(record, dict):
        return f"not a JSON object but {type(record).__name__}"
    if "verdict" not in record and "median_ms" not in record:
        return 'not a benchmark record: it has neither "verdict" nor "median_ms"'
    for field, types in REQUIRED.items():
        if field not in record:
            return f'field "{field}" is missing'
        value = record[field]
        if not isinstance(value, types) or isinstance(value, bool):
            return f'field "{field}" cannot be {value!r}'
        if isinstance(value, str) and str in types and float in types and value not in _NOT_FINITE:
            return f'field "{field}" cannot be {value!r}'
    if record["verdict"] not in ("pass", "fail"):
        return f'field "verdict" is "pass" or "fail", not {record["verdict"]!r}'
    if record["verdict"] == "fail" and record["median_ms"] is not None:
        return "a kernel that fails verification has no time"
    return _contradiction(record)


def _contradiction(record: Record) -> str | None:
    """Where two fields of a record, each of the right type, cannot both be true; None where none do."""
    for name, size in record["shape"].items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            return f'size "{name}" cannot be {size!r}'
    median, p20, p80 = (record[name] for name in ("median_ms", "p20_ms", "p80_ms"))
    if median is None:
        return None
    if p20 is None or p80 is None or not 0 < p20 <= median <= p80 < math.inf:
        return f'"median_ms" {median} does not lie between "p20_ms" {p20} and "p80_ms" {p80}'
    for ratio, numerator in (("speedup", "baseline_ms"), ("floor_share", "floor_ms")):
        if None not in (record[ratio], record[numerator]) and not math.isclose(
            record[ratio], record[numerator] / median, rel_tol=1e-6
        ):
            return f'"{ratio}" {record[ratio]} is not "{numerator}" {record[numerator]} / "median_ms" {median}'
    return None


def check_writable(path: Path) -> None:
    """Raises ValueError where records could not be appended to `path`; to be called before measuring."""
    if path.is_dir():
        raise ValueError(f"cannot write records to {str(path)!r}, which is a folder; give the name of a file")
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write records to {path}: {error.strerror}; give a file in an existing, writable folder"
        ) from error


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one record to a file; it is on disk when this returns. The OSError of one that cannot be written names it."""
    line = encode(record).encode() + b"\n"
    with errors_name(path), path.open("a+b") as file:
        # A process killed in the middle of a line leaves it unended: what follows must not be lost with it.
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """An OSError of what is done to a file names it, as that of a disk that is full does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read(paths: Iterable[Path]) -> tuple[list[Record], list[Broken]]:
    """All records of some files, in order, and the lines that are none. Raises ValueError for a file that cannot be read."""
    records: list[Record] = []
    broken: list[Broken] = []
    for path, number, found in lines(paths):
        reason = found.reason if isinstance(found, Broken) else complaint(found)
        if reason is None:
            records.append(found)
        else:
            broken.append(Broken(path, number, reason))
    return records, broken


def lines(paths: Iterable[Path]) -> Iterator[tuple[Path, int, Any]]:
    """What each line of some files holds, whatever it is, with its place; a line that is not JSON as `Broken`.

    Raises ValueError for a file that cannot be read.
    """
    for path in paths:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ValueError(f"cannot read records from {path}: {error.strerror}") from error
        for number, line in enumerate(text.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                yield path, number, json.loads(line)
            except ValueError as error:
                yield path, number, Broken(path, number, f"not JSON ({error})")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
