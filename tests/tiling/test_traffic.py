"""What a tiled product counts is what the closed form says, and the product is right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm import reference
from trigemm.tiling import Moved, predicted_traffic, tiled_matmul

sizes = st.integers(0, 24)
blocks = st.integers(1, 9)


def operands(m, n, k):
    rng = np.random.default_rng(m + 100 * n + 10000 * k)
    return rng.standard_normal((m, k)), rng.standard_normal((k, n))


def test_the_tutorial_case():
    a, b = operands(15, 9, 12)
    result = tiled_matmul(a, b, 5, 3, 6)
    assert (result.loads, result.stores, result.traffic.masked, result.traffic.tiles) == (864, 135, 0, 9)
    assert result.traffic.a == Moved(540, 8 * 540, 0)
    assert result.traffic.b == Moved(324, 8 * 324, 0)
    assert (result.traffic.loaded_bytes, result.traffic.stored_bytes) == (8 * 864, 8 * 135)
    np.testing.assert_allclose(result.product, a @ b)


@given(sizes, sizes, sizes, blocks, blocks, blocks)
@settings(deadline=None)
def test_counts_are_those_of_the_closed_form(m, n, k, bm, bn, bk):
    a, b = operands(m, n, k)
    result = tiled_matmul(a, b, bm, bn, bk)
    assert result.traffic == predicted_traffic(m, n, k, bm, bn, bk, itemsize=8)
    np.testing.assert_allclose(result.product, a @ b, atol=1e-12)


@given(sizes, sizes, sizes, st.integers(1, 4), blocks, blocks, st.integers(-28, 28))
@settings(deadline=None)
def test_counts_of_a_triangle_are_those_of_the_closed_form(m, n, k, step, bn, bk, diagonal):
    a, b = operands(m, n, k)
    result = tiled_matmul(a, b, step * bn, bn, bk, diagonal=diagonal)
    assert result.traffic == predicted_traffic(m, n, k, step * bn, bn, bk, itemsize=8, diagonal=diagonal)
    np.testing.assert_allclose(result.product, np.tril(a @ b, diagonal), atol=1e-12)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), blocks, blocks, blocks)
def test_blocks_that_divide_load_whole_tiles(i, j, steps, bm, bn, bk):
    traffic = predicted_traffic(i * bm, j * bn, steps * bk, bm, bn, bk)
    assert traffic.loads == (bm * bk + bk * bn) * steps * j * i
    assert traffic.masked == 0


@given(sizes, sizes, sizes, blocks, blocks, blocks, st.one_of(st.none(), st.integers(-28, 28)))
def test_every_element_of_a_tile_is_moved_or_masked(m, n, k, bm, bn, bk, diagonal):
    bm = bm if diagonal is None else bm * bn
    traffic = predicted_traffic(m, n, k, bm, bn, bk, diagonal=diagonal)
    steps = -(-k // bk)
    assert traffic.a.elements + traffic.a.masked == traffic.tiles * steps * bm * bk
    assert traffic.b.elements + traffic.b.masked == traffic.tiles * steps * bk * bn
    assert traffic.c.elements + traffic.c.masked == traffic.tiles * bm * bn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("diagonal", [None, 1])
def test_torch_tensors_of_any_dtype(dtype, diagonal):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(11, 70, generator=generator).to(dtype), torch.randn(13, 70, generator=generator).to(dtype).mT
    result = tiled_matmul(a, b, 6, 3, 16, diagonal=diagonal)
    exact = reference.gemmt(a, b, diagonal=13 if diagonal is None else diagonal, fill=0.0)
    assert result.product.dtype == dtype
    torch.testing.assert_close(result.product.double(), exact.to(dtype).double(), rtol=4 * torch.finfo(dtype).eps, atol=1e-4)
    assert result.traffic == predicted_traffic(11, 13, 70, 6, 3, 16, itemsize=dtype.itemsize, diagonal=diagonal)


def test_numpy_half_precision_is_added_up_in_float32():
    a = np.full((1, 4096), 1, np.float16)
    result = tiled_matmul(a, a.T, 1, 1, 1)
    assert result.product.dtype == np.float16
    assert result.product.item() == 4096  # 1 + 2048 is 2048 in float16


@pytest.mark.parametrize(
    ("a", "b", "error", "said"),
    [
        (np.ones((2, 3)), torch.ones(3, 2), TypeError, "two NumPy arrays or two torch tensors of one dtype; got ndarray (2, 3)"),
        (np.ones((2, 3)), np.ones((3, 2), np.float32), TypeError, "of one dtype; got ndarray (2, 3) float64 and ndarray"),
        ([[1.0]], [[1.0]], TypeError, "got list"),
        (np.ones((2, 3)), np.ones((2, 3)), ValueError, r"matrices (M,K) and (K,N); got ndarray (2, 3) float64 and"),
        (np.ones(3), np.ones((3, 2)), ValueError, "matrices"),
    ],
)
def test_operands_that_do_not_fit_are_refused(a, b, error, said):
    with pytest.raises(error) as raised:
        tiled_matmul(a, b, 1, 1, 1)
    assert said in str(raised.value)


def test_blocks_that_do_not_fit_are_refused():
    a, b = operands(4, 5, 6)
    with pytest.raises(ValueError, match=r"blocks must be positive; got M, N, K = 4, 5, 6 and BM, BN, BK = 0, 1, 2"):
        tiled_matmul(a, b, 0, 1, 2)
    with pytest.raises(ValueError, match="block_rows must be a positive multiple of block_columns, got 2 and 3"):
        predicted_traffic(4, 5, 6, 2, 3, 1, diagonal=0)
    with pytest.raises(TypeError, match=r"must be integers; got 4\.5"):
        predicted_traffic(4.5, 4, 4, 2, 2, 2)
    with pytest.raises(ValueError, match="sizes must not be negative"):
        predicted_traffic(-4, 5, 6, 2, 3, 1)
