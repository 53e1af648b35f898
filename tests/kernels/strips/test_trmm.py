import math
import warnings

import pytest
import torch

from trigemm import reference
from trigemm.kernels.strips.trmm import trmm

SIZES = [
    (0, 3, 2),
    (3, 0, 2),
    (4, 5, 0),
    (1, 1, 1),
    (7, 5, 33),
    (33, 64, 7),
    (127, 40, 129),
    (300, 33, 129),
    (129, 2, 300),
    (600, 9, 550),
]


def run(a, b, *, alpha=1.0, uplo="lower", diagonal=0, out=None):
    if out is None:
        out = torch.full((*a.shape[:-1], b.shape[-1]), math.nan, dtype=a.dtype)
    trmm(a, b, out, alpha=alpha, uplo=uplo, diagonal=diagonal, precision="highest")
    return out


def half_of(a, uplo, diagonal, other):
    """The triangle of `a`, with something else in the other half."""
    return a.where(reference.triangle_mask(a.shape[-2], a.shape[-1], uplo, diagonal), other)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize("diagonal", [0, -1, 50, 1000, -1000])
def test_the_product_is_right_and_the_other_half_is_not_multiplied(operands, over_budget, dtype, m, n, k, uplo, diagonal):
    a, b = operands.plain(2, m, k, dtype=dtype), operands.plain(2, k, n, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poisoned = half_of(half_of(a, uplo, diagonal, math.inf), uplo, diagonal + (1 if uplo == "lower" else -1), math.nan)
        out = run(poisoned, b, alpha=0.3, uplo=uplo, diagonal=diagonal)
    exact = reference.trmm(a, b, alpha=0.3, uplo=uplo, diagonal=diagonal)
    assert over_budget(out, exact, half_of(a, uplo, diagonal, 0.0), b, factor=0.3) <= 1


@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_the_other_half_changes_no_bit(operands, dtype, uplo):
    a, b = operands.plain(3, 200, 200, dtype=dtype), operands.plain(3, 200, 30, dtype=dtype)
    wanted = run(half_of(a, uplo, 0, 0.0), b, uplo=uplo)
    for other in (math.nan, math.inf, -math.inf, 1e4):
        assert torch.equal(run(half_of(a, uplo, 0, other), b, uplo=uplo), wanted)


def test_infinities_of_b_meet_the_triangle_only(operands):
    a, b = torch.ones(70, 70), torch.ones(70, 4)
    b[10] = math.inf
    out = run(half_of(a, "lower", 0, math.nan), b)
    assert torch.isfinite(out[:10]).all() or out[:10].isnan().all()
    assert torch.equal(out[64:], torch.full((6, 4), math.inf))


@pytest.mark.parametrize("out_layout", ["plain", "transposed", "every_other"])
def test_any_layout(operands, over_budget, dtype, layout, out_layout):
    a = operands.laid_out(2, 3, 140, 133, dtype=dtype, layout=layout)
    b = operands.laid_out(2, 3, 133, 30, dtype=dtype, layout=layout)
    out = operands.laid_out(2, 3, 140, 30, dtype=dtype, layout=out_layout)
    run(a, b, diagonal=2, out=out)
    assert over_budget(out, reference.trmm(a, b, diagonal=2), half_of(a, "lower", 2, 0.0), b) <= 1


def test_nothing_is_written_around_a_view(operands, dtype):
    whole = operands.plain(3, 310, 40, dtype=dtype)
    before = whole.clone()
    view = whole[1, 5:305, 7:30]
    run(operands.plain(300, 290, dtype=dtype), operands.plain(290, 23, dtype=dtype), out=view)
    before[1, 5:305, 7:30] = view
    assert torch.equal(whole, before)


def test_many_matrices(operands, over_budget):
    a, b = (
        operands.plain(70, 2, 300, 300, dtype=torch.float32),
        operands.plain(70, 1, 300, 8, dtype=torch.float32).expand(-1, 2, -1, -1),
    )
    assert over_budget(run(a, b), reference.trmm(a, b), half_of(a, "lower", 0, 0.0), b) <= 1


def test_half_precision_sums_in_float32():
    for dtype in (torch.float16, torch.bfloat16):
        out = run(torch.ones(4096, 4096, dtype=dtype), torch.ones(4096, 1, dtype=dtype), alpha=2.0)
        assert torch.equal(out[:, 0], (2.0 * torch.arange(1, 4097)).to(dtype))


def test_same_bits_from_run_to_run(operands, dtype):
    a, b = operands.plain(4, 300, 290, dtype=dtype), operands.plain(4, 290, 70, dtype=dtype)
    first = run(a, b, alpha=0.7)
    for _ in range(5):
        assert torch.equal(run(a, b, alpha=0.7), first)
