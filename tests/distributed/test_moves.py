"""What is filled, copied or turned is what is named, and nothing beside it, whether it goes by 16 bytes or by entries."""

import math

import pytest
import torch

from trigemm.distributed.moves import copy, copy_transposed, fill

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
PARTS = pytest.mark.parametrize(
    "part", [(slice(1, 5), slice(8, 24)), (slice(0, 5), slice(3, 19)), (slice(2, 3), slice(0, 7)), (slice(2, 2), slice(0, 8))]
)


def surrounded(dtype: torch.dtype, columns: int, device: str) -> torch.Tensor:
    return torch.arange(2 * 5 * columns, device=device).view(2, 5, columns).remainder(61).to(dtype)


@DTYPES
@PARTS
@pytest.mark.parametrize("columns", [32, 33])
@pytest.mark.parametrize("value", [-math.inf, math.nan, -0.5, 0.0, 6e-5])
def test_fill(dtype: torch.dtype, columns: int, part: tuple[slice, slice], value: float, device: str) -> None:
    x = surrounded(dtype, columns, device)
    wanted = x.clone()
    wanted[:, *part] = value
    fill(x[:, *part], value)
    torch.testing.assert_close(x, wanted, rtol=0, atol=0, equal_nan=True)


@DTYPES
@PARTS
@pytest.mark.parametrize("columns", [32, 33])
def test_copies(dtype: torch.dtype, columns: int, part: tuple[slice, slice], device: str) -> None:
    x, into = surrounded(dtype, columns, device), torch.full((2, 5, 40), -1.0, dtype=dtype, device=device)
    wanted = into.clone()
    wanted[:, *part] = x[:, *part]
    copy(x[:, *part], into[:, *part])
    assert torch.equal(into, wanted)
    turned, wanted = torch.full((2, 2, 40, 11), -1.0, dtype=dtype, device=device)
    rows, width = x[:, *part].shape[1:]
    wanted[:, 3 : 3 + width, 2 : 2 + rows] = x[:, *part].mT
    copy_transposed(x[:, *part], turned[:, 3 : 3 + width, 2 : 2 + rows])
    assert torch.equal(turned, wanted)
