"""Gradients of the operations, in terms of their siblings.

The family closes under differentiation. With G the gradient of the result and tri() the triangle of the call:

    C = tri(alpha * A @ B)      dA = alpha * tri(G) @ Bᵀ           dB = alpha * Aᵀ @ tri(G)                     two trmm
    C = alpha * tri(A) @ B      dA = alpha * tri(G @ Bᵀ)           dB = alpha * tri(A)ᵀ @ G                     gemmt, trmm
    C = alpha * A @ Aᵀ          dA = alpha * (G + Gᵀ) @ A                                                       trmm

Every right-hand side is differentiable again, so second derivatives need nothing more. The half of G outside the
triangle is never read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trigemm.ops import schema

Gradients = tuple[Any, ...]


def _gemmt_backward(ctx: Any, grad: Tensor) -> Gradients:
    a, b = ctx.saved_tensors
    alpha, uplo, diagonal, _, precision = ctx.parameters
    da = db = None
    if ctx.needs_input_grad[0]:
        da = schema.trmm(grad, b.mT, alpha, uplo, diagonal, "left", False, precision).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        db = schema.trmm(grad, a.mT, alpha, uplo, diagonal, "right", False, precision).sum_to_size(b.shape)
    return da, db, None, None, None, None, None


def _trmm_backward(ctx: Any, grad: Tensor) -> Gradients:
    a, b = ctx.saved_tensors
    alpha, uplo, diagonal, side, transpose, precision = ctx.parameters
    da = db = None
    if ctx.needs_input_grad[0]:
        # d op(tri(a)) is grad @ bᵀ from the left and bᵀ @ grad from the right; undoing op transposes the product.
        left, right = (grad, b.mT) if side == "left" else (b.mT, grad)
        if transpose:
            left, right = right.mT, left.mT
        da = schema.gemmt(left, right, alpha, uplo, diagonal, 0.0, precision).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        db = schema.trmm(a, grad, alpha, uplo, diagonal, side, not transpose, precision).sum_to_size(b.shape)
    return da, db, None, None, None, None, None, None


def _syrk_backward(ctx: Any, grad: Tensor) -> Gradients:
    a, c_shape = ctx.saved_tensors[0], ctx.c_shape
    alpha, beta, uplo, precision = ctx.parameters
    da = dc = None
    if ctx.needs_input_grad[0]:
        if uplo == "full":
            everything = a.shape[-2]  # a diagonal so far out that the triangle is the whole matrix
            da = schema.trmm(grad + grad.mT, a, alpha, "lower", everything, "left", False, precision)
        else:
            da = schema.trmm(grad, a, alpha, uplo, 0, "left", False, precision)
            da = da + schema.trmm(grad, a, alpha, uplo, 0, "left", True, precision)
    if c_shape is not None and ctx.needs_input_grad[1]:
        part = grad if uplo == "full" else grad.tril() if uplo == "lower" else grad.triu()
        dc = (beta * part).sum_to_size(c_shape)
    return da, dc, None, None, None, None


def _save_operands(count: int) -> Callable[[Any, tuple[Any, ...], Tensor], None]:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:count])
        ctx.parameters = inputs[count:]

    return setup_context


def _save_syrk(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, c, *parameters = inputs
    ctx.save_for_backward(a)
    ctx.c_shape = None if c is None else c.shape
    ctx.parameters = parameters


_RULES: Sequence[tuple[str, Callable[..., Gradients], Callable[..., None]]] = (
    ("gemmt", _gemmt_backward, _save_operands(2)),
    ("trmm", _trmm_backward, _save_operands(2)),
    ("syrk", _syrk_backward, _save_syrk),
)
for _name, _backward, _setup in _RULES:
    torch.library.register_autograd(f"trigemm::{_name}", _backward, setup_context=_setup, lib=schema.LIBRARY)
