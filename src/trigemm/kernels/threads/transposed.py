"""Rung 5, `transposed`: lay the slices out for the reader.

A depth step of `shared` takes 16 reads of shared memory for 64 products, because neighbours in a row of the slice are
neighbours in depth, and a thread needs 8 rows. Here the slices lie the other way round, one depth step after another, so that
a thread's rows are neighbours: a step takes four 16-byte reads. A thread owns four 4 x 4 quads, one in each quarter of the
tile, so that the 16 threads of a row read 256 consecutive bytes, and no two of them different words of one bank. The price is
paid once a slice: a thread loads 4 depth values of a row with one 16-byte access and scatters them. Depth steps are PITCH =
132 elements apart, so that the two groups of 16 threads in a warp, which write 4 depth steps apart, hit different halves of
the banks.

Shared memory reads fall by 4, from 16 to 4 a warp and depth step: from 128 HS to 32 HS a tile. Global loads are 16-byte too:
2 HS requests a tile rather than 8 HS, in the same 32 HS sectors. The threads of a row now store 256 consecutive bytes, so
store sectors are whole: 128 requests and 2048 sectors a tile, the least there is. On the diagonal, the quarter below it
stores 32 requests of 16 sectors. Each of the two quarters on it stores the quads below it in 32 requests and 4 * 64 sectors,
and the 16 quads on it, two a warp, by element: 80 requests of 2 sectors. Together these are 256 requests and 1344 sectors.
"""

from typing import Any

from numba import cuda, float32
from torch import Tensor

from trigemm.kernels.threads.launch import launch
from trigemm.kernels.threads.limits import SLICE, TILE
from trigemm.kernels.threads.traffic import TileTraffic, total
from trigemm.kernels.threads.vector import ALIGNMENT, load4, offset, store4

HALF = TILE // 2
PITCH = TILE + 4
SLICE_SIZE = SLICE * PITCH


def make_patch(row_stride: int, HS: int) -> Any:
    @cuda.jit(device=True)
    def scatter(source, at, target, to):
        vector = load4(source, offset(at))
        target[offset(to)] = vector.x
        target[offset(to + PITCH)] = vector.y
        target[offset(to + 2 * PITCH)] = vector.z
        target[offset(to + 3 * PITCH)] = vector.w

    @cuda.jit(device=True)
    def gather(source, at, target):
        low = load4(source, offset(at))
        high = load4(source, offset(at + HALF))
        target[0] = low.x
        target[1] = low.y
        target[2] = low.z
        target[3] = low.w
        target[4] = high.x
        target[5] = high.y
        target[6] = high.z
        target[7] = high.w

    @cuda.jit(device=True)
    def scaled(scale, sums, i, j):
        return cuda.float32x4(scale * sums[i, j], scale * sums[i, j + 1], scale * sums[i, j + 2], scale * sums[i, j + 3])

    @cuda.jit(device=True)
    def patch(qkv, out, q, k, o, on_diagonal, T, scale):
        q_slice = cuda.shared.array(SLICE_SIZE, float32, ALIGNMENT)
        k_slice = cuda.shared.array(SLICE_SIZE, float32, ALIGNMENT)
        left = cuda.local.array(8, float32)
        right = cuda.local.array(8, float32)
        sums = cuda.local.array((8, 8), float32)
        for i in range(8):
            for j in range(8):
                sums[i, j] = 0.0
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        r = y // 2 * 16 + x
        begin = 0
        while begin < HS:
            cuda.syncthreads()
            for step in range(4):
                d = 8 * step + y % 2 * 4
                scatter(qkv, q + r * row_stride + begin + d, q_slice, d * PITCH + r)
                scatter(qkv, k + r * row_stride + begin + d, k_slice, d * PITCH + r)
            cuda.syncthreads()
            d = 0
            while d < SLICE:
                gather(q_slice, d * PITCH + 4 * y, left)
                gather(k_slice, d * PITCH + 4 * x, right)
                for i in range(8):
                    for j in range(8):
                        sums[i, j] += left[i] * right[j]
                d += 1
            begin += SLICE
        upper = o + 4 * y * T + 4 * x
        lower = upper + HALF * T
        for i in range(4):
            if not on_diagonal:
                store4(out, offset(upper + i * T + HALF), scaled(scale, sums, i, 4))
            if not on_diagonal or x < y:
                store4(out, offset(upper + i * T), scaled(scale, sums, i, 0))
                store4(out, offset(lower + i * T + HALF), scaled(scale, sums, i + 4, 4))
            elif x == y:
                for j in range(i + 1):
                    out[offset(upper + i * T + j)] = scale * sums[i, j]
                    out[offset(lower + i * T + HALF + j)] = scale * sums[i + 4, j + 4]
            store4(out, offset(lower + i * T), scaled(scale, sums, i + 4, 0))

    return patch


def scores(qkv: Tensor, out: Tensor, *, scale: float, fill: float | None, precision: str) -> None:
    """Every entry of the triangle, in float32 whatever the precision asked for."""
    launch(make_patch, qkv, out, scale=scale, fill=fill)


def predicted_traffic(B: int, T: int, NH: int, HS: int) -> dict[str, int]:
    """Global load and store requests and sectors of one launch.

    >>> predicted_traffic(1, 256, 1, 64)["load_requests"], predicted_traffic(1, 256, 1, 64)["load_sectors"]
    (384, 6144)
    """
    below = TileTraffic(2 * HS, 32 * HS, 128, 2048)
    diagonal = TileTraffic(2 * HS, 32 * HS, 256, 1344)
    return total(B, T, NH, below, diagonal)
