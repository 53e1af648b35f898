"""What NumPy and torch have for the elementwise operations of `CpuBackend`."""

from collections.abc import Callable
from contextvars import Context
from functools import partial
from threading import local
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Torch = torch.Tensor
Ufunc = Callable[..., Any]


class _Quiet(local):
    """A context, one for each thread, in which NumPy says nothing of what overflows or is no number."""

    def __init__(self) -> None:
        self.context = Context()
        self.context.run(np.seterr, all="ignore")


_quiet = _Quiet()


def quietly(ufunc: Ufunc, *operands: Any) -> Array:
    """`ufunc(*operands)` as within np.errstate(all="ignore"), which takes as long as a small operation to enter."""
    try:
        out = _quiet.context.run(ufunc, *operands)
    except RuntimeError:  # the context was entered: garbage was collected meanwhile, and a finalizer came here
        with np.errstate(all="ignore"):
            out = ufunc(*operands)
    return np.asarray(out)


UNARY: dict[str, Ufunc] = {"neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh}

SHARED_UNARY: dict[str, Callable[[Torch], Torch]] = {
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
}
"""What torch computes faster, on one core too, and what NumPy has no function for."""

ARITHMETIC: dict[str, Ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
}

SHARED_ARITHMETIC: dict[str, Callable[[Torch, Torch], Torch]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
}
"""What torch computes faster where an operand is stretched: NumPy begins anew in each row."""

COMPARISONS: dict[str, Ufunc] = {"less": np.less, "less_equal": np.less_equal, "equal": np.equal}
