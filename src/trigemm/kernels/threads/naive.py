"""Rung 1, `naive`: each entry on its own.

A thread owns an 8 x 8 patch of its block's tile, and for each of the 64 entries runs the whole dot product out of global
memory. A patch above the diagonal is skipped; the jagged part above the diagonal of a patch on it is computed and not stored.

The counter that must fall on the next rungs is global load requests. An entry and depth step is two of them a warp, one for q
and one for k, so 8 warps make 8 * 64 * 2 * HS = 1024 HS requests a tile. A warp holds 16 patches side by side in 2 rows of
patches: each k request touches 16 rows, each q request 2, in a sector of 32 bytes each: 18 * 512 HS = 9216 HS sectors. On the
diagonal, warp w has lanes in the first 2w + 2 patches only: the sum over w of (2w + 2) + 2 is 88, so 88 * 64 HS = 5632 HS
sectors. The 64 entries of a patch are 64 store requests a warp, a sector a lane: 512 and 16384 a tile; on the diagonal, the
120 patches below it store 64 entries and the 16 on it 36: 8256 sectors.
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
        for i in range(8):
            q_row = q + (row + i) * row_stride
            for j in range(8):
                k_row = k + (column + j) * row_stride
                dot = float32(0.0)
                d = 0
                while d < HS:
                    dot += qkv[offset(q_row + d)] * qkv[offset(k_row + d)]
                    d += 1
                if not on_diagonal or column + j <= row + i:
                    out[offset(o + (row + i) * T + column + j)] = scale * dot

    return patch


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """Every entry of the triangle, in float32 whatever the precision asked for."""
    launch(make_patch, qkv, out, scale=scale, fill=fill)


def predicted_traffic(B: int, T: int, NH: int, HS: int) -> dict[str, int]:
    """Global load and store requests and sectors of one launch.

    >>> predicted_traffic(1, 256, 1, 64)["load_requests"], predicted_traffic(1, 256, 1, 64)["load_sectors"]
    (196608, 1310720)
    """
    below = TileTraffic(1024 * HS, 9216 * HS, 512, 16384)
    diagonal = TileTraffic(1024 * HS, 5632 * HS, 512, 8256)
    return total(B, T, NH, below, diagonal)
