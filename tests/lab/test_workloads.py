"""Problems, their counts of flops and bytes, and who may contend."""

import dataclasses
import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.spec import KernelSpec
from trigemm.lab import environment
from trigemm.lab.problem import DEFAULT_SHAPES, Problem, Shape
from trigemm.lab.workloads import build, contenders, listing, refusal

SHAPE = Shape(B=2, T=9, NH=3, HS=5)


def answer(work):
    """The referee's result for a workload, with zeros where nothing counts."""
    function = getattr(reference, work.problem.operation)
    options = dict(work.parameters)
    if "fill" in options and options["fill"] is None:
        options["fill"] = 0.0
    return function(*work.operands, **options)


@pytest.mark.parametrize("operation", DEFAULT_SHAPES)
@pytest.mark.parametrize("fill", [None, -math.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_every_contender_gives_the_referees_answer(operation, fill, dtype):
    if fill is not None and operation in ("trmm", "syrk"):
        pytest.skip("its result is whole")
    work = build(Problem(operation, SHAPE, dtype=dtype, fill=fill))
    expected = answer(work)
    able = [c for c in contenders(work) if c.refusal is None]
    assert len(able) >= (2 if dtype == "bfloat16" else 3)
    for contender in able:
        out = torch.full_like(work.out, math.nan)
        contender.call(out)
        if fill is None and operation not in ("trmm", "syrk"):
            if not contender.writes_all:
                assert out.isnan().triu(1).equal(torch.ones_like(out, dtype=torch.bool).triu(1)), contender.name
            out = torch.tril(out.nan_to_num(0.0))
        tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2}[dtype]
        torch.testing.assert_close(
            out.double(), expected, atol=tolerance, rtol=tolerance, msg=lambda m, c=contender: f"{c.name}: {m}"
        )


@pytest.mark.parametrize("operation", DEFAULT_SHAPES)
def test_flops_and_bytes_are_those_of_the_triangle(operation):
    work = build(Problem(operation, SHAPE))
    matrices, triangle = 2 * 3, 9 * 10 // 2
    assert work.useful_flops == matrices * triangle * 2 * 5
    entries = {
        LADDER: 2 * 9 * 5 + triangle,  # queries and keys; values are not read
        "causal_scores": 2 * 9 * 5 + triangle,
        "gemmt": 2 * 9 * 5 + triangle,
        "syrk": 9 * 5 + 9 * 9,
        "trmm": triangle + 2 * 9 * 5,
    }
    assert work.useful_bytes == matrices * entries[operation] * 4
    assert work.square_flops == matrices * 2 * 9 * 9 * 5


def test_a_fill_means_that_all_is_written():
    none, zero = (build(Problem(LADDER, SHAPE, fill=fill)).useful_bytes for fill in (None, 0.0))
    assert zero - none == 2 * 3 * (9 * 9 - 9 * 10 // 2) * 4


def test_operands_come_from_the_seed():
    first, again, other = (build(Problem(LADDER, SHAPE, seed=seed)).operands[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_two_operands_of_one_shape_differ():
    q, k = build(Problem("causal_scores", SHAPE)).operands
    assert not torch.equal(q, k)


def test_the_baselines_come_first_and_the_numbers_rise():
    found = contenders(build(Problem(LADDER, SHAPE)))
    assert [c.name for c in found[:3]] == ["baseline", "baseline_alone", "baseline_numpy"]
    numbers = [c.number for c in found if c.number is not None]
    assert numbers == sorted(numbers) == [spec.number for spec in CATALOGUE if spec.operation == LADDER]


def test_numpy_has_no_half_precision_product():
    assert "baseline_numpy" not in [c.name for c in contenders(build(Problem("gemmt", SHAPE, dtype="float16")))]


@pytest.mark.parametrize("operation", DEFAULT_SHAPES)
def test_the_listing_has_the_contenders(operation):
    work = build(Problem(operation, SHAPE))
    assert [(row["number"], row["kernel"], row["idea"]) for row in listing(operation) if row["kernel"] != "baseline_tf32"] == [
        (c.number, c.name, c.idea) for c in contenders(work)
    ]


def test_a_refusal_is_a_sentence():
    spec = KernelSpec(9, "nine", LADDER, "", "cuda", ("float32",), "no.such.module:scores")
    problem = Problem(LADDER, SHAPE)
    assert refusal(spec, problem) == "it runs on cuda, not on cpu"
    anywhere = dataclasses.replace(spec, device="any")
    assert refusal(anywhere, dataclasses.replace(problem, dtype="float64")) == "it takes float32, not float64"
    assert refusal(anywhere, problem) == "it needs a package that is missing here: No module named 'no'"
    picky = dataclasses.replace(
        anywhere, refuse=lambda problem: f"T must be even, got {problem['T']}" if problem["T"] % 2 else None
    )
    assert refusal(picky, problem) == "T must be even, got 9"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("operation", "gemm", "unknown operation 'gemm'; known are causal_scores_qkvpacked, causal_scores, gemmt, syrk, trmm"),
        ("dtype", "int8", "unknown dtype 'int8'; known are float64, float32, float16, bfloat16"),
        ("precision", "low", "unknown precision 'low'; known are highest, high, medium"),
        ("device", "tpu", "unknown device 'tpu'; known are cpu, cuda"),
    ],
)
def test_an_unknown_word_is_named_beside_the_known_ones(field, value, sentence):
    given = {"operation": LADDER, "shape": SHAPE, field: value}
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Problem(**given)


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device cuda was asked for, and torch finds no CUDA device"):
        Problem(LADDER, SHAPE, device="cuda")


@pytest.mark.parametrize("operation", ["trmm", "syrk"])
def test_a_whole_result_has_no_fill(operation):
    with pytest.raises(ValueError, match=f"{operation} has no fill"):
        Problem(operation, SHAPE, fill=0.0)


@pytest.mark.parametrize(("sizes", "option"), [((0, 1, 1, 1), "batch"), ((1, -4, 1, 1), "seq"), ((1, 1, 0, 1), "heads")])
def test_sizes_are_positive(sizes, option):
    with pytest.raises(ValueError, match=f"^--{option} must be at least 1"):
        Shape.of(LADDER, *sizes)


def test_sizes_that_are_not_given_are_the_operations_own():
    assert Shape.of("trmm", None, 64, None, None) == Shape(1, 64, 12, 128)


def test_a_problem_larger_than_memory_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(environment, "free_memory", lambda device: 10**9)
    with pytest.raises(
        ValueError, match=r"gemmt at B=1, T=20000, NH=1, HS=1 in float32 needs about 6\.4 GB .* 1\.0 GB are free on cpu"
    ):
        build(Problem("gemmt", Shape(1, 20000, 1, 1)))


@pytest.mark.gpu
def test_tf32_is_a_second_baseline_of_float32_on_cuda():
    names = [c.name for c in contenders(build(Problem(LADDER, SHAPE, device="cuda")))]
    assert names[:3] == ["baseline", "baseline_alone", "baseline_tf32"]
    half = [c.name for c in contenders(build(Problem(LADDER, SHAPE, dtype="bfloat16", device="cuda")))]
    assert "baseline_tf32" not in half
