"""Which updates belong to which row of a table, at the borders of the integers that number the rows."""

import pytest
import torch

from trigemm.kernels.tiles.embedding import segments


@pytest.mark.parametrize("rows", [0, 1, 7, 32_767, 50_257, 65_534, 65_535, 65_536])
def test_segments(rows):
    generator = torch.Generator().manual_seed(rows)
    inside = torch.randint(0, max(rows, 1), (300,), generator=generator)
    edges = torch.tensor([0, rows - 1, rows, -1, rows + 2**16, -(2**16), 2**63 - 1, -(2**63), max(0, rows - 1)])
    indices = torch.cat((edges, inside % 5, inside, edges))[torch.randperm(618, generator=generator)]
    numbers, order, begin = segments(indices, rows)
    assert begin.shape == (rows + 1,)
    assert torch.equal(numbers, numbers.sort()[0])
    for row in {0, 1, 4, rows // 2, rows - 1, *inside.tolist()} & set(range(rows)):
        assert torch.equal(order[begin[row] : begin[row + 1]], (indices == row).nonzero().flatten())
    assert begin[-1] - begin[0] == ((indices >= 0) & (indices < rows)).sum()
