import math

import pytest
import torch

from trigemm.lab import budget

SINGLE = torch.float32


def test_units_are_half_the_spacing_at_one():
    for dtype, unit in budget.UNIT.items():
        assert unit == torch.finfo(dtype).eps / 2
        smallest = torch.tensor(budget.smallest(dtype), dtype=torch.float64).to(dtype)
        assert smallest.item() == budget.smallest(dtype) > 0
        assert (smallest.double() / 2).to(dtype) == 0


def test_tf32_keeps_eleven_bits():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = budget.round_to_tf32(x)
    significand, _ = torch.frexp(rounded)
    assert torch.equal(significand * 2**11, (significand * 2**11).round())
    assert ((rounded - x).abs() <= 2.0**-11 * x.abs()).all()
    assert (rounded - x).abs().max() > 2.0**-13
    special = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])
    assert torch.equal(budget.round_to_tf32(special), special)
    assert budget.round_to_tf32(torch.tensor(torch.nan)).isnan()


def test_precision_is_set_for_a_while():
    before = torch.get_float32_matmul_precision()

    def fail():
        with budget.float32_precision("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("dtype", "precision", "expected"), [
    (torch.float64, "highest", 1e-16),
    (torch.float32, "highest", 6e-8),
    (torch.float32, "high", 3e-4),
    (torch.float32, "medium", 2e-3),
    (torch.float16, "highest", 3e-4),
    (torch.bfloat16, "highest", 2e-3),
])  # fmt: skip
def test_torchs_product_is_as_accurate_as_its_precision_says(dtype, precision, expected):
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(64, 96, generator=generator).to(dtype), torch.randn(96, 48, generator=generator).to(dtype)
    product = budget.torch_matmul(a, b, precision)
    assert product.dtype == dtype
    exact = a.double() @ b.double()
    error = ((product.double() - exact).abs() / (a.double().abs() @ b.double().abs())).max().item()
    if dtype == torch.float64:
        assert error == 0
    else:
        assert expected / 8 < error < expected * 4


OPERANDS = {
    "gemmt": ([(2, 5, 3), (3, 4)], {"alpha": -0.5, "diagonal": 1}),
    "trmm": ([(5, 3), (5, 4)], {"alpha": -0.5, "transpose": True, "uplo": "upper"}),
    "syrk": ([(5, 3), (5, 5)], {"alpha": 2.0, "beta": -1.0}),
    "causal_scores": ([(2, 4, 3, 6), (2, 2, 5, 6)], {"scale": -0.3}),
    "causal_scores_qkvpacked": ([(2, 5, 3, 2, 6)], {}),
}


@pytest.mark.parametrize("operation", OPERANDS)
def test_plain_product_and_referee_agree(operation):
    shapes, parameters = OPERANDS[operation]
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    expected = budget.referee(operation, operands, parameters)
    plain = budget.plain_product(operation, operands, parameters, "highest") * budget.factor(operation, operands, parameters)
    if operation == "syrk":
        plain = plain - operands[1]
    inside = expected != 0
    assert inside.any()
    torch.testing.assert_close(plain[inside], expected[inside])


@pytest.mark.parametrize("operation", OPERANDS)
def test_magnitude_bounds_the_result(operation):
    shapes, parameters = OPERANDS[operation]
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    result = budget.referee(operation, operands, parameters)
    magnitude = budget.magnitude(operation, operands, parameters)
    assert (magnitude >= result.abs()).all()
    assert torch.equal(magnitude == 0, result == 0)
    torch.testing.assert_close(budget.magnitude(operation, [x.abs() for x in operands], parameters), magnitude)


def test_relative_error_leaves_out_one_rounding():
    rounding = budget.Rounding.of(SINGLE, depth=4, factor=1.0)
    expected = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    magnitude = torch.tensor([2.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    value = torch.tensor([1.0, 1 + 2.0**-23, math.nan, 1e-30])
    error = budget.relative_error(value, expected, magnitude, rounding)
    assert error[0] == 0
    assert error[1].item() == pytest.approx((2.0**-23 - 2.0**-24) / 2)
    assert error[2].isnan()
    assert error[3] > 1e200
    assert torch.equal(value[:2], torch.tensor([1.0, 1 + 2.0**-23]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_relative_error_changes_nothing(dtype):
    operands = [torch.rand(10).to(dtype), torch.rand(10).double(), torch.rand(10).double()]
    copies = [x.clone() for x in operands]
    budget.relative_error(*operands, budget.Rounding.of(dtype, 3, 1.0))
    budget.baseline_error(*operands, 0.0)
    for x, copy in zip(operands, copies, strict=True):
        assert torch.equal(x, copy)


def test_underflow_costs_half_the_smallest_number():
    rounding = budget.Rounding.of(torch.float16, depth=100, factor=0.5)
    assert rounding.underflow == pytest.approx(2.0**-25)
    assert budget.Rounding.of(SINGLE, depth=8, factor=4.0).unit == 2.0**-24
    assert budget.Rounding.of(SINGLE, depth=8, factor=-3.0).unit == 2.0**-23
    assert budget.Rounding.of(SINGLE, depth=8, factor=4.0).underflow == (6 * 32 + 0.5) * 2.0**-149


def test_the_floor_is_lower_where_a_maximum_means_something():
    few, many = (budget.floor(SINGLE, "highest", 64, entries) for entries in (10, 100_000))
    assert few > 4 * many
    assert many < 2.0**-23
    assert budget.floor(SINGLE, "highest", 64, 10) < budget.floor(SINGLE, "high", 64, 10) < budget.floor(SINGLE, "medium", 64, 10)
    assert budget.floor(torch.float64, "highest", 64, 10) < 1e-14


@pytest.mark.parametrize(("precision", "unit"), [("high", 2.0**-11), ("medium", 2.0**-8)])
def test_operands_rounded_to_nearest_pass_whatever_torch_does(precision, unit):
    rounded = 1 + unit / (1 + unit)  # the largest factor that rounding one operand makes
    assert 2 * budget.floor(SINGLE, precision, 1, 10**6) >= rounded**2 - 1
