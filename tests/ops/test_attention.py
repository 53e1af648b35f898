"""causal_attention as users call it, on the CPU: contract, gradients, compilation, memory, refusals."""

import math
import re
from pathlib import Path

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
    return torch.randn(*shape, **{"dtype": torch.float64, **options})


def operands(B=2, NH=4, KV=2, T=5, S=7, HS=4, **options):
    return random(B, NH, T, HS, **options), random(B, KV, S, HS, **options), random(B, KV, S, HS, **options)


def above(T, S):
    return ~reference.triangle_mask(T, S, "lower", S - T)


@pytest.mark.parametrize("queries", [0, 1, 7, 33, 127, 129, 1000])
def test_output_and_weights_of_awkward_sizes(queries):
    for keys in (queries, queries + 3):
        q, k, v = operands(T=queries, S=keys, B=1, NH=2, KV=1, dtype=torch.float32)
        output, weights = trigemm.causal_attention(q, k, v, return_weights=True)
        expected = reference.causal_attention(q, k, v)
        torch.testing.assert_close((output.double(), weights.double()), expected, atol=2e-6, rtol=1e-5)
        assert (weights.masked_select(above(queries, keys)) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, queries))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_dtypes_and_packed_views(dtype, error):
    qkv = random(2, 33, 3, 4, 16).to(dtype)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    output, weights = trigemm.causal_attention(q, k, v, return_weights=True, weights_dtype=torch.float32)
    expected = reference.causal_attention(q, k, v)
    torch.testing.assert_close(output.double(), expected[0], atol=error, rtol=error)
    torch.testing.assert_close(weights.double(), expected[1], atol=2e-6, rtol=2e-6)  # as wide as was asked for
    assert (output.dtype, weights.dtype) == (dtype, torch.float32)
    assert output.transpose(1, 2).is_contiguous()  # in memory as the queries


@given(st.integers(1, 6), st.integers(0, 5), st.sampled_from([(1, 1), (2, 1), (6, 3)]), st.integers(0, 7), st.data())
@settings(deadline=None, max_examples=40)
def test_gradients_are_those_of_the_referee(queries, cached, heads, size, data):
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    tensors = operands(2, *heads, queries, queries + cached, size, requires_grad=True)
    listed = data.draw(st.lists(st.integers(0, heads[0] - 1), unique=True))
    mask = torch.rand(2, queries + cached) < 0.6
    form = {
        "key_mask": data.draw(st.sampled_from([None, mask])),
        "window": data.draw(st.sampled_from([None, 1, 3])),
        "softcap": data.draw(st.sampled_from([None, 0.7])),
        "scale": data.draw(st.sampled_from([None, 1.5, -0.5, 0.0])),
    }
    output, weights = reference.causal_attention(*tensors, **form)
    d_output, d_weights, d_columns = random(*output.shape), random(*weights[:, listed].shape), random(*weights.sum(-2).shape)
    unread = d_weights.masked_fill(above(*weights.shape[-2:]), NAN)
    for asked, wanted, upstream, seen in (
        (listed, weights[:, listed], d_weights, unread),
        ("columns", weights.sum(-2), d_columns, d_columns),
    ):
        found = trigemm.causal_attention(*tensors, return_weights=asked, **form)
        torch.testing.assert_close(found, (output, wanted))
        expected = torch.autograd.grad((output, wanted), tensors, (d_output, upstream), retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(found, tensors, (d_output, seen)), expected)


def test_heads_in_arrays_and_tensors():
    q, k, v = operands()
    expected = trigemm.causal_attention(q, k, v, return_weights=[3, 0])
    for heads in ((3, 0), range(3, -1, -3), np.array([3, 0]), [np.int64(3), torch.tensor(0)], torch.tensor([3, 0])):
        torch.testing.assert_close(trigemm.causal_attention(q, k, v, return_weights=heads), expected)
    assert trigemm.causal_attention(q, k, v, return_weights=[])[1].shape == (2, 0, 5, 7)
    assert isinstance(trigemm.causal_attention(q, k, v, return_weights=np.False_), torch.Tensor)


@pytest.mark.parametrize("asked", [[1, 3], True])
def test_fill(asked):
    q, k, v = operands()
    heads = [1, 3] if asked is not True else [0, 1, 2, 3]
    for fill in (-1.0, NAN):
        weights = trigemm.causal_attention(q, k, v, return_weights=asked, fill=fill)[1]
        expected = reference.causal_attention(q, k, v)[1][:, heads].masked_fill(above(5, 7), fill)
        torch.testing.assert_close(weights, expected, equal_nan=True)
    unwritten = trigemm.causal_attention(q, k, v, return_weights=asked, fill=None)[1]
    torch.testing.assert_close(unwritten.tril(2), weights.tril(2))


@pytest.mark.parametrize(
    "form", [{"key_lengths": torch.zeros(2, dtype=torch.int64)}, {"key_mask": torch.zeros(2, 0, dtype=torch.bool)}]
)
def test_no_keys_at_all_may_be_masked(form):
    q = torch.zeros(2, 3, 0, 8, requires_grad=True)
    output, weights = trigemm.causal_attention(q, q, q, return_weights=True, **form)
    assert output.shape == (2, 3, 0, 8)
    assert weights.shape == (2, 3, 0, 0)
    output.sum().backward()


def test_masked_keys_are_not_used_and_rows_without_keys_are_zeros():
    q, k, v = operands(S=5)
    lengths = torch.tensor([0, 3])
    mask = torch.arange(5) < lengths[:, None]
    expected = trigemm.causal_attention(q, k, v, return_weights=True, key_mask=mask)
    unused = [torch.where(mask[:, None, :, None], x, NAN) for x in (k, v)]
    for form in ({"key_lengths": lengths}, {"key_lengths": lengths.int()}, {"key_mask": mask}):
        output, weights = found = trigemm.causal_attention(q, *unused, return_weights=True, **form)
        torch.testing.assert_close(found, expected)
        assert (output[0] == 0).all()
        assert (weights[0] == 0).all()
    weights = trigemm.causal_attention(q, k, v, return_weights=True, key_mask=~mask)[1]  # padded on the left
    assert (weights[1, :, :3] == 0).all()
    assert (weights[1, :, 3, 3] == 1).all()


def test_masked_keys_change_no_derivative():
    q, k, v = operands(S=5)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]).bool()
    both = []
    for unused in (0.0, NAN):
        keys = [torch.where(mask[:, None, :, None], x, unused).requires_grad_() for x in (k, v)]
        tensors = (q.clone().requires_grad_(), *keys)
        output, weights = trigemm.causal_attention(*tensors, return_weights=True, key_mask=mask)
        first = torch.autograd.grad(output.square().sum() + weights.square().sum(), tensors, create_graph=True)
        both.append((first, torch.autograd.grad(sum(x.square().sum() for x in first), tensors)))
    torch.testing.assert_close(both[1], both[0])


@pytest.mark.parametrize("window", [7, 2**31 - 1, 2**63 - 1, 2**70])
def test_a_window_of_all_keys_is_none(window):
    tensors = operands(requires_grad=True)
    found, expected = (trigemm.causal_attention(*tensors, return_weights="columns", window=w) for w in (window, None))
    torch.testing.assert_close(found, expected)
    found, expected = (torch.autograd.grad(x[0].sum() + x[1].square().sum(), tensors) for x in (found, expected))
    torch.testing.assert_close(found, expected)


def test_infinite_scores():
    q, k, v = operands(B=1, NH=1, KV=1, T=4, S=4, dtype=torch.float32)
    q.abs_()
    k[..., [0, 2], :] = -math.inf
    output, weights = trigemm.causal_attention(q, k, v, return_weights=True)
    torch.testing.assert_close((output.double(), weights.double()), reference.causal_attention(q, k, v), atol=1e-6, rtol=1e-6)
    assert (weights[0, 0, 0] == 0).all()


def test_what_later_keys_hold_changes_nothing():
    q, k, v = operands(T=300, S=300, B=1)
    expected = trigemm.causal_attention(q, k, v, return_weights="columns", window=50)[0]
    k[..., 200:, :] = NAN
    found = trigemm.causal_attention(q, k, v, window=50)
    assert torch.equal(found[..., :200, :], expected[..., :200, :])
    assert found[..., 200:, :].isnan().all()


def test_calls_written_for_scaled_dot_product_attention():
    q, k, v = (random(2, 6, 5, 8), random(2, 2, 5, 8), random(2, 2, 5, 8))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(trigemm.causal_attention(q, k, v, dropout_p=0.0, is_causal=True), expected)


CALLS = {
    "output": {},
    "weights": {"return_weights": True},
    "heads": {"return_weights": [3, 0], "softcap": 0.7, "key_mask": torch.arange(7) % 3 > 0},
    "columns": {"return_weights": "columns", "window": 3},
}


@pytest.fixture(params=CALLS)
def call(request):
    options = dict(CALLS[request.param])
    if "key_mask" in options:
        options["key_mask"] = options["key_mask"].expand(2, 7)

    def call(q, k, v):
        found = trigemm.causal_attention(q, k, v, **options)
        return found if isinstance(found, tuple) else (found,)

    return call


def test_first_and_second_derivatives(call):
    tensors = operands(NH=4, KV=2, T=2, S=7, HS=1, requires_grad=True)
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


def test_compiled_without_a_graph_break(call):
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    tensors = operands(requires_grad=True)
    expected, found = call(*tensors), compiled(*tensors)
    torch.testing.assert_close(found, expected)
    upstream = [random(*x.shape) for x in expected]
    found = torch.autograd.grad(found, tensors, upstream)
    torch.testing.assert_close(found, torch.autograd.grad(expected, tensors, upstream))


def test_compiled_with_sizes_that_change():
    compiled = torch.compile(trigemm.causal_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in ((5, 7), (8, 8), (3, 11)):
        tensors = operands(T=queries, S=keys, requires_grad=True)
        torch.testing.assert_close(compiled(*tensors, return_weights=[1]), trigemm.causal_attention(*tensors, return_weights=[1]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # raised inside torch.func.jvp
def test_transforms_of_torch_func(call):
    tensors = operands()
    upstream = [random(*x.shape) for x in call(*tensors)]

    def loss(*tensors):
        return sum((x * g).sum() for x, g in zip(call(*tensors), upstream, strict=True))

    leaves = [x.clone().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(torch.func.grad(loss, (0, 1, 2))(*tensors), expected)
    tangents = tuple(map(torch.randn_like, tensors))
    slope = sum((x * t).sum() for x, t in zip(expected, tangents, strict=True))
    torch.testing.assert_close(torch.func.jvp(loss, tensors, tangents)[1], slope)
    with forward_ad.dual_level():
        dual = loss(*map(forward_ad.make_dual, tensors, tangents))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, slope)
    both = torch.vmap(call)(*(torch.stack([x, 2 * x]) for x in tensors))
    torch.testing.assert_close(tuple(x[1] for x in both), call(*(2 * x for x in tensors)))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    q, k, v = operands(requires_grad=grad)
    form, heads = (0.5, None, None), [2, 1]
    torch.library.opcheck(
        torch.ops.trigemm.causal_attention.default,
        (q, k, v, torch.tensor([3, 7]), None, *form, heads, True, torch.float64, 0.0, None),
    )
    upstream = random(2, 4, 5, 4), random(2, 2, 5, 7), random(2, 4, 7)
    torch.library.opcheck(
        torch.ops.trigemm.causal_attention_backward.default,
        (q, k, v, None, None, torch.empty_like(q), torch.empty(0), *upstream, *form, heads, "highest"),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_fake_tensors_have_the_real_shapes():
    for asked in (True, [1], "columns"):
        real = trigemm.causal_attention(*operands(), return_weights=asked)
        fake = trigemm.causal_attention(*operands(device="meta"), return_weights=asked)
        for x, y in zip(real, fake, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())


def test_autocast_lowers_float32_alone():
    tensors = operands(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = trigemm.causal_attention(*tensors, return_weights=True)
        assert trigemm.causal_attention(*operands()).dtype == torch.float64
    assert output.dtype == weights.dtype == torch.bfloat16
    torch.testing.assert_close(output, trigemm.causal_attention(*(x.bfloat16() for x in tensors)))


def test_float32_is_exact_whatever_torch_is_told():
    tensors = operands(T=40, S=40, dtype=torch.float32)
    expected = trigemm.causal_attention(*tensors)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        torch.testing.assert_close(trigemm.causal_attention(*tensors), expected, atol=1e-6, rtol=1e-6)
    finally:
        torch.set_float32_matmul_precision(before)


def peak_resident(function):
    """Bytes of memory that a call came to hold beyond what the process held before."""
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # from here on, Linux notes the peak anew

    def kilobytes(field):
        return int(re.search(rf"{field}:\s+(\d+) kB", status.read_text())[1])

    before = kilobytes("VmRSS")
    function()
    return 1024 * (kilobytes("VmHWM") - before)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_square_is_never_held_unless_asked_for():
    """Nor by the gradients: 8 heads of 2048 x 2048 weights would be 128 MiB."""
    q, k, v = operands(B=1, NH=8, KV=8, T=2048, S=2048, HS=16, dtype=torch.float32, requires_grad=True)

    def train(asked):
        found = trigemm.causal_attention(q, k, v, return_weights=asked)
        sum(x.square().sum() for x in found).backward()

    assert peak_resident(lambda: train("columns")) < 40 * 2**20
    assert peak_resident(lambda: train([5])) < 96 * 2**20  # its weights, their squares, their gradient: 16 MiB each


q_ok, kv_ok = torch.zeros(2, 4, 5, 16), torch.zeros(2, 2, 7, 16)
attention = trigemm.causal_attention
REFUSED = [
    (lambda: attention(q_ok, kv_ok, kv_ok[:, :, :6]), ValueError, r"k and v \(B,NH_kv,S,HS\); got q \(2, 4, 5, 16\) float32"),
    (lambda: attention(q_ok[0], kv_ok[0], kv_ok[0]), ValueError, r"q must be \(B,NH,T,HS\)"),
    (lambda: attention(q_ok, kv_ok.double(), kv_ok), TypeError, "one dtype"),
    (lambda: attention(q_ok.int(), kv_ok.int(), kv_ok.int()), TypeError, "float64, float32, float16 and bfloat16"),
    (lambda: attention(q_ok[:, :3], kv_ok, kv_ok), ValueError, "multiple of k's; got 3 and 2"),
    (lambda: attention(kv_ok, q_ok[:, :2], q_ok[:, :2]), ValueError, r"\(S >= T\); got S=5, T=7"),
    (lambda: attention(q_ok, kv_ok, kv_ok, is_causal=False), ValueError, "attention is causal here"),
    (lambda: attention(q_ok, kv_ok, kv_ok, dropout_p=0.1), ValueError, "no dropout here, got dropout_p=0.1"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=[4]), ValueError, r"different numbers of 0 to 3; got \[4\]"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=[-1]), ValueError, "different numbers of 0 to 3"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=[1, 1]), ValueError, "different numbers"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=["a"]), TypeError, "heads must be a list of ints, got ..a.."),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=[True]), TypeError, "heads must be a list of ints, got .True."),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=torch.ones(4).bool()), TypeError, "heads must be a list of ints"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=torch.ones(1)), TypeError, "heads must be a list of ints, got .1.0."),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=[torch.tensor(True)]), TypeError, "heads must be a list of ints"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights={1}), ValueError, "return_weights must be False, True"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights="rows"), ValueError, "a list of heads, or \"columns\"; got 'rows'"),
    (lambda: attention(q_ok, kv_ok, kv_ok, return_weights=3), ValueError, "return_weights must be False, True"),
    (
        lambda: attention(q_ok, kv_ok, kv_ok, weights_dtype=torch.int8),
        ValueError,
        "weights_dtype must be one of None, torch.float64",
    ),
    (
        lambda: attention(q_ok, kv_ok, kv_ok, fill=1e6, weights_dtype=torch.float16),
        ValueError,
        "beyond the range of torch.float16",
    ),
    (
        lambda: attention(q_ok, kv_ok, kv_ok, key_lengths=torch.zeros(3).int()),
        ValueError,
        r"of shape \(2,\); got key_lengths \(3,\)",
    ),
    (lambda: attention(q_ok, kv_ok, kv_ok, key_lengths=torch.zeros(2)), ValueError, r"\(B,\) int32 or int64"),
    (lambda: attention(q_ok, kv_ok, kv_ok, key_lengths=[1, 2]), TypeError, "key_lengths must be a torch.Tensor, got list"),
    (lambda: attention(q_ok, kv_ok, kv_ok, key_mask=torch.zeros(2, 7)), ValueError, r"key_mask must be \(B,S\) bool"),
    (
        lambda: attention(q_ok, kv_ok, kv_ok, key_mask=torch.ones(2, 7).bool(), key_lengths=torch.zeros(2).int()),
        ValueError,
        "give one of them",
    ),
    (lambda: attention(q_ok, kv_ok, kv_ok, key_mask=torch.ones(2, 7, device="meta").bool()), ValueError, "must be on cpu like q"),
    (lambda: attention(q_ok, kv_ok, kv_ok, scale="x"), TypeError, "scale must be a real number"),
    (lambda: attention(q_ok, kv_ok, kv_ok, softcap=0), ValueError, "softcap must be positive and finite, got 0"),
    (lambda: attention(q_ok, kv_ok, kv_ok, window=0), ValueError, "window must be at least 1, got 0"),
    (lambda: attention(q_ok, kv_ok, kv_ok, window=1.5), TypeError, "window must be an int, got float"),
    (lambda: attention(q_ok, kv_ok, kv_ok, precision="low"), ValueError, "precision must be one of None, 'highest'"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED)
def test_a_refusal_says_what_was_given_and_what_would_work(wrong, error, message):
    with pytest.raises(error, match=f"causal_attention: .*{message}"):
        wrong()


def test_nothing_mutates_its_inputs():
    tensors = operands(S=5)
    copies = [x.clone() for x in tensors]
    trigemm.causal_attention(*tensors, return_weights=True, key_lengths=torch.tensor([2, 5]))
    assert all(map(torch.equal, tensors, copies))
