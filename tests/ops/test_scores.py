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
