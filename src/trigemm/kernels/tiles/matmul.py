"""The plain product with tiles: a @ b, (M,K) x (K,N) -> (M,N), each element of it.

A program computes one tile, [BM, BN]; tiles and launch options are the caller's choice. It is the kernel whose traffic
`trigemm.tiling` counts and whose tiles it plans. A tile that reaches beyond the border is masked with zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.multiply import load_tile, multiply_add, store_tile
from trigemm.kernels.tiles.operand import form_of, needs_64_bits
from trigemm.triangle import ceil_div

SIZES = ["M", "N", "K", "a_row", "a_column", "b_row", "b_column", "c_row", "c_column"]


@triton.jit
def grouped_tile(number, tile_rows, tile_columns, GROUP: tl.constexpr):
    """(tile row, tile column) of a program: GROUP rows of tiles at a time, column by column.

    Programs that run at the same time then share their operands in the L2 cache.
    """
    first = number // (GROUP * tile_columns) * GROUP
    inside = number % (GROUP * tile_columns)
    height = tl.minimum(tile_rows - first, GROUP)
    return first + inside % height, inside // height


@triton.jit(do_not_specialize=SIZES)
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, a_row, a_column, b_row, b_column, c_row, c_column,
    A_ORDER: tl.constexpr, A_ALIGN: tl.constexpr, B_ORDER: tl.constexpr, B_ALIGN: tl.constexpr,
    C_ORDER: tl.constexpr, C_ALIGN: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tile_row, tile_column = grouped_tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = (tile_row * BM).to(INDEX) + tl.arange(0, BM)  # [BM]
    columns = (tile_column * BN).to(INDEX) + tl.arange(0, BN)  # [BN]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        depth = tl.arange(0, BK).to(INDEX) + k * BK  # [BK]
        a = load_tile(a_ptr, rows, depth, M, K, a_row, a_column, A_ORDER, A_ALIGN)  # [BM, BK]
        b = load_tile(b_ptr, depth, columns, K, N, b_row, b_column, B_ORDER, B_ALIGN)  # [BK, BN]
        acc = multiply_add(a, b, acc, PRECISION)
    store_tile(c_ptr, acc, rows, columns, M, N, c_row, c_column, C_ORDER, C_ALIGN)


def matmul(
    a: Tensor, b: Tensor, out: Tensor, *, blocks: tuple[int, int, int], num_warps: int = 4, num_stages: int = 3, group: int = 8
) -> None:
    """Write a @ b into `out`: matrices of float16, bfloat16 or float32 (three TF32 products, as accurate as float32's own).

    blocks are BM, BN, BK: powers of two from 16 on.
    """
    (m, k), n = a.shape, b.shape[1]
    programs = ceil_div(m, blocks[0]) * ceil_div(n, blocks[1])
    if programs == 0:
        return
    forms = [form_of(x) for x in (a, b, out)]
    strides = [stride // form.align for form in forms for stride in form.stride]
    facts = [fact for form in forms for fact in (form.order, form.align)]
    precision = "tf32x3" if a.dtype == torch.float32 else "tf32"
    index = tl.int64 if needs_64_bits(*forms) else tl.int32
    matmul_kernel[(programs,)](
        a, b, out, m, n, k, *strides, *facts, precision, index, *blocks, group, num_warps=num_warps, num_stages=num_stages
    )
