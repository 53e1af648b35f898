"""Matrices are turned into a part of another tensor, and nothing beside it is written."""

import pytest
import torch

from trigemm.kernels.tiles.permute import turn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("matrices", "rows", "columns"), [(1, 64, 128), (2, 100, 37), (3, 1, 200), (2, 70, 1), (1, 0, 5), (0, 3, 5)]
)
def test_turn(matrices: int, rows: int, columns: int, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(matrices, rows + 3, columns + 5, dtype=torch.float64).to(device, dtype)[:, 1 : rows + 1, 2 : columns + 2]
    out = torch.full((matrices, columns + 2, rows + 9), torch.nan, dtype=dtype, device=device)
    wanted = out.clone()
    wanted[:, 1 : columns + 1, 4 : rows + 4] = x.mT
    turn(x, out[:, 1 : columns + 1, 4 : rows + 4])
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
