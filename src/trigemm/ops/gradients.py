"""The operations with their derivatives, which are made of their siblings.

The family closes under differentiation. With G the gradient of the result and tri() the triangle of the call:

    C = tri(alpha * A @ B)      dA = alpha * tri(G) @ Bᵀ           dB = alpha * Aᵀ @ tri(G)                     two trmm
    C = alpha * tri(A) @ B      dA = alpha * tri(G @ Bᵀ)           dB = alpha * tri(A)ᵀ @ G                     gemmt, trmm
    C = alpha * A @ Aᵀ          dA = alpha * (G + Gᵀ) @ A                                                       trmm

Every right-hand side is differentiable again, so second derivatives need nothing more. The half of G outside the triangle is
never read. Forward mode is the product rule.

The rules serve twice. Registered with torch.library, they are what autograd and torch.compile use. The transforms of torch.func,
and forward mode, do not reach what is registered there: while one of them is active, a call goes by a torch.autograd.Function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from trigemm.ops import schema

Gradients = tuple[Any, ...]


class _Rules(torch.autograd.Function):
    """What the three operations share: their first two arguments are kept for the derivatives, the others are parameters."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.parameters = inputs[2:]


class _Gemmt(_Rules):
    @staticmethod
    def forward(a: Tensor, b: Tensor, *parameters: Any) -> Tensor:
        return schema.gemmt(a, b, *parameters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        a, b = ctx.saved_tensors
        alpha, uplo, diagonal, _, precision = ctx.parameters
        da = db = None
        if ctx.needs_input_grad[0]:
            da = trmm(grad, b.mT, alpha, uplo, diagonal, "left", False, precision).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            if b.stride(-2) == 1 != b.stride(-1):  # by columns, as the keys of scores: so the gradient will be, too
                db = trmm(grad, a, alpha, uplo, diagonal, "left", True, precision).sum_to_size(b.mT.shape).mT
            else:
                db = trmm(grad, a.mT, alpha, uplo, diagonal, "right", False, precision).sum_to_size(b.shape)
        return da, db, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> Tensor | None:
        a, b = ctx.saved_tensors
        alpha, uplo, diagonal, _fill, precision = ctx.parameters
        parameters = (alpha, uplo, diagonal, 0.0, precision)
        return _sum(None if da is None else gemmt(da, b, *parameters), None if db is None else gemmt(a, db, *parameters))


class _Trmm(_Rules):
    @staticmethod
    def forward(a: Tensor, b: Tensor, *parameters: Any) -> Tensor:
        return schema.trmm(a, b, *parameters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        a, b = ctx.saved_tensors
        alpha, uplo, diagonal, side, transpose, precision = ctx.parameters
        da = db = None
        if ctx.needs_input_grad[0]:
            # d op(tri(a)) is grad @ bᵀ from the left and bᵀ @ grad from the right; undoing op transposes the product.
            left, right = (grad, b.mT) if side == "left" else (b.mT, grad)
            if transpose:
                left, right = right.mT, left.mT
            da = gemmt(left, right, alpha, uplo, diagonal, 0.0, precision).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            db = trmm(a, grad, alpha, uplo, diagonal, side, not transpose, precision).sum_to_size(b.shape)
        return da, db, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> Tensor | None:
        a, b = ctx.saved_tensors
        return _sum(None if da is None else trmm(da, b, *ctx.parameters), None if db is None else trmm(a, db, *ctx.parameters))


class _Syrk(_Rules):
    @staticmethod
    def forward(a: Tensor, c: Tensor | None, *parameters: Any) -> Tensor:
        return schema.syrk(a, c, *parameters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        a, c = ctx.saved_tensors
        alpha, beta, uplo, precision = ctx.parameters
        da = dc = None
        if ctx.needs_input_grad[0]:
            if uplo == "full" and grad.dtype != torch.float16:
                half = grad / 2  # where grad + grad.mT overflows, the gradient need not
                da = trmm(half + half.mT, a, 2 * alpha, "lower", a.shape[-2], "left", False, precision)
            else:  # float16 is so narrow that halves would lose bits of small gradients
                triangle = ("lower", a.shape[-2]) if uplo == "full" else (uplo, 0)
                da = trmm(grad, a, alpha, *triangle, "left", False, precision)
                da = da + trmm(grad, a, alpha, *triangle, "left", True, precision)
        if c is not None and ctx.needs_input_grad[1]:
            dc = (beta * _half(grad, uplo)).sum_to_size(c.shape)
        return da, dc, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, dc: Tensor | None, *_: None) -> Tensor | None:
        a, c = ctx.saved_tensors
        alpha, beta, uplo, precision = ctx.parameters
        product = None
        if da is not None and uplo == "full":
            product = gemmt(da, a.mT, alpha, "lower", a.shape[-2], 0.0, precision)
            product = product + product.mT
        elif da is not None:
            product = gemmt(da, a.mT, alpha, uplo, 0, 0.0, precision) + gemmt(a, da.mT, alpha, uplo, 0, 0.0, precision)
        if dc is None or c is None:
            return product
        return _sum(product, beta * _half(dc.expand(schema.syrk_shape(a)), uplo))


def _half(x: Tensor, uplo: str) -> Tensor:
    """The part of a square matrix that `uplo` names, zeros elsewhere."""
    return x if uplo == "full" else x.tril() if uplo == "lower" else x.triu()


def _sum(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return y if x is None else x if y is None else x + y


def transformed(name: str) -> bool:
    """Whether a transform of torch.func or forward mode is active, which do not reach what is registered with torch.library."""
    if forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active():
        return False
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{name}: transforms of torch.func and forward mode work outside torch.compile, and are not supported inside it"
        )
    return True


def _operation(name: str, rules: type[_Rules]) -> Callable[..., Tensor]:
    """Register the rules of an operation; return it as a function that every way of differentiating goes through."""
    torch.library.register_autograd(f"trigemm::{name}", rules.backward, setup_context=_save_for_backward, lib=schema.LIBRARY)
    registered: Callable[..., Tensor] = getattr(schema, name)

    def call(*arguments: Any) -> Tensor:
        if not transformed(name):
            return registered(*arguments)
        result: Tensor = rules.apply(*arguments)  # type: ignore[no-untyped-call]
        return result

    return call


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.parameters = inputs[2:]


gemmt = _operation("gemmt", _Gemmt)
trmm = _operation("trmm", _Trmm)
syrk = _operation("syrk", _Syrk)
