"""Softmax of the rows that a rank has."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trigemm.ops.softmax import causal_softmax


class SoftmaxOfRows(torch.autograd.Function):
    """`causal_softmax` of some ranges of the rows of a matrix (…,T,S), of which the tensor has no others."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, rows: tuple[range, range], diagonal: int) -> Tensor:
        weights = scores.new_empty(scores.shape)
        lengths = [len(span) for span in rows]
        for span, x, out in zip(rows, scores.split(lengths, -2), weights.split(lengths, -2), strict=True):
            causal_softmax(x, diagonal=diagonal + span.start, out=out)
        ctx.save_for_backward(weights)
        ctx.rows, ctx.diagonal = rows, diagonal
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        found = torch.empty_like(weights)
        lengths = [len(span) for span in ctx.rows]
        for span, g, w, out in zip(ctx.rows, *(x.split(lengths, -2) for x in (grad, weights, found)), strict=True):
            out.copy_(torch.ops.trigemm.causal_softmax_backward(g, w, ctx.diagonal + span.start))
        return found, None, None
