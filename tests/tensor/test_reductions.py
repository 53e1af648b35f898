"""Sums and maxima, on every backend, against torch."""

import numpy as np
import pytest

from trigemm.tensor import Tensor, gradients

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(7, 300, 3), (33, 7, 21), (2, 3, 700)])
def test_sum_axis(shape, axis, inputs, agrees):
    x = inputs(*shape)
    agrees(x.sum(axis), lambda x: x.sum(axis), x, magnitude=lambda x: x.sum(axis))
    agrees(x.mean(axis, keepdims=True), lambda x: x.mean(axis, keepdim=True), x, magnitude=lambda x: x.mean(axis, keepdim=True))


def test_sum_axis_of_half_precision_adds_in_float32(inputs, agrees):
    x = inputs(7, 3000, dtype="float16", low=0.5)
    agrees(x.sum(1), lambda x: x.sum(1), x, rtol=1e-3)


@pytest.mark.parametrize("shape", [(), (1,), (7, 300), (257,), (3, 5, 256)])
def test_sum(shape, inputs, agrees):
    x = inputs(*shape)
    agrees(x.sum(), lambda x: x.sum(), x, magnitude=lambda x: x.sum())
    agrees(x.mean(), lambda x: x.mean(), x, magnitude=lambda x: x.mean())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_max_axis(axis, inputs, dtype, agrees):
    x = inputs(7, 30, 33, dtype=dtype)
    agrees(x.max(axis), lambda x: x.amax(axis), x)


def test_nan_goes_through_max(backend):
    assert np.isnan(Tensor([[1.0, float("nan"), 2.0]], backend).max().item())


@pytest.mark.parametrize("shape", [(1, 9_001, 1), (2, 9_001, 2), (2, 600, 40), (3, 10, 600)])
def test_reductions_of_long_axes(shape, inputs, agrees):
    """Cut into pieces on a GPU: twice, since what counts the pieces must be zero again."""
    x = inputs(*shape)
    for _ in range(2):
        agrees(x.sum(1), lambda x: x.sum(1), x, magnitude=lambda x: x.sum(1))
        agrees(x.max(1), lambda x: x.amax(1), x)
    broken = Tensor(np.where(np.arange(x.size).reshape(shape) == x.size - 1, np.nan, x.numpy()), x.backend)
    assert np.isnan(broken.max(1).numpy()).sum() == 1


@pytest.mark.parametrize("axis", [None, 0])
def test_only_the_mean_is_rounded_to_half_precision(axis, backend):
    """The sum would be infinite."""
    x = Tensor(np.full(3000, 100.0), backend, dtype="float16", requires_grad=True)
    mean = x.mean(axis)
    assert (mean.dtype, mean.item()) == ("float16", 100.0)
    gradient = gradients(mean, [x])[0]
    assert gradient.dtype == "float16"
    assert np.array_equal(gradient.numpy(), np.full(3000, 1 / 3000, np.float16))
