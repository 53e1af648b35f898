"""Causal attention with weights for Hopper in float32, forward: the passes of `hopper_kernel` with products of float16 parts.

Keys and values have been split (see `parts`), and the ring has both parts of a tile side by side; a warpgroup splits its own
queries. A product is three: the small ones gather in registers of their own, so that none waits for another to be scaled. The
products of the next tile of scores run while the threads raise powers for the present one.

    q @ kᵀ = (high @ highᵀ + (high @ lowᵀ + low @ highᵀ) / 2^11) * unscale

A row of ROWS queries is flagged where one of them, or a block of keys or values that it needs, cannot be split: the launch that
repairs comes after.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from trigemm.kernels.tiles.hopper_kernel import BUFFERS, add_sums, barrier, joined, store_weights, take, weights_of
from trigemm.kernels.tiles.hopper_loads import BM, BN, ROWS, block_of, load_queries, load_tiles, make_barriers, tiles_of

SCALARS = ["factor", "inner", "fill", "T", "S", "all_heads", "heads", "batches", "group", "together", "short"]
LOW = gl.constexpr(2.0**-11)  # what a low part counts


@gluon.jit
def split_rows(x):
    """See `multiply.split_rows`."""
    size = x.to(gl.int32, bitcast=True) & 0x7FFFFFFF
    largest = gl.max(size, 1)
    smallest = gl.min((size - 1).to(gl.uint32, bitcast=True), 1)
    exponent = gl.minimum(gl.maximum(largest >> 23, 127 - 60), 127 + 60)
    scale = ((2 * 127 + 14 - exponent) << 23).to(gl.float32, bitcast=True)
    unscale = ((exponent - 14) << 23).to(gl.float32, bitcast=True)
    y = x * gl.expand_dims(scale, 1)
    high = y.to(gl.float16)
    low = ((y - high.to(gl.float32)) * 2048.0).to(gl.float16)
    least = ((exponent - 28) << 23).to(gl.uint32, bitcast=True) - 1
    beyond = (smallest < least) | (largest >= (127 + 61) << 23)
    return high, low, unscale, beyond.to(gl.int32)


@gluon.jit
def split_flags(ptr, first, n):
    """The largest of n flags of keys or values."""
    places = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    flags = gl.zeros_like(places)
    for i in range(0, n, 128):
        flags = gl.maximum(flags, gl.load(ptr + first + i + places, mask=i + places < n, other=0))
    return gl.max(flags, 0)


@gluon.jit
def start_scores(queries, ring, full, n, space, SLOTS: gl.constexpr, HS: gl.constexpr):
    """Start the products of the queries, both parts [ROWS, HS], and tile n of the ring: the large one and the small ones."""
    q_high, q_low = queries
    place = take(full, n, SLOTS)
    k_high = ring.index(2 * place).reshape([BN, HS]).permute([1, 0])
    k_low = ring.index(2 * place + 1).reshape([BN, HS]).permute([1, 0])
    small = warpgroup_mma(q_high, k_low, space, use_acc=False, is_async=True)
    small = warpgroup_mma(q_low, k_high, small, is_async=True)
    return warpgroup_mma(q_high, k_high, space, use_acc=False, is_async=True), small


@gluon.jit
def finish_scores(started, unscale, scale, empty, n, SLOTS: gl.constexpr):
    """Scores that were started, once they are done, in their scale; the slot of their keys is free."""
    large, small = warpgroup_mma_wait(0, deps=[started[0], started[1]])
    mbarrier.arrive(empty.index(n % SLOTS))
    undo = gl.expand_dims(unscale * scale, 1)
    return gl.fma(small, gl.zeros_like(small) + undo * LOW, large * undo)


@gluon.jit
def add_values(acc, weights, unscale_ptr, j, ring, full, empty, n, space, SLOTS: gl.constexpr, HS: gl.constexpr):
    """The sum of values with those of tile n of the ring added, tile j of the values, times weights in 0 to 1."""
    PARTS: gl.constexpr = gl.DotOperandLayout(0, space.type.layout, 2)
    scaled = weights * 16384.0
    high = scaled.to(gl.float16)
    low = ((scaled - high.to(gl.float32)) * 2048.0).to(gl.float16)
    high, low = gl.convert_layout(high, PARTS), gl.convert_layout(low, PARTS)
    undo = gl.load(unscale_ptr + j) * 2.0**-14
    place = take(full, n, SLOTS)
    v_high, v_low = ring.index(2 * place).reshape([BN, HS]), ring.index(2 * place + 1).reshape([BN, HS])
    small = warpgroup_mma(high, v_low, space, use_acc=False, is_async=True)
    small = warpgroup_mma(low, v_high, small, is_async=True)
    large = warpgroup_mma(high, v_high, space, use_acc=False, is_async=True)
    large, small, high, low = warpgroup_mma_wait(0, deps=[large, small, high, low])
    mbarrier.arrive(empty.index(place))
    return gl.fma(small, gl.zeros_like(small) + undo * LOW, gl.fma(large, gl.zeros_like(large) + undo, acc))


@gluon.jit
def attend_parts(
    memory, block, shared, factor, T, S, all_heads, heads, batches, group,
    PART: gl.constexpr, SLOTS: gl.constexpr, HS: gl.constexpr,
):  # fmt: skip
    """A warpgroup: rows PART * ROWS on of the block."""
    o, w, stats_ptr, k_unscale_ptr, k_flags_ptr, v_unscale_ptr, v_flags_ptr, flags_ptr = memory
    batch, slot, head, kv_head, block_row, _ = block
    ring, full, empty, q_full, q_shared, staging = shared
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HS, 16])
    WHOLE_ROWS: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    tiles = tiles_of(block_row, BM, T, S)
    row = block_row + PART * ROWS
    end = gl.minimum(tiles_of(row, ROWS, T, S), tiles)
    inside = gl.minimum((row + S - T + 1) // BN, end - 1)  # tiles that the diagonal leaves alone
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, MMA))
    limit = rows + S - T
    columns = gl.arange(0, BN, gl.SliceLayout(0, MMA))
    zero = gl.zeros([ROWS, BN], gl.float32, MMA)

    mbarrier.wait(q_full.index(PART), 0)
    high, low, unscale, flags = split_rows(staging.index(PART * BUFFERS).reshape([ROWS, HS]).load(WHOLE_ROWS))
    queries = q_shared.index(2 * PART).reshape([ROWS, HS]), q_shared.index(2 * PART + 1).reshape([ROWS, HS])
    queries[0].store(high)
    queries[1].store(low)
    unscale = gl.convert_layout(unscale, gl.SliceLayout(1, MMA))
    fence_async_shared()
    barrier()
    kv_blocks = (batch * (all_heads // group) + kv_head).to(gl.int64) * gl.cdiv(S, BN)
    k_unscale_ptr += kv_blocks
    v_unscale_ptr += kv_blocks

    OWN: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, zero.reshape([ROWS, BN // 8, 4, 2]).type.layout))
    top = gl.full([ROWS, 4], float("-inf"), gl.float32, OWN)
    total = gl.zeros([ROWS, 4], gl.float32, OWN)
    started = start_scores(queries, ring, full, 0, zero, SLOTS, HS)
    for n in range(inside):
        scale = gl.load(k_unscale_ptr + n)
        scores = finish_scores(started, unscale, scale, empty, n, SLOTS)
        started = start_scores(queries, ring, full, n + 1, zero, SLOTS, HS)
        top, total = add_sums(scores, top, total, factor, limit, columns, False)
    for n in range(inside, end):
        scale = gl.load(k_unscale_ptr + n)
        if n > inside:
            started = start_scores(queries, ring, full, n, zero, SLOTS, HS)
        scores = finish_scores(started, unscale, scale, empty, n, SLOTS)
        top, total = add_sums(scores, top, total, factor, limit, n * BN + columns, True)
    for n in range(end, tiles):
        mbarrier.arrive(empty.index(take(full, n, SLOTS)))
    least, total = joined(top, total, gl.SliceLayout(1, MMA))
    places = stats_ptr + (batch * all_heads + head).to(gl.int64) * T + rows
    gl.store(places, least, mask=rows < T)
    gl.store(places + (batches * all_heads).to(gl.int64) * T, gl.log2(total), mask=rows < T)
    share = 1.0 / total

    acc = gl.zeros([ROWS, HS], gl.float32, OUT)
    space = gl.zeros([ROWS, HS], gl.float32, OUT)
    started = start_scores(queries, ring, full, tiles, zero, SLOTS, HS)
    for j in range(inside):
        n = tiles + 2 * j
        scale = gl.load(k_unscale_ptr + j)
        scores = finish_scores(started, unscale, scale, empty, n, SLOTS)
        started = start_scores(queries, ring, full, n + 2, zero, SLOTS, HS)
        weights = weights_of(scores, factor, least, share, limit, columns, False)
        store_weights(w, weights, staging, batch, slot, row, j, PART)
        acc = add_values(acc, weights, v_unscale_ptr, j, ring, full, empty, n + 1, space, SLOTS, HS)
    for j in range(inside, end):
        n = tiles + 2 * j
        scale = gl.load(k_unscale_ptr + j)
        if j > inside:
            started = start_scores(queries, ring, full, n, zero, SLOTS, HS)
        scores = finish_scores(started, unscale, scale, empty, n, SLOTS)
        weights = weights_of(scores, factor, least, share, limit, j * BN + columns, True)
        store_weights(w, weights, staging, batch, slot, row, j, PART)
        acc = add_values(acc, weights, v_unscale_ptr, j, ring, full, empty, n + 1, space, SLOTS, HS)
    for n in range(tiles + 2 * end, 3 * tiles):
        mbarrier.arrive(empty.index(take(full, n, SLOTS)))
    tma.store_wait(0)
    barrier()
    buffer = staging.index(PART * BUFFERS)
    buffer.reshape([ROWS, HS]).store(acc)
    fence_async_shared()
    tma.async_copy_shared_to_global(o, [batch, head, row, 0], buffer)
    flag = gl.maximum(gl.max(flags, 0), split_flags(k_flags_ptr, kv_blocks, end))
    flag = gl.maximum(flag, split_flags(v_flags_ptr, kv_blocks, end))
    if row < T:  # as `row_program` counts
        number = (gl.cdiv(T, ROWS) - 1 - row // ROWS) * (batches * heads) + batch * heads + slot
        gl.store(flags_ptr + number, flag)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SCALARS)
def hopper_parts_kernel(
    q, k, k_low, v, v_low, o, w, stats_ptr, heads_ptr, k_unscale_ptr, k_flags_ptr, v_unscale_ptr, v_flags_ptr, flags_ptr,
    factor, inner, fill, T, S, all_heads, heads, batches, group, together, short,
    LISTED: gl.constexpr, ZEROS: gl.constexpr, SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr, LOAD_REGISTERS: gl.constexpr, HS: gl.constexpr,
):  # fmt: skip
    """REGISTERS, LOAD_REGISTERS: of a thread that multiplies, and of one that loads. HS is BN."""
    block = block_of(T, heads, batches, heads_ptr, group, together, short, LISTED)
    ring = gl.allocate_shared_memory(k.dtype, [2 * SLOTS, 1, 1, BN, HS], k.layout)
    staging = gl.allocate_shared_memory(w.dtype, [2 * BUFFERS, 1, 1, ROWS, BN], w.layout)
    q_shared = gl.allocate_shared_memory(k.dtype, [4, 1, 1, ROWS, HS], k.layout)
    zeros = gl.allocate_shared_memory(w.dtype, [1, 1, ROWS, BN], w.layout) if ZEROS else staging.index(0)
    full, empty, q_full = make_barriers(SLOTS)
    if ZEROS:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        zeros.reshape([ROWS, BN]).store(gl.zeros([ROWS, BN], gl.float32, LAYOUT))
    fence_async_shared()
    barrier()
    load_queries(q, block, q_full, staging, BUFFERS, ROWS * HS * 4)  # where tiles of weights will be
    memory = o, w, stats_ptr, k_unscale_ptr, k_flags_ptr, v_unscale_ptr, v_flags_ptr, flags_ptr
    shared = ring, full, empty, q_full, q_shared, staging
    gl.warp_specialize(
        [
            (attend_parts, (memory, block, shared, factor, T, S, all_heads, heads, batches, group, 0, SLOTS, HS)),
            (attend_parts, (memory, block, shared, factor, T, S, all_heads, heads, batches, group, 1, SLOTS, HS)),
            (load_tiles, (((k, k_low), (v, v_low), w), block, ring, full, empty, zeros, T, S, ZEROS, 2, SLOTS, HS)),
        ],
        [4, 1], [REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip
