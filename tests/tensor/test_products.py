"""Products, whole and triangular, on every backend, against torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trigemm.tensor import Tensor, causal_attention, gemmt, gradients, matmul, syrk, trmm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((33, 21), (21, 7)),
        ((4, 9, 33), (33, 21)),
        ((4, 9, 33), (4, 33, 21)),
        ((1, 9, 5), (3, 5, 2)),
        ((9, 5), (3, 5, 2)),
        ((2, 3, 4, 5), (2, 3, 5, 6)),
    ],
)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul(left, right, transpose_a, transpose_b, inputs, agrees):
    a = inputs(*((*left[:-2], left[-1], left[-2]) if transpose_a else left))
    b = inputs(*((*right[:-2], right[-1], right[-2]) if transpose_b else right))

    def theirs(a, b):
        return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)

    agrees(matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b), theirs, a, b, magnitude=theirs)


def test_matmul_operator(inputs, dtype, agrees):
    a, b = inputs(7, 300, dtype=dtype), inputs(300, 21, dtype=dtype)
    agrees(a @ b, torch.matmul, a, b, magnitude=torch.matmul)


def test_matmul_without_depth_is_zero(backend):
    a, b = Tensor(np.zeros((3, 0), np.float32), backend), Tensor(np.zeros((0, 2), np.float32), backend)
    assert np.array_equal((a @ b).numpy(), np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("diagonal", [0, 3, -2])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_gemmt(diagonal, transpose_b, inputs, agrees):
    a, b = inputs(2, 9, 33), inputs(2, *((21, 33) if transpose_b else (33, 21)))

    def theirs(a, b):
        product = 0.5 * a @ (b.mT if transpose_b else b)
        return torch.where(torch.ones(9, 21).tril(diagonal) > 0, product, -7.0)

    result = gemmt(a, b, alpha=0.5, diagonal=diagonal, fill=-7.0, transpose_b=transpose_b)
    agrees(result, theirs, a, b, magnitude=lambda a, b: a @ (b.mT if transpose_b else b))


@pytest.mark.parametrize("diagonal", [0, 3, -2])
@pytest.mark.parametrize("transpose", [False, True])
def test_trmm(diagonal, transpose, inputs, agrees):
    a, b = inputs(2, 9, 21), inputs(2, 9 if transpose else 21, 5)
    hidden = a.masked_fill(Tensor(np.triu(np.ones((9, 21), np.int64), diagonal + 1), a.backend), float("nan"))

    def theirs(a, b):
        return 0.5 * (a.tril(diagonal).mT if transpose else a.tril(diagonal)) @ b

    agrees(trmm(hidden, b, alpha=0.5, diagonal=diagonal, transpose=transpose), theirs, a, b, magnitude=theirs)


def test_syrk(inputs, agrees):
    a = inputs(3, 33, 21)
    agrees(syrk(a, alpha=0.5), lambda a: 0.5 * a @ a.mT, a, magnitude=lambda a: a @ a.mT)


@pytest.mark.parametrize("cached", [0, 4])
def test_causal_attention(cached, inputs, agrees):
    q, k, v = inputs(2, 3, 9, 16), inputs(2, 3, 9 + cached, 16), inputs(2, 3, 9 + cached, 5)

    def theirs(q, k, v):
        mask = torch.ones(9, 9 + cached).tril(cached) > 0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    agrees(causal_attention(q, k, v), theirs, q, k, v, magnitude=3.0)


@pytest.mark.parametrize(("left", "right"), [((2, 3, 0), (0, 4)), ((2, 0, 3), (3, 4)), ((2, 3, 4), (4, 0)), ((0, 3, 4), (4, 2))])
def test_empty_batches_times_a_matrix(left, right, backend):
    a, b = (Tensor(np.ones(shape, np.float32), backend, requires_grad=True) for shape in (left, right))
    product = a @ b
    assert np.array_equal(product.numpy(), np.ones(left) @ np.ones(right))
    assert [x.shape for x in gradients(product.sum(), [a, b])] == [left, right]


def test_alpha_is_applied_before_rounding_to_half_precision(backend):
    """The product alone would be infinite."""
    x = Tensor(np.full((16, 16), 100.0), backend, dtype="float16")
    for result in (gemmt(x, x, alpha=1e-3), trmm(x, x, alpha=1e-3), syrk(x, alpha=1e-3)):
        assert abs(result.numpy()[15, 0] / 160 - 1) < 1e-3
