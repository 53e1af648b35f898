"""Causal attention with weights for Hopper, forward: (B,NH,T,HS), (B,NH_kv,S,HS) twice -> (B,NH,T,HS) and (B,heads,T,S).

A program has 2 * ROWS queries of one head, ROWS for each of two warpgroups, and a ring of SLOTS tiles of BN keys or values that
both of them read. A warp of its own loads the ring by TMA, far ahead of them:

    first pass     keys             the statistics of each row (see `attention_parts`): each thread has those of its own columns,
                                    and the four of a row are joined at the end
    second pass    keys and values  the scores again, from them each weight in its final form: stored by TMA, and multiplied

A slot is free again when both warpgroups have read it. A warpgroup passes over tiles that only the other's rows need.

AHEAD: the scores of the next tile are computed while the threads raise powers for the present one; in the second pass so is the
product of the present weights and values.

ZEROS: the warp that loads sets to zero what stands right of the tiles that the diagonal crosses, of the block of rows that is as
far from the other end: a long row has few of them and many keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from trigemm.kernels.tiles.hopper_loads import BM, BN, ROWS, block_of, load_queries, load_tiles, make_barriers, tiles_of

BUFFERS = gl.constexpr(2)  # tiles of weights on their way to memory, of each warpgroup
SCALARS = ["factor", "inner", "fill", "T", "S", "all_heads", "heads", "batches", "group", "together", "short"]
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # before Triton 3.7


@gluon.jit
def take(full, n, SLOTS: gl.constexpr):
    """Wait for tile n of the ring; its slot."""
    mbarrier.wait(full.index(n % SLOTS), (n // SLOTS) & 1)
    return n % SLOTS


@gluon.jit
def start_scores(queries, ring, full, n, space, SLOTS: gl.constexpr, HS: gl.constexpr):
    """Start the product of the queries and tile n of the ring, in the registers of `space`."""
    keys = ring.index(take(full, n, SLOTS)).reshape([BN, HS]).permute([1, 0])
    return warpgroup_mma(queries, keys, space, use_acc=False, is_async=True)


@gluon.jit
def finish_scores(scores, empty, n, SLOTS: gl.constexpr, LATER: gl.constexpr = 0):
    """Scores that were started, when all but the LATER products after them are done; the slot of their keys is free."""
    scores = warpgroup_mma_wait(LATER, deps=[scores])
    mbarrier.arrive(empty.index(n % SLOTS))
    return scores


@gluon.jit
def add_sums(scores, top, total, factor, limit, columns, MASKED: gl.constexpr):
    """Maxima and sums, [ROWS, 4] one of each for every thread, with a tile of scores added."""
    if MASKED:
        scores = gl.where(columns[None, :] <= limit[:, None], scores, float("-inf"))
    parts = scores.reshape([ROWS, BN // 8, 4, 2])  # the last dimension and the second lie in a thread
    above = gl.maximum(top, gl.max(gl.max(parts, 3), 1) * factor)
    least = gl.where(above == float("-inf"), 0.0, above)
    shift = gl.expand_dims(gl.expand_dims(-least, 1), 3)
    powers = gl.exp2(gl.fma(parts, gl.zeros_like(parts) + factor, gl.zeros_like(parts) + shift))
    return above, total * gl.exp2(top - least) + gl.sum(gl.sum(powers, 3), 1)


@gluon.jit
def joined(top, total, LAYOUT: gl.constexpr):
    """The maximum of each row, 0 where it sees nothing, and its sum, 1 there, [ROWS]: of those of its four threads."""
    most = gl.max(top, 1)
    least = gl.where(most == float("-inf"), 0.0, most)
    total = gl.sum(total * gl.exp2(top - gl.expand_dims(least, 1)), 1)
    least, total = gl.convert_layout(least, LAYOUT), gl.convert_layout(total, LAYOUT)
    return least, gl.where(total == 0, 1.0, total)


@gluon.jit
def weights_of(scores, factor, least, share, limit, columns, MASKED: gl.constexpr):
    """Weights: `least` is the maximum of each row, `share` what its powers are multiplied by."""
    powers = gl.exp2(gl.fma(scores, gl.zeros_like(scores) + factor, gl.zeros_like(scores) - least[:, None]))
    weights = powers * share[:, None]
    if MASKED:
        weights = gl.where(columns[None, :] <= limit[:, None], weights, 0.0)
    return weights


@gluon.jit
def store_weights(w, weights, staging, batch, slot, row, j, PART: gl.constexpr):
    """Store tile j of the weights; where they are in shared memory then."""
    buffer = staging.index(PART * BUFFERS + j % BUFFERS)
    tma.store_wait(BUFFERS - 1)
    barrier()
    buffer.reshape([ROWS, BN]).store(weights)
    fence_async_shared()
    tma.async_copy_shared_to_global(w, [batch, slot, row, j * BN], buffer)
    return buffer.reshape([ROWS, BN])


@gluon.jit
def add_values(acc, weights, ring, full, empty, n, SLOTS: gl.constexpr, HS: gl.constexpr):
    """The sum of values, tile n of the ring, with these weights added."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HS, 16])
    read = gl.convert_layout(weights, gl.DotOperandLayout(0, OUT, 2))
    acc = warpgroup_mma(read, ring.index(take(full, n, SLOTS)).reshape([BN, HS]), acc, is_async=True)
    acc, read = warpgroup_mma_wait(0, deps=[acc, read])  # whose registers are not to be used before
    mbarrier.arrive(empty.index(n % SLOTS))
    return warpgroup_mma_init(acc)


@gluon.jit
def attend(
    memory, block, shared, factor, T, S, all_heads, batches,
    PART: gl.constexpr, SLOTS: gl.constexpr, AHEAD: gl.constexpr, HS: gl.constexpr,
):  # fmt: skip
    """A warpgroup: rows PART * ROWS on of the block."""
    o, w, stats_ptr = memory
    batch, slot, head, _, block_row, _ = block
    ring, full, empty, q_full, q_shared, staging = shared
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HS, 16])
    tiles = tiles_of(block_row, BM, T, S)
    row = block_row + PART * ROWS
    end = gl.minimum(tiles_of(row, ROWS, T, S), tiles)
    inside = gl.minimum((row + S - T + 1) // BN, end - 1)  # tiles that the diagonal leaves alone
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, MMA))
    limit = rows + S - T
    columns = gl.arange(0, BN, gl.SliceLayout(0, MMA))
    zero = gl.zeros([ROWS, BN], gl.float32, MMA)
    queries = q_shared.index(PART).reshape([ROWS, HS])
    mbarrier.wait(q_full.index(PART), 0)

    OWN: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, zero.reshape([ROWS, BN // 8, 4, 2]).type.layout))
    top = gl.full([ROWS, 4], float("-inf"), gl.float32, OWN)
    total = gl.zeros([ROWS, 4], gl.float32, OWN)
    done = 0
    if AHEAD:  # in turn, one tile in the registers of `scores` and the next in those of `later`
        scores = finish_scores(start_scores(queries, ring, full, 0, zero, SLOTS, HS), empty, 0, SLOTS)
        later = zero
        for couple in range(inside // 2):
            n = 2 * couple
            started = start_scores(queries, ring, full, n + 1, later, SLOTS, HS)
            top, total = add_sums(scores, top, total, factor, limit, columns, False)
            later = finish_scores(started, empty, n + 1, SLOTS)
            started = start_scores(queries, ring, full, n + 2, scores, SLOTS, HS)
            top, total = add_sums(later, top, total, factor, limit, columns, False)
            scores = finish_scores(started, empty, n + 2, SLOTS)
        done = inside // 2 * 2 + 1
        top, total = add_sums(scores, top, total, factor, limit, (done - 1) * BN + columns, True)
    for masked in gl.static_range(AHEAD, 2):
        for n in range(done if AHEAD or not masked else inside, end if masked else inside):
            scores = finish_scores(start_scores(queries, ring, full, n, zero, SLOTS, HS), empty, n, SLOTS)
            top, total = add_sums(scores, top, total, factor, limit, n * BN + columns, masked)
    for n in range(end, tiles):
        mbarrier.arrive(empty.index(take(full, n, SLOTS)))
    least, total = joined(top, total, gl.SliceLayout(1, MMA))
    places = stats_ptr + (batch * all_heads + head).to(gl.int64) * T + rows
    gl.store(places, least, mask=rows < T)
    gl.store(places + (batches * all_heads).to(gl.int64) * T, gl.log2(total), mask=rows < T)
    share = 1.0 / total

    acc = warpgroup_mma_init(gl.zeros([ROWS, HS], gl.float32, OUT))
    done = 0
    if AHEAD:
        scores = finish_scores(start_scores(queries, ring, full, tiles, zero, SLOTS, HS), empty, tiles, SLOTS)
        for j in range(inside):
            n = tiles + 2 * j
            weights = weights_of(scores, factor, least, share, limit, columns, False).to(w.dtype)
            stored = store_weights(w, weights, staging, batch, slot, row, j, PART)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index((n - 1) % SLOTS), pred=j > 0)
            started = start_scores(queries, ring, full, n + 2, zero, SLOTS, HS)
            values = ring.index(take(full, n + 1, SLOTS)).reshape([BN, HS])
            acc = warpgroup_mma(stored, values, acc, is_async=True)
            scores = finish_scores(started, empty, n + 2, SLOTS, 1)
        weights = weights_of(scores, factor, least, share, limit, inside * BN + columns, True).to(w.dtype)
        store_weights(w, weights, staging, batch, slot, row, inside, PART)
        acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
        mbarrier.arrive(empty.index((tiles + 2 * inside - 1) % SLOTS), pred=inside > 0)
        acc = add_values(acc, weights, ring, full, empty, tiles + 2 * inside + 1, SLOTS, HS)
        done = inside + 1
    for masked in gl.static_range(AHEAD, 2):
        for j in range(done if AHEAD or not masked else inside, end if masked else inside):
            n = tiles + 2 * j
            scores = finish_scores(start_scores(queries, ring, full, n, zero, SLOTS, HS), empty, n, SLOTS)
            weights = weights_of(scores, factor, least, share, limit, j * BN + columns, masked).to(w.dtype)
            store_weights(w, weights, staging, batch, slot, row, j, PART)
            acc = add_values(acc, weights, ring, full, empty, n + 1, SLOTS, HS)
    for n in range(tiles + 2 * end, 3 * tiles):
        mbarrier.arrive(empty.index(take(full, n, SLOTS)))
    barrier()  # all have read the queries
    buffer = q_shared.index(PART)
    buffer.reshape([ROWS, HS]).store(warpgroup_mma_wait(0, deps=[acc]).to(o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o, [batch, head, row, 0], buffer)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SCALARS)
def hopper_kernel(
    q, k, v, o, w, stats_ptr, heads_ptr, flags_ptr, factor, inner, fill, T, S, all_heads, heads, batches, group,
    together, short,
    LISTED: gl.constexpr, ZEROS: gl.constexpr, SLOTS: gl.constexpr, AHEAD: gl.constexpr,
    REGISTERS: gl.constexpr, LOAD_REGISTERS: gl.constexpr, HS: gl.constexpr,
):  # fmt: skip
    """REGISTERS, LOAD_REGISTERS: of a thread that multiplies, and of one that loads."""
    block = block_of(T, heads, batches, heads_ptr, group, together, short, LISTED)
    ring = gl.allocate_shared_memory(k.dtype, [SLOTS, 1, 1, BN, HS], k.layout)
    staging = gl.allocate_shared_memory(w.dtype, [2 * BUFFERS, 1, 1, ROWS, BN], w.layout)
    q_shared = gl.allocate_shared_memory(q.dtype, [2, 1, 1, ROWS, HS], q.layout)
    zeros = gl.allocate_shared_memory(w.dtype, [1, 1, ROWS, BN], w.layout) if ZEROS else staging.index(0)
    full, empty, q_full = make_barriers(SLOTS)
    if ZEROS:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        zeros.reshape([ROWS, BN]).store(gl.zeros([ROWS, BN], gl.float32, LAYOUT).to(w.dtype))
    fence_async_shared()
    barrier()
    load_queries(q, block, q_full, q_shared, 1, ROWS * HS * 2)
    memory = o, w, stats_ptr
    shared = ring, full, empty, q_full, q_shared, staging
    gl.warp_specialize(
        [
            (attend, (memory, block, shared, factor, T, S, all_heads, batches, 0, SLOTS, AHEAD, HS)),
            (attend, (memory, block, shared, factor, T, S, all_heads, batches, 1, SLOTS, AHEAD, HS)),
            (load_tiles, (((k,), (v,), w), block, ring, full, empty, zeros, T, S, ZEROS, 1, SLOTS, HS)),
        ],
        [4, 1], [REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip
