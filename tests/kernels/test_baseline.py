"""The baseline computes the whole square, into any output, at any precision, and leaves torch's settings alone."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels import baseline

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def whole_square(qkv, scale):
    q, k, _ = qkv.double().permute(2, 0, 3, 1, 4)
    return scale * q @ k.mT


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sliced", [False, True])
def test_without_a_fill_both_triangles_are_written(dtype, sliced):
    qkv = torch.randn(2, 9, 3, 4, 5).to(dtype)
    out = torch.full((2, 4, 9, 9 + 7 * sliced), math.nan, dtype=dtype)
    view = out[..., 3:12] if sliced else out
    baseline.scores(qkv, view, scale=0.7, fill=None, precision="highest")
    torch.testing.assert_close(view.double(), whole_square(qkv, 0.7), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert out.isnan().sum() == out.numel() - view.numel()


@pytest.mark.parametrize("fill", [0.0, -math.inf, math.nan, 2.5])
def test_a_fill_stands_above_the_diagonal(fill):
    qkv = torch.randn(2, 9, 3, 4, 5)
    out = torch.full((2, 4, 9, 9), math.nan)
    baseline.scores(qkv, out, scale=0.7, fill=fill, precision="highest")
    expected = reference.causal_scores_qkvpacked(qkv, scale=0.7, fill=fill)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 4, 3, 2, 5), (2, 0, 3, 2, 5), (2, 4, 3, 0, 5), (2, 4, 3, 2, 0), (1, 1, 3, 1, 1)])
def test_sizes_may_be_0_or_1(shape):
    qkv = torch.randn(shape)
    B, T, _, NH, _ = shape
    out = torch.full((B, NH, T, T), math.nan)
    baseline.scores(qkv, out, scale=2.0, fill=None, precision="highest")
    torch.testing.assert_close(out.double(), whole_square(qkv, 2.0))


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_is_set_for_the_product_only(monkeypatch, precision):
    seen = []
    multiply = torch.baddbmm

    def watched(*arguments, **options):
        seen.append(torch.get_float32_matmul_precision())
        return multiply(*arguments, **options)

    monkeypatch.setattr(torch, "baddbmm", watched)
    before = torch.get_float32_matmul_precision()
    baseline.scores(torch.randn(1, 4, 3, 1, 2), torch.empty(1, 1, 4, 4), scale=1.0, fill=None, precision=precision)
    assert seen == [precision]
    assert torch.get_float32_matmul_precision() == before
