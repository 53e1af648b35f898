"""The gradient of every operation, against numerical differences and against torch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trigemm.tensor import (
    CpuBackend,
    Tensor,
    causal_attention,
    cross_entropy,
    gather,
    gemmt,
    gradients,
    layer_norm,
    matmul,
    numerical_gradient,
    scatter_add,
    syrk,
    trmm,
)

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


class OtherBackend(CpuBackend):
    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


INDICES = [[2, 0, 2], [1, 2, 3]]


def in_interpreter(backend):
    return backend.name == "cuda" and backend.device.type == "cpu"


def indices(like, values=INDICES):
    return Tensor(values, like.backend)


def causal_mask(like):
    return Tensor(np.triu(np.ones(like.shape[-2:], np.int64), 1), like.backend)


# Name: the operation, the shapes of its inputs, and the least value of their elements.
OPERATIONS = {
    "neg": (lambda x: -x, [(3, 4)], -2.0),
    "exp": (Tensor.exp, [(3, 4)], -2.0),
    "log": (Tensor.log, [(3, 4)], 0.5),
    "sqrt": (Tensor.sqrt, [(3, 4)], 0.5),
    "tanh": (Tensor.tanh, [(3, 4)], -2.0),
    "gelu": (Tensor.gelu, [(3, 4)], -2.0),
    "add": (lambda a, b: a + b, [(3, 4), (4,)], -2.0),
    "sub": (lambda a, b: a - b, [(3, 1), (2, 3, 4)], -2.0),
    "mul": (lambda a, b: a * b, [(2, 1, 4), (3, 1)], -2.0),
    "div": (lambda a, b: a / b, [(4,), (3, 4)], 0.5),
    "number": (lambda a: 3.0 - 2.0 / (a * 0.5), [(3, 4)], 0.5),
    "maximum": (lambda a, b: a.maximum(b), [(3, 4), (1, 4)], -2.0),
    "masked_fill": (lambda x: x.masked_fill(causal_mask(x), -9.0), [(2, 3, 4)], -2.0),
    "permute": (lambda x: x.permute(2, 0, 1), [(2, 3, 4)], -2.0),
    "expand": (lambda x: x.expand(2, 3, 4), [(3, 1)], -2.0),
    "reshape": (lambda x: x.reshape(4, -1), [(2, 6)], -2.0),
    "slice": (lambda x: x[1, 1:3], [(3, 4, 2)], -2.0),
    "sum": (Tensor.sum, [(3, 4)], -2.0),
    "sum_axis": (lambda x: x.sum(1), [(2, 3, 4)], -2.0),
    "mean": (lambda x: x.mean(0, keepdims=True), [(2, 3)], -2.0),
    "max": (lambda x: x.max(1), [(2, 3, 4)], -2.0),
    "softmax": (Tensor.softmax, [(3, 5)], -2.0),
    "log_softmax": (Tensor.log_softmax, [(3, 5)], -2.0),
    "matmul": (lambda a, b: a @ b, [(3, 4), (4, 2)], -2.0),
    "matmul_linear": (lambda a, b: a @ b, [(2, 3, 4), (4, 2)], -2.0),
    "matmul_linear_transposed": (lambda a, b: matmul(a, b, transpose_b=True), [(2, 3, 4), (2, 4)], -2.0),
    "matmul_batched": (lambda a, b: a @ b, [(2, 1, 3, 4), (3, 4, 2)], -2.0),
    "matmul_transposed": (lambda a, b: matmul(a, b, transpose_a=True), [(2, 4, 3), (2, 4, 2)], -2.0),
    "matmul_transposed_twice": (lambda a, b: matmul(a, b, transpose_a=True, transpose_b=True), [(4, 3), (2, 2, 4)], -2.0),
    "gemmt": (lambda a, b: gemmt(a, b, alpha=0.5, diagonal=1, fill=-7.0), [(2, 3, 4), (2, 4, 5)], -2.0),
    "gemmt_transposed": (lambda a, b: gemmt(a, b, diagonal=-1, transpose_b=True), [(3, 4), (5, 4)], -2.0),
    "trmm": (lambda a, b: trmm(a, b, alpha=0.5, diagonal=1), [(2, 3, 4), (2, 4, 2)], -2.0),
    "trmm_transposed": (lambda a, b: trmm(a, b, diagonal=-1, transpose=True), [(3, 4), (3, 2)], -2.0),
    "syrk": (lambda a: syrk(a, alpha=0.5), [(2, 3, 4)], -2.0),
    "causal_attention": (causal_attention, [(2, 3, 4), (2, 5, 4), (2, 5, 2)], -2.0),
    "gather": (lambda t: gather(t, indices(t)), [(4, 3)], -2.0),
    "scatter_add": (lambda u: scatter_add(u, indices(u), 5), [(2, 3, 4)], -2.0),
    "cross_entropy": (lambda x: cross_entropy(x, indices(x, [1, 4, 0])), [(3, 5)], -2.0),
    "layer_norm": (layer_norm, [(2, 3, 5), (5,), (5,)], -2.0),
}


def weighted(operation, seed):
    """The operation as a function with one number, in which every element of its result counts."""

    def function(*xs):
        y = operation(*xs)
        weights = np.random.default_rng(seed).uniform(0.5, 1.5, y.shape).astype(y.dtype)
        return (y * Tensor(weights, y.backend)).sum()

    return function


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_the_numerical_ones(name, near):
    operation, shapes, low = OPERATIONS[name]
    random = np.random.default_rng(len(name))
    function = weighted(operation, 1)
    xs = [Tensor(random.uniform(low, 2.0, shape), requires_grad=True) for shape in shapes]
    assert xs[0].dtype == "float64"
    for number, gradient in enumerate(gradients(function(*xs), xs)):
        near(gradient.numpy(), numerical_gradient(function, xs, number), rtol=1e-6, magnitude=1e-2)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_backend_has_the_gradients_of_the_reference(name, backend, near):
    """In float32, against the CPU backend in float64."""
    operation, shapes, low = OPERATIONS[name]
    random = np.random.default_rng(len(name))
    function = weighted(operation, 1)
    values = [random.uniform(low, 2.0, shape).astype(np.float32) for shape in shapes]
    xs = [Tensor(value, backend, requires_grad=True) for value in values]
    exact = [Tensor(value, CpuBackend(), dtype="float64", requires_grad=True) for value in values]
    for ours, wanted in zip(gradients(function(*xs), xs), gradients(function(*exact), exact), strict=True):
        near(ours.numpy(), wanted.numpy(), rtol=1e-5, magnitude=1.0)


def test_a_layer_has_torchs_gradients(inputs, near):
    """A pre-norm block: normalise, multiply, gelu, multiply, add, and a loss."""
    x, w1, w2 = inputs(4, 9, 33), inputs(33, 21, low=-0.3, high=0.3), inputs(21, 33, low=-0.3, high=0.3)
    gain, shift, targets = inputs(33), inputs(33), inputs.indices(36, below=33)
    ours = [t.detach(requires_grad=True) for t in (x, w1, w2, gain, shift)]
    theirs = [torch.tensor(np.array(t.numpy()), dtype=torch.float64, requires_grad=True) for t in ours]

    a, b, c, d, e = ours
    loss = cross_entropy((a + (layer_norm(a, d, e) @ b).gelu() @ c).reshape(36, 33), targets)
    a, b, c, d, e = theirs
    hidden = F.gelu(F.layer_norm(a, (33,), d, e) @ b, approximate="tanh")
    exact = F.cross_entropy((a + hidden @ c).reshape(36, 33), torch.tensor(np.array(targets.numpy())))
    exact.backward()

    near(loss.item(), exact.item(), rtol=1e-5)
    for gradient, t in zip(gradients(loss, ours), theirs, strict=True):
        near(gradient.numpy(), t.grad.numpy(), rtol=1e-4, magnitude=t.grad.abs().max())


def test_a_tensor_used_twice_adds_up(backend):
    x = Tensor([1.0, 2.0], backend, requires_grad=True)
    y = x * x
    (gradient,) = gradients((y * x + y).sum(), [x])
    assert gradient.numpy().tolist() == [5.0, 16.0]


def test_equal_elements_share_the_gradient_of_a_maximum(backend):
    x = Tensor([[2.0, 2.0, 1.0, 0.0]], backend, requires_grad=True)
    assert gradients(x.max(1).sum(), [x])[0].numpy().tolist() == [[0.5, 0.5, 0.0, 0.0]]
    y = Tensor([2.0, 1.0], backend, requires_grad=True)
    assert gradients(y.maximum(2.0).sum(), [y])[0].numpy().tolist() == [0.5, 0.0]


def test_inner_tensors_have_gradients_and_strangers_have_zeros(backend):
    x, stranger = Tensor([3.0], backend, requires_grad=True), Tensor([[1.0, 2.0]], backend, requires_grad=True)
    y = x * 2.0
    inner, outer, none = gradients((y * y).sum(), [y, x, stranger])
    assert (inner.item(), outer.item()) == (12.0, 24.0)
    assert none.numpy().tolist() == [[0.0, 0.0]]


def test_a_chain_of_thousands_of_operations(backend):
    x = Tensor([1.0], backend, requires_grad=True)
    y = x
    steps = 30 if in_interpreter(backend) else 3000
    for _ in range(steps):
        y = y + x
    assert gradients(y.sum(), [x])[0].item() == steps + 1


def test_results_without_gradients_keep_nothing(backend):
    x = Tensor([1.0, 2.0], backend)
    assert not (x * x + 1.0).requires_grad
    y = Tensor([1.0, 2.0], backend, requires_grad=True)
    assert (y * x).requires_grad
    assert not (y * x).detach().requires_grad


def test_the_numerical_gradient_notices_a_wrong_pullback(monkeypatch):
    backend = CpuBackend()
    x = Tensor([0.5, 1.5], backend, dtype="float64", requires_grad=True)
    right = gradients(x.tanh().sum(), [x])[0].numpy()
    monkeypatch.setattr(
        backend, "binary", lambda code, a, b, param=0.0: CpuBackend().binary("add" if code == "sub" else code, a, b)
    )
    wrong = gradients(x.tanh().sum(), [x])[0].numpy()
    numerical = numerical_gradient(lambda x: x.tanh().sum(), [x], 0)
    assert np.abs(right - numerical).max() < 1e-8
    assert np.abs(wrong - numerical).max() > 0.1


def test_what_gradients_refuses():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"one element; got shape \(2,\)"):
        gradients(x * x, [x])
    with pytest.raises(ValueError, match="requires_grad=True"):
        gradients(x.sum(), [Tensor([1.0])])


def test_all_of_the_gradient_of_a_maximum_is_a_nans(backend):
    """As in torch."""
    values, others = [float("nan"), 1.0, float("nan")], [1.0, float("nan"), 0.0]
    a, b = (Tensor(x, backend, requires_grad=True) for x in (values, others))
    theirs = [torch.tensor(x, requires_grad=True) for x in (values, others)]
    torch.maximum(*theirs).sum().backward()
    for ours, t in zip(gradients(a.maximum(b).sum(), [a, b]), theirs, strict=True):
        assert ours.numpy().tolist() == t.grad.tolist()
    assert gradients(a.maximum(1.0).sum(), [a])[0].numpy().tolist() == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "loss", [lambda x: gradients((x * x).sum(), [x])[0].sum(), lambda x: x.detach().sum(), lambda x: (x < 1.5).sum()]
)
def test_a_loss_without_history_has_no_gradients(loss, backend):
    x = Tensor([1.0, 2.0], backend, requires_grad=True)
    with pytest.raises(ValueError, match="gradients: the output has no history"):
        gradients(loss(x), [x])


@pytest.mark.parametrize(("dtype", "factors"), [("float32", (2e10, 2e38, 1e12)), ("float16", (3e2, 6e4, 4e2))])
def test_the_gradient_of_a_divisor_does_not_overflow(dtype, factors, backend, near):
    """Neither where the quotient times the gradient would, nor where the divisor's square would."""
    b, a, scale = (np.array([x], dtype) for x in factors)
    x = Tensor(b, backend, requires_grad=True)
    ours = gradients((Tensor(a, backend) / x * float(scale[0])).sum(), [x])[0]
    exact = -scale.astype(np.float64) * a / b.astype(np.float64) ** 2
    near(ours.numpy(), exact, rtol=2e-3 if dtype == "float16" else 1e-5)


def test_a_gradient_summed_over_several_axes_is_rounded_once(backend):
    x = Tensor(np.zeros((1, 2, 1)), backend, dtype="float16", requires_grad=True)
    weight = np.full((3, 4, 2, 5), 3e4, np.float16)
    weight[:, 2:] *= -1
    weight = Tensor(weight.transpose(1, 3, 2, 0), backend)
    assert gradients((x * weight).sum(), [x])[0].numpy().tolist() == [[[0.0], [0.0]]]


def test_gradients_for_a_tensor_of_another_backend_are_refused(backend):
    x = Tensor([1.0], backend, requires_grad=True)
    other = Tensor([1.0], OtherBackend(), requires_grad=True)
    with pytest.raises(ValueError, match=r"gradients: tensors are on different backends.*\.to\(backend\)"):
        gradients((x * x).sum(), [other])
