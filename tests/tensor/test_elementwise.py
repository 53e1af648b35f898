"""Operations on elements and pairs of elements, on every backend, against torch: shapes that are a multiple of no block."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trigemm.tensor import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def one(x):
    return x


UNARY = {
    "neg": (lambda x: -x, torch.neg, -3.0, None),
    "exp": (Tensor.exp, torch.exp, -3.0, None),
    "log": (Tensor.log, torch.log, 0.01, one),
    "sqrt": (Tensor.sqrt, torch.sqrt, 0.0, None),
    "tanh": (Tensor.tanh, torch.tanh, -3.0, None),
    "gelu": (Tensor.gelu, gelu, -3.0, one),
}


BINARY = {
    "add": (lambda a, b: a + b, torch.add),
    "sub": (lambda a, b: a - b, torch.sub),
    "mul": (lambda a, b: a * b, torch.mul),
    "div": (lambda a, b: a / b, torch.div),
    "maximum": (Tensor.maximum, torch.maximum),
    "less": (lambda a, b: a < b, lambda a, b: (a < b).to(a.dtype)),
    "less_equal": (lambda a, b: a <= b, lambda a, b: (a <= b).to(a.dtype)),
    "equal": (Tensor.equal, lambda a, b: (a == b).to(a.dtype)),
}


@pytest.mark.parametrize("code", UNARY)
def test_unary(code, inputs, dtype, agrees):
    ours, theirs, low, magnitude = UNARY[code]
    x = inputs(7, 300, dtype=dtype, low=low)
    agrees(ours(x), theirs, x, magnitude=0.0 if magnitude is None else lambda x: x + 1)


@pytest.mark.parametrize("code", UNARY)
def test_unary_of_extremes(code, backend, near):
    """Zeros, huge numbers, infinities and NaN come out as from torch."""
    x = np.array([0.0, -0.0, 1e-30, -1.0, 88.0, 1e30, -1e30, np.inf, np.nan], np.float32)
    near(UNARY[code][0](Tensor(x, backend)).numpy(), UNARY[code][1](torch.tensor(x)).numpy(), rtol=2e-5, magnitude=1e-30)


@pytest.mark.parametrize("code", BINARY)
def test_binary(code, inputs, dtype, agrees):
    a, b = inputs(33, 21, dtype=dtype), inputs(33, 21, dtype=dtype)
    agrees(BINARY[code][0](a, b), BINARY[code][1], a, b, magnitude=1e-4)
    same = a + 0.0
    agrees(BINARY[code][0](a, same), BINARY[code][1], a, same, magnitude=1e-4)


@pytest.mark.parametrize("code", BINARY)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((7, 300), (300,)),
        ((300,), (7, 300)),
        ((7, 1), (1, 300)),
        ((2, 1, 5, 3), (4, 1, 3)),
        ((1, 1, 6), (3, 2, 5, 1)),
        ((4, 9), ()),
    ],
)
def test_binary_broadcasts_in_both_directions(code, left, right, inputs, agrees):
    a, b = inputs(*left), inputs(*right)
    agrees(BINARY[code][0](a, b), BINARY[code][1], a, b)


@pytest.mark.parametrize("code", ["add", "sub", "mul", "div", "less", "less_equal"])
def test_binary_with_a_number_on_either_side(code, inputs, dtype, agrees):
    x = inputs(7, 31, dtype=dtype, low=0.5)
    number = torch.tensor(1.5, dtype=torch.float64)
    agrees(BINARY[code][0](x, 1.5), BINARY[code][1], x, number.to(getattr(torch, dtype)))
    agrees(BINARY[code][0](1.5, x), lambda x: BINARY[code][1](number.to(x.dtype), x), x)


@few
@given(shape=shapes, ones=st.lists(st.booleans(), min_size=4, max_size=4), missing=st.integers(0, 4), swap=st.booleans())
def test_shapes_that_broadcast(backend, agrees, shape, ones, missing, swap):
    narrow = tuple(1 if stretched else size for size, stretched in zip(shape, ones, strict=False))[missing:]
    random = np.random.default_rng(len(shape))
    a, b = (Tensor(random.normal(size=s).astype(np.float32), backend) for s in ((narrow, shape) if swap else (shape, narrow)))
    agrees(a - b, torch.sub, a, b)


def test_nan_goes_through_maximum(backend):
    a, b = Tensor([1.0, float("nan"), 2.0], backend), Tensor([float("nan"), 1.0, 3.0], backend)
    assert np.isnan(a.maximum(b).numpy()).tolist() == [True, True, False]


@pytest.mark.parametrize("value", [0.5, float("-inf")])
@pytest.mark.parametrize(("shape", "mask"), [((7, 33), (7, 33)), ((3, 7, 33), (7, 33)), ((33,), (7, 33))])
def test_masked_fill(shape, mask, value, inputs, dtype, agrees):
    x, chosen = inputs(*shape, dtype=dtype), inputs.indices(*mask, below=2)
    agrees(
        x.masked_fill(chosen, value),
        lambda x, m: x.broadcast_to(torch.broadcast_shapes(x.shape, m.shape)).masked_fill(m != 0, value),
        x,
        chosen,
    )


def test_gelu_backward(inputs, backend, dtype, agrees):
    grad, x = inputs(7, 300, dtype=dtype), inputs(7, 300, dtype=dtype)
    result = x.like(backend.binary("gelu_backward", grad.array, x.array))
    agrees(result, lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"), grad, x, magnitude=3.0)


@pytest.mark.parametrize("to", ["float32", "float16", "int64"])
def test_cast(to, inputs):
    x = inputs(7, 33, low=-300.0, high=300.0)
    assert x.cast(to).dtype == to
    assert np.array_equal(x.cast(to).numpy(), x.numpy().astype(to))


def test_a_nan_is_no_index(backend):
    indices = Tensor([0.0, float("nan"), 1.9], backend).cast("int64")
    assert indices.numpy().tolist() == [0, -(2**63), 1]


@pytest.mark.parametrize("code", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("number", [1e5, 1e-8, -0.1])
def test_numbers_beside_half_precision_are_float32(code, number, backend, near):
    """Rounded to float16, they would be infinite, 0, or less exact."""
    ours, theirs = BINARY[code]
    values = np.array([60000.0, 2e-3, -1.5], np.float16)
    x, exact = Tensor(values, backend), torch.tensor(values.astype(np.float64))
    for result, wanted in ((ours(x, number), theirs(exact, number)), (ours(number, x), theirs(number + 0 * exact, exact))):
        assert result.dtype == "float16"
        near(result.numpy(), wanted.numpy().astype(np.float16), rtol=1e-3, magnitude=1e-4)


def test_a_number_is_compared_in_the_dtype_of_the_elements(backend):
    x = Tensor([0.1], backend, dtype="float16")
    assert x.equal(0.1).item() == 1.0
    assert (x < 1e5).item() == 1.0


def test_zeros_have_signs(backend):
    zero = Tensor([0.0], backend)
    assert (1.0 / (-zero)).item() == -np.inf
    assert (1.0 / -(zero * -1.0)).item() == np.inf


def test_numbers_that_are_zero_have_signs(backend):
    if backend.name == "cuda" and backend.device.type == "cpu":
        pytest.skip("Triton's interpreter takes -0.0 for 0.0")
    one = Tensor([1.0], backend)
    assert (one / 0.0).item() == np.inf  # first, so that nothing that is kept for 0.0 serves -0.0
    assert (one / -0.0).item() == -np.inf
    zero, column = one * -0.0, Tensor([[0.0], [0.0]], backend)
    for negative in (zero, zero + (-0.0), zero - 0.0, column.masked_fill(one, -0.0), one.masked_fill(one, -0.0)):
        assert np.signbit(negative.numpy()).all()
