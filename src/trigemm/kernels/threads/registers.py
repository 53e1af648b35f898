"""Rung 2, `registers`: load a value once, use it eight times.

A thread goes through the depth once. At each step it loads the 8 values of q and the 8 of k that its 8 x 8 patch needs, and
makes all 64 products out of registers, where the 64 sums stay until the end.

Global load requests fall by 8: a depth step is 8 + 8 of them a warp for 64 entries rather than 64 * 2, so 128 HS a tile.
Sectors fall alike: 8 * 18 a warp and step make 1152 HS a tile, and 8 * 88 = 704 HS on the diagonal. Stores are those of
`naive`.
"""

from typing import Any

from numba import cuda, float32
from torch import Tensor

from trigemm.kernels.threads.launch import launch
from trigemm.kernels.threads.traffic import TileTraffic, total
from trigemm.kernels.threads.vector import offset


def make_patch(row_stride: int, HS: int) -> Any:
    @cuda.jit(device=True)
    def patch(qkv, out, q, k, o, on_diagonal, T, scale):
        row = 8 * cuda.threadIdx.y
        column = 8 * cuda.threadIdx.x
        if on_diagonal and column > row:
            return
        q += row * row_stride
        k += column * row_stride
        right = cuda.local.array(8, float32)
        sums = cuda.local.array((8, 8), float32)
        for i in range(8):
            for j in range(8):
                sums[i, j] = 0.0
        d = 0
        while d < HS:
            for j in range(8):
                right[j] = qkv[offset(k + j * row_stride + d)]
            for i in range(8):
                left = qkv[offset(q + i * row_stride + d)]
                for j in range(8):
                    sums[i, j] += left * right[j]
            d += 1
        o += row * T + column
        for i in range(8):
            for j in range(8):
                if not on_diagonal or column + j <= row + i:
                    out[offset(o + i * T + j)] = scale * sums[i, j]

    return patch


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """Every entry of the triangle, in float32 whatever the precision asked for."""
    launch(make_patch, qkv, out, scale=scale, fill=fill)


def predicted_traffic(B: int, T: int, NH: int, HS: int) -> dict[str, int]:
    """Global load and store requests and sectors of one launch.

    >>> predicted_traffic(1, 256, 1, 64)["load_requests"], predicted_traffic(1, 256, 1, 64)["load_sectors"]
    (24576, 163840)
    """
    below = TileTraffic(128 * HS, 1152 * HS, 512, 16384)
    diagonal = TileTraffic(128 * HS, 704 * HS, 512, 8256)
    return total(B, T, NH, below, diagonal)
