"""The cure of transpose_uncoalesced.py: a block turns a tile round in shared memory, so that loads and stores both go along rows.

    trigemm traffic run --lines examples/traffic/transpose_tiled.py

Global memory is now moved in whole sectors. But the tile is read down its columns, which are 128 bytes apart: all 32 threads of a
warp want the same bank. The cure of that is transpose_padded.py.
"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def transpose(source, target):
    tile = cuda.shared.array((32, 32), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = 32 * cuda.blockIdx.y, 32 * cuda.blockIdx.x
    for i in range(y, 32, 8):
        tile[i, x] = source[row + i, column + x]
    cuda.syncthreads()
    for i in range(y, 32, 8):
        target[column + i, row + x] = tile[x, i]


source = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
target = cuda.device_array((128, 128), np.float32)
transpose[(4, 4), (32, 8)](cuda.to_device(source), target)
assert np.array_equal(target.copy_to_host(), source.T)
print("transposed 128 x 128: whole sectors, but 32 passes for each read of the tile")
