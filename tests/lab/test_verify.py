import math
from dataclasses import replace
from random import Random

import pytest
import torch

import trigemm
from trigemm import reference
from trigemm.kernels.spec import KernelSpec
from trigemm.lab.cases import DIFFERENTIABLE, OPERATIONS, Case
from trigemm.lab.verify import Verdict, verify_case, verify_into, verify_kernel, verify_scores

SMALL = {
    "gemmt": Case("gemmt", {"M": 9, "N": 7, "K": 5}, batch=((2, 1), (3,)), parameters={"uplo": "upper", "alpha": 0.5}),
    "trmm": Case("trmm", {"M": 9, "N": 7, "K": 5}, batch=((2, 1), (3,)), parameters={"transpose": True, "side": "right"}),
    "syrk": Case("syrk", {"N": 9, "K": 5}, batch=((2,), (2,)), parameters={"beta": 2.0, "uplo": "lower"}),
    "causal_scores": Case("causal_scores", {"B": 2, "NH": 4, "NH_kv": 2, "T": 5, "S": 9, "HS": 6}),
    "causal_scores_qkvpacked": Case("causal_scores_qkvpacked", {"B": 2, "T": 9, "NH": 2, "HS": 6}),
    "causal_softmax": Case("causal_softmax", {"T": 7, "S": 9}, batch=((2,),)),
    "causal_attention": Case(
        "causal_attention",
        {"B": 2, "NH": 4, "NH_kv": 2, "T": 5, "S": 6, "HS": 3},
        parameters={"return_weights": [2, 1], "fill": -2.5, "softcap": 0.5, "window": 4},
    ),
}


@pytest.mark.parametrize("out", [None, "stepped"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_public_operations_pass(operation, out):
    case = SMALL[operation]
    assert verify_case(replace(case, out=out if operation != "causal_attention" else None)).passed


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_verified_is_what_users_call(operation, monkeypatch):
    called = []

    def wrong(*operands, **options):
        called.append(options)
        result = right(*operands, **options)
        (result[1] if isinstance(result, tuple) else result).mul_(1.5)
        return result

    right = getattr(trigemm, operation)
    monkeypatch.setattr(trigemm, operation, wrong)
    takes_out = operation != "causal_attention"
    case = replace(SMALL[operation], out="sliced" if takes_out else None)
    verdict = verify_case(case)
    assert not verdict.passed
    (options,) = called
    precision = {} if operation == "causal_softmax" else {"precision": "highest"}
    assert options.items() >= {**case.parameters, **precision}.items()
    assert not takes_out or not options["out"].is_contiguous()


def test_a_call_that_raises_fails(monkeypatch):
    def raises(*operands, **options):
        raise ValueError("no")

    monkeypatch.setattr(trigemm, "gemmt", raises)
    assert verify_case(SMALL["gemmt"]) == Verdict(False, math.inf, None, "raised ValueError: no")


def test_an_error_of_the_device_ends_everything(monkeypatch):
    def raises(*operands, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(trigemm, "gemmt", raises)
    for gradient in (True, False):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            verify_case(replace(SMALL["gemmt"], gradient=gradient))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", DIFFERENTIABLE)
def test_gradients_pass(operation, dtype):
    assert verify_case(replace(SMALL[operation], gradient=True, dtype=dtype)).passed


class Wrong(torch.autograd.Function):
    """The right product, with a gradient that is wrong as told."""

    @staticmethod
    def forward(ctx, a, b, alpha, how):
        ctx.save_for_backward(a, b)
        ctx.alpha, ctx.how = alpha, how
        return reference.gemmt(a, b, alpha=alpha, uplo="upper").to(a.dtype)

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        if ctx.how == "changes the gradient":
            gradient.nan_to_num_(0.0)
        live = gradient if ctx.how == "reads the dead half" else gradient.triu()
        a_gradient = ctx.alpha * (live @ b.mT)
        b_gradient = (1.0 if ctx.how == "forgets alpha" else ctx.alpha) * (a.mT @ live)
        return a_gradient.sum_to_size(a.shape), b_gradient.sum_to_size(b.shape), None, None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("right", None),
        ("forgets alpha", "gradient of operand 1: entry .* times the error budget"),
        ("reads the dead half", "gradient of operand 0: entry .* is nan"),
        ("changes the gradient", "the gradient was changed"),
    ],
)
def test_a_wrong_gradient_is_rejected(how, reason, monkeypatch):
    monkeypatch.setattr(trigemm, "gemmt", lambda a, b, *, alpha, uplo, precision: Wrong.apply(a, b, alpha, how))
    verdict = verify_case(replace(SMALL["gemmt"], gradient=True))
    assert verdict.passed == (reason is None)
    if reason is not None:
        with pytest.raises(RuntimeError, match=reason):
            raise RuntimeError(verdict.reason)


def test_kernels_get_every_parameter_and_stretched_operands():
    seen = {}

    def kernel(a, b, out, *, alpha, diagonal, fill, precision):
        seen.update(a=a.shape, b=b.shape, strides=b.stride(), options=(alpha, diagonal, fill, precision))
        out.copy_(reference.gemmt(a, b, alpha=alpha, diagonal=diagonal, fill=fill))

    case = Case("gemmt", {"M": 4, "N": 5, "K": 3}, batch=((2, 6), ()), precision="high", out="packed")
    assert verify_case(case, kernel=kernel).passed
    assert seen == {"a": (2, 6, 4, 3), "b": (2, 6, 3, 5), "strides": (0, 0, 5, 1), "options": (1.0, 0, 0.0, "high")}


def test_a_kernel_can_be_named():
    case = Case("syrk", {"N": 5, "K": 3}, out="contiguous")
    assert verify_case(case, kernel="trigemm.kernels.strips.syrk:syrk").passed


def test_scores_at_a_shape():
    spec = KernelSpec(9, "mine", "causal_scores_qkvpacked", "", "any", ("float32",), "trigemm.kernels.strips.gemmt:scores")
    qkv = torch.randn(2, 40, 3, 2, 8)
    before = qkv.clone()
    for fill in (None, 0.0, -math.inf, math.nan):
        assert verify_scores(spec, qkv, fill=fill).passed
    assert verify_scores(spec, qkv.half(), scale=2.0).passed
    assert torch.equal(qkv, before)
    assert not verify_scores(lambda qkv, out, **options: spec.run(qkv, out, **{**options, "scale": 1.0}), qkv).passed


def test_a_kernel_at_its_operands():
    a, c = torch.randn(3, 20, 4), torch.randn(3, 20, 20)
    verdict = verify_kernel("trigemm.kernels.strips.syrk:syrk", "syrk", [a, c], beta=0.5, uplo="lower")
    assert verdict.passed
    assert len(verdict.worst_index) == 3


def test_entries_that_a_call_may_overwrite():
    a, b = torch.randn(6, 4), torch.randn(4, 6)
    assert verify_into("gemmt", [a, b], lambda out: out.copy_(a @ b), fill=None, writes_all=True).passed
    assert not verify_into("gemmt", [a, b], lambda out: out.copy_(a @ b), fill=None).passed


@pytest.mark.parametrize("seed", range(60))
def test_random_cases_on_the_cpu(seed):
    case = Case.random(Random(f"verify {seed}"), largest=140)
    verdict = verify_case(case)
    assert verdict.passed, f"{verdict.reason}\n{case.as_python()}"


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(60))
def test_random_cases_on_a_gpu(seed):
    case = Case.random(Random(f"verify {seed}"), Random(f"verify {seed % 20}"))
    verdict = verify_case(case, device="cuda")
    assert verdict.passed, f"{verdict.reason}\n{case.as_python(device='cuda')}"
