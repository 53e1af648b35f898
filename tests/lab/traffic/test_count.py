"""Counts of small kernels, worked out by hand."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda, float32, float64, int8

from trigemm.kernels.threads.vector import load4, store4
from trigemm.lab.traffic.recorder import trace


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


@cuda.jit
def copy_all(x, out):
    """Of any number of dimensions up to three."""
    i, j, k = cuda.grid(3)
    out[k, j, i] = x[k, j, i]


def loads(traffic, space="global"):
    return traffic.total(space, "load")


@pytest.mark.parametrize(
    ("dtype", "sectors"),
    [("int8", 1), ("float16", 2), ("float32", 4), ("float64", 8), ("complex64", 8), ("complex128", 16), ("bool", 1)],
)
def test_consecutive_elements_fill_their_sectors(dtype, sectors):
    counts = loads(trace(copy, 1, 32, np.zeros(32, dtype), np.zeros(32, dtype)))
    assert (counts.elements, counts.bytes, counts.requests) == (32, 32 * np.dtype(dtype).itemsize, 1)
    assert counts.sectors == counts.ideal_sectors == sectors


@pytest.mark.parametrize(
    ("view", "sectors"),
    [
        (lambda x: x[:32], 4),
        (lambda x: x[8:40], 4),  # a whole sector further on
        (lambda x: x[1:33], 5),  # one element off
        (lambda x: x[::2], 8),
        (lambda x: x[::8], 32),
        (lambda x: x[31::-1], 4),  # backwards
        (lambda x: np.broadcast_to(x[0], (32,)), 1),
        (lambda x: x.reshape(32, 16)[:, 3], 32),
        (lambda x: x.reshape(16, 32).T[:, 3], 4),
    ],
)
def test_offsets_and_strides_count(view, sectors):
    x = np.zeros(512, np.float32)
    traffic = trace(copy, 1, 32, view(x), np.zeros(32, np.float32))
    assert loads(traffic).sectors == sectors
    assert traffic.total("global", "store").sectors == 4


@pytest.mark.parametrize(("block", "requests", "sectors"), [((32, 2, 1), 2, 8), ((16, 4, 1), 2, 8), ((4, 4, 4), 2, 16)])
def test_a_warp_is_32_threads_with_x_fastest(block, requests, sectors):
    x = np.zeros((8, 8, 32), np.float32)
    counts = loads(trace(copy_all, 1, block, x, x.copy()))
    assert (counts.requests, counts.sectors) == (requests, sectors)


def test_a_block_that_fills_no_whole_warp():
    counts = loads(trace(copy, 3, 40, np.zeros(120, np.float32), np.zeros(120, np.float32)))
    assert (counts.elements, counts.requests, counts.sectors) == (120, 6, 3 * (4 + 1))


def test_views_of_one_buffer_keep_their_distance():
    packed = np.zeros((4, 3, 8), np.float32)
    traffic = trace(copy_all, 1, (8, 1, 4), packed[:, 1:2], packed[:, 2:3])
    assert traffic.total(array="x").sectors == 4
    assert traffic.total(array="out").sectors == 4


@cuda.jit
def branches(x, out):
    i = cuda.threadIdx.x
    if i % 2:
        out[i] = x[i]
    else:
        out[i] = x[i + 32]


def test_the_sides_of_a_branch_are_requests_of_their_own():
    counts = loads(trace(branches, 1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32)))
    assert (counts.elements, counts.requests, counts.sectors) == (32, 2, 8)


@cuda.jit
def triangle(x, out):
    i = cuda.threadIdx.x
    for j in range(i + 1):
        out[i] += x[32 * j + i]


def test_lanes_that_leave_a_loop_no_longer_count():
    counts = trace(triangle, 1, 32, np.zeros(1024, np.float32), np.zeros(32, np.float32)).total(array="x")
    assert (counts.elements, counts.requests) == (32 * 33 // 2, 32)
    assert counts.sectors == sum(4 - j // 8 for j in range(32))


@cuda.jit
def twice_on_a_line(x, out):
    i = cuda.threadIdx.x
    out[i] = x[i] + x[2 * i]


def test_two_accesses_on_one_line_are_two_requests():
    traffic = trace(twice_on_a_line, 1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32))
    assert (loads(traffic).requests, loads(traffic).sectors) == (2, 4 + 8)
    assert len(traffic.rows) == 2  # one line, loads of x and stores to out


@cuda.jit
def vectors(x, out):
    i = 4 * cuda.threadIdx.x
    store4(out, i, load4(x, i))


def test_a_vector_access_is_one_request_of_the_line_that_makes_it():
    x = np.arange(128, dtype=np.float32)
    out = np.zeros_like(x)
    traffic = trace(vectors, 1, 32, x, out)
    np.testing.assert_array_equal(out, x)
    for operation in ("load", "store"):
        counts = traffic.total("global", operation)
        assert (counts.elements, counts.bytes, counts.requests, counts.sectors) == (32, 512, 1, 16)
    assert {access.line.function for access in traffic.rows} == {"vectors"}


@cuda.jit
def fields(points, out):
    i = cuda.threadIdx.x
    out[i] = points[i].x + points[i]["y"]
    points[i].y = out[i]


def test_fields_of_structures_are_elements_of_their_own():
    points = np.zeros(32, dtype=[("x", np.float32), ("y", np.float64)])
    points["x"] = 2
    traffic = trace(fields, 1, 32, points, np.zeros(32, np.float32))
    counts = traffic.total("global", "load", "points")
    assert (counts.elements, counts.bytes, counts.requests) == (64, 32 * 12, 2)
    np.testing.assert_array_equal(points["y"], 2)


@cuda.jit
def updates(idx, bins):
    cuda.atomic.add(bins, idx[cuda.threadIdx.x], 1)


def test_atomics_are_neither_loads_nor_stores():
    traffic = trace(updates, 1, 32, np.zeros(32, np.int64), np.zeros(4, np.int32))
    assert traffic.total("global", "atomic").requests == 1
    assert traffic.total("global", array="bins").elements == 32
    assert loads(traffic).elements == 32


def shared_kernel(stride, dtype, first=lambda i: i):
    @cuda.jit
    def kernel(out):
        tile = cuda.shared.array(1056, dtype)
        i = cuda.threadIdx.x
        for j in range(33):
            tile[32 * j + i] = 1
        cuda.syncthreads()
        out[i] = tile[first(i) * stride]

    return kernel


@pytest.mark.parametrize(
    ("stride", "dtype", "wavefronts", "ideal"),
    [
        (1, float32, 1, 1),
        (2, float32, 2, 1),
        (8, float32, 8, 1),
        (32, float32, 32, 1),
        (33, float32, 1, 1),
        (0, float32, 1, 1),  # all read one word
        (1, float64, 2, 2),  # by half warps
        (2, float64, 4, 2),
        (0, float64, 1, 1),
        (1, int8, 1, 1),  # four lanes read one word
        (4, int8, 1, 1),
        (8, int8, 2, 1),
    ],
)
def test_bank_conflicts_cost_wavefronts(stride, dtype, wavefronts, ideal):
    counts = loads(trace(shared_kernel(stride, dtype), 1, 32, np.zeros(32)), "shared")
    assert (counts.requests, counts.wavefronts, counts.ideal_wavefronts) == (1, wavefronts, ideal)
    assert counts.bank_conflicts == wavefronts - ideal


def vector_kernel(first):
    @cuda.jit
    def kernel(out):
        tile = cuda.shared.array(1024, float32)
        i = cuda.threadIdx.x
        for j in range(32):
            tile[32 * j + i] = 1
        cuda.syncthreads()
        out[i] = load4(tile, first(i)).x

    return kernel


@pytest.mark.parametrize(
    ("first", "wavefronts"),
    [
        (lambda i: 4 * i, 4),  # a quarter warp at a time
        (lambda i: 0, 2),  # neighbours that read alike go by half warps
        (lambda i: 4 * (i // 2), 2),
        (lambda i: 4 * (i // 4), 2),
        (lambda i: 32 * (i % 8), 32),  # all eight lanes of a quarter in four banks
        (lambda i: 4 * (i % 8) + 32 * (i // 8), 4),
    ],
)
def test_wavefronts_of_16_byte_reads(first, wavefronts):
    counts = loads(trace(vector_kernel(first), 1, 32, np.zeros(32)), "shared")
    assert counts.wavefronts == wavefronts


@cuda.jit
def two_on_one_line(out):
    a, b = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    a[i] = 1
    b[i] = 2
    out[i] = a[i] - b[i]


def test_two_shared_arrays_on_one_line_are_two():
    out = np.zeros(32, np.float32)
    traffic = trace(two_on_one_line, 1, 32, out)
    np.testing.assert_array_equal(out, -1)
    assert traffic.findings == []
    assert loads(traffic, "shared").wavefronts == 2


@cuda.jit
def local_and_constant(out):
    mine = cuda.local.array((2, 3), float32)
    table = cuda.const.array_like(TABLE)
    i = cuda.threadIdx.x
    for j in range(3):
        mine[1, j] = table[j]
    out[i] = mine[1, 2]


TABLE = np.arange(3, dtype=np.float32)


def test_local_memory_is_interleaved_and_constants_have_their_own_space():
    out = np.zeros(64, np.float32)
    traffic = trace(local_and_constant, 1, 64, out)
    stored = traffic.total("local", "store", "mine")
    assert (stored.elements, stored.requests, stored.sectors) == (192, 6, 24)
    assert loads(traffic, "constant").elements == 192
    np.testing.assert_array_equal(out, 2)
    assert trace(local_and_constant, 1, 64, out, count_local=False).total("local").elements == 0


@cuda.jit
def barriers(out):
    for _ in range(5):
        cuda.syncthreads()
    out[cuda.grid(1)] = cuda.syncthreads_count(cuda.threadIdx.x < 7)


def test_barriers_are_counted_by_block():
    out = np.zeros(96)
    traffic = trace(barriers, 3, 32, out)
    assert sorted(traffic.barriers.values()) == [3, 15]
    np.testing.assert_array_equal(out, 7)


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    y[i] += a * x[i] / 2 - 1


def test_floating_point_operations():
    x, y = np.ones(64, np.float32), np.ones(64, np.float32)
    traffic = trace(axpy, 2, 32, np.float32(3), x, y, count_flops=True)
    assert traffic.flops.total() == 4 * 64
    assert [line.number for line in traffic.flops] == [axpy.fn.__code__.co_firstlineno + 3]
    np.testing.assert_array_equal(y, 1.5)
    assert trace(axpy, 2, 32, np.float32(3), x, y).flops is None


@cuda.jit
def warp_functions(x, out):
    i = cuda.threadIdx.x
    total = x[i]
    half = 16
    while half:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, half)
        half //= 2
    if i % 32 == 0:
        out[i // 32] = total
    out[2 + i // 32] = cuda.ballot_sync(0xFFFFFFFF, i % 2)
    if cuda.any_sync(0xFFFFFFFF, i == 40):
        out[4] = cuda.shfl_sync(0xFFFFFFFF, x[i], 9)


def test_shuffles_and_votes_of_warps():
    x, out = np.arange(64.0), np.zeros(8)
    trace(warp_functions, 1, 64, x, out, sanitize=False)
    np.testing.assert_array_equal(out[:5], [x[:32].sum(), x[32:].sum(), 0xAAAAAAAA, 0xAAAAAAAA, 41])


def test_totals_of_json_are_those_of_the_rows():
    traffic = trace(branches, 1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32))
    record = traffic.as_json()
    assert record["global"]["load"]["sectors"] == 8
    assert sum(line["sectors"] for line in record["lines"]) == traffic.total().sectors
    assert [array["array"] for array in record["arrays"]] == ["x", "out"]
