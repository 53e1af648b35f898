"""Rung 3, `vectorized`: four values an instruction.

The depth goes in steps of 4, and every access to global memory moves 16 bytes. At each step a thread keeps the 8 vectors of k
and streams those of q past them; at the end it stores its sums four at a time. A patch that the diagonal cuts is stored by
element.

Requests and sectors of global loads fall by 4: the 32-byte sector that a request fetches is half used, not an eighth. A tile
makes 32 HS requests and 288 HS sectors, 176 HS on the diagonal. A patch is 16 vector stores, a sector a lane: 128 requests
and 4096 sectors a tile. On the diagonal, the 120 patches below it store 16 vectors each and the 16 patches on it, two a warp,
36 elements each: 128 + 8 * 36 = 416 requests, 120 * 16 + 16 * 36 = 2496 sectors.
"""

from typing import Any

from numba import cuda, float32
from torch import Tensor

from trigemm.kernels.threads.launch import launch
from trigemm.kernels.threads.traffic import TileTraffic, total
from trigemm.kernels.threads.vector import load4, offset, store4


def make_patch(row_stride: int, HS: int) -> Any:
    @cuda.jit(device=True)
    def patch(qkv, out, q, k, o, on_diagonal, T, scale):
        row = 8 * cuda.threadIdx.y
        column = 8 * cuda.threadIdx.x
        if on_diagonal and column > row:
            return
        q += row * row_stride
        k += column * row_stride
        right = cuda.local.array((8, 4), float32)
        sums = cuda.local.array((8, 8), float32)
        for i in range(8):
            for j in range(8):
                sums[i, j] = 0.0
        d = 0
        while d < HS:
            for j in range(8):
                vector = load4(qkv, offset(k + j * row_stride + d))
                right[j, 0] = vector.x
                right[j, 1] = vector.y
                right[j, 2] = vector.z
                right[j, 3] = vector.w
            for i in range(8):
                left = load4(qkv, offset(q + i * row_stride + d))
                for j in range(8):
                    sums[i, j] += left.x * right[j, 0]
                    sums[i, j] += left.y * right[j, 1]
                    sums[i, j] += left.z * right[j, 2]
                    sums[i, j] += left.w * right[j, 3]
            d += 4
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
    (6144, 40960)
    """
    below = TileTraffic(32 * HS, 288 * HS, 128, 4096)
    diagonal = TileTraffic(32 * HS, 176 * HS, 416, 2496)
    return total(B, T, NH, below, diagonal)
