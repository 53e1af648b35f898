"""causal_softmax as users call it, on the CPU."""

import math

import pytest
import torch
from torch.autograd import forward_ad

import trigemm
from trigemm import reference

NAN = math.nan


def random(*shape, **options):
    return torch.randn(*shape, **{"dtype": torch.float64, **options})


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (1, 1), (2, 7, 9), (2, 3, 33, 20), (129, 127), (1, 300, 1000)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_against_the_referee(shape, dtype):
    error = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    scores = random(*shape, dtype=dtype)
    for diagonal in (None, 0, -5, 10**20):
        expected = reference.causal_softmax(scores, diagonal=diagonal and min(diagonal, 2000))
        edge = shape[-1] - shape[-2] if diagonal is None else min(diagonal, 2000)
        unread = torch.where(reference.triangle_mask(*shape[-2:], "lower", edge), scores, NAN)
        found = trigemm.causal_softmax(unread, diagonal=diagonal)
        torch.testing.assert_close(found.double(), expected, atol=error, rtol=error)
        strided = unread.mT.contiguous().mT
        out = torch.full_like(scores, NAN)
        assert trigemm.causal_softmax(strided, diagonal=diagonal, out=out) is out
        assert torch.equal(out, found)
        trigemm.causal_softmax(strided, diagonal=diagonal, out=strided)
        assert torch.equal(strided, found)


def test_infinite_scores():
    scores = torch.zeros(4, 4)
    scores[0], scores[1, 0], scores[2, 1] = -math.inf, -math.inf, math.inf
    found = trigemm.causal_softmax(scores)
    assert (found[0] == 0).all()
    assert found[1].tolist() == [0, 1, 0, 0]
    assert found[2, :3].isnan().all()
    assert found[3].tolist() == [0.25] * 4


@pytest.mark.parametrize("diagonal", [None, 1, -2])
def test_derivatives(diagonal):
    scores = random(2, 4, 5, requires_grad=True)

    def call(x):
        return trigemm.causal_softmax(x, diagonal=diagonal)

    assert torch.autograd.gradcheck(call, scores)
    assert torch.autograd.gradgradcheck(call, scores)
    grad = random(2, 4, 5)
    (expected,) = torch.autograd.grad(reference.causal_softmax(scores, diagonal=diagonal), scores, grad)
    unread = torch.where(reference.triangle_mask(4, 5, "lower", 1 if diagonal is None else diagonal), grad, NAN)
    (found,) = torch.autograd.grad(call(scores), scores, unread)
    torch.testing.assert_close(found, expected)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(scores), scores, grad)[0], expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # raised inside torch.func.jvp
def test_transforms_of_torch_func():
    scores, tangent = random(3, 4, 5), random(3, 4, 5)
    grad = random(3, 4, 5)

    def loss(x):
        return (trigemm.causal_softmax(x) * grad).sum()

    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(scores), expected)
    slope = (expected * tangent).sum()
    torch.testing.assert_close(torch.func.jvp(loss, (scores,), (tangent,))[1], slope)
    with forward_ad.dual_level():
        torch.testing.assert_close(forward_ad.unpack_dual(loss(forward_ad.make_dual(scores, tangent))).tangent, slope)
    torch.testing.assert_close(torch.vmap(trigemm.causal_softmax)(scores), trigemm.causal_softmax(scores))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    scores = random(2, 4, 5, requires_grad=grad)
    operations = torch.ops.trigemm
    torch.library.opcheck(operations.causal_softmax.default, (scores, 1))
    torch.library.opcheck(operations.causal_softmax_backward.default, (random(2, 4, 5), scores, 1))
    if not grad:
        torch.library.opcheck(operations.causal_softmax.out, (scores, 1), {"out": torch.zeros_like(scores)})


def test_autocast_and_fake_tensors():
    scores = random(2, 4, 5, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert trigemm.causal_softmax(scores).dtype == torch.bfloat16
        assert trigemm.causal_softmax(scores, out=scores) is scores
    fake = trigemm.causal_softmax(scores.to("meta"))
    assert (fake.shape, fake.dtype) == (scores.shape, scores.dtype)


scores = torch.zeros(3, 4)
REFUSED = [
    (lambda: trigemm.causal_softmax(scores[0]), ValueError, "at least 2 dimensions"),
    (lambda: trigemm.causal_softmax(scores.int()), TypeError, r"got scores \(3, 4\) int32"),
    (lambda: trigemm.causal_softmax(scores, diagonal=0.5), TypeError, "diagonal must be an int, got float"),
    (lambda: trigemm.causal_softmax(scores, out=scores.half()), ValueError, r"out must be a strided tensor of shape \(3, 4\)"),
    (lambda: trigemm.causal_softmax(scores, out=torch.zeros(1, 4).expand(3, 4)), ValueError, "out overlaps itself"),
    (lambda: trigemm.causal_softmax(scores.clone().requires_grad_(), out=scores), ValueError, "does not support gradients"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED)
def test_a_refusal_says_what_was_given_and_what_would_work(wrong, error, message):
    with pytest.raises(error, match=f"causal_softmax: .*{message}"):
        wrong()


def test_an_out_that_overlaps_a_part_of_the_scores_is_refused():
    buffer = torch.zeros(6, 5)
    with pytest.raises(ValueError, match="causal_softmax: out overlaps scores"):
        trigemm.causal_softmax(buffer[:5], out=buffer[1:])
