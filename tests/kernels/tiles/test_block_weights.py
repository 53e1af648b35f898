"""Weights from given statistics, against the softmax that they are parts of."""

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles.block_weights import block_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("fill", [0.0, 0.25, None])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (40, 170), (170, 173)])
def test_parts_of_a_softmax(device: str, dtype: torch.dtype, fill: float | None, first: int, last: int) -> None:
    """Columns `first` to `last` of the weights, of which some lie above the diagonal."""
    queries, keys, scale = 150, 173, 0.3
    q = torch.randn(2, queries, 3, 24, dtype=dtype, device=device).transpose(1, 2)
    k = torch.randn(2, 3, keys, 24, dtype=dtype, device=device)
    scores = reference.causal_scores(q, k, scale=scale)
    largest = scores.amax(-1, keepdim=True)
    logarithm = (scores - largest).exp().sum(-1, keepdim=True).log()
    whole = torch.full((2, 3, queries, keys), torch.nan, dtype=dtype, device=device)
    out, diagonal = whole[..., first:last], keys - queries - first
    block_weights(q, k[:, :, first:last], largest.float(), logarithm.float(), out, scale=scale, diagonal=diagonal, fill=fill)
    inside = reference.triangle_mask(queries, last - first, "lower", diagonal).to(device).expand_as(out)
    expected = (scores - largest - logarithm).exp()[..., first:last]
    torch.testing.assert_close(out[inside].double(), expected[inside], atol=2e-6 if dtype == torch.float32 else 2e-3, rtol=1e-2)
    if fill is None:
        assert out[~inside].isnan().all()
    else:
        assert (out[~inside] == fill).all()
    assert whole[..., :first].isnan().all()
    assert whole[..., last:].isnan().all()
