"""What a benchmark is asked to measure: an operation, its sizes, and how its numbers are held."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trigemm.kernels.catalogue import LADDER
from trigemm.kernels.spec import ALL_DTYPES

PRECISIONS = ("highest", "high", "medium")

# Operation -> B, T, NH, HS where none are given.
DEFAULT_SHAPES: Mapping[str, tuple[int, int, int, int]] = {
    LADDER: (8, 1024, 12, 64),
    "causal_scores": (8, 1024, 12, 64),
    "gemmt": (1, 4096, 1, 4096),
    "syrk": (1, 4096, 1, 4096),
    "trmm": (1, 4096, 12, 128),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The four sizes of a problem."""

    B: int
    T: int
    NH: int
    HS: int

    @classmethod
    def of(cls, operation: str, batch: int | None, seq: int | None, heads: int | None, head_dim: int | None) -> "Shape":
        """The sizes that were given, and the operation's default sizes for the others."""
        given = (batch, seq, heads, head_dim)
        sizes = [default if size is None else size for size, default in zip(given, DEFAULT_SHAPES[operation], strict=True)]
        for name, size in zip(("batch", "seq", "heads", "head-dim"), sizes, strict=True):
            if size < 1:
                raise ValueError(f"--{name} must be at least 1, got {size}: there is nothing to time in an empty tensor")
        return cls(*sizes)


@dataclass(frozen=True, slots=True)
class Problem:
    """One operation at one shape. Raises ValueError where it is none."""

    operation: str
    shape: Shape
    dtype: str = "float32"
    precision: str = "highest"
    fill: float | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        for what, value, known in (
            ("operation", self.operation, tuple(DEFAULT_SHAPES)),
            ("dtype", self.dtype, ALL_DTYPES),
            ("precision", self.precision, PRECISIONS),
            ("device", self.device, ("cpu", "cuda")),
        ):
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda was asked for, and torch finds no CUDA device; --device cpu works here")
        if self.fill is not None and self.operation in ("trmm", "syrk"):
            raise ValueError(f"{self.operation} has no fill: its result is whole; leave --fill out")

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype
