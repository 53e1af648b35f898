"""Which block a program of `hopper_kernel` has, and what its warp that loads does: loads by TMA, and zeros."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

ROWS = gl.constexpr(64)  # of each of two warpgroups
BM = gl.constexpr(128)
BN = gl.constexpr(64)


@gluon.jit
def block_of(T, heads, batches, heads_ptr, group, together, short, LISTED: gl.constexpr):
    """(batch, place among the listed heads, head, its key head, first row, first row of the block whose zeros are stored here).

    The longest rows first, of `together` heads side by side; but the first `short` blocks of rows of all heads at the end, so
    that the last programs are short.
    """
    blocks = gl.cdiv(T, BM)
    matrices = batches * heads
    number = gl.program_id(0)
    long = gl.maximum(blocks - short, 0)
    if number >= long * matrices:
        block, matrix = blocks - 1 - number // matrices, number % matrices
    else:
        first = number // (together * long) * together
        members = gl.minimum(together, matrices - first)
        turn = number - first * long
        block, matrix = blocks - 1 - turn // members, first + turn % members
    batch = matrix // heads
    slot = matrix % heads
    head = slot
    if LISTED:
        head = gl.load(heads_ptr + slot)
    return batch, slot, head, head // group, block * BM, (blocks - 1 - block) * BM


@gluon.jit
def make_barriers(SLOTS: gl.constexpr):
    """Barriers that are not yet waited for: the ring's slots full and empty again, and the queries of each warpgroup there."""
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
    return full, empty, q_full


@gluon.jit
def load_queries(q, block, q_full, into, STEP: gl.constexpr, BYTES: gl.constexpr):
    """Start loading the queries of both warpgroups, BYTES each, into places STEP apart."""
    for i in gl.static_range(2):
        mbarrier.expect(q_full.index(i), BYTES)
        at = [block[0], block[2], block[4] + ROWS * i, 0]
        tma.async_copy_global_to_shared(q, at, q_full.index(i), into.index(i * STEP))


@gluon.jit
def tiles_of(row, rows: gl.constexpr, T, S):
    """How many tiles of keys the `rows` rows from `row` on see."""
    return gl.cdiv(gl.minimum(row + rows, T) + S - T, BN)


@gluon.jit
def store_zeros(w, zeros, batch, slot, row, begin, end, T, S):
    """Zeros `begin` to `end` of the block at `row`, a tile of ROWS rows each: those of the first rows, then of the second."""
    first = tiles_of(row, ROWS, T, S)
    second = tiles_of(row + ROWS, ROWS, T, S)
    above = gl.cdiv(S, BN) - first
    for n in range(begin, end):
        below = n >= above
        place = gl.where(below, second + n - above, first + n)
        tma.async_copy_shared_to_global(w, [batch, slot, gl.where(below, row + ROWS, row), place * BN], zeros)


@gluon.jit
def load_tiles(
    memory, block, ring, full, empty, zeros, T, S,
    ZEROS: gl.constexpr, PARTS: gl.constexpr, SLOTS: gl.constexpr, HS: gl.constexpr,
):  # fmt: skip
    """The warp that loads. Keys and values have PARTS parts, side by side in the ring."""
    k, v, w = memory
    batch, slot, _, kv_head, row, other = block
    tiles = tiles_of(row, BM, T, S)
    blanks, quota = 0, 0
    if ZEROS:
        blanks = gl.cdiv(S, BN) - tiles_of(other, ROWS, T, S)
        blanks += gl.where(other + ROWS < T, gl.cdiv(S, BN) - tiles_of(other + ROWS, ROWS, T, S), 0)
        quota = gl.cdiv(blanks, tiles)
    for n in range(3 * tiles):
        place = n % SLOTS
        mbarrier.wait(empty.index(place), ((n // SLOTS) & 1) ^ 1)
        mbarrier.expect(full.index(place), PARTS * BN * HS * 2)
        second = n - tiles
        is_value = (second >= 0) & (second % 2 == 1)
        at = [batch, kv_head, gl.where(second < 0, n, second // 2) * BN, 0]
        for part in gl.static_range(PARTS):
            into = ring.index(PARTS * place + part)
            tma.async_copy_global_to_shared(k[part], at, full.index(place), into, pred=is_value == 0)
            tma.async_copy_global_to_shared(v[part], at, full.index(place), into, pred=is_value)
        if ZEROS:
            store_zeros(w, zeros, batch, slot, other, n * quota, gl.minimum(n * quota + quota, blanks), T, S)
    tma.store_wait(0)
