"""What the contract says, written out in NumPy's float64: neither backend may agree with torch and not with its own words."""

import numpy as np
import pytest

from trigemm.tensor import Tensor, layer_norm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("ours", "formula"),
    [
        (lambda x: x.gelu(), gelu),
        (lambda x: -x, np.negative),
        (lambda x: x.exp(), np.exp),
        (lambda x: (x * x + 1).log(), lambda x: np.log(x * x + 1)),
        (lambda x: (x * x).sqrt(), np.abs),
        (lambda x: x.tanh(), np.tanh),
        (lambda x: x.softmax(), softmax),
        (lambda x: x.log_softmax(), log_softmax),
        (lambda x: x.sum(0), lambda x: x.sum(0)),
        (lambda x: x.sum(), np.sum),
        (lambda x: x.max(1), lambda x: x.max(1)),
        (lambda x: x.T, np.transpose),
        (lambda x: x @ x.T, lambda x: x @ x.T),
    ],
    ids=["gelu", "neg", "exp", "log", "sqrt", "tanh", "softmax", "log_softmax", "sum_axis", "sum", "max", "transpose", "matmul"],
)
def test_functions_of_one_tensor(ours, formula, inputs, near):
    x = inputs(7, 300)
    near(ours(x).numpy(), formula(x.numpy().astype(np.float64)), rtol=1e-5, magnitude=1.0)


def test_gelu_backward(inputs, backend, near):
    grad, x = inputs(7, 30), inputs(7, 30)
    exact = x.numpy().astype(np.float64)
    slope = (gelu(exact + 1e-6) - gelu(exact - 1e-6)) / 2e-6
    near(backend.numpy(backend.binary("gelu_backward", grad.array, x.array)), grad.numpy() * slope, rtol=1e-5, magnitude=1.0)


def test_layer_norm_and_its_statistics(inputs, backend, near):
    x, weight, bias = inputs(7, 300), inputs(300), inputs(300)
    exact = x.numpy().astype(np.float64)
    mean, variance = exact.mean(1, keepdims=True), exact.var(1, keepdims=True)
    normal = (exact - mean) / np.sqrt(variance + 0.5)
    near(layer_norm(x, weight, bias, eps=0.5).numpy(), normal * weight.numpy() + bias.numpy(), rtol=1e-5, magnitude=3.0)
    _, ours, rstd = backend.layer_norm(x.array, weight.array, bias.array, 0.5)
    near(backend.numpy(ours), mean[:, 0], rtol=1e-5, magnitude=1.0)
    near(backend.numpy(rstd), 1 / np.sqrt(variance[:, 0] + 0.5), rtol=1e-5)


def test_cross_entropy_and_its_gradient(inputs, backend, near):
    grad, logits, targets = inputs(9), inputs(9, 33), inputs.indices(9, below=33)
    exact, number = logits.numpy().astype(np.float64), targets.numpy()
    rows = np.arange(9)
    near(backend.numpy(backend.cross_entropy(logits.array, targets.array)), -log_softmax(exact)[rows, number], rtol=1e-5)
    share = softmax(exact)
    share[rows, number] -= 1
    result = backend.numpy(backend.cross_entropy_backward(grad.array, logits.array, targets.array))
    near(result, grad.numpy()[:, None] * share, rtol=1e-5, magnitude=1.0)


def test_adamw(backend, near):
    p, g, m, v = (np.random.default_rng(i).uniform(0.1, 1.0, 9).astype(np.float32) for i in range(4))
    arrays = [Tensor(x, backend).array for x in (p, g, m, v)]
    new = backend.adamw(*arrays, step=3, lr=0.1, beta1=0.9, beta2=0.99, eps=0.01, weight_decay=0.2)
    p, g, m, v = (x.astype(np.float64) for x in (p, g, m, v))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    p = p * (1 - 0.1 * 0.2) - 0.1 * m / (1 - 0.9**3) / (np.sqrt(v / (1 - 0.99**3)) + 0.01)
    for ours, exact in zip(new, (p, m, v), strict=True):
        near(backend.numpy(ours), exact, rtol=1e-5)
