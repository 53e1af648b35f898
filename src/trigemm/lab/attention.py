"""causal_softmax and causal_attention for verification: the right answer, the scale of its errors, and torch's own result.

The result of an attention case is the output, or the weights where `return_weights` asks for them.

A score whose relative error is u, and the row's sum with it, move a weight w by u * w * (its magnitude and the row's mean one);
so for scores s = a @ b of magnitude m = |a| @ |b| the scale of a weight's error is w * (1 + m + rowsum(w * m)), and that of the
output's the same times |v|. Where u * m is large, scores are rounded by more than the weights of a row tell apart: a weight may
be exp(u * m) times what it should be, 1 at most. Weights below the smallest normal number may be flushed to zero.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trigemm import reference
from trigemm.lab import budget
from trigemm.lab.operands import triangle

OPERATIONS = ("causal_softmax", "causal_attention")

Parameters = Mapping[str, Any]

_SMALLEST = 1e-300  # of the weights that are told apart where scores are too large for their precision
_TOO_LARGE = 16.0  # times the rounding of a score: weights are then free


def gives_weights(operation: str, parameters: Parameters) -> bool:
    """Whether the result is weights."""
    return operation == "causal_softmax" or parameters.get("return_weights", False) is not False


def alone(operands: Sequence[Tensor], parameters: Parameters) -> tuple[Sequence[Tensor], Parameters]:
    """The same result as that of a problem that has the listed heads alone."""
    heads = parameters.get("return_weights", False)
    if isinstance(heads, bool):
        return operands, parameters
    q, k, v = operands
    group = q.shape[1] // k.shape[1]
    of_group = [head // group for head in heads]
    return [q[:, list(heads)], k[:, of_group], v[:, of_group]], {**parameters, "return_weights": True}


def referee(operation: str, operands: Sequence[Tensor], parameters: Parameters) -> Tensor:
    """The right answer in float64, zero above the diagonal."""
    if operation == "causal_softmax":
        return reference.causal_softmax(operands[0], diagonal=parameters.get("diagonal"))
    output, weights = _reference(operands, parameters)
    return weights if gives_weights(operation, parameters) else output


def magnitude(operation: str, operands: Sequence[Tensor], parameters: Parameters, precision: str) -> Tensor:
    """The scale of errors, in float64."""
    first = operands[0]
    if operation == "causal_softmax":
        scores = first.double()
        weights = reference.causal_softmax(scores, diagonal=parameters.get("diagonal"))
        moves = _moves(weights, scores.abs().where(weights > 0, 0.0))
        return weights * moves + _least(first.dtype)
    q, k, v = operands
    weights = _reference(operands, parameters)[1]
    moves = _moves(weights, reference.causal_scores(q.abs(), k.abs(), scale=abs(_scale(q, parameters)), fill=0.0))
    sums = budget.accumulator(first.dtype)
    precision = precision if first.dtype == torch.float32 else "highest"
    unit = budget.floor(sums, precision, first.shape[-1], budget.FEW_ENTRIES)
    largest = (weights.clamp(min=_SMALLEST).log() + unit * moves).clamp(max=0).exp() / unit
    scale = torch.where(unit * moves < _TOO_LARGE, weights * moves, largest) + _least(first.dtype)
    if gives_weights(operation, parameters):
        return scale
    return scale @ v.double().abs().repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def _moves(weights: Tensor, magnitude: Tensor) -> Tensor:
    """What the relative error of scores of that magnitude is multiplied by in their weights."""
    return 1 + magnitude + (weights * magnitude).sum(-1, keepdim=True)


def plain_product(operation: str, operands: Sequence[Tensor], parameters: Parameters, precision: str) -> Tensor:
    """What PyTorch makes of the same operands in their dtype."""
    if operation == "causal_softmax":
        return _softmax(operands[0], parameters.get("diagonal"))
    q, k, v = operands
    group, softcap, window = q.shape[1] // k.shape[1], parameters.get("softcap"), parameters.get("window")
    scores = budget.torch_matmul(q, k.repeat_interleave(group, 1).mT, precision) * _scale(q, parameters)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    rows, columns = scores.shape[-2:]
    if window is not None:
        scores = scores.masked_fill(~triangle(rows, columns, "upper", columns - rows - window + 1, q.device), -math.inf)
    weights = _softmax(scores, None)
    if gives_weights(operation, parameters):
        return weights
    return budget.torch_matmul(weights, v.repeat_interleave(group, 1), precision)


def _reference(operands: Sequence[Tensor], parameters: Parameters) -> tuple[Tensor, Tensor]:
    q, k, v = operands
    options: dict[str, Any] = {name: parameters.get(name) for name in ("scale", "softcap", "window")}
    return reference.causal_attention(q, k, v, **options)


def _scale(q: Tensor, parameters: Parameters) -> float:
    scale = parameters.get("scale")
    return 1 / math.sqrt(q.shape[-1] or 1) if scale is None else float(scale)


def _softmax(scores: Tensor, diagonal: int | None) -> Tensor:
    rows, columns = scores.shape[-2:]
    inside = triangle(rows, columns, "lower", columns - rows if diagonal is None else diagonal, scores.device)
    seen = scores.masked_fill(~inside, -math.inf)
    return seen.softmax(-1).masked_fill((seen == -math.inf).all(-1, keepdim=True), 0.0)


def _least(dtype: torch.dtype) -> float:
    """What makes an error of the smallest normal number of the accumulator allowed."""
    sums = budget.accumulator(dtype)
    return torch.finfo(sums).tiny / budget.UNIT[sums]
