import math
import warnings

import pytest
import torch

import trigemm
from trigemm import reference
from trigemm.kernels.strips import gemmt as module
from trigemm.kernels.strips import product
from trigemm.kernels.strips.gemmt import gemmt, scores, strip_heights
from trigemm.kernels.strips.product import torch_is_exact
from trigemm.lab.verify import Case, verify_case
from trigemm.triangle import Triangle

NAN = math.nan
SIZES = [(0, 3, 2), (3, 0, 2), (4, 5, 0), (1, 1, 1), (7, 33, 5), (33, 7, 64), (127, 129, 40), (300, 129, 33), (129, 300, 2)]


def bits(x):
    return x.contiguous().view(torch.uint8)


def run(a, b, out, *, alpha=1.0, diagonal=0, fill=None, precision="highest", keep=True):
    gemmt(a, b, out, alpha=alpha, diagonal=diagonal, fill=fill, precision=precision, keep=keep)
    return out


WAYS = {
    "whole": {"MANY": 1, "SMALL": 1000, "SMALL_ENTRIES": 2**18},
    "side by side": {"SMALL": 0, "FEW": 1, "WORTH_WAKING": 0, "SIDE_BY_SIDE_COLUMNS": 700},
    "one by one": {"SHORT_DEPTH": -1},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Has all products made in one way, whatever their sizes."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(module, name, value)
    return request.param


@pytest.mark.parametrize(
    ("diagonal", "keep", "fill"), [(0, True, None), (13, True, None), (-70, False, None), (13, True, -2.5), (-70, False, NAN)]
)
def test_every_way(operands, over_budget, dtype, way, diagonal, keep, fill):
    # Batch dimensions that do not merge, as those of a packed tensor.
    a = operands.plain(2, 270, 2, 33, dtype=dtype).transpose(1, 2)
    b = operands.plain(2, 280, 2, 33, dtype=dtype).permute(0, 2, 3, 1)
    before = operands.plain(2, 2, 270, 280, dtype=dtype)
    before[..., ::3] = NAN
    out = run(a, b, before.clone(), alpha=0.3, diagonal=diagonal, fill=fill, keep=keep)
    inside = reference.triangle_mask(270, 280, "lower", diagonal)
    exact = reference.gemmt(a, b, alpha=0.3, diagonal=diagonal, fill=NAN)
    assert over_budget(out.where(inside, 0.0), exact, a, b, factor=0.3) <= 1
    if fill is not None or keep:
        wanted = before if fill is None else torch.full_like(before, fill)
        assert torch.equal(bits(out.where(~inside, 0.0)), bits(wanted.where(~inside, 0.0)))


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_every_way_in_public(operands, over_budget, way, m, n, k, uplo):
    a, b = operands.plain(5, m, k, dtype=torch.float32), operands.plain(5, k, n, dtype=torch.float32)
    out = trigemm.gemmt(a, b, uplo=uplo, diagonal=-2)
    assert over_budget(out, reference.gemmt(a, b, uplo=uplo, diagonal=-2), a, b) <= 1


def test_every_way_under_autograd_and_in_inference_mode(operands, way):
    a, b = operands.plain(3, 70, 8, dtype=torch.float32), operands.plain(3, 8, 70, dtype=torch.float32)
    wanted = run(a, b, torch.zeros(3, 70, 70), fill=0.0)
    result = trigemm.gemmt(a.clone().requires_grad_(), b)
    result.sum().backward()
    assert torch.equal(result.detach(), wanted)
    with torch.inference_mode():
        assert torch.equal(trigemm.gemmt(a, b), wanted)
        assert torch.equal(trigemm.gemmt(a, b, fill=None, out=torch.zeros(3, 70, 70)), wanted)


def test_every_way_has_the_same_bits_from_run_to_run(operands, way):
    a, b = operands.plain(6, 300, 70, dtype=torch.float32), operands.plain(6, 70, 290, dtype=torch.float32)
    first = run(a, b, torch.zeros(6, 300, 290), alpha=0.7)
    for _ in range(5):
        assert torch.equal(run(a, b, torch.zeros(6, 300, 290), alpha=0.7), first)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("diagonal", [0, -1, 40, 1000, -1000])
def test_the_triangle_is_right_and_the_rest_untouched(operands, over_budget, dtype, m, n, k, diagonal):
    a, b = operands.plain(2, m, k, dtype=dtype), operands.plain(2, k, n, dtype=dtype)
    before = operands.plain(2, m, n, dtype=dtype)
    before[..., ::3] = NAN
    out = run(a, b, before.clone(), alpha=0.3, diagonal=diagonal)
    inside = reference.triangle_mask(m, n, "lower", diagonal)
    exact = reference.gemmt(a, b, alpha=0.3, diagonal=diagonal, fill=NAN)
    assert over_budget(out.where(inside, 0.0), exact, a, b, factor=0.3) <= 1
    assert torch.equal(bits(out.where(~inside, 0.0)), bits(before.where(~inside, 0.0)))


@pytest.mark.parametrize("fill", [0.0, -2.5, -math.inf, NAN])
def test_fill_stands_outside_the_triangle(operands, dtype, fill):
    a, b = operands.plain(3, 200, 9, dtype=dtype), operands.plain(3, 9, 290, dtype=dtype)
    out = run(a, b, torch.full((3, 200, 290), 7.0, dtype=dtype), fill=fill, diagonal=-3)
    outside = ~reference.triangle_mask(200, 290, "lower", -3)
    wanted = torch.full_like(out, fill)
    assert torch.equal(bits(out.where(outside, 0.0)), bits(wanted.where(outside, 0.0)))
    assert torch.isfinite(out.where(~outside, 0.0)).all()


@pytest.mark.parametrize("out_layout", ["plain", "transposed", "every_other"])
def test_any_layout(operands, over_budget, dtype, layout, out_layout):
    a = operands.laid_out(2, 3, 140, 30, dtype=dtype, layout=layout)
    b = operands.laid_out(2, 3, 30, 133, dtype=dtype, layout=layout)
    out = operands.laid_out(2, 3, 140, 133, dtype=dtype, layout=out_layout)
    before = out.clone()
    run(a, b, out, diagonal=2)
    inside = reference.triangle_mask(140, 133, "lower", 2)
    assert over_budget(out.where(inside, 0.0), reference.gemmt(a, b, diagonal=2, fill=NAN), a, b) <= 1
    assert torch.equal(out.where(~inside, 0.0), before.where(~inside, 0.0))


def test_nothing_is_written_around_a_view(operands, dtype):
    whole = operands.plain(3, 310, 320, dtype=dtype)
    before = whole.clone()
    view = whole[1, 5:305, 7:307]
    run(operands.plain(300, 20, dtype=dtype), operands.plain(20, 300, dtype=dtype), view, fill=0.0)
    before[1, 5:305, 7:307] = view
    assert torch.equal(bits(whole), bits(before))


@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [(1, 700, 650, 600), (3, 620, 640, 66), (20, 90, 200, 33), (3, 2000, 64, 64), (3, 64, 64, 64)]
)
def test_every_choice_of_strips(operands, over_budget, batch, m, n, k):
    a, b = operands.plain(batch, m, k, dtype=torch.float32), operands.plain(batch, k, n, dtype=torch.float32)
    out = run(a, b, torch.full((batch, m, n), NAN), fill=0.0)
    assert over_budget(out, reference.gemmt(a, b), a, b) <= 1


def test_choices_of_strips_differ():
    chosen = {
        strip_heights(1, 700, 650, 600),
        strip_heights(3, 620, 640, 66),
        strip_heights(3, 64, 64, 64),
    }
    assert chosen == {(352, 176, 128), (256,), (64,)}
    assert strip_heights(3, 2100, 2100, 66) == (256, 64)


@pytest.mark.parametrize("alpha", [1.0, 0.125, 0.3, -7.0, 0.0])
def test_alpha_adds_one_rounding_at_most(operands, over_budget, dtype, alpha):
    a, b = operands.plain(2, 130, 3, dtype=dtype), operands.plain(2, 3, 140, dtype=dtype)
    out = run(a, b, torch.full((2, 130, 140), NAN, dtype=dtype), alpha=alpha, fill=0.0)
    assert over_budget(out, reference.gemmt(a, b, alpha=alpha), a, b, factor=alpha) <= 1


@pytest.mark.parametrize(("left", "right"), [(1e-40, 1e30), (1e-38, 1e36), (1e30, 1e-30), (1e17, 1e17), (1e-20, 1e-20)])
def test_huge_and_tiny_magnitudes(operands, over_budget, left, right):
    a = operands.plain(100, 5, dtype=torch.float32) * left
    b = operands.plain(5, 100, dtype=torch.float32) * right
    a[::2] *= 1e3
    out = run(a, b, torch.full((100, 100), NAN), alpha=0.125, fill=0.0)
    exact = reference.gemmt(a, b, alpha=0.125)
    assert over_budget(out, exact, a, b, factor=0.125) <= 1


def test_products_that_overflow_are_infinite_and_warn_nobody(operands):
    a = torch.full((40, 3), 1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = run(a, a.mT, torch.full((40, 40), NAN), alpha=0.5, fill=0.0)
    assert torch.equal(out, torch.full((40, 40), math.inf).tril())


def test_half_precision_sums_in_float32(operands):
    # 4096 ones: a float16 sum would stop at 2048, a bfloat16 one at 256.
    for dtype in (torch.float16, torch.bfloat16):
        ones = torch.ones(70, 4096, dtype=dtype)
        out = run(ones, ones.mT, torch.zeros(70, 70, dtype=dtype), alpha=2.0, fill=0.0)
        assert torch.equal(out, torch.full((70, 70), 8192.0, dtype=dtype).tril())


@pytest.mark.parametrize("batch", [2, 40])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_precision_settings_cost_no_accuracy(operands, over_budget, precision, batch):
    a, b = operands.plain(batch, 150, 64, dtype=torch.float32), operands.plain(batch, 64, 150, dtype=torch.float32)
    exact = reference.gemmt(a, b)
    setting = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        out = run(a, b, torch.zeros(batch, 150, 150), fill=0.0, precision=precision)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(setting)
    assert over_budget(out, exact, a, b) <= 1


def test_torch_multiplies_only_where_it_is_exact():
    setting = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert torch_is_exact(torch.ones(1))
        torch.set_float32_matmul_precision("medium")
        assert not torch_is_exact(torch.ones(1))
        assert torch_is_exact(torch.ones(1, dtype=torch.float64))
    finally:
        torch.set_float32_matmul_precision(setting)


def test_same_bits_from_run_to_run(operands, dtype):
    a, b = operands.plain(6, 300, 70, dtype=dtype), operands.plain(6, 70, 290, dtype=dtype)
    first = run(a, b, torch.zeros(6, 300, 290, dtype=dtype), alpha=0.7)
    for _ in range(5):
        assert torch.equal(bits(run(a, b, torch.zeros(6, 300, 290, dtype=dtype), alpha=0.7)), bits(first))


@pytest.mark.parametrize("fill", [None, -math.inf])
def test_scores_of_a_packed_tensor(operands, over_budget, dtype, fill):
    qkv = operands.plain(2, 129, 3, 5, 16, dtype=dtype)
    qkv[:, :, 2] = NAN
    before = qkv.clone()
    out = torch.full((2, 5, 129, 129), 3.0, dtype=dtype)
    scores(qkv, out, scale=0.25, fill=fill, precision="highest")
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    exact = reference.causal_scores_qkvpacked(qkv, scale=0.25, fill=3.0 if fill is None else fill)
    assert over_budget(out, exact, q, k.mT, factor=0.25) <= 1
    assert torch.equal(bits(qkv), bits(before))


def test_a_sum_is_made_of_even_pieces():
    """A random case of `trigemm verify` that 192 and 64 terms put beyond the budget."""
    case = Case("causal_scores", {"B": 3, "NH": 4, "NH_kv": 2, "T": 126, "S": 128, "HS": 256}, seed=488895)
    assert verify_case(case).passed


def test_masks_of_large_matrices_are_not_kept():
    def masks(size):
        return [product._bits(Triangle(size, size), torch.float32, 0.0)[0] for _ in range(2)]

    small, large = masks(64), masks(512)
    assert small[0] is small[1]
    assert large[0] is not large[1]
