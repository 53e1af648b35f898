"""Tensors that tell on a kernel: operands in any layout, surrounded by NaN, and outputs that begin as poison between guard bands.

Whatever lies around an operand inside its buffer is NaN, and so is the half of a triangular operand that is not part of it:
reading it shows in the result. A buffer is copied when it is handed out, so that every changed byte shows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trigemm.lab.cases import Case

GUARD = 64  # elements on either side; a multiple of 16 bytes in every dtype
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# The exponent bits of each dtype, whose being all ones makes a NaN or an infinity.
EXPONENTS = {
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float32: 0x7F80_0000,
    torch.float64: 0x7FF0_0000_0000_0000,
}


def bits(x: Tensor) -> Tensor:
    """The elements as integers of the same width: equal where not a bit differs.

    >>> bits(torch.tensor([1.0, -0.0])).tolist()
    [1065353216, -2147483648]
    """
    return x.view(INTEGERS[x.element_size()])


@dataclass(frozen=True)
class Guarded:
    """A tensor, the buffer that it lies in, and what that buffer held to begin with (both as integers)."""

    view: Tensor
    buffer: Tensor
    before: Tensor

    @classmethod
    def watch(cls, view: Tensor, buffer: Tensor | None = None) -> "Guarded":
        """A tensor as it is now, alone or inside a buffer."""
        buffer = bits(view if buffer is None else buffer)
        return cls(view, buffer, buffer.clone())

    def changed(self) -> bool:
        """Whether any byte of the buffer differs from the beginning."""
        return not torch.equal(self.buffer, self.before)

    def changed_around(self) -> bool:
        """Whether any byte of the buffer outside the tensor differs from the beginning."""
        now, view = self.buffer.clone(), self.view
        now.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(self.bits_before)
        return not torch.equal(now, self.before)

    @property
    def bits_before(self) -> Tensor:
        """What the tensor held to begin with, as integers."""
        view = self.view
        return self.before.as_strided(view.shape, view.stride(), view.storage_offset())


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], int, int]:
    """How a tensor of two or more dimensions lies in memory: its strides, its offset, and its span with the gaps.

    >>> strides_of((2, 3), "contiguous"), strides_of((2, 3), "transposed"), strides_of((2, 3), "packed")
    (((3, 1), 0, 6), ((1, 2), 0, 6), ((9, 1), 3, 21))
    """
    dims = len(shape)
    order, padded, offset = list(range(dims)), list(shape), 0
    if layout == "transposed":
        order[-2:] = order[:-3:-1]
    elif layout == "sliced":  # rows of something 16 elements wider, so that it is aligned as it would be without
        padded[-1] += 16
        padded[-2] += 2
        offset = padded[-1] + 16
    elif layout == "stepped":
        padded[-1] *= 2
    elif layout == "misaligned":
        offset = 1
    elif layout == "packed" and dims > 2:  # as the keys in (B, T, 3, NH, HS)
        order = [*range(dims - 3), dims - 2, dims - 3, dims - 1]
        offset = shape[-3] * shape[-1]
    elif layout == "packed":
        offset = shape[-1]

    strides, span = [0] * dims, 1
    for place, dim in enumerate(reversed(order)):
        strides[dim] = 2 * span if layout == "stepped" and place == 0 else span
        span *= max(1, padded[dim])
        if layout == "packed" and place == min(1, dims - 2):
            span *= 3
    return tuple(strides), offset, span + offset


def poison(count: int, dtype: torch.dtype, generator: torch.Generator, finite: bool = False) -> Tensor:
    """Contents for a buffer that nothing should read or leave: NaNs of many bit patterns, or numbers where NaN is an answer."""
    # A pattern of prime length repeats at no row length.
    length = min(count, 65_537)
    if finite:
        pattern = bits(torch.randn(length, generator=generator).mul_(100).to(dtype))
    else:
        width = 8 * dtype.itemsize
        pattern = torch.randint(
            -(2 ** (width - 1)), 2 ** (width - 1) - 1, (length,), dtype=INTEGERS[dtype.itemsize], generator=generator
        )
        pattern |= EXPONENTS[dtype] | 1
    return pattern.repeat(count // max(1, length) + 1)[:count]


def place(
    shape: tuple[int, ...],
    layout: str,
    dtype: torch.dtype,
    device: str,
    generator: torch.Generator,
    values: Tensor | None = None,
    finite: bool = False,
) -> Guarded:
    """A tensor of this shape and layout inside a poisoned buffer, holding `values`, or poison where there are none."""
    strides, offset, span = strides_of(shape, layout)
    buffer = poison(span + 2 * GUARD, dtype, generator, finite).to(device)
    view = buffer.view(dtype).as_strided(shape, strides, offset + GUARD)
    if values is not None:
        view.copy_(values)
    return Guarded(view, buffer, buffer.clone())


def random_values(shape: tuple[int, ...], kind: str, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random numbers of one of the kinds in `cases.VALUES`, on the CPU.

    normal      standard normal
    wide        standard normal times powers of two that differ from entry to entry
    huge        products come near the largest number and beyond; below it in float64, since the referee has no wider type
    tiny        products come near the smallest normal number and below
    nonfinite   standard normal with a few NaNs and infinities
    sparse      two thirds zeros of both signs
    """
    info = torch.finfo(dtype)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "wide":
        reach = 5 if dtype == torch.float16 else 12
        x *= 2.0 ** torch.randint(-reach, reach + 1, shape, generator=generator)
    elif kind == "huge":
        x *= 1e150 if dtype == torch.float64 else info.max**0.5 / 2
    elif kind == "tiny":
        x *= info.tiny**0.5
    elif kind == "nonfinite" and x.numel():
        where = torch.randint(x.numel(), (3,), generator=generator)
        x.view(-1)[where] = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    elif kind == "sparse":
        x *= torch.rand(shape, generator=generator) < 1 / 3
    return x.to(dtype)


def build(case: Case, device: str) -> list[Guarded]:
    """The operands of a case."""
    generator = torch.Generator().manual_seed(case.seed)
    dtype: torch.dtype = getattr(torch, case.dtype)
    built = []
    for i, shape in enumerate(case.operand_shapes):
        layout, unread = case.layout(i), case.unread(i)
        expanded = layout == "expanded" and len(shape) > (2 if unread else 0)
        stored = (1, *shape[1:]) if expanded else shape
        # A kernel may multiply the zeros that stand for the other half of `a`, or leave them out: `b` stays finite in trmm.
        kind = "normal" if case.values == "nonfinite" and case.operation == "trmm" and i == 1 else case.values
        values = random_values(stored, kind, dtype, generator)
        if unread:
            inside = triangle(stored[-2], stored[-1], *unread)
            values = values.masked_fill(~inside, torch.nan)
        guarded = place(stored, "contiguous" if layout == "expanded" else layout, dtype, device, generator, values)
        built.append(Guarded(guarded.view.expand(shape), guarded.buffer, guarded.before) if expanded else guarded)
    return built


def triangle(rows: int, columns: int, uplo: str, diagonal: int, device: Any = "cpu") -> Tensor:
    """Boolean (rows, columns): True where an entry belongs. One byte an entry, unlike the referee's own mask."""
    ones = torch.ones(rows, columns, dtype=torch.bool, device=device)
    return ones.tril_(diagonal) if uplo == "lower" else ones.triu_(diagonal)
