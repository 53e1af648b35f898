"""Counts floating-point operations: what a kernel loads from an array is a number that counts what is done with it.

Additions, subtractions, multiplications and divisions are counted, a fused multiply-add as two, in which at least one operand
goes back to a value that was loaded from an array. Functions of `math`, conversions and comparisons are not.
"""

from collections import Counter
from collections.abc import Callable
from sys import _getframe
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trigemm.lab.traffic.log import Line, Log

OPERATORS = ("add", "sub", "mul", "truediv")


class FlopCounter:
    """Makes arrays whose numbers count, and keeps the count by line of source."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._places: Counter[tuple[int, int]] = Counter()
        self._codes: dict[int, CodeType] = {}
        kinds = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
        self._types = {kind: self._counting(kind) for kind in kinds}

    def array(self, data: NDArray[Any]) -> NDArray[Any]:
        """A view of `data` that hands out counting numbers."""
        types = self._types

        class CountingArray(np.ndarray):
            def __getitem__(self, index: Any) -> Any:
                value = super().__getitem__(index)
                kind = types.get(type(value))
                return value if kind is None else kind(value)

        return data.view(CountingArray)

    def by_line(self) -> Counter[Line]:
        """The operations since the last call."""
        lines: Counter[Line] = Counter()
        for (code, offset), times in self._places.items():
            lines[self.log.line_of(self._codes[code], offset)] += times
        self._places.clear()
        return lines

    def _counting(self, kind: Any) -> Any:
        """A number type like `kind`, whose operators count and return numbers that count."""

        def operator(name: str) -> Callable[[Any, Any], Any]:
            plain = getattr(kind, name)

            def counted(a: Any, b: Any) -> Any:
                result = plain(a, b)
                if result is not NotImplemented:
                    frame = _getframe(1)
                    self._codes[id(frame.f_code)] = frame.f_code
                    self._places[id(frame.f_code), frame.f_lasti] += 1
                    result = self._types.get(type(result), kind)(result)
                return result

            return counted

        names = [f"__{prefix}{name}__" for name in OPERATORS for prefix in ("", "r")]
        return type(kind.__name__, (kind,), {name: operator(name) for name in names})
