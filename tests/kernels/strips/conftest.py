"""Operands in awkward layouts, and the error budget, for the tests of the strips."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = ("plain", "transposed", "strided", "offset", "stretched", "every_other")


class Operands:
    """Random matrices of a dtype, in a layout, from a seed of their own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def plain(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def laid_out(self, *shape: int, dtype: torch.dtype, layout: str) -> Tensor:
        """A random tensor of the shape, in one of LAYOUTS."""
        *batch, rows, columns = shape
        if layout == "transposed":
            return self.plain(*batch, columns, rows, dtype=dtype).mT
        if layout == "strided":
            return self.plain(*batch, rows, columns + 5, dtype=dtype)[..., 2 : columns + 2]
        if layout == "offset":
            flat = self.plain(1 + torch.Size(shape).numel(), dtype=dtype)
            return flat[1:].view(shape)
        if layout == "stretched":
            return self.plain(*[1 for _ in batch], rows, columns, dtype=dtype).expand(shape)
        if layout == "every_other":
            return self.plain(*batch, 2 * rows, 3 * columns, dtype=dtype)[..., ::2, ::3]
        return self.plain(*shape, dtype=dtype)


@pytest.fixture
def operands(request: pytest.FixtureRequest) -> Operands:
    """A source of operands whose seed is the test's name."""
    return Operands(sum(map(ord, request.node.name)))


def error_over_budget(
    result: Tensor, exact: Tensor, a: Tensor, b: Tensor, extra: Tensor | float = 0.0, factor: float = 1.0
) -> float:
    """The largest error of `result` over what it may be; NaN in `exact` marks entries that are not looked at.

    An entry may be off by twice the largest error, relative to |a| @ |b|, of torch's product in the dtype of the operands, and by
    one rounding of the result. `extra` is the magnitude of what was added to the product, `factor` what it was multiplied with.
    """
    dtype = result.dtype
    magnitude = a.double().abs() @ b.double().abs()
    direct = ((a @ b).double() - a.double() @ b.double()).abs() / magnitude.clamp_min(torch.finfo(torch.float64).tiny)
    relative = float(direct.max()) if direct.numel() else 0.0
    if dtype == torch.float64:  # the referee's own error
        relative = a.shape[-1] * torch.finfo(dtype).eps
    rounding = torch.finfo(dtype).eps * exact.abs().nan_to_num() + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    allowed = 2 * relative * abs(factor) * magnitude + rounding + torch.finfo(dtype).eps * extra
    error = torch.where(exact.isnan() | (result.double() == exact), 0.0, (result.double() - exact).abs() / allowed)
    assert not error.isnan().any()
    return float(error.max()) if error.numel() else 0.0


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def over_budget() -> Callable[..., float]:
    return error_over_budget
