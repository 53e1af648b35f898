"""Softmax over the causal part of each row."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trigemm.kernels.catalogue import serving
from trigemm.ops.checks import check_operands, check_out, checked_diagonal, refuse_overlap
from trigemm.ops.direct import needs_no_dispatch
from trigemm.ops.gradients import transformed
from trigemm.ops.results import count_write, new_result
from trigemm.ops.schema import LIBRARY


def causal_softmax(scores: Tensor, *, diagonal: int | None = None, out: Tensor | None = None) -> Tensor:
    """Softmax of each row over the columns that belong to the lower triangle, and zeros in the others, which are never read.

    Sums are made in float32 for half precision, with the row's maximum taken out first.

    Args:
        scores: (…,T,S), any strides. A row whose scores are all -inf, or that has no columns in the triangle, gives zeros.
        diagonal: the triangle's, as in torch.tril; by default S - T: aligned at the bottom right, as scores of attention are.
        out: tensor of the shape of `scores` to write into: another one, or `scores` itself. It excludes gradients.

    Returns:
        (…,T,S), of the dtype of `scores`.

    Raises:
        TypeError: `scores` is not a dense floating tensor, or `diagonal` not an int.
        ValueError: fewer than two dimensions; `out` cannot take the result.

    >>> import torch, trigemm
    >>> trigemm.causal_softmax(torch.tensor([[0.0, float("nan")], [1.0, 1.0]]))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    (scores,) = check_operands("causal_softmax", autocast=out is None, scores=scores)
    diagonal = scores.shape[-1] - scores.shape[-2] if diagonal is None else checked_diagonal("causal_softmax", diagonal)
    if out is not None:
        check_out("causal_softmax", out, scores.shape, scores)
        (_into if needs_no_dispatch(scores, out) else _dispatched_into)(scores, diagonal, out)
        return out
    if transformed("causal_softmax"):
        return _dense(scores, diagonal)
    return (_new if needs_no_dispatch(scores) else _dispatched)(scores, diagonal)


def _write(scores: Tensor, diagonal: int, out: Tensor) -> None:
    serving("causal_softmax", out.device.type, out.dtype).run(scores, out, diagonal=diagonal)


def _into(scores: Tensor, diagonal: int, out: Tensor) -> None:
    in_place = (scores.data_ptr(), scores.stride()) == (out.data_ptr(), out.stride())
    refuse_overlap("causal_softmax", out, scores=None if in_place else scores)
    _write(scores, diagonal, out)
    count_write(out)


def _checked_into(scores: Tensor, diagonal: int, out: Tensor) -> None:
    check_out("causal_softmax", out, scores.shape, scores)
    _into(scores, diagonal, out)


def _new(scores: Tensor, diagonal: int) -> Tensor:
    out = new_result(scores, scores.shape)
    _write(scores, diagonal, out)
    return out


def _new_gradient(grad: Tensor, weights: Tensor, diagonal: int) -> Tensor:
    out = new_result(weights, weights.shape)
    serving("causal_softmax_backward", out.device.type, out.dtype).run(grad, weights, out, diagonal=diagonal)
    return out


def _dense(scores: Tensor, diagonal: int) -> Tensor:
    """The same by torch's operations, which every transform and derivative knows."""
    above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(diagonal + 1)
    seen = scores.masked_fill(above, -torch.inf)
    hidden = above | (seen == -torch.inf).all(-1, keepdim=True)
    return seen.masked_fill(hidden, 0.0).masked_fill(above, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)


def _dense_gradient(grad: Tensor, weights: Tensor, diagonal: int) -> Tensor:
    grad = grad.tril(diagonal)
    return weights * (grad - (weights * grad).sum(-1, keepdim=True))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.diagonal = inputs[-1]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (weights,) = ctx.saved_tensors
    return torch.ops.trigemm.causal_softmax_backward(grad, weights, ctx.diagonal), None


def _save_for_second(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.diagonal = inputs[-1]


def _second(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    of_grad, of_weights = torch.func.vjp(lambda g, w: _dense_gradient(g, w, ctx.diagonal), *ctx.saved_tensors)[1](grad)
    return of_grad, of_weights, None


LIBRARY.define("causal_softmax(Tensor scores, SymInt diagonal) -> Tensor")
LIBRARY.define("causal_softmax.out(Tensor scores, SymInt diagonal, Tensor(a!) out) -> ()")
LIBRARY.define("causal_softmax_backward(Tensor grad, Tensor weights, SymInt diagonal) -> Tensor")
for _device in ("CPU", "CUDA"):
    LIBRARY.impl("causal_softmax", _new, _device)
    LIBRARY.impl("causal_softmax.out", _checked_into, _device)
    LIBRARY.impl("causal_softmax_backward", _new_gradient, _device)
torch.library.register_fake("trigemm::causal_softmax", lambda scores, _: scores.new_empty(scores.shape), lib=LIBRARY)
torch.library.register_fake("trigemm::causal_softmax.out", lambda *_: None, lib=LIBRARY)
torch.library.register_fake(
    "trigemm::causal_softmax_backward", lambda grad, weights, _: weights.new_empty(weights.shape), lib=LIBRARY
)
torch.library.register_autograd("trigemm::causal_softmax", _gradient, setup_context=_save, lib=LIBRARY)
torch.library.register_autograd("trigemm::causal_softmax_backward", _second, setup_context=_save_for_second, lib=LIBRARY)
_dispatched: Callable[[Tensor, int], Tensor] = torch.ops.trigemm.causal_softmax.default
_dispatched_into: Callable[..., None] = torch.ops.trigemm.causal_softmax.out
