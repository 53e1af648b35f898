from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trigemm.lab.cases import KERNEL_OPERATIONS, LAYOUTS, OPERATIONS, VALUES, Case, shrink
from trigemm.lab.judge import result_shape
from trigemm.lab.verify import verify_case

CASES = [Case.random(Random(f"case {seed}")) for seed in range(2000)]


def test_random_cases_cover_what_matters():
    assert {case.operation for case in CASES} == set(OPERATIONS)
    assert {case.dtype for case in CASES} == {"float64", "float32", "float16", "bfloat16"}
    assert {case.precision for case in CASES} == {"highest", "high", "medium"}
    assert {case.values for case in CASES} == set(VALUES)
    assert {layout for case in CASES for layout in case.layouts} == set(LAYOUTS)
    assert {case.out for case in CASES} == {*LAYOUTS, None} - {"expanded"}
    assert {case.gradient for case in CASES} == {True, False}
    sizes = [size for case in CASES for size in case.sizes.values()]
    assert {0, 1, 7, 33, 127, 129, 1000, 1023} <= set(sizes)
    parameters = [case.parameters for case in CASES]
    for name, value in [("uplo", "upper"), ("side", "right"), ("transpose", True), ("fill", None), ("fill", -inf), ("beta", 0.0)]:
        assert {name: value} in [{name: p.get(name, "missing")} for p in parameters]
    assert any(case.batch and case.batch[0] != case.batch[1] for case in CASES)
    assert any(case.sizes["NH"] > case.sizes["NH_kv"] for case in CASES if case.operation == "causal_scores")
    assert any(case.sizes["S"] > case.sizes["T"] for case in CASES if case.operation == "causal_scores")


@given(st.integers(0, 10**9))
def test_a_case_prints_as_itself(seed):
    case = Case.random(Random(seed))
    made = eval(repr(case), {"Case": Case, "inf": inf, "nan": nan})
    assert repr(made) == repr(case)
    assert "\n" not in case.as_python()


def test_the_line_of_python_runs(capsys):
    case = Case("gemmt", {"M": 5, "N": 3, "K": 2}, parameters={"fill": -inf}, layouts=("packed",), out="stepped", seed=4)
    line = case.as_python(device="cpu")
    exec(line)
    assert capsys.readouterr().out.startswith("pass: ")
    assert line.startswith(
        "from math import inf; from trigemm.lab.verify import Case, verify_case; print(verify_case(Case('gemmt'"
    )
    assert "float32" not in line


@given(st.integers(0, 10**9))
def test_operands_fit_together(seed):
    case = Case.random(Random(seed))
    shapes = case.operand_shapes
    assert len(shapes) == len(case.layouts)
    operands = [torch.empty(shape, device="meta") for shape in shapes]
    shape = result_shape(case.operation, operands, case.parameters)
    rows = case.sizes.get("M", case.sizes.get("T", case.sizes.get("N")))
    columns = case.sizes.get("S", case.sizes.get("T", case.sizes.get("N")))
    if case.operation == "causal_attention" and "return_weights" not in case.parameters:
        columns = case.sizes["HS"]
    assert shape[-2:] == (rows, columns)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_one_form_means_one_compiled_kernel(seed, form):
    first, second = (Case.random(Random(one), Random(form), for_kernel=True) for one in (seed, seed + 1))
    for name in ("operation", "dtype", "precision", "layouts", "out"):
        assert getattr(first, name) == getattr(second, name)
    assert [len(batch) for batch in first.batch] == [len(batch) for batch in second.batch]

    def kinds(case):
        return sorted((size if size < 2 else min(16, size & -size)) for name, size in case.sizes.items() if name in "MNKTSHS")

    assert kinds(first) == kinds(second)
    for name in ("uplo", "side", "transpose"):
        assert first.parameters.get(name) == second.parameters.get(name)
    assert (first.parameters.get("fill", 0) is None) == (second.parameters.get("fill", 0) is None)


@given(st.integers(0, 10**9))
def test_kernels_get_what_their_entry_points_take(seed):
    case = Case.random(Random(seed), for_kernel=True, largest=40, operations=KERNEL_OPERATIONS)
    assert case.out is not None
    assert not case.gradient
    assert case.operation != "causal_scores_qkvpacked" or "scale" in case.parameters
    assert case.operation != "gemmt" or "uplo" not in case.parameters
    assert not {"side", "transpose"} & set(case.parameters)
    assert max(case.sizes.values()) <= 40


def test_shrinking_finds_the_smallest_failure():
    case = Case(
        "gemmt",
        {"M": 129, "N": 257, "K": 33},
        batch=((2, 3), (3,)),
        dtype="float16",
        parameters={"alpha": 0.5, "diagonal": 40, "fill": nan},
        layouts=("packed", "sliced"),
        out="stepped",
        values="wide",
        seed=77,
    )
    tried = []

    def fails(candidate):
        tried.append(candidate)
        return candidate.sizes["M"] >= 17 and candidate.parameters.get("diagonal", 0) > 2 and candidate.layout(1) == "sliced"

    smallest = shrink(case, fails)
    assert smallest.sizes == {"M": 17, "N": 1, "K": 1}
    assert smallest.parameters == {"diagonal": 5}
    assert smallest.layouts == ("contiguous", "sliced")
    assert (smallest.batch, smallest.values, smallest.out, smallest.seed) == ((), "normal", "contiguous", 0)
    assert len(tried) < 300
    assert len(shrink_trials(case, limit=7)) == 7


def shrink_trials(case, limit):
    tried = []
    shrink(case, lambda candidate: bool(tried.append(candidate)), limit)
    return tried


@pytest.mark.parametrize("case", [case for case in CASES if case.operation == "causal_scores"][:50])
def test_shrinking_keeps_cases_valid(case):
    for candidate in shrink_trials(case, limit=200):
        assert candidate.sizes["S"] >= candidate.sizes["T"]
        assert candidate.sizes["NH"] % candidate.sizes["NH_kv"] == 0


def test_a_shrunk_case_still_runs():
    case = Case.random(Random(5), operations=["trmm"], largest=64)
    assert verify_case(replace(case, batch=())).passed
