"""Rung 4, `shared`: the block loads a value once, for all its threads.

The depth goes in slices of 32. The block stages 128 x 32 slices of q and k in shared memory: a warp loads a row of 32
consecutive values at a time, fully coalesced, and every thread takes part, those without a result too. Then each thread adds
the slice's part of the dot products to its 8 x 8 sums. The 16 threads of a row read different rows of the k slice, 32 values
apart, all in one bank of shared memory; so thread x begins at depth x of the slice and goes round, and the 16 reads fall in
16 banks.

Global load requests fall by 4 and sectors by 9: of each slice, 2 * 128 requests of 4 sectors, so 8 HS and 32 HS a tile, on
the diagonal too; no tile can do with fewer sectors. Stores are those of `vectorized`.
"""

from typing import Any

from numba import cuda, float32
from torch import Tensor

from trigemm.kernels.threads.launch import launch
from trigemm.kernels.threads.limits import SLICE, TILE
from trigemm.kernels.threads.traffic import TileTraffic, total
from trigemm.kernels.threads.vector import offset, store4

SLICE_SIZE = TILE * SLICE


def make_patch(row_stride: int, HS: int) -> Any:
    @cuda.jit(device=True)
    def patch(qkv, out, q, k, o, on_diagonal, T, scale):
        q_slice = cuda.shared.array(SLICE_SIZE, float32)
        k_slice = cuda.shared.array(SLICE_SIZE, float32)
        right = cuda.local.array(8, float32)
        sums = cuda.local.array((8, 8), float32)
        for i in range(8):
            for j in range(8):
                sums[i, j] = 0.0
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        row = 8 * y
        column = 8 * x
        warp = y // 2
        lane = x + y % 2 * 16
        begin = 0
        while begin < HS:
            cuda.syncthreads()
            r = warp
            while r < TILE:
                q_slice[offset(r * SLICE + lane)] = qkv[offset(q + r * row_stride + begin + lane)]
                k_slice[offset(r * SLICE + lane)] = qkv[offset(k + r * row_stride + begin + lane)]
                r += 8
            cuda.syncthreads()
            step = 0
            while step < SLICE:
                d = (step + x) & (SLICE - 1)
                for j in range(8):
                    right[j] = k_slice[offset(column * SLICE + d + j * SLICE)]
                for i in range(8):
                    left = q_slice[offset(row * SLICE + d + i * SLICE)]
                    for j in range(8):
                        sums[i, j] += left * right[j]
                step += 1
            begin += SLICE
        if on_diagonal and column > row:
            return
        o += row * T + column
        if on_diagonal and column == row:
            for i in range(8):
                for j in range(i + 1):
                    out[offset(o + i * T + j)] = scale * sums[i, j]
        else:
            for i in range(8):
                for j in range(0, 8, 4):
                    vector = cuda.float32x4(
                        scale * sums[i, j], scale * sums[i, j + 1], scale * sums[i, j + 2], scale * sums[i, j + 3]
                    )
                    store4(out, offset(o + i * T + j), vector)

    return patch


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """Every entry of the triangle, in float32 whatever the precision asked for."""
    launch(make_patch, qkv, out, scale=scale, fill=fill)


def predicted_traffic(B: int, T: int, NH: int, HS: int) -> dict[str, int]:
    """Global load and store requests and sectors of one launch.

    >>> predicted_traffic(1, 256, 1, 64)["load_requests"], predicted_traffic(1, 256, 1, 64)["load_sectors"]
    (1536, 6144)
    """
    below = TileTraffic(8 * HS, 32 * HS, 128, 4096)
    diagonal = TileTraffic(8 * HS, 32 * HS, 416, 2496)
    return total(B, T, NH, below, diagonal)
