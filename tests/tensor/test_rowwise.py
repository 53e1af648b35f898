"""What is computed of whole rows, on every backend, against torch: softmax, cross-entropy, layer norm."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trigemm.tensor import Tensor, cross_entropy, layer_norm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.mark.parametrize("shape", [(7, 300), (33, 21), (2, 3, 5, 33), (5,), (3, 1), (2, 20_000)])
def test_softmax(shape, inputs, dtype, agrees):
    x = inputs(*shape, dtype=dtype)
    agrees(x.softmax(), lambda x: x.softmax(-1), x, magnitude=1e-4)
    agrees(x.log_softmax(), lambda x: x.log_softmax(-1), x, magnitude=1.0)


def test_softmax_in_half_precision_is_computed_in_float32(backend, near):
    x = Tensor([8.0, 0.0], backend, dtype="float16")
    near(x.log_softmax().numpy(), [-3.3540638e-4, -8.0003354], rtol=1e-3)
    near(x.softmax().numpy(), [0.99966465, 3.3535013e-4], rtol=1e-3)


def test_softmax_of_masked_rows(inputs, agrees):
    x = inputs(9, 33)
    mask = Tensor(np.triu(np.ones((9, 33), np.int64), 3), x.backend)
    y = x.masked_fill(mask, float("-inf"))
    agrees(y.softmax(), lambda y: y.softmax(-1), y)
    agrees(y.log_softmax(), lambda y: y.log_softmax(-1), y, magnitude=1.0)


@pytest.mark.parametrize("shape", [(33, 300), (2, 20_000)])
def test_cross_entropy(shape, inputs, agrees):
    logits, targets = inputs(*shape), inputs.indices(shape[0], below=shape[1])
    agrees(cross_entropy(logits, targets), F.cross_entropy, logits, targets)


def test_cross_entropy_of_each_row(inputs, backend, dtype, agrees):
    logits, targets = inputs(7, 33, dtype=dtype), inputs.indices(7, below=33)
    each = logits.like(backend.cross_entropy(logits.array, targets.array))
    agrees(each, lambda x, t: F.cross_entropy(x, t, reduction="none"), logits, targets)


@pytest.mark.parametrize("shape", [(33, 300), (2, 20_000)])
def test_cross_entropy_backward(shape, inputs, backend, agrees):
    grad, logits, targets = inputs(shape[0]), inputs(*shape), inputs.indices(shape[0], below=shape[1])
    result = logits.like(backend.cross_entropy_backward(grad.array, logits.array, targets.array))

    def theirs(g, x, t):
        return g[:, None] * (x.softmax(-1) - F.one_hot(t, shape[1]))

    agrees(result, theirs, grad, logits, targets, magnitude=1.0)


@pytest.mark.parametrize("shape", [(7, 300), (4, 9, 33), (5,), (2, 20_000)])
def test_layer_norm(shape, inputs, dtype, agrees):
    x, weight, bias = inputs(*shape, dtype=dtype), inputs(shape[-1], dtype=dtype), inputs(shape[-1], dtype=dtype)
    agrees(layer_norm(x, weight, bias), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), x, weight, bias, magnitude=3.0)


def test_layer_norm_of_a_large_mean(inputs, agrees):
    """The variance is of what is left after the mean is taken away; a mean of squares would lose it."""
    x, weight, bias = inputs(7, 300, low=999.0, high=1001.0), inputs(300), inputs(300)
    agrees(layer_norm(x, weight, bias), lambda x, w, b: F.layer_norm(x, (300,), w, b), x, weight, bias, rtol=1e-3, magnitude=1.0)


@pytest.mark.parametrize("shape", [(33, 21), (130, 40), (130, 5_000), (2, 20_000)])
def test_layer_norm_backward(shape, inputs, backend, agrees):
    grad, x, weight = inputs(*shape), inputs(*shape), inputs(shape[1])
    _, mean, rstd = backend.layer_norm(x.array, weight.array, weight.array, 1e-5)
    results = backend.layer_norm_backward(grad.array, x.array, weight.array, mean, rstd)

    def theirs(number):
        def gradient(g, x, w):
            inputs = [x.clone().requires_grad_(), w.clone().requires_grad_(), torch.zeros_like(w).requires_grad_()]
            return torch.autograd.grad(F.layer_norm(inputs[0], x.shape[1:], *inputs[1:]), inputs, g)[number]

        return gradient

    for number, (result, magnitude) in enumerate(zip(results, (10.0, shape[0], shape[0]), strict=True)):
        agrees(x.like(result), theirs(number), grad, x, weight, magnitude=magnitude)
