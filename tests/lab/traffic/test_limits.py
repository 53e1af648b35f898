"""Launches that no GPU takes are refused; those just within the limits run."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda, float32, float64

from trigemm.lab.traffic.limits import check_launch
from trigemm.lab.traffic.recorder import KernelError, record, trace


@pytest.mark.parametrize(
    ("grid", "block", "dynamic", "message"),
    [
        ((1, 1, 1), (1025, 1, 1), 0, "a block has at most 1,024 threads, got 1025 x 1 x 1"),
        ((1, 1, 1), (32, 32, 2), 0, "a block has at most 1,024 threads, got 32 x 32 x 2"),
        ((1, 1, 1), (1, 1, 65), 0, "the block's z must be 1 to 64, got 65"),
        ((1, 1, 1), (0, 1, 1), 0, "the block's x must be 1 to 1,024, got 0"),
        ((1, 65_536, 1), (32, 1, 1), 0, "the grid's y must be 1 to 65,535, got 65,536"),
        ((1, 1, 65_536), (32, 1, 1), 0, "the grid's z must be 1 to 65,535, got 65,536"),
        ((2**31, 1, 1), (32, 1, 1), 0, "the grid's x must be 1 to 2,147,483,647, got 2,147,483,648"),
        ((0, 1, 1), (32, 1, 1), 0, "the grid's x must be 1 to 2,147,483,647, got 0"),
        ((1, 1, 1), (32, 1, 1), 49_153, "a block has at most 49,152 bytes of shared memory, got 49,153"),
        ((1, 1, 1), (32, 1, 1), -1, "a block's dynamic shared memory must be 0 bytes or more, got -1"),
    ],
)
def test_sizes_beyond_the_limits(grid, block, dynamic, message):
    with pytest.raises(ValueError, match=message):
        check_launch(grid, block, dynamic)


@pytest.mark.parametrize("block", [(1024, 1, 1), (1, 1024, 1), (16, 1, 64)])
@pytest.mark.parametrize("grid", [(2**31 - 1, 1, 1), (1, 65_535, 65_535)])
def test_sizes_at_the_limits(grid, block):
    check_launch(grid, block, 49_152)


@cuda.jit
def ones(x):
    x[cuda.grid(1)] = 1


def test_a_block_of_too_many_threads_is_not_run():
    x = np.zeros(2048, np.float32)
    with record() as launches:
        with pytest.raises(KernelError, match="kernel ones cannot be launched: a block has at most 1,024 threads"):
            ones[1, 2048](x)
        assert not x.any()
        ones[2, 1024](x)
    assert x.all()
    assert [(traffic.traced, traffic.error is None) for traffic in launches] == [(0, False), (2, True)]
    assert launches[1].findings == []


def through_tile(shape):
    @cuda.jit
    def kernel(x):
        tile = cuda.shared.array(shape, float32)
        i = cuda.threadIdx.x
        tile[i, 0] = x[i]
        x[i] = tile[i, 0]

    return kernel


def test_a_shared_array_beyond_48_kib():
    x = np.ones(32, np.float32)
    with pytest.raises(KernelError, match=r"kernel failed in line \d+ .* got 65,536 \(65,536 static, 0 dynamic\)"):
        trace(through_tile((128, 128)), 1, 32, x)
    assert trace(through_tile((96, 128)), 2, 32, x).findings is not None


@cuda.jit
def several_arrays(x, both):
    a = cuda.shared.array(4096, float32)
    for _ in range(3):  # one array, however often a thread comes by
        b = cuda.shared.array(2048, float64)
    i = cuda.threadIdx.x
    a[i] = b[i] = x[i]
    if both and cuda.blockIdx.x == 1:  # compiled into the kernel, whichever block comes here
        c = cuda.shared.array(4097, float32)
        c[i] = x[i]


def test_shared_arrays_count_together_with_the_dynamic_memory():
    x = np.ones(32, np.float32)
    assert trace(several_arrays, 2, 32, x, False).error is None
    with pytest.raises(KernelError, match=r"got 49,156 \(49,156 static, 0 dynamic\)"):
        trace(several_arrays, 2, 32, x, True)
    with record():
        several_arrays[2, 32, 0, 16_384](x, False)
        with pytest.raises(KernelError, match=r"got 49,153 \(32,768 static, 16,385 dynamic\)"):
            several_arrays[2, 32, 0, 16_385](x, False)
