"""What is particular to the CPU backend: small arrays go other ways than large ones, and both are the same in float64."""

import numpy as np
import pytest

from trigemm.tensor import CpuBackend
from trigemm.tensor.backend import UNARY
from trigemm.tensor.cpu import SMALL, SMALL_PRODUCT, SMALL_SQUARE, TINY
from trigemm.tensor.ufuncs import ARITHMETIC, quietly

BACKEND = CpuBackend()


def random(*shape):
    return np.random.default_rng(len(shape)).uniform(0.1, 3.0, shape).astype(np.float32)


@pytest.mark.parametrize("code", UNARY)
def test_functions_of_large_arrays_are_those_of_their_parts(code, near):
    x = random(200, 300)
    assert x.size >= TINY > x[:10].size
    parts = [BACKEND.unary(code, x[begin : begin + 10]) for begin in range(0, 200, 10)]
    near(BACKEND.unary(code, x), np.concatenate(parts), rtol=1e-6, magnitude=1e-2)


@pytest.mark.parametrize("code", ARITHMETIC)
@pytest.mark.parametrize("shapes", [((200, 300), (300,)), ((200, 1), (200, 300)), ((200, 300), ()), ((200, 1), (1, 300))])
def test_stretched_operands(code, shapes, near):
    a, b = (random(*shape) for shape in shapes)
    exact = ARITHMETIC[code](a.astype(np.float64), b.astype(np.float64))
    out = BACKEND.binary(code, a, b)
    assert out.dtype == np.float32
    near(out, exact, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (3, 5, 30, 40), (17, 2, 4, 3), (300, 7), (7, 300), (30,)])
def test_sums_along_an_axis(shape, near):
    x = random(*shape)
    for axis in range(x.ndim):
        out = BACKEND.sum_axis(x, axis)
        assert (out.dtype, out.shape) == (x.dtype, x.shape[:axis] + x.shape[axis + 1 :])
        near(out, x.astype(np.float64).sum(axis), rtol=1e-6)


def test_nothing_warns_not_even_within_a_finalizer():
    huge = np.full(3, 3e38, np.float32)
    assert np.isinf(BACKEND.binary("mul", huge, huge)).all()
    inner = []
    quietly(lambda x: inner.append(BACKEND.binary("mul", x, x)), huge)
    assert np.isinf(inner[0]).all()


@pytest.mark.parametrize("size", [3, 40])
def test_permute(size):
    x = random(4, size, 5, size + 1)
    assert (x.size >= SMALL) == (size == 40)
    y = BACKEND.permute(x, (2, 3, 0, 1))
    assert y.flags.c_contiguous
    assert np.array_equal(y, x.transpose(2, 3, 0, 1))


@pytest.mark.parametrize("size", [10, 80, 400])
@pytest.mark.parametrize("transpose", [False, True])
def test_products(size, transpose, near):
    a, b = random(3, size, size + 3), random(3, size + 3, size - 2)
    assert a.size * (size - 2) <= SMALL_PRODUCT if size == 10 else a.size * (size - 2) > SMALL_PRODUCT
    assert (size * (size - 2) >= SMALL_SQUARE) == (size == 400)
    exact = a.astype(np.float64), b.astype(np.float64)
    right = b.swapaxes(1, 2).copy() if transpose else b
    product = exact[0] @ exact[1]
    near(BACKEND.matmul(a, b), product, rtol=1e-5)
    near(BACKEND.matmul(a, right, transpose_b=transpose), product, rtol=1e-5)
    triangle = np.where(np.tri(size, size - 2, 1, bool), 0.5 * product, -np.inf)
    near(BACKEND.gemmt(a, right, alpha=0.5, diagonal=1, fill=-np.inf, transpose_b=transpose), triangle, rtol=1e-5)
    near(BACKEND.syrk(a, alpha=2.0), 2 * exact[0] @ exact[0].swapaxes(1, 2), rtol=1e-5)
    hidden = np.where(np.tri(size, size + 3, -1, bool), a, np.float32(np.nan))
    lower = np.tril(exact[0], -1)
    operand = random(3, size if transpose else size + 3, 7)
    expected = 0.5 * (lower.swapaxes(1, 2) if transpose else lower) @ operand
    near(BACKEND.trmm(hidden, operand, alpha=0.5, diagonal=-1, transpose=transpose), expected, rtol=1e-5)
    assert np.isnan(hidden).any()
