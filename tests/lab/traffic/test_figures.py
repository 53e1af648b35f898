"""Counts that Nsight Compute measured on a GPU for the same kernels, and that the simulator must give to the last digit.

T = 256, HS = 64, q and k as (T, HS), grid (2, 2) of 16 x 16 threads, float32.
"""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda, float32

from trigemm.lab.traffic.recorder import trace

T, HS = 256, 64


@cuda.jit
def naive(q, k, out):
    if cuda.blockIdx.x > cuda.blockIdx.y:
        return
    row = 128 * cuda.blockIdx.y + 8 * cuda.threadIdx.y
    column = 128 * cuda.blockIdx.x + 8 * cuda.threadIdx.x
    if column > row:
        return
    for i in range(8):
        for j in range(8):
            total = float32(0)
            for d in range(HS):
                total += q[row + i, d] * k[column + j, d]
            out[row + i, column + j] = total


@cuda.jit
def registers(q, k, out):
    if cuda.blockIdx.x > cuda.blockIdx.y:
        return
    row = 128 * cuda.blockIdx.y + 8 * cuda.threadIdx.y
    column = 128 * cuda.blockIdx.x + 8 * cuda.threadIdx.x
    if column > row:
        return
    right = cuda.local.array(8, float32)
    sums = cuda.local.array((8, 8), float32)
    sums[:] = 0
    for d in range(HS):
        for j in range(8):
            right[j] = k[column + j, d]
        for i in range(8):
            left = q[row + i, d]
            for j in range(8):
                sums[i, j] += left * right[j]
    for i in range(8):
        for j in range(8):
            out[row + i, column + j] = sums[i, j]


@cuda.jit
def shared(q, k, out):
    if cuda.blockIdx.x > cuda.blockIdx.y:
        return
    q_slice = cuda.shared.array((128, 32), float32)
    k_slice = cuda.shared.array((128, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    thread = 16 * y + x
    sums = cuda.local.array((8, 8), float32)
    sums[:] = 0
    for begin in range(0, HS, 32):
        cuda.syncthreads()
        for row in range(thread // 32, 128, 8):
            q_slice[row, thread % 32] = q[128 * cuda.blockIdx.y + row, begin + thread % 32]
            k_slice[row, thread % 32] = k[128 * cuda.blockIdx.x + row, begin + thread % 32]
        cuda.syncthreads()
        for step in range(32):
            d = (step + x) % 32
            for i in range(8):
                left = q_slice[8 * y + i, d]
                for j in range(8):
                    sums[i, j] += left * k_slice[8 * x + j, d]
    if cuda.blockIdx.x == cuda.blockIdx.y and x > y:
        return
    for i in range(8):
        for j in range(8):
            out[128 * cuda.blockIdx.y + 8 * y + i, 128 * cuda.blockIdx.x + 8 * x + j] = sums[i, j]


@pytest.mark.parametrize(
    ("kernel", "requests", "sectors"),
    [(naive, 196_608, 1_310_720), (registers, 24_576, 163_840), (shared, 1_536, 6_144)],
    ids=["naive", "registers", "shared"],
)
def test_global_traffic_equals_the_hardware_counters(kernel, requests, sectors):
    q, k = np.random.default_rng(0).standard_normal((2, T, HS)).astype(np.float32)
    out = np.zeros((T, T), np.float32)
    # The two blocks on the diagonal are equal in kind.
    traffic = trace(kernel, (2, 2), (16, 16), q, k, out, kind=lambda x, y, z: (x > y, x == y), count_local=False)
    loads = traffic.total("global", "load")
    assert (loads.requests, loads.sectors) == (requests, sectors)
    assert traffic.total("global", "store").sectors == 33_792
    np.testing.assert_allclose(np.tril(out[:128, :128]), np.tril(q[:128] @ k[:128].T), atol=1e-4)
