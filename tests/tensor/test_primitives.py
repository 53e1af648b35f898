"""Every primitive, on every backend, against torch: random inputs, shapes that are a multiple of no block."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trigemm.tensor import (
    Tensor,
    adamw,
    causal_attention,
    cross_entropy,
    gather,
    gemmt,
    layer_norm,
    matmul,
    scatter_add,
    syrk,
    trmm,
)

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


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0), (2, 3, 0, 1), (0, 1, 3, 2)])
def test_permute(axes, inputs, dtype, agrees):
    x = inputs(2, 7, 33, 5, dtype=dtype)
    agrees(x.permute(*axes), lambda x: x.permute(axes), x)


def test_transpose_of_a_large_matrix(inputs, dtype, agrees):
    x = inputs(133, 71, dtype=dtype)
    agrees(x.T, lambda x: x.T, x)


def test_permute_of_indices(inputs, agrees, near):
    x = inputs.indices(5, 9, below=100)
    assert np.array_equal(x.T.numpy(), x.numpy().T)


@pytest.mark.parametrize(("shape", "to"), [((7, 1), (7, 300)), ((300,), (7, 300)), ((2, 1, 1, 5), (2, 3, 4, 5)), ((), (3, 2))])
def test_expand(shape, to, inputs, agrees):
    x = inputs(*shape)
    agrees(x.expand(*to), lambda x: x.expand(to), x)


def test_reshape_copies_nothing(inputs, backend):
    x = inputs(7, 300)
    y = x.reshape(3, -1, 7)
    assert y.shape == (3, 100, 7)
    assert np.array_equal(y.numpy().ravel(), x.numpy().ravel())
    assert torch.from_dlpack(y).data_ptr() == torch.from_dlpack(x).data_ptr()


def test_slices_copy_nothing(inputs):
    x = inputs(7, 6, 5)
    assert np.array_equal(x[2:5].numpy(), x.numpy()[2:5])
    assert np.array_equal(x[3, 1:4].numpy(), x.numpy()[3, 1:4])
    assert torch.from_dlpack(x[1]).data_ptr() == torch.from_dlpack(x).data_ptr() + 30 * 4


def test_pad_rows(inputs, backend, dtype):
    x = inputs(3, 5, dtype=dtype)
    padded = x.like(backend.pad_rows(x.array, 2, 4)).numpy()
    assert np.array_equal(padded, np.pad(x.numpy(), ((2, 4), (0, 0))))


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


@pytest.mark.parametrize("shape", [(7, 300), (33, 21), (2, 3, 5, 33), (5,), (3, 1), (2, 20_000)])
def test_softmax(shape, inputs, dtype, agrees):
    x = inputs(*shape, dtype=dtype)
    agrees(x.softmax(), lambda x: x.softmax(-1), x, magnitude=1e-4)
    agrees(x.log_softmax(), lambda x: x.log_softmax(-1), x, magnitude=1.0)


def test_softmax_of_masked_rows(inputs, agrees):
    x = inputs(9, 33)
    mask = Tensor(np.triu(np.ones((9, 33), np.int64), 3), x.backend)
    y = x.masked_fill(mask, float("-inf"))
    agrees(y.softmax(), lambda y: y.softmax(-1), y)
    agrees(y.log_softmax(), lambda y: y.log_softmax(-1), y, magnitude=1.0)


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


def test_gather(inputs, dtype, agrees):
    table, indices = inputs(33, 21, dtype=dtype), inputs.indices(4, 9, below=33)
    agrees(gather(table, indices), lambda t, i: t[i], table, indices)


def test_scatter_add(inputs, agrees):
    updates, indices = inputs(4, 90, 21), inputs.indices(4, 90, below=7)

    def theirs(u, i):
        return torch.zeros(8, 21, dtype=u.dtype).index_add(0, i.reshape(-1), u.reshape(-1, 21))

    agrees(scatter_add(updates, indices, 8), theirs, updates, indices, magnitude=theirs)


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


@pytest.mark.parametrize("shape", [(33, 21), (130, 40), (2, 20_000)])
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


def test_rows_that_begin_anywhere(inputs, agrees):
    """Slices of an odd number of elements: addresses that no vector load takes."""
    x, y, column = inputs(5, 7, 9)[1:3], inputs(4, 63)[3].reshape(7, 9), inputs(5, 7, 1)[1:3]
    agrees(x + y, torch.add, x, y)
    agrees(x * column, torch.mul, x, column)
    agrees(x.exp(), torch.exp, x)
    agrees(x.T, lambda x: x.mT, x)
    agrees(x.softmax(), lambda x: x.softmax(-1), x)
    agrees(x.sum(0), lambda x: x.sum(0), x, magnitude=1.0)


@pytest.mark.parametrize("shape", [(1, 9_001, 1), (2, 9_001, 2), (2, 600, 40)])
def test_reductions_of_long_axes(shape, inputs, agrees):
    """Cut into pieces on a GPU: twice, since what counts the pieces must be zero again."""
    x = inputs(*shape)
    for _ in range(2):
        agrees(x.sum(1), lambda x: x.sum(1), x, magnitude=lambda x: x.sum(1))
        agrees(x.max(1), lambda x: x.amax(1), x)
    broken = Tensor(np.where(np.arange(x.size).reshape(shape) == x.size - 1, np.nan, x.numpy()), x.backend)
    assert np.isnan(broken.max(1).numpy()).sum() == 1


def test_scatter_add_adds_in_the_order_of_the_updates(backend):
    """In float32, and in one order: the same bits in every run, as a running sum has them here."""
    updates = np.array([1e8, 1.0, -1e8, 1.0, 5.0], np.float32)[:, None]
    first = scatter_add(Tensor(updates, backend), Tensor([1, 1, 1, 1, 0], backend), 2).numpy()
    assert first[0, 0] == 5.0
    for _ in range(3):
        again = scatter_add(Tensor(updates, backend), Tensor([1, 1, 1, 1, 0], backend), 2).numpy()
        assert np.array_equal(first, again)


def test_adamw_takes_its_numbers_from_tensors_too(inputs, near):
    x, grad = inputs(7, 33), inputs(7, 33)
    for step in (1, 5, 1000):
        plain = adamw(x, grad, x * 0.1, x * x, step=step, lr=0.05, betas=(0.8, 0.999))
        stored = adamw(x, grad, x * 0.1, x * x, step=x.like(x.backend.full((), step, "int64")),
                       lr=x.like(x.backend.full((1,), 0.05, "float32")), betas=(0.8, 0.999))  # fmt: skip
        for a, b in zip(plain, stored, strict=True):
            near(a.numpy(), b.numpy(), rtol=1e-6)


def test_adamw_is_torchs(inputs, near):
    """Five steps of torch.optim.AdamW from the same start."""
    start, grads = inputs(7, 33), [inputs(7, 33) for _ in range(5)]
    theirs = torch.tensor(np.array(start.numpy()), requires_grad=True)
    optimizer = torch.optim.AdamW([theirs], lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)
    param, m, v = start, start * 0.0, start * 0.0
    for step, grad in enumerate(grads, 1):
        theirs.grad = torch.tensor(np.array(grad.numpy()))
        optimizer.step()
        param, m, v = adamw(param, grad, m, v, step=step, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)
        near(param.numpy(), theirs.detach().numpy(), rtol=1e-5, magnitude=1e-2)
    assert not np.array_equal(param.numpy(), start.numpy())


def test_a_nan_is_no_index(backend):
    indices = Tensor([0.0, float("nan"), 1.9], backend).cast("int64")
    assert indices.numpy().tolist() == [0, -(2**63), 1]


@pytest.mark.parametrize("to", ["float32", "float16", "int64"])
def test_cast(to, inputs):
    x = inputs(7, 33, low=-300.0, high=300.0)
    assert x.cast(to).dtype == to
    assert np.array_equal(x.cast(to).numpy(), x.numpy().astype(to))


def test_full(backend):
    x = backend.full((7, 3), -0.5, "float32")
    assert np.array_equal(backend.numpy(x), np.full((7, 3), -0.5, np.float32))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_empty_tensors(shape, backend):
    x = Tensor(np.zeros(shape, np.float32), backend)
    assert (x + 1.0).shape == x.exp().shape == x.softmax().shape == shape
    assert x.sum().item() == 0.0
    assert np.array_equal(x.sum(0).numpy(), np.zeros(shape[1:], np.float32))
    assert x.permute(*reversed(range(len(shape)))).shape == shape[::-1]


def test_matmul_without_depth_is_zero(backend):
    a, b = Tensor(np.zeros((3, 0), np.float32), backend), Tensor(np.zeros((0, 2), np.float32), backend)
    assert np.array_equal((a @ b).numpy(), np.zeros((3, 2), np.float32))
