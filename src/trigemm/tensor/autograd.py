"""Reverse-mode gradients: what made a tensor, and the walk back from a result to what it was made of."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from trigemm.tensor import checks
from trigemm.tensor.backend import Array
from trigemm.tensor.operations import Pullback

if TYPE_CHECKING:
    from trigemm.tensor.tensor import Tensor

_serial = count()


class Node:
    """Where a tensor comes from. Later nodes have higher numbers, so falling numbers lead from a result to its origins."""

    __slots__ = ("number", "parents", "pull")

    def __init__(self, parents: Sequence["Node | None"] = (), pull: Pullback | None = None):
        self.number, self.parents, self.pull = next(_serial), parents, pull


def gradients(output: "Tensor", inputs: "Sequence[Tensor]") -> "list[Tensor]":
    """The gradient of a tensor with one element, for each of `inputs`; zeros for one that it does not depend on.

    Gradients have no history, so there are none of gradients; nor has what a captured function returns (take them inside it).

    Raises:
        TypeError: `output` is no tensor, or `inputs` are no sequence of them.
        ValueError: `output` has more than one element or no history, or an input does not require a gradient.

    >>> from trigemm.tensor import Tensor
    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> gradients((x * x).sum(), [x])
    [Tensor([2., 4., 6.], shape=(3,), dtype=float32, backend=cpu)]
    """
    from trigemm.tensor.tensor import Tensor  # which imports this file

    several = isinstance(inputs, Iterable) and not isinstance(inputs, Tensor)
    inputs = list(inputs) if several else []
    if not several or not all(isinstance(x, Tensor) for x in (output, *inputs)):
        raise TypeError("gradients: give a tensor, and a list of the tensors whose gradients are wanted: gradients(loss, [x])")
    if output.size != 1:
        raise ValueError(
            f"gradients: the output must have one element; got shape {output.shape}; take a sum or a mean of it first"
        )
    for x in inputs:
        checks.check_same("gradients", output.backend, x.backend)
        if x.node is None:
            raise ValueError("gradients: an input does not require a gradient; make it with Tensor(…, requires_grad=True)")
    if output.node is None:
        raise ValueError(
            "gradients: the output has no history, as none of what it was made of requires a gradient; "
            "gradients and detached tensors have none"
        )
    backend = output.backend
    wanted = {x.node.number for x in inputs if x.node is not None}
    found: dict[int, Array] = {output.node.number: backend.full(output.shape, 1.0, output.dtype)}
    pending: list[tuple[int, Node]] = [(-output.node.number, output.node)]
    while pending:
        node = heappop(pending)[1]
        grad = found[node.number] if node.number in wanted else found.pop(node.number)
        if node.pull is None:
            continue
        for parent, make in zip(node.parents, node.pull(grad), strict=False):
            if parent is None or make is None:
                continue
            part = make()
            if parent.number in found:
                found[parent.number] = backend.binary("add", found[parent.number], part)
            else:
                found[parent.number] = part
                heappush(pending, (-parent.number, parent))
    zeros = (x for x in inputs if x.node is not None and x.node.number not in found)
    for x in zeros:
        found[x.node.number] = backend.full(x.shape, 0.0, x.dtype)  # type: ignore[union-attr]
    return [x.like(found[x.node.number]) for x in inputs if x.node is not None]


def numerical_gradient(
    function: "Callable[..., Tensor]", inputs: "Sequence[Tensor]", number: int, step: float = 1e-5
) -> np.ndarray[Any, Any]:
    """The gradient of `function(*inputs)`, one number, for input `number`, by central differences of its elements.

    Meant for float64, where an error of about 1e-9 of the function's size is left.

    >>> from trigemm.tensor import Tensor
    >>> x = Tensor([1.0, 2.0], dtype="float64")
    >>> numerical_gradient(lambda x: (x * x).sum(), [x], 0).round(6)
    array([2., 4.])
    """
    x = inputs[number]
    values = np.array(x.numpy(), dtype=np.float64)
    slopes = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        ends = []
        for sign in (1, -1):
            moved = values.copy()
            moved[place] += sign * step
            nearby = list(inputs)
            nearby[number] = type(x)(moved, x.backend, dtype=x.dtype)
            ends.append(function(*nearby).item())
        slopes[place] = (ends[0] - ends[1]) / (2 * step)
    return slopes
