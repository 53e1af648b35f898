"""How wrong a result may be: an error budget that is derived from the data.

    error = max over the entries of (|result - referee| - rounding) / (|a| @ |b|)

must be at most twice the same figure of torch's own product in the same dtype, computed from the same operands. `rounding` is
half an ulp of the result, underflow included. torch computes float32 at "medium" as it likes, and on the CPU at "high" too:
these are measured by rounding the operands to 8 and 11 significant bits, as bfloat16 and TF32 have. On the CPU half precision is
measured as a float32 product that is rounded once.

The maximum over a few entries says little about a product, and in float64 the referee is no better than what it judges: there a
floor applies.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trigemm import reference

# Unit roundoff: the largest relative error of one rounding.
UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TF32_UNIT = 2.0**-11
# A term of a float32 product may be a sum of as many products of parts, each of which may underflow.
SPLIT_PRODUCTS = 6
FEW_ENTRIES = 2**16


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number, a subnormal one."""
    return 2 * torch.finfo(dtype).tiny * UNIT[dtype]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a product of this dtype is summed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def float32_precision(level: str) -> Iterator[None]:
    """torch's float32 matrix products at a level of precision, for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(level)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def round_to_tf32(x: Tensor) -> Tensor:
    """float32 with its significand rounded to 11 bits, as TF32 has, ties to even.

    >>> round_to_tf32(torch.tensor([1 + 2**-10, 1 + 2**-12])).tolist()
    [1.0009765625, 1.0]
    """
    integers = x.resolve_neg().contiguous().view(torch.int32)
    rounded = ((integers + 0xFFF + ((integers >> 13) & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x)


def referee(operation: str, operands: Sequence[Tensor], parameters: Mapping[str, Any]) -> Tensor:
    """The right answer in float64; zero outside the triangle, whatever the fill."""
    options = dict(parameters)
    if "fill" in options or operation.startswith("causal"):
        options["fill"] = 0.0
    if operation == "syrk":
        options["c"] = operands[1] if len(operands) > 1 else None
        operands = operands[:1]
    function = getattr(reference, operation)
    result: Tensor = function(*operands, **options)
    return result


def magnitude(operation: str, operands: Sequence[Tensor], parameters: Mapping[str, Any], precision: str = "highest") -> Tensor:
    """|alpha| * |a| @ |b| (+ |beta| * |c|) in float64: the scale that errors are measured against, at any precision."""
    return referee(operation, [x.abs() for x in operands], absolute(parameters))


def absolute(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the absolute values of those that are factors."""
    return {name: abs(x) if name in ("alpha", "beta", "scale") and x is not None else x for name, x in parameters.items()}


def factor(operation: str, operands: Sequence[Tensor], parameters: Mapping[str, Any]) -> float:
    """What the plain product is multiplied by."""
    if not operation.startswith("causal_scores"):
        return float(parameters.get("alpha", 1.0))
    scale = parameters.get("scale")
    return 1 / math.sqrt(operands[0].shape[-1] or 1) if scale is None else float(scale)


def plain_product(operation: str, operands: Sequence[Tensor], parameters: Mapping[str, Any], precision: str) -> Tensor:
    """torch's full product of the operands in their dtype, before any factor, sum or mask."""
    if operation == "causal_scores_qkvpacked":
        q, k, _ = operands[0].permute(2, 0, 3, 1, 4).unbind(0)
        operands = [q, k]
    a, b = operands[0], operands[-1]
    if operation == "trmm":
        cut = torch.tril if parameters.get("uplo", "lower") == "lower" else torch.triu
        a = cut(a, parameters.get("diagonal", 0))
        a = a.mT if parameters.get("transpose") else a
        a, b = (a, b) if parameters.get("side", "left") == "left" else (b, a)
    elif operation == "syrk":
        b = a.mT
    elif operation.startswith("causal"):
        b = b.repeat_interleave(a.shape[1] // b.shape[1], dim=1).mT
    return torch_matmul(a, b, precision)


def torch_matmul(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """a @ b as accurately as torch has it at this precision."""
    dtype = a.dtype
    if dtype == torch.float32 and precision == "medium":
        a, b = a.bfloat16().float(), b.bfloat16().float()
    elif a.is_cuda or dtype == torch.float64:
        with float32_precision(precision):
            return a @ b
    elif dtype == torch.float32 and precision == "high":
        a, b = round_to_tf32(a), round_to_tf32(b)
    with float32_precision("highest"):
        return (a.float() @ b.float()).to(dtype)


@dataclass(frozen=True)
class Rounding:
    """The part of an error that needs no excuse: one rounding of the result, one by a factor, and what underflows.

    unit        relative: of the result's dtype, and of the accumulator's where a factor is no power of two
    underflow   absolute: half the result's smallest number, and the accumulator's smallest number for each product of a term
    """

    unit: float
    underflow: float

    @classmethod
    def of(cls, dtype: torch.dtype, depth: int, factor: float) -> "Rounding":
        """For a sum of `depth` terms that is then multiplied by `factor`."""
        products = depth * (SPLIT_PRODUCTS if dtype == torch.float32 else 1)
        lost = products * smallest(accumulator(dtype)) * max(1.0, abs(factor))
        scaled = UNIT[accumulator(dtype)] if factor and abs(math.frexp(factor)[0]) != 0.5 else 0.0
        return cls(UNIT[dtype] + scaled, smallest(dtype) / 2 + lost)


def relative_error(value: Tensor, expected: Tensor, magnitude: Tensor, rounding: Rounding) -> Tensor:
    """Each entry's error beyond a rounding, over its magnitude. Not finite where the value is not."""
    error = (value - expected).abs_()
    error.sub_(expected.abs().mul_(rounding.unit).add_(rounding.underflow)).clamp_(min=0)
    return error.div_(magnitude.clamp(min=torch.finfo(torch.float64).tiny))


def baseline_error(value: Tensor, expected: Tensor, magnitude: Tensor, underflow: float) -> Tensor:
    """The error of torch's product over the magnitude, the rounding of its result counted, and underflow left out."""
    return relative_error(value, expected, magnitude, Rounding(0.0, underflow))


def floor(dtype: torch.dtype, precision: str, depth: int, entries: int) -> float:
    """The least relative error that torch is taken to have.

    For few entries, what random roundings in sums of `depth` terms come to, beside the rounding of the operands or the result:
    their own maximum means little. For many, one rounding: there are data for which torch's product happens to be exact. In
    float64 the referee's sums are as wrong as those that it judges.
    """
    if dtype == torch.float64:
        return UNIT[dtype] * (2 + 2 * math.sqrt(depth) + depth / 2)  # equal terms are rounded alike
    few, many = 0.0, 0.0
    if dtype != torch.float32:
        few, many = UNIT[dtype], UNIT[dtype] / 4
    elif precision != "highest":
        many = TF32_UNIT if precision == "high" else UNIT[torch.bfloat16]
        few = 2 * many
    return UNIT[torch.float32] * (2 + math.sqrt(depth)) + few if entries < FEW_ENTRIES else UNIT[torch.float32] + many
