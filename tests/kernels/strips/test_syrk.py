import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.strips.syrk import syrk

SIZES = [(0, 3), (3, 0), (1, 1), (7, 33), (33, 7), (127, 64), (129, 300), (300, 2), (600, 40)]


def run(a, *, c=None, alpha=1.0, beta=0.0, uplo="full", out=None):
    if out is None:
        out = torch.full((*a.shape[:-1], a.shape[-2]), math.nan, dtype=a.dtype)
    syrk(a, c, out, alpha=alpha, beta=beta, uplo=uplo, precision="highest")
    return out


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("uplo", ["full", "lower"])
@pytest.mark.parametrize("beta", [None, 0.0, 0.7])
def test_against_the_referee(operands, over_budget, dtype, n, k, uplo, beta):
    a = operands.plain(2, n, k, dtype=dtype)
    c = None if beta is None else operands.plain(2, n, n, dtype=dtype)
    terms = {"alpha": 0.3, "beta": beta or 0.0, "uplo": uplo, "c": c}
    out, exact = run(a, **terms), reference.syrk(a, **terms)
    extra = 0.0 if c is None else (beta * c.double()).abs()
    assert over_budget(out, exact, a, a.mT, extra=extra, factor=0.3) <= 1
    if uplo == "lower":
        assert not out.triu(1).any()
    elif not beta:
        assert torch.equal(out, out.mT)


def test_c_that_is_not_read(operands, dtype):
    a, c = operands.plain(2, 150, 20, dtype=dtype), operands.plain(2, 150, 150, dtype=dtype)
    nan = torch.full_like(c, math.nan)
    assert torch.equal(run(a, c=nan, beta=0.0), run(a))
    half = c.where(reference.triangle_mask(150, 150), math.nan)
    assert torch.equal(run(a, c=half, beta=0.5, uplo="lower"), run(a, c=c, beta=0.5, uplo="lower"))


@pytest.mark.parametrize("uplo", ["full", "lower"])
@pytest.mark.parametrize("out_layout", ["plain", "transposed", "every_other"])
def test_any_layout(operands, over_budget, dtype, layout, out_layout, uplo):
    a = operands.laid_out(2, 3, 140, 30, dtype=dtype, layout=layout)
    c = operands.laid_out(2, 3, 140, 140, dtype=dtype, layout=layout)
    out = operands.laid_out(2, 3, 140, 140, dtype=dtype, layout=out_layout)
    run(a, c=c, beta=2.0, uplo=uplo, out=out)
    exact = reference.syrk(a, c=c, beta=2.0, uplo=uplo)
    assert over_budget(out, exact, a, a.mT, extra=2 * c.double().abs()) <= 1


def test_nothing_is_written_around_a_view(operands, dtype):
    whole = operands.plain(3, 310, 320, dtype=dtype)
    before = whole.clone()
    view = whole[1, 5:305, 7:307]
    run(operands.plain(300, 20, dtype=dtype), out=view)
    before[1, 5:305, 7:307] = view
    assert torch.equal(whole, before)


def test_half_precision_sums_in_float32():
    for dtype in (torch.float16, torch.bfloat16):
        out = run(torch.ones(70, 4096, dtype=dtype), alpha=2.0)
        assert torch.equal(out, torch.full((70, 70), 8192.0, dtype=dtype))


def test_same_bits_from_run_to_run(operands, dtype):
    a = operands.plain(4, 300, 70, dtype=dtype)
    first = run(a, alpha=0.7)
    for _ in range(5):
        assert torch.equal(run(a, alpha=0.7), first)
