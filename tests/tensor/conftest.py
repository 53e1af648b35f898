"""One body a test, run on every backend, and held against torch in float64 and in the tensors' own dtype."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from trigemm.tensor import CpuBackend, Tensor
from trigemm.tensor.cuda import CudaBackend

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3}
BACKENDS = [CpuBackend(), CudaBackend("cuda" if torch.cuda.is_available() else "cpu")]  # "cpu": in Triton's interpreter


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param


@pytest.fixture(params=["float32", "float16"])
def dtype(request):
    return request.param


class Inputs:
    """Random arrays from a seed of their own, and the tensors made of them."""

    def __init__(self, seed: int, backend):
        self.random, self.backend = np.random.default_rng(seed), backend

    def __call__(self, *shape: int, dtype: str = "float32", low: float = -3.0, high: float = 3.0) -> Tensor:
        return Tensor(self.random.uniform(low, high, shape).astype(dtype), self.backend)

    def indices(self, *shape: int, below: int) -> Tensor:
        return Tensor(self.random.integers(0, below, shape), self.backend)


@pytest.fixture
def inputs(request, backend):
    return Inputs(sum(map(ord, request.node.name)), backend)


def assert_near(result, expected, *, rtol, magnitude=0.0):
    """Errors up to rtol * (|expected| + magnitude), and equal NaN and infinities; `magnitude` is of what was summed."""
    result, expected = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    assert result.shape == expected.shape
    limit = rtol * (np.abs(expected) + np.asarray(magnitude, np.float64))
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(result - expected) <= limit) | (result == expected) | (np.isnan(result) & np.isnan(expected)))
    assert not wrong.any(), (np.argwhere(wrong)[:5], result[wrong][:5], expected[wrong][:5])


def agrees_with_torch(result: Tensor, function: Callable[..., torch.Tensor], *operands, magnitude=0.0, rtol=None):
    """`result` is function(*operands) in torch: exactly computed, and as torch computes it in the operands' dtype."""
    tensors = [torch.tensor(np.array(x.numpy())) if isinstance(x, Tensor) else x for x in operands]
    double = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in tensors]
    rtol = rtol or ROUNDING[result.dtype]
    if callable(magnitude):
        magnitude = magnitude(*(x.abs() if isinstance(x, torch.Tensor) else x for x in double)).numpy()
    assert_near(result.numpy(), function(*double).numpy(), rtol=rtol, magnitude=magnitude)
    assert_near(result.numpy(), function(*tensors).numpy(), rtol=2 * rtol, magnitude=magnitude)


@pytest.fixture
def agrees():
    return agrees_with_torch


@pytest.fixture
def near():
    return assert_near
