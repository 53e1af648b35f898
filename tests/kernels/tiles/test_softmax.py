"""The softmax kernels of tiles by themselves, against the referee: in the interpreter where there is no GPU."""

import itertools
import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles import softmax

pytestmark = pytest.mark.filterwarnings("ignore:invalid:RuntimeWarning")  # NumPy's, in the interpreter
NAN = math.nan
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ERROR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(params=["whole rows", "steps"])
def shapes(request, monkeypatch):
    """Shapes with rows that fit into a tile, or that are read in steps."""
    softmax._plan.cache_clear()
    if request.param == "steps":
        monkeypatch.setattr(softmax, "ELEMENTS", 32)
    yield [(2, 7, 9), (5, 70)] if request.param == "steps" else [(1, 1), (2, 7, 9), (3, 2, 33, 40), (2, 65, 64)]
    softmax._plan.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_and_its_gradient(shapes, dtype, device):
    for shape, diagonal in itertools.product(shapes, (0, None, -5, 100)):
        diagonal = shape[-1] - shape[-2] if diagonal is None else diagonal
        scores, grad = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        inside = reference.triangle_mask(*shape[-2:], "lower", diagonal).to(device)
        out = torch.full_like(scores, NAN)
        softmax.causal_softmax(torch.where(inside, scores, NAN), out, diagonal=diagonal)
        leaf = scores.double().requires_grad_()
        expected = reference.causal_softmax(leaf, diagonal=diagonal)
        torch.testing.assert_close(out.double(), expected, atol=ERROR[dtype], rtol=ERROR[dtype])
        found = torch.full_like(scores, NAN)
        softmax.causal_softmax_backward(torch.where(inside, grad, NAN), out, found, diagonal=diagonal)
        (expected,) = torch.autograd.grad(expected, leaf, grad.double())
        torch.testing.assert_close(found.double(), expected, atol=4 * ERROR[dtype], rtol=ERROR[dtype])


def test_strides_and_in_place(device):
    scores = torch.randn(2, 3, 40, 33, device=device).mT[:, :, 1:, ::2]
    expected = reference.causal_softmax(scores)
    out = torch.full((3, 2, 32, 20), NAN, device=device).transpose(0, 1).to(torch.float32)
    softmax.causal_softmax(scores, out, diagonal=-12)
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-6)
    softmax.causal_softmax(scores, scores, diagonal=-12)
    assert torch.equal(scores, out)


@pytest.mark.usefixtures("shapes")
def test_infinite_scores(device):
    scores = torch.zeros(4, 40, device=device)
    scores[0], scores[1, :20], scores[2, 3] = -math.inf, -math.inf, math.inf
    out = torch.full_like(scores, NAN)
    softmax.causal_softmax(scores, out, diagonal=40)
    assert (out[0] == 0).all()
    torch.testing.assert_close(out[1, 20:], torch.full((20,), 0.05, device=device))
    assert out[2].isnan().all()
    torch.testing.assert_close(out[3], torch.full((40,), 0.025, device=device))
