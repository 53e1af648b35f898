import math

import pytest
import torch

import trigemm
from trigemm import reference


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1), (0, 0)])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 9), (0, 4)])
def test_causal_scores(heads, kv_heads, queries, keys):
    q = torch.randn(2, queries, heads, 8).transpose(1, 2)
    k = torch.randn(2, kv_heads, keys, 8)
    expected = reference.causal_scores(q, k) if kv_heads else torch.empty(2, 0, queries, keys, dtype=torch.float64)
    found = trigemm.causal_scores(q, k)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    out = torch.full_like(found, math.nan)
    assert trigemm.causal_scores(q, k, out=out) is out
    assert torch.equal(out, found)


def test_causal_scores_agree_with_scaled_dot_product_attention():
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    weights = trigemm.causal_scores(q, k).softmax(-1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(weights @ v.repeat_interleave(3, 1), expected)


@pytest.mark.parametrize("fill", [-math.inf, 0.0, math.nan])
def test_packed_scores(fill):
    qkv = torch.randn(2, 33, 3, 2, 8)
    qkv[:, :, 2] = math.nan
    found = trigemm.causal_scores_qkvpacked(qkv, scale=0.5, fill=fill)
    expected = reference.causal_scores_qkvpacked(qkv, scale=0.5, fill=fill)
    torch.testing.assert_close(found.double(), expected, equal_nan=True, atol=1e-5, rtol=1e-5)
    out = torch.full_like(found, 7.0)
    trigemm.causal_scores_qkvpacked(qkv, scale=0.5, fill=None, out=out)
    torch.testing.assert_close(out.tril(), found.tril(), equal_nan=True)
    assert (out.triu(1) == torch.full_like(out, 7.0).triu(1)).all()


@pytest.mark.parametrize("heads", [2, 1])
def test_an_overlap_is_refused_in_the_words_of_the_operation(heads):
    buffer = torch.zeros(1, 2, 4, 3 * 4)
    q, k = buffer[..., :4], buffer[:, :heads, :, 4:8]
    with pytest.raises(ValueError, match=r"^causal_scores: out overlaps q in memory"):
        trigemm.causal_scores(q, k, out=q)
    with pytest.raises(ValueError, match=r"^causal_scores: out overlaps k in memory"):
        trigemm.causal_scores(q, k, out=buffer[..., 5:9])
    with pytest.raises(ValueError, match=r"^causal_scores: out overlaps itself"):
        trigemm.causal_scores(q, k, out=torch.zeros(1, 1, 4, 4).expand(1, 2, 4, 4))
    with pytest.raises(ValueError, match=r"^causal_scores_qkvpacked: out overlaps qkv in memory"):
        trigemm.causal_scores_qkvpacked(qkv := torch.zeros(1, 4, 3, 1, 4), out=qkv[:, :, 0].transpose(1, 2))
    trigemm.causal_scores(q, k, out=buffer[..., 8:])


@pytest.mark.parametrize("heads", [2, 1])
def test_compiled_into_an_out(heads):
    q, k, out = torch.randn(1, 2, 4, 8), torch.randn(1, heads, 4, 8), torch.zeros(1, 2, 4, 4)
    torch.compile(lambda q, k, out: trigemm.causal_scores(q, k, out=out), fullgraph=True, backend="aot_eager")(q, k, out)
    assert torch.equal(out, trigemm.causal_scores(q, k))


def test_the_default_scale():
    q = torch.randn(1, 1, 3, 16)
    assert torch.equal(trigemm.causal_scores(q, q), trigemm.causal_scores(q, q, scale=0.25))


def test_gradients_lie_in_memory_as_the_operands_do():
    """Else autograd would copy them."""
    q, k = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 2, 7, 8, requires_grad=True)
    grad = torch.randn(2, 4, 5, 7)
    found = torch.autograd.grad(trigemm.causal_scores(q, k, fill=0.0), (q, k), grad)
    expected = torch.autograd.grad(reference.causal_scores(q, k, fill=0.0), (q, k), grad.double())
    assert [x.stride() for x in found] == [q.stride(), k.stride()]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_an_out_in_the_values_is_refused():
    qkv = torch.arange(300.0).view(1, 5, 3, 2, 10)
    with pytest.raises(ValueError, match="causal_scores_qkvpacked: out overlaps qkv"):
        trigemm.causal_scores_qkvpacked(qkv, out=qkv[:, :, 2].transpose(1, 2)[..., :5])
    assert torch.equal(qkv, torch.arange(300.0).view(1, 5, 3, 2, 10))
