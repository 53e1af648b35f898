"""A transpose whose stores go down a column: neighbouring threads write 512 bytes apart, a sector each.

Run it on a GPU as it is, or count what it does without one:

    trigemm traffic run --lines examples/traffic/transpose_uncoalesced.py

The cure is transpose_tiled.py.
"""

import numpy as np
from numba import cuda


@cuda.jit
def transpose(source, target):
    column, row = cuda.grid(2)
    if row < source.shape[0] and column < source.shape[1]:
        target[column, row] = source[row, column]


source = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
target = cuda.device_array((128, 128), np.float32)
transpose[(4, 16), (32, 8)](cuda.to_device(source), target)
assert np.array_equal(target.copy_to_host(), source.T)
print("transposed 128 x 128: one sector a thread is stored")
