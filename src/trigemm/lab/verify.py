"""Does a call compute what it should, and leave alone what it should? The public operations, and single kernels.

A call fails where its result does (trigemm.lab.judge), where it raises, and where a byte changed in an operand, around an
operand, or around the output.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import trigemm
from trigemm.kernels.spec import KernelSpec
from trigemm.lab import budget
from trigemm.lab.attention import gives_weights
from trigemm.lab.cases import Case
from trigemm.lab.judge import Judge, Verdict, result_shape, result_triangle, verify_output
from trigemm.lab.operands import Guarded, build, place, random_values, triangle

__all__ = ["Case", "Verdict", "verify_case", "verify_into", "verify_kernel", "verify_output", "verify_scores"]

Kernel = Callable[..., object]


def verify_case(case: Case, *, device: str = "cpu", kernel: Kernel | str | None = None) -> Verdict:
    """Run a case and judge it: the public operation, or a kernel's entry point ("module:function").

    >>> verify_case(Case("gemmt", {"M": 5, "N": 4, "K": 3}, out="sliced")).passed
    True
    """
    inputs = build(case, device)
    generator = torch.Generator().manual_seed(case.seed + 1)
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.gradient:
        return _verify_gradient(case, inputs, generator)
    operands = [x.view for x in inputs]
    shape = result_shape(case.operation, operands, case.parameters)
    out = None if case.out is None else place(shape, case.out, dtype, device, generator, finite=case.values == "nonfinite")
    if kernel is None:
        call = _public_call(case, operands, out)
    else:
        assert out is not None
        call = kernel_call(_entry(kernel), case.operation, operands, out.view, case.parameters, case.precision)
    return _verify_call(case.operation, call, inputs, out, case.parameters, case.precision)


def verify_into(
    operation: str,
    operands: Sequence[Tensor],
    call: Callable[[Tensor], object],
    *,
    precision: str = "highest",
    writes_all: bool = False,
    **parameters: Any,
) -> Verdict:
    """Judge a call that writes an operation of these operands into the tensor it is given: a poisoned one between guard bands.

    `parameters` are the operation's, with the public defaults. `writes_all`: entries outside the triangle are not looked at.

    >>> a = torch.randn(4, 3)
    >>> verify_into("syrk", [a], lambda out: out.copy_(a @ a.mT)).passed
    True
    >>> print(verify_into("gemmt", [a, a.mT], lambda out: out.copy_(a @ a.mT), fill=0.0))
    FAIL: entry (0, 1) outside the triangle is ..., not the fill 0.0
    """
    inputs = [Guarded.watch(x) for x in operands]
    generator = torch.Generator().manual_seed(0)
    first = operands[0]
    out = place(result_shape(operation, operands, parameters), "contiguous", first.dtype, str(first.device), generator)
    return _verify_call(operation, lambda: call(out.view), inputs, out, parameters, precision, writes_all)


def verify_kernel(
    kernel: KernelSpec | Kernel | str,
    operation: str,
    operands: Sequence[Tensor],
    *,
    precision: str = "highest",
    **parameters: Any,
) -> Verdict:
    """`verify_into` for a kernel's entry point (trigemm.kernels.spec)."""
    entry = kernel.run if isinstance(kernel, KernelSpec) else _entry(kernel)

    def call(out: Tensor) -> object:
        return kernel_call(entry, operation, operands, out, parameters, precision)()

    return verify_into(operation, operands, call, precision=precision, **parameters)


def verify_scores(
    kernel: KernelSpec | Kernel | str,
    qkv: Tensor,
    *,
    scale: float | None = None,
    fill: float | None = None,
    precision: str = "highest",
) -> Verdict:
    """`verify_kernel` for the ladder's operation, causal_scores_qkvpacked."""
    return verify_kernel(kernel, "causal_scores_qkvpacked", [qkv], scale=scale, fill=fill, precision=precision)


def _entry(kernel: Kernel | str) -> Kernel:
    if not isinstance(kernel, str):
        return kernel
    module, function = kernel.split(":")
    entry: Kernel = getattr(import_module(module), function)
    return entry


def _public_call(case: Case, operands: Sequence[Tensor], out: Guarded | None) -> Callable[[], Any]:
    options: dict[str, Any] = dict(case.parameters)
    if case.operation != "causal_softmax":  # which has no products
        options["precision"] = case.precision
    if out is not None:
        options["out"] = out.view
    if case.operation == "syrk" and len(operands) > 1:
        options["c"] = operands[1]
        operands = operands[:1]
    call = partial(getattr(trigemm, case.operation), *operands, **options)
    if case.operation == "causal_attention" and gives_weights(case.operation, case.parameters):
        return lambda: call()[1]
    return call


def kernel_call(
    entry: Kernel, operation: str, operands: Sequence[Tensor], out: Tensor, parameters: Mapping[str, Any], precision: str
) -> Callable[[], Any]:
    """The call of a kernel's entry point: it takes every parameter, and operands whose batch dimensions are stretched."""
    defaults: Mapping[str, dict[str, Any]] = {
        "gemmt": {"alpha": 1.0, "diagonal": 0, "fill": 0.0},
        "trmm": {"alpha": 1.0, "uplo": "lower", "diagonal": 0},
        "syrk": {"alpha": 1.0, "beta": 0.0, "uplo": "full"},
        "causal_scores_qkvpacked": {"scale": None, "fill": -math.inf},
    }
    if operation == "causal_softmax":
        rows, columns = out.shape[-2:]
        return lambda: entry(operands[0], out, diagonal=parameters.get("diagonal", columns - rows))
    options = {**defaults[operation], **parameters}
    if operation == "causal_scores_qkvpacked":
        options["scale"] = budget.factor(operation, operands, parameters)
        return lambda: entry(operands[0], out, **options, precision=precision)
    stretched: list[Tensor | None] = [x.expand(*out.shape[:-2], *x.shape[-2:]) for x in operands]
    if operation == "syrk" and len(operands) == 1:
        stretched.append(None)
    return lambda: entry(*stretched, out, **options, precision=precision)


def _raised(error: Exception) -> Verdict:
    """The verdict on a call that raised. An error of the device itself goes on: no later call would mean anything."""
    if isinstance(error, RuntimeError) and "CUDA" in str(error):
        raise error
    return Verdict.fail(f"raised {type(error).__name__}: {error}")


def _verify_call(
    operation: str,
    call: Callable[[], Any],
    inputs: Sequence[Guarded],
    out: Guarded | None,
    parameters: Mapping[str, Any],
    precision: str,
    writes_all: bool = False,
) -> Verdict:
    operands = [x.view for x in inputs]
    try:
        returned = call()
    except Exception as error:
        return _raised(error)
    for number, guarded in enumerate(inputs):
        if guarded.changed():
            return Verdict.fail(f"operand {number} was changed")
    if out is not None and out.changed_around():
        return Verdict.fail("bytes around the output were changed")
    if out is None:
        return verify_output(operation, operands, returned, parameters, precision=precision)
    return verify_output(
        operation, operands, out.view, parameters, precision=precision, before=out.bits_before, writes_all=writes_all
    )


def _verify_gradient(case: Case, inputs: Sequence[Guarded], generator: torch.Generator) -> Verdict:
    """Judge the gradients of every operand, for a gradient that is NaN outside the triangle."""
    operands = [x.view for x in inputs]
    parameters, operation = case.parameters, case.operation
    factor = budget.factor(operation, operands, parameters)
    # Rounding operands, as is done on the CPU in torch's place, has no gradient.
    precision = case.precision if operands[0].is_cuda else "highest"
    shape = result_shape(operation, operands, parameters)
    values = random_values(shape, case.values, operands[0].dtype, generator)
    part_of = result_triangle(operation, shape, parameters)
    if part_of is not None:
        values.masked_fill_(~triangle(part_of.rows, part_of.columns, part_of.uplo, part_of.diagonal), math.nan)
    upstream = place(
        shape,
        case.layout(0) if case.layout(0) != "expanded" else "contiguous",
        values.dtype,
        str(operands[0].device),
        generator,
        values,
    )

    def gradients(function: Callable[..., Tensor], *given: Tensor, of: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        found = torch.autograd.grad(function(*leaves), leaves, of, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]

    def ours(*leaves: Tensor) -> Tensor:
        result: Tensor = _public_call(case, leaves, None)()
        return result

    def torchs(*leaves: Tensor) -> Tensor:
        result = budget.plain_product(operation, leaves, parameters, precision) * factor
        if operation == "syrk" and len(leaves) > 1:
            result = result + parameters["beta"] * leaves[1]
        if part_of is None:
            return result
        return result.where(triangle(part_of.rows, part_of.columns, part_of.uplo, part_of.diagonal, result.device), 0.0)

    try:
        found = gradients(ours, *operands, of=upstream.view)
    except Exception as error:
        return _raised(error)
    for number, guarded in enumerate([*inputs, upstream]):
        if guarded.changed():
            return Verdict.fail(f"{'the gradient' if number == len(inputs) else f'operand {number}'} was changed")

    absolute = budget.absolute(parameters)
    doubles = [x.double() for x in operands]
    expected = gradients(lambda *x: budget.referee(operation, x, parameters), *doubles, of=upstream.view.double())
    scale = gradients(
        lambda *x: budget.referee(operation, x, absolute), *[x.abs() for x in doubles], of=upstream.view.double().abs()
    )
    with budget.float32_precision(precision):
        plain = gradients(torchs, *operands, of=upstream.view)
    worst = Verdict(True, 0.0)
    for number in range(len(operands)):
        judge = Judge(values.dtype, case.precision, math.prod(shape), factor)
        judge.add(found[number], expected[number], scale[number], plain[number].double())
        verdict = judge.verdict()
        if not verdict.passed:
            return replace(verdict, reason=f"gradient of operand {number}: {verdict.reason}")
        worst = max(worst, verdict, key=lambda one: one.error_over_budget)
    return worst
