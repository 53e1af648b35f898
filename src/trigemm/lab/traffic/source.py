"""The functions whose lines were counted, as text: a record of counts is then read without the files that were counted."""

from collections.abc import Iterable
from inspect import getblock
from linecache import getlines
from pathlib import Path
from typing import Any

import trigemm
from trigemm.lab.traffic.log import Line

_PACKAGE = Path(trigemm.__file__).parent


def functions(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Each function once: its name, its file, the number of its first line, and its text from there."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for line in sorted(lines):
        first = first_line(line.file, line.function, line.number)
        text = "".join(getblock(getlines(line.file)[first - 1 :]))
        found[line.file, line.function, first] = {
            "function": line.function,
            "file": file_name(line.file),
            "first": first,
            "text": text,
        }
    return list(found.values())


def file_name(file: str) -> str:
    """A file of the package by its path in it, any other by its name.

    >>> file_name("/home/someone/kernels/mine.py")
    'mine.py'
    """
    path = Path(file)
    return path.relative_to(_PACKAGE.parent).as_posix() if path.is_relative_to(_PACKAGE) else path.name


def first_line(file: str, function: str, inside: int) -> int:
    """Where the definition of the function begins that has the line `inside`."""
    lines = getlines(file)
    for number in range(min(inside, len(lines)), 0, -1):
        if lines[number - 1].lstrip().startswith(f"def {function}("):
            return number
    return inside
