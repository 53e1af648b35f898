"""Differences of neighbours, by way of shared memory, without the barrier between writing and reading.

    trigemm traffic run examples/traffic/differences_race.py

A thread may read its neighbour's value before it is there. Where threads run one after the other, as in a simulator, and nearly
always on a GPU too, the values come out right: the fault is found all the same. The cure is differences.py.
"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def differences(x, out):
    tile = cuda.shared.array(256, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    if t > 0:
        out[i] = tile[t] - tile[t - 1]
    elif i > 0:
        out[i] = tile[t] - x[i - 1]
    else:
        out[i] = tile[t]


x = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
out = cuda.device_array(1024, np.float32)
differences[4, 256](cuda.to_device(x), out)
wrong = np.count_nonzero(out.copy_to_host() != np.diff(x, prepend=np.float32(0)))
print(f"differences of 1024 values, {wrong} of them wrong")
