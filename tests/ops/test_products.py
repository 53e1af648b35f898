"""The operations as users call them, on the CPU: contract, gradients, compilation, refusals."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

import trigemm
from trigemm import reference

NAN = math.nan
DOUBLE = {"dtype": torch.float64}


def random(*shape, **options):
    return torch.randn(shape, **{"dtype": torch.float64, **options})


def test_gemmt_batches_broadcast():
    a, b = random(4, 1, 5, 7), random(3, 7, 6)
    for uplo in ("lower", "upper"):
        out = trigemm.gemmt(a, b, alpha=2.0, uplo=uplo, diagonal=1, fill=-math.inf)
        torch.testing.assert_close(out, reference.gemmt(a, b, alpha=2.0, uplo=uplo, diagonal=1, fill=-math.inf))


@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("transpose", [False, True])
def test_trmm_sides_and_transposition(uplo, side, transpose):
    rows, columns = (5, 7) if (side == "left") != transpose else (7, 5)
    a = random(3, 1, rows, columns)
    b = random(2, 7, 4) if side == "left" else random(2, 4, 7)
    inside = reference.triangle_mask(rows, columns, uplo, 1)
    options = {"alpha": 0.5, "uplo": uplo, "diagonal": 1, "side": side, "transpose": transpose}
    out = trigemm.trmm(torch.where(inside, a, NAN), b, **options)
    assert out.shape == ((3, 2, 5, 4) if side == "left" else (3, 2, 4, 5))
    torch.testing.assert_close(out, reference.trmm(a, b, **options))


@pytest.mark.parametrize("uplo", ["full", "lower", "upper"])
def test_syrk_adds_a_broadcast_matrix(uplo):
    a, c = random(3, 5, 7), random(5, 1)
    out = trigemm.syrk(a, alpha=2.0, beta=-0.5, c=c, uplo=uplo)
    torch.testing.assert_close(out, reference.syrk(a, alpha=2.0, beta=-0.5, c=c, uplo=uplo))
    torch.testing.assert_close(trigemm.syrk(a, c=c * NAN, uplo=uplo), reference.syrk(a, uplo=uplo))  # beta is 0


@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_syrk_reads_one_half_of_c(uplo):
    a, c = random(5, 3), random(5, 5)
    unread = torch.where(reference.triangle_mask(5, 5, uplo), c, NAN)
    expected = reference.syrk(a, beta=1.0, c=c, uplo=uplo)
    torch.testing.assert_close(trigemm.syrk(a, beta=1.0, c=unread, uplo=uplo), expected)


def test_a_diagonal_as_far_out_as_one_likes():
    a, b = random(3, 4), random(4, 5)
    for diagonal, expected in ((10**30, a @ b), (-(10**30), torch.zeros(3, 5, **DOUBLE)), (np.int64(1), (a @ b).tril(1))):
        torch.testing.assert_close(trigemm.gemmt(a, b, diagonal=diagonal), expected)


@pytest.mark.parametrize("call", [trigemm.gemmt, trigemm.trmm])
def test_sizes_of_zero(call):
    for m, k, n in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]:
        out = call(random(2, m, k), random(2, k, n))
        assert out.shape == (2, m, n)
        assert (out == 0).all()
    assert call(random(0, 3, 4), random(4, 5)).shape == (0, 3, 5)
    assert trigemm.syrk(random(0, 3)).shape == (0, 0)
    assert (trigemm.syrk(random(3, 0)) == 0).all()


def test_out_receives_the_result_and_keeps_what_is_not_written():
    a, b = random(5, 3), random(3, 6)
    out = random(6, 5).mT
    before = out.clone()
    assert trigemm.gemmt(a, b, fill=None, out=out) is out
    inside = reference.triangle_mask(5, 6)
    torch.testing.assert_close(out[inside], (a @ b)[inside])
    assert torch.equal(out[~inside], before[~inside])
    out = torch.full((5, 6), NAN, **DOUBLE)
    torch.testing.assert_close(trigemm.trmm(a, b, out=out), reference.trmm(a, b))
    out = torch.full((5, 5), NAN, **DOUBLE)
    torch.testing.assert_close(trigemm.syrk(a, out=out), reference.syrk(a))


@pytest.mark.parametrize("alpha", [NAN, math.inf, -math.inf, 0.0, 1e-40])
@pytest.mark.parametrize("shape", [(5, 1024, 64), (20, 40, 8), (1, 9, 3)])
def test_an_alpha_that_a_blas_would_take_for_another(shape, alpha):
    a = torch.randn(shape)
    a[0, 3, 1] = math.inf
    expected = torch.matmul(a, a.mT) * alpha
    for fill in (0.0, None):
        found = trigemm.gemmt(a, a.mT, alpha=alpha, fill=fill)
        torch.testing.assert_close(found.tril(), expected.tril(), equal_nan=True, atol=1e-38, rtol=1e-4)
    found = trigemm.syrk(a, alpha=alpha, uplo="lower")
    torch.testing.assert_close(found, expected.tril(), equal_nan=True, atol=1e-38, rtol=1e-4)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-10, 10), st.integers(1, 3), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_gradients_are_those_of_the_referee(m, n, diagonal, batch, seed):
    torch.manual_seed(seed)
    a, b = random(batch, m, 3, requires_grad=True), random(3, n, requires_grad=True)
    grad = random(batch, m, n)
    expected = torch.autograd.grad(reference.gemmt(a, b, diagonal=diagonal, fill=NAN), (a, b), grad)
    unread = torch.where(reference.triangle_mask(m, n, "lower", diagonal), grad, NAN)
    found = torch.autograd.grad(trigemm.gemmt(a, b, diagonal=diagonal, fill=-math.inf), (a, b), unread)
    torch.testing.assert_close(found, expected)


CALLS = {
    "gemmt": (lambda a, b, **o: trigemm.gemmt(a, b, alpha=0.5, diagonal=1, **o), [(2, 3, 4), (1, 4, 5)]),
    "gemmt upper": (lambda a, b, **o: trigemm.gemmt(a, b, uplo="upper", diagonal=-1, fill=2.0, **o), [(3, 4), (2, 4, 5)]),
    "trmm": (lambda a, b, **o: trigemm.trmm(a, b, alpha=0.5, diagonal=1, **o), [(2, 3, 4), (4, 5)]),
    "trmm transposed": (lambda a, b, **o: trigemm.trmm(a, b, uplo="upper", transpose=True, **o), [(3, 2), (2, 3, 2)]),
    "trmm right": (lambda a, b, **o: trigemm.trmm(a, b, side="right", diagonal=-1, **o), [(2, 3), (2, 2, 2)]),
    "trmm right transposed": (lambda a, b, **o: trigemm.trmm(a, b, side="right", transpose=True, **o), [(2, 3, 2), (3, 2)]),
    "syrk": (lambda a, **o: trigemm.syrk(a, alpha=0.5, **o), [(2, 3, 4)]),
    "syrk upper": (lambda a, c, **o: trigemm.syrk(a, beta=0.5, c=c, uplo="upper", **o), [(2, 3, 4), (3, 1)]),
    "syrk row": (lambda a, c, **o: trigemm.syrk(a, beta=0.5, c=c, uplo="lower", **o), [(2, 3, 4), (3,)]),
    "syrk number": (lambda a, c, **o: trigemm.syrk(a, beta=0.5, c=c, **o), [(3, 4), ()]),
    "syrk full": (lambda a, c, **o: trigemm.syrk(a, beta=0.5, c=c, **o), [(3, 4), (3, 3)]),
    "causal_scores": (lambda q, k, **o: trigemm.causal_scores(q, k, fill=0.0, **o), [(1, 2, 2, 2), (1, 1, 3, 2)]),
    "causal_scores_qkvpacked": (lambda qkv, **o: trigemm.causal_scores_qkvpacked(qkv, fill=0.0, **o), [(1, 3, 3, 2, 1)]),
}
each_call = pytest.mark.parametrize(("call", "shapes"), CALLS.values(), ids=CALLS.keys())


@each_call
def test_first_and_second_derivatives(call, shapes):
    operands = tuple(random(*shape, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(call, operands)
    assert torch.autograd.gradgradcheck(call, operands)


@each_call
def test_compiled_without_a_graph_break(call, shapes):
    operands = [random(*shape, requires_grad=True) for shape in shapes]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    expected, found = call(*operands), compiled(*operands)
    torch.testing.assert_close(found, expected)
    grad = random(*expected.shape)
    torch.testing.assert_close(torch.autograd.grad(found, operands, grad), torch.autograd.grad(expected, operands, grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_gradient_of_syrk_is_finite_where_torchs_is(dtype, sign):
    x = torch.full((4, 4), 2.0**-10, dtype=dtype, requires_grad=True)
    large = torch.full((4, 4), 0.6 * torch.finfo(dtype).max, dtype=dtype)
    grad = large.tril() + sign * large.triu(1)
    (expected,) = torch.autograd.grad(x @ x.mT, x, grad)
    (found,) = torch.autograd.grad(trigemm.syrk(x), x, grad)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, atol=0, rtol=4 * torch.finfo(dtype).eps)


def test_the_gradient_of_syrk_keeps_the_smallest_float16():
    x, grad = torch.ones(3, 3, dtype=torch.float16, requires_grad=True), torch.zeros(3, 3, dtype=torch.float16)
    grad[2, 0] = 2.0**-24
    (found,) = torch.autograd.grad(trigemm.syrk(x), x, grad)
    assert torch.equal(found, torch.autograd.grad(x @ x.mT, x, grad)[0])
    assert found.any()


def test_compiled_with_sizes_that_change():
    compiled = torch.compile(trigemm.causal_scores, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys, heads, kv_heads in ((5, 7, 4, 2), (8, 8, 4, 2), (3, 11, 6, 3)):
        q, k = random(2, heads, queries, 8, requires_grad=True), random(2, kv_heads, keys, 8)
        torch.testing.assert_close(compiled(q, k), trigemm.causal_scores(q, k))


def test_compiled_into_an_out_of_sizes_that_change():
    compiled = torch.compile(
        lambda a, b, out: trigemm.gemmt(a, b, out=out) * 2, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for rows, columns in ((5, 6), (7, 4)):
        a, b, out = random(3, rows, 4), random(4, columns), random(3, rows, columns)
        torch.testing.assert_close(compiled(a, b, out), 2 * trigemm.gemmt(a, b))
        torch.testing.assert_close(out, trigemm.gemmt(a, b))


@each_call
def test_compiled_into_an_out_of_any_strides(call, shapes):
    operands = [random(*shape) for shape in shapes]
    expected = call(*operands)
    buffer = torch.full((*expected.shape[:-1], 3 * expected.shape[-1]), NAN, **DOUBLE)
    out = buffer[..., 1::3]
    torch.compiler.reset()
    found = torch.compile(lambda out, *x: call(*x, out=out) * 2, fullgraph=True, backend="aot_eager")(out, *operands)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, 2 * expected)
    assert buffer[..., ::3].isnan().all()


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11's tracer fails at it")
def test_transforms_inside_a_compiled_function_are_left_to_eager_or_refused():
    a, b = random(3, 4), random(4, 3)

    def gradient(a):
        return torch.func.grad(lambda a: trigemm.gemmt(a, b).sum())(a)

    torch.testing.assert_close(torch.compile(gradient, backend="eager")(a), gradient(a))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(gradient, backend="eager", fullgraph=True)(a)


@each_call
def test_vmap_is_a_loop(call, shapes):
    operands = [random(4, *shape) for shape in shapes]
    expected = torch.stack([call(*each) for each in zip(*operands, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(*operands), expected)
    last = [torch.movedim(operands[0], 0, -1), *(x[1] for x in operands[1:])]
    expected = torch.stack([call(x, *last[1:]) for x in operands[0]])
    torch.testing.assert_close(torch.vmap(call, in_dims=(-1, *[None] * (len(shapes) - 1)))(*last), expected)


@each_call
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # raised inside torch.func.jvp
def test_transforms_of_torch_func(call, shapes):
    operands = tuple(random(*shape) for shape in shapes)
    grad = random(*call(*operands).shape)

    def loss(*operands):
        return (call(*operands) * grad).sum()

    every = tuple(range(len(operands)))
    inputs = [x.clone().requires_grad_() for x in operands]
    expected = torch.autograd.grad(loss(*inputs), inputs)
    torch.testing.assert_close(torch.func.grad(loss, every)(*operands), expected)
    torch.testing.assert_close(torch.func.vjp(call, *operands)[1](grad), expected)
    tangents = tuple(map(torch.randn_like, operands))
    slope = torch.func.jvp(loss, operands, tangents)[1]
    torch.testing.assert_close(slope, sum((x * t).sum() for x, t in zip(expected, tangents, strict=True)))
    with forward_ad.dual_level():
        dual = loss(*map(forward_ad.make_dual, operands, tangents))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, slope)
    jacobian = torch.autograd.functional.jacobian(call, operands)
    torch.testing.assert_close(torch.func.jacrev(call, every)(*operands), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(call, every)(*operands), jacobian)
    batch = tuple(torch.stack([x, 2 * x]) for x in operands)
    both = torch.vmap(torch.func.grad(loss, every))(*batch)
    torch.testing.assert_close(tuple(x[1] for x in both), torch.func.grad(loss, every)(*(2 * x for x in operands)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_second_derivatives_by_torch_func():
    a, b = random(3, 4), random(4, 5)
    loss = lambda a: trigemm.gemmt(a, b, diagonal=1).square().sum()  # noqa: E731
    torch.testing.assert_close(torch.func.hessian(loss)(a), torch.autograd.functional.hessian(loss, a))


@each_call
def test_autocast_lowers_float32_alone(call, shapes):
    operands = [random(*shape, dtype=torch.float32) for shape in shapes]
    with torch.autocast("cpu", torch.bfloat16):
        found = call(*operands)
        assert call(*(x.double() for x in operands)).dtype == torch.float64
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, call(*(x.bfloat16() for x in operands)))


@each_call
def test_autocast_leaves_the_operands_of_an_out_as_they_are(call, shapes):
    operands = [random(*shape, dtype=torch.float32) for shape in shapes]
    expected = call(*operands)
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.full_like(expected, NAN)
        assert call(*operands, out=out) is out
    torch.testing.assert_close(out, expected)


@each_call
def test_fake_tensors_have_the_real_shapes(call, shapes):
    real = call(*(random(*shape) for shape in shapes))
    for fake in (
        call(*(random(*shape, device="meta") for shape in shapes)),
        call(*(random(*shape) for shape in shapes), out=torch.empty_like(real)),
    ):
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


PACKETS = {
    "gemmt": ((random(2, 3, 4), random(4, 5)), (0.5, "upper", 1, 0.0, "highest"), (2, 3, 5)),
    "trmm": ((random(2, 4, 3), random(4, 5)), (0.5, "lower", 0, "left", True, None), (2, 3, 5)),
    "syrk": ((random(2, 3, 4), random(3, 3)), (0.5, 2.0, "full", None), (2, 3, 3)),
}


@pytest.mark.parametrize("name", PACKETS)
def test_the_dispatchers_operations_refuse_an_unknown_triangle(name):
    tensors, parameters, _ = PACKETS[name]
    with pytest.raises(ValueError, match=f"{name}: uplo must be one of .*; got 'both'"):
        getattr(torch.ops.trigemm, name)(*tensors, *("both" if x in ("full", "lower", "upper") else x for x in parameters))


@pytest.mark.parametrize("name", PACKETS)
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(name, grad):
    tensors, parameters, shape = PACKETS[name]
    operands = [x.clone().requires_grad_(grad) for x in tensors]
    torch.library.opcheck(getattr(torch.ops.trigemm, name).default, (*operands, *parameters))
    if not grad:
        out = torch.zeros(shape, **DOUBLE)
        torch.library.opcheck(getattr(torch.ops.trigemm, name).out, (*operands, *parameters), {"out": out})


def test_precision_follows_torch_when_it_is_not_given(monkeypatch):
    seen = []
    from trigemm.ops import schema

    class Kernel:
        @staticmethod
        def run(*args, precision, **kwargs):
            seen.append(precision)

    monkeypatch.setattr(schema, "serving", lambda *_: Kernel)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        trigemm.gemmt(torch.zeros(2, 2), torch.zeros(2, 2))
        trigemm.syrk(torch.zeros(2, 2), precision="medium")
        torch.set_float32_matmul_precision("highest")
        trigemm.trmm(torch.zeros(2, 2), torch.zeros(2, 2))
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["high", "medium", "highest"]


a34, b45 = torch.zeros(3, 4), torch.zeros(4, 5)
REFUSED = [
    (lambda: trigemm.gemmt(a34, torch.zeros(5, 4)), ValueError, r"gemmt: inner sizes differ, 4 and 5; got a \(3, 4\) float32"),
    (lambda: trigemm.gemmt(torch.zeros(2, 3, 4), torch.zeros(3, 4, 5)), ValueError, r"batch dimensions \(2,\) and \(3,\)"),
    (lambda: trigemm.gemmt(a34.int(), b45.int()), TypeError, r"float64, float32, float16 and bfloat16; got a \(3, 4\) int32"),
    (lambda: trigemm.gemmt(a34.cfloat(), b45.cfloat()), TypeError, "complex64"),
    (lambda: trigemm.gemmt(a34, b45.half()), TypeError, r"one dtype; got a \(3, 4\) float32, b \(4, 5\) float16"),
    (lambda: trigemm.gemmt(a34, b45.to("meta")), ValueError, "one device; got a on cpu, b on meta"),
    (lambda: trigemm.gemmt(a34[0], b45), ValueError, "a must have at least 2 dimensions"),
    (lambda: trigemm.gemmt(a34.tolist(), b45), TypeError, "a must be a torch.Tensor, got list"),
    (lambda: trigemm.gemmt(a34.to_sparse(), b45), TypeError, "layout torch.sparse_coo; a strided tensor would work"),
    (lambda: trigemm.gemmt(a34, b45, uplo="middle"), ValueError, "uplo must be one of 'lower', 'upper'; got 'middle'"),
    (lambda: trigemm.gemmt(a34, b45, precision="low"), ValueError, "precision must be one of None, 'highest'"),
    (lambda: trigemm.gemmt(a34, b45, diagonal=0.5), TypeError, "diagonal must be an int, got float"),
    (lambda: trigemm.gemmt(a34, b45, fill="zero"), TypeError, "fill must be a real number, got str"),
    (lambda: trigemm.gemmt(a34, b45, alpha=1j), TypeError, "alpha must be a real number, got complex"),
    (lambda: trigemm.gemmt(a34, b45, out=torch.zeros(3, 4)), ValueError, r"out must be a strided tensor of shape \(3, 5\)"),
    (lambda: trigemm.gemmt(a34, b45, out=torch.zeros(3, 5).half()), ValueError, "torch.float32"),
    (lambda: trigemm.gemmt(a34, b45, out=torch.zeros(1, 5).expand(3, 5)), ValueError, "out overlaps itself"),
    (lambda: trigemm.gemmt(None, b45), TypeError, "a must be a torch.Tensor, got NoneType"),
    (lambda: trigemm.gemmt(a34, b45, alpha=10**400), ValueError, "alpha is beyond the range of a float"),
    (lambda: trigemm.gemmt(a34, b45, alpha=1e39), ValueError, r"alpha 1e\+39 is beyond the range of torch.float32, in which"),
    (lambda: trigemm.syrk(a34.half(), c=a34.half()[:, :3], beta=-1e39), ValueError, r"syrk: beta -1e\+39 is beyond the range"),
    (lambda: trigemm.gemmt(a34.half(), b45.half(), fill=-3e38), ValueError, r"fill -3e\+38 is beyond the range of torch.float16"),
    (lambda: trigemm.gemmt(a34, b45, out=torch.zeros(3, 5, dtype=torch.cfloat).conj().imag), ValueError, "negates lazily"),
    (
        lambda: torch.vmap(lambda a: trigemm.gemmt(a, b45, out=torch.zeros(3, 5)))(torch.zeros(2, 3, 4)),
        ValueError,
        "inside a transform",
    ),
    (lambda: trigemm.trmm(a34, b45, transpose="no"), TypeError, "transpose must be a bool, got str"),
    (
        lambda: trigemm.causal_scores(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8), scale="x"),
        TypeError,
        "causal_scores: scale must",
    ),
    (
        lambda: trigemm.causal_scores_qkvpacked(torch.zeros(1, 4, 3, 1, 8), precision="x"),
        ValueError,
        "causal_scores_qkvpacked: precis",
    ),
    (lambda: trigemm.gemmt(a34, b45, out=[]), TypeError, "out must be a torch.Tensor, got list"),
    (lambda: trigemm.gemmt(a34.clone().requires_grad_(), b45, out=torch.zeros(3, 5)), ValueError, "does not support gradients"),
    (lambda: trigemm.trmm(a34, b45, side="top"), ValueError, "side must be one of 'left', 'right'; got 'top'"),
    (lambda: trigemm.trmm(a34, b45.mT), ValueError, r"shapes that fit are a \(…,M,K\) and b \(…,K,N\)$"),
    (lambda: trigemm.trmm(a34, b45, side="right"), ValueError, r'are a \(…,K,N\) and b \(…,M,K\) with side="right"$'),
    (
        lambda: trigemm.trmm(a34, b45, transpose=True),
        ValueError,
        r"inner sizes differ, 3 and 4; .* a \(…,K,M\) and b \(…,K,N\) with",
    ),
    (lambda: trigemm.trmm(a34, b45, side="right", transpose=True), ValueError, r"a \(…,N,K\) and b \(…,M,K\) .* transpose=True$"),
    (lambda: trigemm.syrk(a34, c=torch.zeros(4)), ValueError, r"c must broadcast to the result's shape \(3, 3\); .* c \(4,\)"),
    (lambda: trigemm.syrk(a34, beta=1.0), ValueError, "there is no c"),
    (lambda: trigemm.syrk(a34, c=a34), ValueError, r"c must broadcast to the result's shape \(3, 3\)"),
    (lambda: trigemm.syrk(a34, uplo="both"), ValueError, "'full', 'lower', 'upper'; got 'both'"),
    (lambda: trigemm.causal_scores(a34, b45), ValueError, "at least 2|B,NH,T,HS"),
    (lambda: trigemm.causal_scores(torch.zeros(1, 3, 4, 8), torch.zeros(1, 2, 4, 8)), ValueError, "multiple of k's; got 3 and 2"),
    (lambda: trigemm.causal_scores(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 3, 8)), ValueError, "got S=3, T=4"),
    (lambda: trigemm.causal_scores_qkvpacked(torch.zeros(2, 4, 2, 1, 8)), ValueError, r"must be \(B,T,3,NH,HS\); got qkv"),
    (lambda: trigemm.causal_scores_qkvpacked(torch.zeros(2, 4, 24)), ValueError, "5 dimensions"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_a_refusal_says_what_was_given_and_what_would_work(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_out_that_overlaps_an_operand_is_refused_and_one_between_is_not():
    buffer = random(8, 8)
    a, b = random(8, 4), random(4, 8)
    with pytest.raises(ValueError, match="gemmt: out overlaps a in memory"):
        trigemm.gemmt(buffer[:, :4], b, out=buffer)
    with pytest.raises(ValueError, match="trmm: out overlaps b in memory"):
        trigemm.trmm(random(8, 8), buffer, out=buffer)
    with pytest.raises(ValueError, match="syrk: out overlaps c in memory"):
        trigemm.syrk(a, beta=1.0, c=buffer, out=buffer)
    shared = np.zeros((8, 6))
    left, right = torch.from_numpy(shared[:4, :3]), torch.from_numpy(shared[1:5, :5])
    with pytest.raises(ValueError, match="gemmt: out overlaps a in memory"):
        trigemm.gemmt(left, random(3, 5), out=right)
    wide = random(8, 16)
    operand = wide[:, 1::4]
    torch.testing.assert_close(trigemm.gemmt(operand, b, out=wide[:, ::2]), reference.gemmt(operand, b))


def test_nothing_mutates_its_inputs():
    qkv = random(2, 9, 3, 2, 4)
    before = qkv.clone()
    trigemm.causal_scores_qkvpacked(qkv)
    a, b = random(9, 5).mT, random(9, 7)
    copies = a.clone(), b.clone()
    trigemm.gemmt(a, b)
    trigemm.trmm(a, b)
    trigemm.syrk(a)
    assert torch.equal(qkv, before)
    assert torch.equal(a, copies[0])
    assert torch.equal(b, copies[1])


def test_zero_is_not_minus_zero_whatever_was_filled_before():
    a = torch.ones(4, 4)
    for fill in (-0.0, 0.0, -0.0):
        assert torch.equal(trigemm.gemmt(a, a, fill=fill)[0, 1:].signbit(), torch.full((3,), math.copysign(1, fill) < 0))


@pytest.mark.parametrize("operation", [lambda a: trigemm.gemmt(a, a), lambda a: trigemm.trmm(a, a), trigemm.syrk])
def test_gradients_of_many_upstreams_at_once(operation):
    a = torch.randn(3, 3, requires_grad=True)
    upstreams = torch.randn(4, 3, 3)
    (found,) = torch.autograd.grad(operation(a), a, upstreams, is_grads_batched=True)
    expected = torch.stack([torch.autograd.grad(operation(a), a, x)[0] for x in upstreams])
    torch.testing.assert_close(found, expected)


def test_the_out_form_of_the_dispatcher_is_not_rounded_under_autocast():
    a, out = torch.randn(40, 64), torch.zeros(40, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.ops.trigemm.gemmt.out(a, a.mT, 1.0, "lower", 0, None, None, out=out)
    torch.testing.assert_close(out, (a @ a.mT).tril())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("uplo", ["full", "lower", "upper"])
def test_the_gradient_of_c_is_that_of_its_triangle(uplo, dtype):
    a = torch.randn(3, 2).to(dtype).requires_grad_()
    c = torch.ones(3, 3, dtype=dtype, requires_grad=True)
    trigemm.syrk(a, beta=1.0, c=c, uplo=uplo).sum().backward()
    ones = torch.ones(3, 3, dtype=dtype)
    assert torch.equal(c.grad, {"full": ones, "lower": ones.tril(), "upper": ones.triu()}[uplo])


def test_what_the_dispatcher_writes_into_must_fit():
    a = torch.ones(5, 3)
    for out in (torch.empty(3, 3), torch.empty(5, 7), torch.empty(5, 5, dtype=torch.float64)):
        before = out.shape
        with pytest.raises(ValueError, match="out must be a strided tensor of shape"):
            torch.ops.trigemm.gemmt.out(a, a.mT, 1.0, "lower", 0, 0.0, None, out)
        assert out.shape == before
    with pytest.raises(ValueError, match="out must be a strided tensor of shape"):
        torch.ops.trigemm.causal_softmax.out(torch.ones(2, 5, 5), 0, torch.empty(3, 2, 5, 5))
    with pytest.raises(ValueError, match="a nested one"):
        trigemm.gemmt(a, a.mT, out=torch.nested.nested_tensor([torch.ones(5, 5)], layout=torch.jagged))


def test_the_dispatcher_knows_two_sides():
    with pytest.raises(ValueError, match="trmm: side must be one of 'left', 'right'; got 'up'"):
        torch.ops.trigemm.trmm(torch.ones(3, 3), torch.ones(3, 3), 1.0, "lower", 0, "up", False, None)


def test_a_fraction_is_no_factor():
    with pytest.raises(TypeError, match="alpha must be a real number, got Fraction; give a float"):
        trigemm.gemmt(torch.ones(3, 2), torch.ones(2, 3), alpha=Fraction(1, 2))
