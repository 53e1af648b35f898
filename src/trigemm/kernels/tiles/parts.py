"""float32 operands as float16 parts, split once for all the programs that multiply them.

A program that multiplies float32 tiles on tensor cores must split them first, and every program that meets a tile splits it
again: more instructions than the products themselves. `split_kernel` splits each row once, into memory, from where TMA brings
the parts straight to the tensor cores. See `split_rows` for the parts. One scale serves a row, or a block of ROWS rows where a
product sums over these.
"""

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.multiply import split_rows
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, tile_pointers
from trigemm.kernels.tiles.plan import Launch
from trigemm.triangle import ceil_div

ROWS = 64


@triton.jit(do_not_specialize=["N", "K", "matrices", "size1", "size2", "x_batch0", "x_batch1", "x_batch2", "x_row"])
def split_kernel(
    x_ptr, y_ptr, high_ptr, low_ptr, unscale_ptr, flags_ptr, N, K, matrices, size1, size2, x_batch0, x_batch1, x_batch2, x_row,
    VECTOR: tl.constexpr, ALIGN: tl.constexpr, BOTH: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The parts of rows of one matrix, [ROWS, BK], to contiguous memory, and a flag: 1 if one of the rows cannot be split.

    After the matrices at x_ptr come those at y_ptr. BLOCKS: one scale for all rows.
    """
    blocks = tl.cdiv(N, ROWS)
    batch = tl.program_id(0) // blocks
    if batch >= matrices:
        x_ptr = y_ptr
    rows = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BK)
    x_ptr += batch_offset(batch % matrices, size1, size2, x_batch0, x_batch1, x_batch2, VECTOR)
    in_matrix = (rows < N)[:, None] & (columns < K // ALIGN * ALIGN)[None, :]
    x = tl.load(tile_pointers(x_ptr, rows, columns, x_row, 1, "row", VECTOR), mask=in_matrix, other=0.0)
    places = batch.to(tl.int64) * N + rows
    if BLOCKS:
        high, low, unscale, flags = split_rows(x.reshape(1, ROWS * BK))
        high, low = high.reshape(ROWS, BK), low.reshape(ROWS, BK)
        tl.store(unscale_ptr + tl.program_id(0), tl.max(unscale, 0))
    else:
        high, low, unscale, flags = split_rows(x)
        tl.store(unscale_ptr + places, unscale, mask=rows < N)
    tl.store(flags_ptr + tl.program_id(0), tl.max(flags, 0))
    tl.store(high_ptr + places[:, None] * BK + columns[None, :], high, mask=(rows < N)[:, None])
    if BOTH:
        tl.store(low_ptr + places[:, None] * BK + columns[None, :], low, mask=(rows < N)[:, None])


Parts = tuple[Tensor, Tensor, Tensor, Tensor]


class Split:
    """A launch that splits the matrices of operand number `which` of some batches, x (…,N,K): (high, low, unscale, flags).

    high and low are (…,N,depth), zero beyond K; unscale is (…,N), or where `blocks`, one for each ROWS rows of a matrix, as flags
    are. A batch dimension that `x` is stretched over is single in them. Where one part is enough, low is high. Two operands of
    the same form may be split by one launch.
    """

    def __init__(
        self, x: Form, batches: Batches, which: int, depth: int, *, operands: int = 1, both: bool = True, blocks: bool = False
    ):
        self.both = both
        strides = batches.strides[which]
        sizes = single(batches.sizes, strides)
        self.shape = (operands, *sizes, x.shape[-2], depth)
        of_each = prod(sizes) * ceil_div(x.shape[-2], ROWS)
        self.flags = operands, of_each
        self.scales = self.flags if blocks else self.shape[:-1]
        self.split = Launch(
            split_kernel,
            operands * of_each,
            (
                *x.shape[-2:], prod(sizes), *sizes[1:], *(n // x.vector for n in (*strides, x.stride[-2])),
                x.vector, x.vector if x.shape[-1] % x.vector == 0 else 1, both, blocks, ROWS, depth,
            ),
            offsets=(batches.offsets[which],) * 2 + (0, 0, 0),
            num_warps=4,
        )  # fmt: skip

    def __call__(self, *operands: Tensor) -> list[Parts]:
        """The parts of each operand."""
        device = operands[0].device
        high = torch.empty(self.shape, dtype=torch.float16, device=device)
        low = torch.empty_like(high) if self.both else high
        unscale = torch.empty(self.scales, dtype=torch.float32, device=device)
        flags = torch.empty(self.flags, dtype=torch.int32, device=device)
        self.split((operands[0], operands[-1], high, low, unscale), flags, ())
        return list(zip(high, low, unscale, flags, strict=True))


class SplitFirst:
    """A launch of products of (a, b, out) and of what was split before it, the parts of `b`."""

    def __init__(self, b: Form, batches: Batches, depth: int, both: bool, product: Launch):
        self.product, self.programs = product, product.programs
        self.split = Split(b, batches, 1, depth, both=both)

    def __call__(self, tensors: tuple[Tensor, ...], flags: Tensor, scalars: tuple[float, ...]) -> None:
        (parts,) = self.split(tensors[1])
        self.product((*tensors, *parts), flags, scalars)


def single(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Batch sizes, 1 for each that an operand is stretched over."""
    return tuple(size if stride else 1 for size, stride in zip(sizes, strides, strict=True))
