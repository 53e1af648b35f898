"""How an unsupported request is worded: what was given, and what would work."""

from collections.abc import Iterable

from torch import Tensor


def describe(**operands: Tensor | None) -> str:
    """Names, shapes and dtypes of operands, for an error message.

    >>> import torch
    >>> describe(a=torch.zeros(2, 3), b=torch.zeros(3, dtype=torch.float16))
    'a (2, 3) float32, b (3,) float16'
    """
    return ", ".join(
        f"{name} {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for name, x in operands.items() if x is not None
    )


def choice(operation: str, argument: str, given: object, choices: Iterable[object]) -> ValueError:
    """The error for an argument that is none of its choices."""
    return ValueError(f"{operation}: {argument} must be one of {', '.join(map(repr, choices))}; got {given!r}")
