"""Where the order of additions and subtractions decides how much of the result is right."""

import numpy as np
import pytest

from trigemm.tensor import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.mark.parametrize("count", [100_000, 1_000_000])
def test_a_sum_of_all_elements_is_within_1e_6_of_float64(count, backend, near):
    """A running float32 sum is not."""
    x = np.random.default_rng(count).uniform(0.0, 1.0, count).astype(np.float32)
    exact = x.sum(dtype=np.float64)
    near(Tensor(x, backend).sum().item(), exact, rtol=1e-6)
    running = np.add.accumulate(x)[-1]
    assert abs(running - exact) > 5e-6 * exact


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_over_a_long_axis_is_within_1e_6_of_float64(axis, backend, near):
    shape = (100_000, 3) if axis == 0 else (3, 100_000)
    x = np.random.default_rng(axis).uniform(0.0, 1.0, shape).astype(np.float32)
    near(Tensor(x, backend).sum(axis).numpy(), x.sum(axis, dtype=np.float64), rtol=1e-6)


def exact_log_softmax(x):
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def one_number_log_softmax(x):
    """x - logsumexp, with the maximum and the logarithm of the sum added into one float32."""
    largest = x.max(-1, keepdims=True)
    return x - (largest + np.log(np.exp(x - largest).sum(-1, keepdims=True)))


@pytest.mark.parametrize("size", [1e2, 1e3, 1e4])
def test_log_softmax_of_saturated_scores(size, backend):
    """Scores up to ±1e4 of which a few nearly tie: the error in two numbers is bounded, in one number it is larger."""
    random = np.random.default_rng(int(size))
    x = random.uniform(-size, size, (64, 300)).astype(np.float32)
    x[:, :8] = size - random.uniform(0.0, 2.0, (64, 8))
    exact = exact_log_softmax(x)
    two = np.abs(Tensor(x, backend).log_softmax().numpy() - exact)
    one = np.abs(one_number_log_softmax(x) - exact)
    assert two.max() <= 2e-3
    assert two[:, :8].max() <= 2e-6
    assert one[:, :8].max() > 10 * two[:, :8].max()


def test_softmax_of_saturated_scores(backend):
    random = np.random.default_rng(9)
    x = random.uniform(-1e4, 1e4, (64, 300)).astype(np.float32)
    x[:, :8] = 1e4 - random.uniform(0.0, 2.0, (64, 8))
    exact = exact_log_softmax(x)
    y = Tensor(x, backend).softmax().numpy()
    assert np.abs(np.log(y[:, :8]) - exact[:, :8]).max() <= 2e-3
    assert np.abs(y - np.exp(exact)).max() <= 1e-6


def test_softmax_does_not_overflow(backend):
    x = Tensor([[1e4, 1e4, -1e4], [-3e38, 3e38, 0.0]], backend)
    assert x.softmax().numpy().tolist() == [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
