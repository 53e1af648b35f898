"""Is a result right? Every entry of it, against the referee.

A result fails where
- it is NaN or infinite and the referee is not, or the other way round (so does an entry left unwritten: outputs begin as NaN),
- an entry of the triangle exceeds the error budget (trigemm.lab.budget),
- an entry outside the triangle is not exactly the fill or, with `fill=None`, not exactly what it was.

A sum that some order of its terms would make overflow in the accumulator may be infinite or NaN; one that none would, may not.
Products are judged matrix by matrix and compared a few rows at a time, so that a large batch needs little more memory than it
takes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trigemm.lab import attention, budget
from trigemm.lab.budget import Rounding
from trigemm.lab.operands import bits, triangle
from trigemm.triangle import Triangle, Uplo

CHUNK = 2**20  # entries that are computed at a time, unless one matrix has more
# Entries that are compared at a time on the CPU: as many as stay in a cache, and as torch leaves to one thread. An operation on
# several threads waits for the slowest where other programs keep the cores busy.
BLOCK = 2**15

Index = tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """What verification found.

    error_over_budget   the worst entry's error over what is allowed; infinite where something is wrong that no budget covers
    worst_index         where that is: an index of the result; None where it is no entry in particular
    reason              what is wrong, in a sentence; None where nothing is
    """

    passed: bool
    error_over_budget: float
    worst_index: Index | None = None
    reason: str | None = None

    def __str__(self) -> str:
        worst = f"worst error {self.error_over_budget:.3g} of the budget"
        return f"FAIL: {self.reason}" if not self.passed else f"pass: {worst}"

    @classmethod
    def fail(cls, reason: str, index: Index | None = None, error: float = math.inf) -> "Verdict":
        """A verdict of failure."""
        return cls(False, error, index, reason)


def result_shape(operation: str, operands: Sequence[Tensor], parameters: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an operation's result."""
    first, last = operands[0].shape, operands[-1].shape
    if operation == "causal_scores_qkvpacked":
        return first[0], first[3], first[1], first[1]
    if operation == "causal_scores" or (operation == "causal_attention" and attention.gives_weights(operation, parameters)):
        return (*first[:-1], last[-2])
    if operation in attention.OPERATIONS:
        return tuple(first)
    if operation == "syrk":
        rows, columns = first[-2], first[-2]
    elif operation == "trmm":
        side, transpose = parameters.get("side", "left"), parameters.get("transpose", False)
        triangular = first[:-3:-1] if transpose else first[-2:]
        rows, columns = (triangular[0], last[-1]) if side == "left" else (last[-2], triangular[1])
    else:
        rows, columns = first[-2], last[-1]
    return (*torch.broadcast_shapes(first[:-2], last[:-2]), rows, columns)


def result_triangle(operation: str, shape: Sequence[int], parameters: Mapping[str, Any]) -> Triangle | None:
    """The triangle of a result of this shape that is the answer; None where all of it is."""
    rows, columns = shape[-2:]
    uplo: Uplo = parameters.get("uplo", "lower")
    if operation == "gemmt":
        return Triangle(rows, columns, uplo, parameters.get("diagonal", 0))
    if operation == "syrk":
        return Triangle(rows, columns, uplo) if parameters.get("uplo", "full") != "full" else None
    if operation == "causal_softmax" and parameters.get("diagonal") is not None:
        return Triangle(rows, columns, "lower", parameters["diagonal"])
    square = operation.startswith("causal_scores") or attention.gives_weights(operation, parameters)
    return Triangle(rows, columns, "lower", columns - rows) if square else None


def verify_output(
    operation: str,
    operands: Sequence[Tensor],
    result: Tensor,
    parameters: Mapping[str, Any],
    *,
    precision: str = "highest",
    before: Tensor | None = None,
    writes_all: bool = False,
) -> Verdict:
    """Judge a result of an operation.

    `before` is what the output held before as integers, for `fill=None`: without it, nothing outside the triangle counts then.
    `writes_all`: it never counts.
    """
    if operation == "causal_attention":
        operands, parameters = attention.alone(operands, parameters)
    first = operands[0]
    shape = result_shape(operation, operands, parameters)
    if (tuple(result.shape), result.dtype, result.device) != (shape, first.dtype, first.device):
        return Verdict.fail(
            f"the result is {tuple(result.shape)} {result.dtype} on {result.device}, not {shape} {first.dtype} on {first.device}"
        )
    part_of = result_triangle(operation, shape, parameters)
    if part_of is not None and not writes_all:
        fill = parameters.get("fill", -math.inf if operation.startswith("causal_scores") else 0.0)
        index = _wrong_outside(result, part_of, fill, before)
        if index is not None:
            due = "what it was" if fill is None else f"the fill {fill}"
            return Verdict.fail(f"entry {index} outside the triangle is {result[index].item()}, not {due}", index)
    depth = max(first.shape[-2:]) if operation == "trmm" else first.shape[-1]
    if operation == "causal_attention":
        depth = max(depth, operands[-1].shape[-2])
    judge = Judge(result.dtype, precision, depth, budget.factor(operation, operands, parameters), part_of)
    rules = attention if operation in attention.OPERATIONS else budget
    for start, chunk, part in _chunks(operation, operands, result):
        expected = rules.referee(operation, chunk, parameters)
        magnitude = rules.magnitude(operation, chunk, parameters, precision)
        plain = rules.plain_product(operation, chunk, parameters, precision).double() * judge.factor
        if operation == "syrk" and len(chunk) > 1 and parameters.get("beta"):
            plain = plain + parameters["beta"] * chunk[1].double()
        judge.add(part, expected, magnitude, plain, start)
    return judge.verdict()


def _wrong_outside(result: Tensor, part_of: Triangle, fill: float | None, before: Tensor | None) -> Index | None:
    """An entry outside the triangle that is not what it must be, or None."""
    if part_of.complement.size == 0 or result.numel() == 0 or (fill is None and before is None):
        return None
    if fill is None:
        assert before is not None
        differs: Tensor = bits(result).ne(before)
    elif math.isnan(fill):
        differs = result.isnan().logical_not_()
    else:
        differs = bits(result).ne(bits(torch.tensor(fill, dtype=result.dtype, device=result.device)))
    outside = part_of.complement
    differs &= triangle(outside.rows, outside.columns, outside.uplo, outside.diagonal, result.device)
    return tuple(differs.nonzero()[0].tolist()) if differs.any() else None


def _chunks(
    operation: str, operands: Sequence[Tensor], result: Tensor, start: Index = ()
) -> Iterator[tuple[Index, Sequence[Tensor], Tensor]]:
    """Cut a problem along its batch dimensions: where each piece starts, its operands, and its part of the result."""
    dim = len(start)
    if dim == result.dim() - 2 or result.numel() <= CHUNK:
        yield start, operands, result
        return
    for i in range(result.shape[dim]):
        pieces = []
        for x in operands:
            axis = (0, 3)[dim] if operation == "causal_scores_qkvpacked" else dim - result.dim() + x.dim()
            # One operand's dimension serves several of the result's: all where it is 1, a group where heads are grouped.
            pieces.append(x.narrow(axis, i * x.shape[axis] // result.shape[dim], 1) if axis >= 0 else x)
        yield from _chunks(operation, pieces, result.narrow(dim, i, 1), (*start, i))


class Judge:
    """Collects the worst error of a result, and torch's own, piece by piece."""

    def __init__(self, dtype: torch.dtype, precision: str, depth: int, factor: float, part_of: Triangle | None = None) -> None:
        """For sums of `depth` terms, multiplied by `factor`, of which the entries in `part_of` count (all where it is None)."""
        self.dtype, self.precision, self.depth, self.factor = dtype, precision, depth, factor
        self.rounding = Rounding.of(dtype, depth, factor)
        self.part_of = part_of
        self.entries = 0
        self.worst = self.torch_worst = 0.0
        self.torch_is_finite = True
        self.where: tuple[Index, float, float] | None = None
        self.broken: tuple[Index, float, float] | None = None

    def add(self, value: Tensor, expected: Tensor, magnitude: Tensor, plain: Tensor, start: Index = ()) -> None:
        """Judge one piece of the result, whose first entry is at `start` in the batch. `plain` is torch's, in float64."""
        *batch, rows, columns = value.shape
        if value.numel() == 0:
            return
        inside = None if self.part_of is None else triangle(rows, columns, self.part_of.uplo, self.part_of.diagonal, value.device)
        height = rows if value.is_cuda else max(1, BLOCK // (math.prod(batch) * columns))
        for top in range(0, rows, height):
            bottom = min(rows, top + height)
            live = range(columns)
            if self.part_of is not None:
                ends = self.part_of.columns_of(top), self.part_of.columns_of(bottom - 1)
                live = range(min(end.start for end in ends), max(end.stop for end in ends))
            if live:
                cut = (..., slice(top, bottom), slice(live.start, live.stop))
                mask = None if inside is None else inside[cut]
                self.entries += math.prod(batch) * (bottom - top) * len(live)
                self._add(value[cut], expected[cut], magnitude[cut], plain[cut], mask, (*start, top, live.start))

    def _add(
        self, value: Tensor, expected: Tensor, magnitude: Tensor, plain: Tensor, inside: Tensor | None, corner: Index
    ) -> None:
        theirs = budget.baseline_error(plain, expected, magnitude, self.rounding.underflow)
        error = budget.relative_error(value, expected, magnitude, self.rounding)
        if inside is not None:
            theirs.masked_fill_(~inside, 0.0)
            error.masked_fill_(~inside, 0.0)
        worst, torch_worst = torch.stack([error.max(), theirs.max()]).tolist()
        if not math.isfinite(torch_worst):
            # Where torch's product overflows it says nothing, and where it does not, its sums are the small ones.
            self.torch_is_finite = False
            torch_worst = float(theirs.nan_to_num_(nan=0.0, posinf=0.0).max())
        self.torch_worst = max(self.torch_worst, torch_worst)
        if not math.isfinite(worst):
            finite = torch.isfinite(error)
            wrong = ~(finite | self._may_be(value.double(), expected, magnitude))
            if wrong.any() and self.broken is None:
                self.broken = self._at(int(wrong.flatten().int().argmax()), value, expected, corner)
            error.masked_fill_(~finite, 0.0)
            worst = float(error.max())
        if self.where is None or worst > self.worst:
            self.worst = worst
            self.where = self._at(int(error.argmax()), value, expected, corner)

    def _may_be(self, value: Tensor, expected: Tensor, magnitude: Tensor) -> Tensor:
        """Where arithmetic in the accumulator's dtype may give this value, NaN or infinite as it or the referee's is."""
        allowed = self._allowed()
        largest = torch.finfo(budget.accumulator(self.dtype)).max * (1 - max(allowed, 2.0**-10))
        tolerance = allowed * magnitude + self.rounding.unit * expected.abs()
        same = (expected == value) | (expected.isnan() & value.isnan())
        right_sign = value.isinf() & (value.sign() == expected.sign())
        past_largest = right_sign & (expected.abs() + tolerance >= torch.finfo(self.dtype).max)
        # Before the factor, or after it.
        overflows = magnitude * max(1.0, 1 / abs(self.factor) if self.factor else math.inf) >= largest
        return same | (expected.isfinite() & ~value.isfinite() & (past_largest | overflows))

    def _at(self, flat: int, value: Tensor, expected: Tensor, corner: Index) -> tuple[Index, float, float]:
        """The entry of a block with this flat number: its index in the result, and what is there and should be."""
        local = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), value.shape))
        before = (*corner[:-2], *[0] * (value.dim() - len(corner)), *corner[-2:])
        return tuple(i + j for i, j in zip(local, before, strict=True)), float(value[local]), float(expected[local])

    def _allowed(self) -> float:
        entries = self.entries if self.torch_is_finite else 0
        return 2 * max(self.torch_worst, budget.floor(self.dtype, self.precision, self.depth, entries))

    def verdict(self) -> Verdict:
        """What all pieces together come to."""
        if self.broken is not None:
            index, value, expected = self.broken
            return Verdict.fail(f"entry {index} is {value} where the referee has {expected}", index)
        if self.where is None:
            return Verdict(True, 0.0)
        index, value, expected = self.where
        over = self.worst / self._allowed()
        if over <= 1:
            return Verdict(True, over, index)
        return Verdict.fail(
            f"entry {index} is {value} where the referee has {expected}: {over:.3g} times the error budget", index, over
        )
