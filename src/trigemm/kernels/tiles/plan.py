"""Plans: what a call launches, worked out once for operands of one form and kept.

Working out a launch (schedule, strides, configuration) and Triton's own dispatch cost far more host time than the launch
itself. A plan keeps both: its launches carry every argument but addresses and scalars, and the compiled kernel.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

PLANS = 4096  # plans kept by each operation


class Launch:
    """One launch of `kernel(*tensors, *scalars, *arguments)`.

    offsets   where the launch starts in each tensor, in elements
    describe  makes TMA descriptors of the tensors, which then come first
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        arguments: tuple[Any, ...],
        *,
        offsets: tuple[int, ...],
        describe: Callable[..., tuple[Any, ...]] | None = None,
        **options: int,
    ):
        self.kernel, self.grid, self.arguments, self.options = kernel, (programs, 1, 1), arguments, options
        self.offsets = offsets if any(offsets) else None
        self.describe = describe
        self.compiled: Any = None

    def __call__(self, tensors: tuple[Tensor, ...], scalars: tuple[float, ...]) -> None:
        if self.offsets is not None:
            tensors = tuple(
                x.as_strided(x.shape[-2:], x.stride()[-2:], x.storage_offset() + offset)
                for x, offset in zip(tensors, self.offsets, strict=True)
            )
        leading = (*self.describe(*tensors), *tensors) if self.describe else tensors
        if self.compiled is None:
            self.compiled = self.kernel[self.grid](*leading, *scalars, *self.arguments, **self.options)
        else:
            self.compiled[self.grid](*leading, *scalars, *self.arguments)


def launch_all(launches: tuple[Launch, ...], tensors: tuple[Tensor, ...], *scalars: float) -> None:
    """Launch a plan on the device of the tensors, in its current stream."""
    with _device_of(tensors[-1]):
        for launch in launches:
            launch(tensors, scalars)


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()
