"""What the sanitizer says of a fault, and kernels that look faulty but are not."""

import threading

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda, float32

from trigemm.kernels.threads.vector import load4, store4
from trigemm.lab.traffic.recorder import trace


def zeros(n=64):
    return np.zeros(n, np.float32)


@cuda.jit
def shifted(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 60]


def test_a_finding_names_kernel_line_threads_blocks_array_and_index():
    (finding,) = trace(shifted, 2, 32, zeros(100), zeros()).findings
    assert finding.kind == "out-of-range"
    assert finding.kernel == "shifted"
    assert (finding.line.number, finding.line.file) == (shifted.fn.__code__.co_firstlineno + 3, __file__)
    assert (finding.array, finding.index) == ("x", "100")
    assert (finding.threads, finding.blocks) == (tuple(range(8, 32)), (1,))
    assert str(finding) == (
        f"out-of-range of x[100]: the array has shape (100,) (shifted, line {finding.line.number};"
        " 24 threads: 8, 9, 10, …; block 1)"
    )


@cuda.jit
def misaligned(x, out):
    i = 4 * cuda.threadIdx.x
    store4(out, i, load4(x, i + 1))


def test_a_vector_access_that_is_not_aligned():
    (finding,) = trace(misaligned, 1, 8, zeros(), zeros()).findings
    assert (finding.kind, finding.array, finding.index) == ("misaligned", "x", "1")
    assert "16 bytes at an address that is no multiple of 16" in finding.explanation


@cuda.jit
def vector_beyond_the_end(x, out):
    i = 4 * cuda.threadIdx.x
    store4(out, i, load4(x, i))


def test_a_vector_access_that_runs_over_the_end():
    (finding,) = trace(vector_beyond_the_end, 1, 8, zeros(30), zeros()).findings
    assert (finding.kind, finding.threads, finding.index) == ("out-of-range", (7,), "28:32")


@cuda.jit
def reads_what_another_writes(out):
    i = cuda.threadIdx.x
    out[i] = out[(i + 1) % 64]


@cuda.jit
def with_a_barrier(out):
    i = cuda.threadIdx.x
    value = out[(i + 1) % 64]
    cuda.syncthreads()
    out[i] = value


def test_a_race_in_global_memory_within_a_block():
    findings = trace(reads_what_another_writes, 1, 64, zeros()).findings
    assert [finding.kind for finding in findings] == ["global-race"]
    assert trace(with_a_barrier, 1, 64, zeros()).findings == []


@cuda.jit
def packed_halves(out):
    """Two threads write the halves of one 16-byte stretch, a third reads another one."""
    i = cuda.threadIdx.x
    wide = out.view(np.float64)
    if i < 2:
        wide[i] = 1.0
    elif i == 2:
        out[5] = out[4]


def test_accesses_of_different_sizes_meet_only_where_their_bytes_do():
    assert trace(packed_halves, 1, 4, zeros(8)).findings == []


@cuda.jit
def writes_through_two_names(a, b):
    i = cuda.threadIdx.x
    a[i] = 1
    b[i] = 2


def test_two_parameters_may_be_the_same_memory():
    x = zeros(96)
    assert trace(writes_through_two_names, 1, 32, x[:32], x[32:64]).findings == []
    kinds = {finding.kind for finding in trace(writes_through_two_names, 1, 32, x[:32], x[16:48]).findings}
    assert kinds == {"double-write"}


@cuda.jit
def chain_of_flags(x, count, out):
    """Each block waits for the sum of the one before: in order, through atomics behind fences."""
    block = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while block > 0 and cuda.atomic.add(count, block - 1, 0) == 0:
            pass
        before = out[block - 1] if block > 0 else 0.0
        out[block] = before + x[block]
        cuda.threadfence()
        cuda.atomic.exch(count, block, 1)


def test_order_passes_through_several_blocks():
    x, out = np.arange(8, dtype=np.float32), zeros(8)
    traffic = trace(chain_of_flags, 8, 32, x, np.zeros(8, np.int32), out)
    assert traffic.findings == []
    np.testing.assert_array_equal(out, np.cumsum(x))


@cuda.jit
def last_block_by_ticket(x, count, out):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            out[8] = out[0] + out[7]


def test_what_a_second_look_in_another_order_writes_is_undone():
    x, count, out = np.arange(1, 9, dtype=np.float32), np.zeros(1, np.int32), zeros(9)
    assert trace(last_block_by_ticket, 8, 32, x, count, out).findings == []
    assert count[0] == 8
    np.testing.assert_array_equal(out, [*x, 9])


def test_read_only_arguments_survive_the_second_look():
    x, out = np.broadcast_to(np.float32(3), (8,)), zeros(9)
    assert trace(last_block_by_ticket, 8, 32, x, np.zeros(1, np.int32), out).findings == []
    assert out[8] == 6


@cuda.jit
def block_total(x, out):
    sums = cuda.shared.array(1024, float32)
    i = cuda.threadIdx.x
    sums[i] = x[i]
    cuda.syncthreads()
    half = 512
    while half:
        if i < half:
            sums[i] += sums[i + half]
        cuda.syncthreads()
        half //= 2
    out[i] = sums[0]


def test_the_largest_block_and_no_thread_is_left_behind():
    x, out = np.ones(1024, np.float32), zeros(1024)
    traffic = trace(block_total, 1, 1024, x, out)
    assert traffic.findings == []
    assert traffic.barriers.total() == 11
    np.testing.assert_array_equal(out, 1024)
    for _ in range(100):
        if threading.active_count() < 50:
            break
        threading.Event().wait(0.05)
    assert threading.active_count() < 50


@cuda.jit
def partial_masks(x, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    tile[lane] = x[lane]
    if lane < 16:
        cuda.syncwarp(0x0000FFFF)
        out[lane] = tile[15 - lane]
    else:
        cuda.syncwarp(0xFFFF0000)
        out[lane] = tile[47 - lane]


@cuda.jit
def partial_mask_too_small(x, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    tile[lane] = x[lane]
    if lane < 16:
        cuda.syncwarp(0x0000FFFF)
        out[lane] = tile[31 - lane]


def test_a_warp_barrier_orders_the_lanes_of_its_mask_alone():
    assert trace(partial_masks, 1, 32, zeros(), zeros()).findings == []
    (finding,) = trace(partial_mask_too_small, 1, 32, zeros(), zeros()).findings
    assert (finding.kind, finding.index) == ("shared-race", "16")


def test_sampled_blocks_are_not_looked_at():
    assert trace(shifted, 2, 32, zeros(100), zeros(), kind=lambda x, y, z: 0).findings is None
