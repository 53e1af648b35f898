"""Plans: what a call launches, worked out once for operands of one form and kept.

Working out a launch (schedule, strides, configuration) and Triton's own dispatch cost far more host time than the launch
itself. A plan keeps both: its launches carry every argument but addresses and scalars, and the compiled kernel.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from trigemm.kernels.tiles.operand import Batches

PLANS = 4096  # plans kept by each operation


class Launch:
    """One launch of `kernel(*tensors, flags, *scalars, *arguments)`.

    offsets   where the launch starts in each tensor, in elements
    describe  what the kernel takes in place of the tensors, made of them: TMA descriptors
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
        self.kernel, self.programs, self.arguments, self.options = kernel, programs, arguments, options
        self.offsets = offsets if any(offsets) else None
        self.describe = describe
        self.compiled: Any = None

    def __call__(self, tensors: tuple[Tensor, ...], flags: Tensor, scalars: tuple[float, ...]) -> None:
        if self.offsets is not None:
            tensors = tuple(
                x.as_strided(x.shape[-2:], x.stride()[-2:], x.storage_offset() + offset)
                for x, offset in zip(tensors, self.offsets, strict=True)
            )
        operands = self.describe(*tensors) if self.describe else tensors
        grid = (self.programs, 1, 1)
        if self.compiled is None:
            self._compile_and_launch(grid, (*operands, flags, *scalars, *self.arguments))
        else:
            self.compiled[grid](*operands, flags, *scalars, *self.arguments)

    def _compile_and_launch(self, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        while True:
            try:
                self.compiled = self.kernel[grid](*arguments, **self.options)
                return
            except OutOfResources:  # a GPU with less shared memory than the configuration was made for
                if self.options.get("num_stages", 1) == 1:
                    raise
                self.options["num_stages"] -= 1


class Plan:
    """The launches of one call: one for each cut of the batch, made by `launch(batches, precision)`.

    A precision made of parts is followed by a launch that repairs what cannot be split (see `multiply`); the two share flags.
    """

    def __init__(self, cuts: Iterable[Batches], launch: Callable[[Batches, str], Any], precision: str):
        repaired = precision in ("bf16x6", "float16", "float16x2")
        precisions = (precision, "ieee") if repaired else (precision,)
        made = [launch(batches, each) for batches in cuts for each in precisions]
        self.launches = [each for each in made if each.programs]
        self.flags = max((each.programs for each in self.launches), default=0) if repaired else 0

    def run(self, tensors: tuple[Tensor, ...], *scalars: float) -> None:
        """Launch on the device of the tensors, in its current stream."""
        out = tensors[-1]
        with _device_of(out):
            flags = torch.empty(self.flags, dtype=torch.int32, device=out.device) if self.flags else out
            for launch in self.launches:
                launch(tensors, flags, scalars)


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()
