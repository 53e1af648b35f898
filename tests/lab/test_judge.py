import math
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm import reference
from trigemm.lab import judge as module
from trigemm.lab.judge import Judge, result_shape, result_triangle, verify_output
from trigemm.lab.operands import bits

INF, NAN = math.inf, math.nan


def made(shape=(2, 9, 7), other=(2, 7, 11), dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(dtype) for size in (shape, other)]


def right(operands, fill=0.0, **parameters):
    return reference.gemmt(*operands, fill=fill, **parameters).to(operands[0].dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fill", [0.0, -INF, NAN, -2.5])
@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_the_referees_own_result_passes(dtype, fill, uplo):
    operands = made(dtype=dtype)
    parameters = {"uplo": uplo, "diagonal": 2, "alpha": -0.5}
    verdict = verify_output("gemmt", operands, right(operands, fill, **parameters), {**parameters, "fill": fill})
    assert verdict.passed
    assert verdict.error_over_budget < 0.5
    assert verdict.reason is None


@settings(max_examples=60)
@given(st.data())
def test_any_wrong_entry_is_found_where_it_is(data):
    operands = made()
    result = right(operands, -1.0)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in result.shape)
    result[index] = data.draw(st.sampled_from([NAN, INF, -INF, -0.0, 1e6, result[index].item() * 1.001]))
    verdict = verify_output("gemmt", operands, result, {"fill": -1.0})
    assert not verdict.passed
    assert verdict.worst_index == index
    assert str(index) in verdict.reason
    assert ("outside" in verdict.reason) == (index[2] > index[1])
    assert verdict.error_over_budget > 1


def test_a_zero_of_the_wrong_sign_is_not_the_fill():
    operands = made()
    result = right(operands)
    result[0, 0, 1] = -0.0
    assert not verify_output("gemmt", operands, result, {}).passed


def test_without_a_fill_the_rest_is_what_it_was():
    operands = made()
    before = torch.randn(2, 9, 11)
    inside = reference.triangle_mask(9, 11)
    result = torch.where(inside, right(operands), before)
    assert verify_output("gemmt", operands, result, {"fill": None}, before=bits(before)).passed
    result[1, 2, 3] = 0.25
    verdict = verify_output("gemmt", operands, result, {"fill": None}, before=bits(before))
    assert verdict.worst_index == (1, 2, 3)
    assert "not what it was" in verdict.reason
    assert verify_output("gemmt", operands, result, {"fill": None}).passed
    assert verify_output("gemmt", operands, result, {"fill": 0.0}, writes_all=True).passed


def test_wrong_shape_dtype_or_device():
    operands = made()
    for result in (torch.zeros(2, 9, 10), torch.zeros(2, 9, 11, dtype=torch.float64), torch.zeros(2, 9, 11, device="meta")):
        verdict = verify_output("gemmt", operands, result, {})
        assert not verdict.passed
        assert "the result is" in verdict.reason


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_sizes_of_zero(sizes):
    m, n, k = sizes
    operands = [torch.randn(m, k), torch.randn(k, n)]
    assert verify_output("gemmt", operands, torch.zeros(m, n), {}).passed
    if m and n:
        assert not verify_output("gemmt", operands, torch.zeros(m, n).tril() + 1e-40, {"diagonal": 9}).passed


class TestNonfinite:
    """One row and one column: a sum of two terms."""

    def verdict(self, terms, value, dtype=torch.float32, alpha=1.0):
        a = torch.tensor([[x for x, _ in terms]], dtype=torch.float64).to(dtype)
        b = torch.tensor([[y] for _, y in terms], dtype=torch.float64).to(dtype)
        return verify_output("gemmt", [a, b], torch.tensor([[value]], dtype=dtype), {"alpha": alpha})

    @pytest.mark.parametrize(("terms", "right"), [
        ([(INF, 1), (1, 1)], INF),
        ([(INF, -1), (1, 1)], -INF),
        ([(INF, 1), (-INF, 1)], NAN),
        ([(INF, 0), (1, 1)], NAN),
        ([(NAN, 1), (1, 1)], NAN),
    ])  # fmt: skip
    def test_what_the_referee_has_is_required(self, terms, right):
        for value in (INF, -INF, NAN, 1.0):
            same = value == right or (math.isnan(value) and math.isnan(right))
            assert self.verdict(terms, value).passed == same

    def test_a_result_beyond_the_largest_number_is_infinite(self):
        terms = [(200, 200), (200, 200)]
        assert self.verdict(terms, INF, torch.float16).passed
        for value in (-INF, NAN, 65504.0):
            assert not self.verdict(terms, value, torch.float16).passed

    def test_a_result_below_the_largest_number_is_finite(self):
        terms = [(200, 200), (200, 100)]
        assert self.verdict(terms, 60_000, torch.float16).passed
        for value in (INF, -INF, NAN):
            assert not self.verdict(terms, value, torch.float16).passed

    def test_half_precision_sums_in_float32(self):
        terms = [(200, 400), (-200, 300)]
        assert self.verdict(terms, 20_000, torch.float16).passed
        for value in (INF, NAN):
            assert not self.verdict(terms, value, torch.float16).passed

    def test_a_sum_that_some_order_makes_overflow_may_be_anything_but_wrong(self):
        terms = [(1e30, 3e8), (-1e30, 2.9e8)]
        for value in (INF, -INF, NAN, 1e37):
            assert self.verdict(terms, value).passed
        assert not self.verdict(terms, 1.1e37).passed

    def test_a_factor_may_come_after_the_sum(self):
        terms = [(1e20, 3e18), (1e20, 3e18)]
        for value in (INF, 3e38):
            assert self.verdict(terms, value, alpha=0.5).passed
        assert not self.verdict([(1e18, 3e18), (0, 0)], INF, alpha=0.5).passed


def test_tiny_results_may_be_off_by_half_the_smallest_number():
    a, b = torch.full((1, 1), 2.0**-13, dtype=torch.float16), torch.full((1, 1), 2.0**-12, dtype=torch.float16)
    smallest = 2.0**-24
    for value, passes in [(0.0, True), (smallest, True), (2 * smallest, False), (-smallest, False)]:
        assert verify_output("gemmt", [a, b], torch.full((1, 1), value, dtype=torch.float16), {}).passed == passes


@pytest.mark.parametrize(("chunk", "block"), [(1, 1), (50, 7), (200, 60), (10**6, 10**6)])
@pytest.mark.parametrize(
    ("operation", "shapes", "parameters"),
    [
        ("gemmt", [(3, 1, 9, 5), (2, 5, 7)], {"uplo": "upper"}),
        ("trmm", [(9, 9), (3, 2, 9, 4)], {"side": "left"}),
        ("syrk", [(3, 2, 9, 4), (1, 9, 9)], {"beta": 2.0, "uplo": "lower"}),
        ("causal_scores", [(2, 6, 5, 4), (2, 3, 9, 4)], {}),
        ("causal_scores_qkvpacked", [(2, 9, 3, 4, 5)], {}),
    ],
)
def test_cutting_into_pieces_changes_no_verdict(monkeypatch, operation, shapes, parameters, chunk, block):
    operands = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    whole = dict(parameters) | ({"c": operands[1]} if operation == "syrk" else {})
    result = getattr(reference, operation)(*operands[: 1 if operation == "syrk" else 2], **whole).float()
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "BLOCK", block)
    assert verify_output(operation, operands, result, parameters).passed
    index = (*[size - 1 for size in result.shape[:-2]], 3, 3)
    result[index] += 1e-3
    verdict = verify_output(operation, operands, result, parameters)
    assert not verdict.passed
    assert verdict.worst_index == index


@pytest.mark.parametrize(("operation", "shapes", "parameters", "shape", "size"), [
    ("gemmt", [(2, 1, 3, 4), (5, 4, 6)], {"uplo": "upper", "diagonal": 1}, (2, 5, 3, 6), 12),
    ("trmm", [(3, 4), (2, 4, 5)], {}, (2, 3, 5), None),
    ("trmm", [(4, 3), (2, 4, 5)], {"transpose": True}, (2, 3, 5), None),
    ("trmm", [(4, 3), (2, 5, 4)], {"side": "right"}, (2, 5, 3), None),
    ("trmm", [(3, 4), (2, 5, 4)], {"side": "right", "transpose": True}, (2, 5, 3), None),
    ("syrk", [(2, 3, 4)], {}, (2, 3, 3), None),
    ("syrk", [(2, 3, 4), (3, 3)], {"uplo": "upper"}, (2, 3, 3), 6),
    ("causal_scores", [(2, 6, 3, 8), (2, 2, 5, 8)], {}, (2, 6, 3, 5), 12),
    ("causal_scores_qkvpacked", [(2, 5, 3, 4, 8)], {}, (2, 4, 5, 5), 15),
])  # fmt: skip
def test_shape_and_triangle_of_a_result(operation, shapes, parameters, shape, size):
    operands = [torch.empty(given, device="meta") for given in shapes]
    assert result_shape(operation, operands, parameters) == shape
    part = result_triangle(operation, shape, parameters)
    assert (None if part is None else part.size) == size


def test_a_budget_that_torch_uses_up_is_not_exceeded_by_torch():
    a, b = made((500, 200), (200, 500))
    verdict = verify_output("gemmt", [a, b], (a @ b).tril(), {})
    assert verdict.passed
    assert 0.05 < verdict.error_over_budget < 0.6


def test_where_torch_overflows_it_sets_no_standard():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(200, 200, generator=generator) * 6e18 for _ in range(2))
    scaled = ((a * 2.0**-10) @ b).tril()
    assert not (a @ b).isfinite().all()
    assert verify_output("gemmt", [a, b], scaled, {"alpha": 2.0**-10}).passed
    scaled[100] *= 1 + 1e-4
    assert not verify_output("gemmt", [a, b], scaled, {"alpha": 2.0**-10}).passed


def test_a_large_batch_takes_little_memory():
    a, b = made((24, 512, 8), (24, 8, 512))
    result = right([a, b])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert verify_output("gemmt", [a, b], result, {}).passed
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 2 * result.numel() * result.element_size()


def test_a_judge_that_saw_nothing_accepts():
    assert Judge(torch.float32, "highest", 4, 1.0).verdict().passed


def test_weights_of_scores_too_large_for_their_precision_are_free_and_others_are_not():
    q, k = torch.full((1, 1, 1, 4), 1e4), torch.full((1, 1, 2, 4), 1e4)
    k[..., 0, 0] += 10.0  # 1e5 more in a score of 4e8: beyond doubt in float64, a tie at "high"
    v = torch.randn(1, 1, 2, 4)
    tie = torch.full((1, 1, 1, 2), 0.5)
    form = {"scale": 1.0, "return_weights": True}
    assert verify_output("causal_attention", [q, k, v], tie, form, precision="high").passed
    q, k = torch.ones_like(q), torch.ones_like(k)
    k[..., 0, 0] += 3.0
    assert not verify_output("causal_attention", [q, k, v], tie, form, precision="high").passed
