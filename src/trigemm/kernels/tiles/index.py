"""How the kernels of single elements are launched, and how they walk over tensors: in blocks of a row, or in tiles.

Working out a launch costs more host time than the launch itself, so each file keeps its launches by the form of their operands.
"""

from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm import layout
from trigemm.triangle import ceil_div

source_index = triton.jit(FunctionType(layout.source_index.__code__, globals(), "source_index"))
"""The plain function of the same name, as seen from here, where Triton's interpreter finds `tl`."""

ELEMENTS = 1024
"""Elements of a block or a tile: two times 16 bytes of float32 for each of 128 threads."""

WARPS = 4


@triton.jit
def own_tile(rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Row numbers [BM, 1], column numbers [1, BN], and whether they are inside [BM, BN], of this program's tile."""
    tile_columns = tl.cdiv(columns, BN)
    row = ((tl.program_id(0) // tile_columns).to(INDEX) * BM + tl.arange(0, BM))[:, None]
    column = ((tl.program_id(0) % tile_columns).to(INDEX) * BN + tl.arange(0, BN))[None, :]
    return row, column, (row < rows) & (column < columns)


def tile_shape(rows: int, columns: int, elements: int = ELEMENTS) -> tuple[int, int]:
    """(BM, BN), powers of two with `elements` elements, as wide as the columns need."""
    width = min(elements, triton.next_power_of_2(max(1, columns)))
    return elements // width, width


def tiles(rows: int, columns: int, tile: tuple[int, int]) -> int:
    """The number of tiles that cover a matrix."""
    return ceil_div(rows, tile[0]) * ceil_div(columns, tile[1])


def index_type(elements: int) -> Any:
    """The integers that number so many elements, with room for a block beyond the border."""
    return tl.int32 if elements < 2**31 - 2**16 else tl.int64


Form = tuple[torch.Size, torch.dtype, bool]
"""What a launch needs to know of a contiguous operand beside its address: shape, dtype, and whether 16 divides the address."""


def form(x: Tensor) -> Form:
    return x.shape, x.dtype, x.data_ptr() % 16 == 0


class Launch:
    """One launch of `kernel(*operands, *arguments)`; the operands, tensors and scalars, come with each call.

    All calls have operands of the same forms, on one device: the first compiles the kernel for them, the others go past Triton's
    look at their arguments.

    Raises ValueError for more programs than a grid has, 2³¹ - 1.
    """

    def __init__(self, kernel: Any, programs: int, *arguments: Any, num_warps: int = WARPS):
        if programs >= 2**31:
            raise ValueError(f"{kernel.__name__}: the tensors are too large for one launch; compute them in parts")
        self.kernel, self.grid, self.arguments, self.num_warps = kernel, (programs, 1, 1), arguments, num_warps
        self.launch: Any = None
        self.device: int | None = None

    def __call__(self, *operands: Any) -> None:
        """On the device of the first operand, in its current stream."""
        if self.launch is None:
            self._compile_and_launch(operands)
        elif self.device == torch.cuda.current_device():
            self.launch(*operands, *self.arguments)
        else:
            with torch.cuda.device(self.device):
                self.launch(*operands, *self.arguments)

    def _compile_and_launch(self, operands: tuple[Any, ...]) -> None:
        if not self.grid[0]:
            return
        device = operands[0].device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            compiled = self.kernel[self.grid](*operands, *self.arguments, num_warps=self.num_warps)
            if compiled is not None:  # in the interpreter nothing is compiled
                self.launch, self.device = compiled[self.grid], device.index
