"""gemmt with rows of tiles, for a short inner dimension such as attention's: the lower triangle of alpha * a @ b.

A program computes one row of tiles: it keeps its tile of `a`, [BM, BK] with all of K, and streams the tiles of `b`,
[BK, BN], that its row of the triangle needs. Tiles are moved by the tensor memory accelerator (TMA), which wants rows at
multiples of 16 bytes: `takes` says whether it can. With a `fill`, the program goes on to the end of its row; with
`fill=None` nothing above the diagonal is written.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trigemm.kernels.tiles.config import row_config
from trigemm.kernels.tiles.multiply import INTERPRETED, cannot_split, load_tile, multiply_add
from trigemm.kernels.tiles.operand import Batches, Form, batch_offset, cut_batches, stride_arguments
from trigemm.kernels.tiles.plan import PLANS, Launch
from trigemm.triangle import ceil_div

LONGEST = 128
SCALARS = ["alpha", "fill", "diagonal", "M", "N", "K", "size1", "size2"]
STRIDES = [f"{x}_{name}" for x in "abc" for name in ("batch0", "batch1", "batch2", "row", "column")]


@triton.jit
def load_block(desc, batch0, batch1, batch2, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of one matrix, [ROWS, COLUMNS], zero beyond its border."""
    return desc.load([batch0, batch1, batch2, row, 0]).reshape(ROWS, COLUMNS)


@triton.jit(do_not_specialize=[*SCALARS, *STRIDES])
def rows_kernel(
    a_desc, b_desc, c_desc, a_ptr, b_ptr, c_ptr, alpha, fill, diagonal, M, N, K, size1, size2,
    a_batch0, a_batch1, a_batch2, a_row, a_column,
    b_batch0, b_batch1, b_batch2, b_row, b_column,
    c_batch0, c_batch1, c_batch2, c_row, c_column,
    A_ALIGN: tl.constexpr, B_ALIGN: tl.constexpr, C_ALIGN: tl.constexpr, FILL: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile_rows = tl.cdiv(M, BM)
    tile_columns = tl.cdiv(N, BN)
    tile_row = tile_rows - 1 - tl.program_id(0) % tile_rows  # the longest rows first
    batch = tl.program_id(0) // tile_rows
    batch2 = batch % size2
    batch1 = batch // size2 % size1
    batch0 = batch // (size1 * size2)
    top = tile_row * BM
    inside = tl.minimum(tl.maximum((top + diagonal + 1) // BN, 0), tile_columns)  # tiles wholly in the triangle
    live = tl.minimum(tl.maximum((tl.minimum(top + BM, M) - 1 + diagonal) // BN + 1, 0), tile_columns)
    rows = top + tl.arange(0, BM)  # [BM]
    a_ptr += batch_offset(batch, size1, size2, a_batch0, a_batch1, a_batch2, A_ALIGN)
    b_ptr += batch_offset(batch, size1, size2, b_batch0, b_batch1, b_batch2, B_ALIGN)
    c_ptr += batch_offset(batch, size1, size2, c_batch0, c_batch1, c_batch2, C_ALIGN)

    # A batch dimension that an operand is stretched over has size 1 and coordinate 0 in its descriptor.
    a0, a1, a2 = batch0 * (a_batch0 != 0), batch1 * (a_batch1 != 0), batch2 * (a_batch2 != 0)
    b0, b1, b2 = batch0 * (b_batch0 != 0), batch1 * (b_batch1 != 0), batch2 * (b_batch2 != 0)
    a = load_block(a_desc, a0, a1, a2, top, BM, BK)  # [BM, BK]
    unsplit = cannot_split(a) if PRECISION == "bf16x6" else 0
    for j in tl.range(0, live, num_stages=STAGES):
        b = load_block(b_desc, b0, b1, b2, j * BN, BN, BK).T  # [BK, BN]
        acc = multiply_add(a, b, tl.zeros([BM, BN], tl.float32), PRECISION) * alpha
        if PRECISION == "bf16x6":
            unsplit |= cannot_split(b)
        columns = j * BN + tl.arange(0, BN)  # [BN]
        if j < inside or FILL:
            value = tl.where((columns[None, :] - rows[:, None] <= diagonal) | (j < inside), acc, fill) if FILL else acc
            c_desc.store([batch0, batch1, batch2, top, j * BN], value.to(c_ptr.dtype.element_ty).reshape(1, 1, 1, BM, BN))
        else:
            store_crossed(c_ptr, acc, rows, columns, diagonal, M, N, c_row, C_ALIGN)
    if FILL:
        value = tl.full([1, 1, 1, BM, BN], fill, tl.float32).to(c_ptr.dtype.element_ty)
        for j in range(live, tile_columns):
            c_desc.store([batch0, batch1, batch2, top, j * BN], value)

    if PRECISION == "bf16x6" and unsplit > 0:
        wait_for_stores(unsplit)
        for j in range(0, live):
            columns = j * BN + tl.arange(0, BN)
            acc = tl.zeros([BM, BN], tl.float32)
            for k in range(0, BK, 16):
                depth = k + tl.arange(0, 16)
                left = load_tile(a_ptr, rows, depth, M, K, a_row, a_column, "row", A_ALIGN)  # [BM, 16]
                right = load_tile(b_ptr, depth, columns, K, N, b_row, b_column, "column", B_ALIGN)  # [16, BN]
                acc = multiply_add(left, right, acc, "ieee")
            store_crossed(c_ptr, acc * alpha, rows, columns, diagonal, M, N, c_row, C_ALIGN)


@triton.jit
def wait_for_stores(anything):
    """Wait until TMA has written what this program has stored; the program may then write there again by other means."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [anything], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.debug_barrier()


@triton.jit
def store_crossed(ptr, value, rows, columns, diagonal, n_rows, n_columns, stride_row, ALIGN: tl.constexpr):
    """Write the entries of a tile that lie in the triangle."""
    in_triangle = columns[None, :] - rows[:, None] <= diagonal
    in_matrix = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    pointers = ptr + rows[:, None].to(tl.int64) * (stride_row * ALIGN) + columns[None, :]
    tl.store(pointers, value.to(ptr.dtype.element_ty), mask=in_triangle & in_matrix)


def _accelerated(x: Form) -> bool:
    """Whether TMA can address the rows of an operand: contiguous, and each at a multiple of 16 bytes."""
    multiples = not any(stride % x.vector for stride in x.stride[:-1])
    return x.stride[-1] == 1 and x.aligned and multiples and max(x.shape[-2:]) < 2**31


@lru_cache(PLANS)
def takes(a: Form, b: Form, c: Form, device: torch.device) -> bool:
    """Whether this kernel can serve a product: a short inner dimension that is contiguous in both operands, and TMA."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return 0 < a.shape[-1] <= LONGEST and _accelerated(a) and _accelerated(b.mT) and _accelerated(c)


def _descriptor_of(x: Form, batches: Batches, which: int, block: list[int]) -> Callable[[Tensor], Any]:
    """Makes a TMA descriptor of all matrices of an operand; batch dimensions that it is stretched over become single."""
    strides = batches.strides[which]
    shape = [*(1 if stride == 0 else size for size, stride in zip(batches.sizes, strides, strict=True)), *x.shape[-2:]]
    spans = [*(stride or x.vector for stride in strides), *x.stride[-2:]]
    return lambda tensor: TensorDescriptor(tensor, shape, spans, [1, 1, 1, *block])


@lru_cache(PLANS)
def plan(a: Form, b: Form, c: Form, device: torch.device, diagonal: int, has_fill: bool, precision: str) -> tuple[Launch, ...]:
    """One program a row of tiles."""
    m, n, k = *c.shape[-2:], a.shape[-1]
    config = row_config(a.dtype, precision)
    (bm, bn, _), bk = config.blocks, max(16, triton.next_power_of_2(k))

    def launch(batches: Batches) -> Launch:
        describe_a = _descriptor_of(a, batches, 0, [bm, bk])
        describe_b = _descriptor_of(b.mT, batches, 1, [bn, bk])
        describe_c = _descriptor_of(c, batches, 2, [bm, bn])
        return Launch(
            rows_kernel,
            batches.matrices * ceil_div(m, bm),
            (
                diagonal, m, n, k, *batches.sizes[1:],
                *stride_arguments((a, b, c), batches),
                a.align, b.align, c.align, has_fill, config.precision, bm, bn, bk, config.num_stages,
            ),
            offsets=batches.offsets,
            describe=lambda a, b, c: (describe_a(a), describe_b(b), describe_c(c)),
            num_warps=config.num_warps,
        )  # fmt: skip

    return tuple(map(launch, cut_batches(a, b, c)))
