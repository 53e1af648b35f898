"""A block reads or writes what another block writes, without atomics."""

import numpy as np
from numba import cuda, float32, int32

KIND = "block-race"
grid = 4


class ReadsNextBlock:
    """The first element of the next block is read while that block rewrites it."""

    @cuda.jit
    def wrong(out):
        i = cuda.grid(1)
        if i < 255:
            out[i] = out[i + 1]

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        if i < 255:
            out[i] = x[i + 1]


class BlocksShareTotal:
    """Each block adds its sum to one element."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        if cuda.threadIdx.x == 0:
            out[0] += x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(out, 0, x[i])


class ForgetsBlockIndex:
    """All blocks write the elements of the first."""

    @cuda.jit
    def wrong(x, out):
        out[cuda.threadIdx.x] = x[cuda.grid(1)]

    @cuda.jit
    def mended(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]


class FirstBlockSumsUp:
    """The sums of the blocks are added by the last block, though nothing says that the others are done."""

    @cuda.jit
    def wrong(x, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            if block == 3:
                out[4] = out[0] + out[1] + out[2] + out[3]

    @cuda.jit
    def mended(x, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            if block == 3:
                out[4] = x[0] + x[64] + x[128] + x[192]


class LastByNumber:
    """The block with the highest number need not be the last to finish; the one that draws the last ticket is."""

    @cuda.jit
    def wrong(x, count, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
            if block == 3:
                out[4] = out[0] + out[1] + out[2] + out[3]

    @cuda.jit
    def mended(x, count, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            cuda.threadfence()
            if cuda.atomic.add(count, 0, 1) == 3:
                out[4] = out[0] + out[1] + out[2] + out[3]


class LastByNumberBehindBarrier:
    """The ticket is drawn by one thread, and another one reads: still the number of the block says nothing."""

    @cuda.jit
    def wrong(x, count, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)
        cuda.syncthreads()
        if block == 3 and cuda.threadIdx.x == 1:
            out[4] = out[0] + out[1]

    @cuda.jit
    def mended(x, count, out):
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
        cuda.syncthreads()
        if block == 3 and cuda.threadIdx.x == 1:
            out[4] = x[0] + x[64]


class TicketWithoutFence:
    """The last ticket does not publish the sums of the other blocks: a fence before it does."""

    @cuda.jit
    def wrong(x, count, out):
        ticket = cuda.shared.array(1, int32)
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            ticket[0] = cuda.atomic.add(count, 0, 1)
        cuda.syncthreads()
        if ticket[0] == 3 and cuda.threadIdx.x == 1:
            out[4] = out[0] + out[1] + out[2] + out[3]

    @cuda.jit
    def mended(x, count, out):
        ticket = cuda.shared.array(1, int32)
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[block] = x[64 * block]
            cuda.threadfence()
            ticket[0] = cuda.atomic.add(count, 0, 1)
        cuda.syncthreads()
        if ticket[0] == 3 and cuda.threadIdx.x == 1:
            out[4] = out[0] + out[1] + out[2] + out[3]


class OverlappingTiles:
    """Each block writes one element more than it owns."""

    @cuda.jit
    def wrong(x, out):
        i = 60 * cuda.blockIdx.x + cuda.threadIdx.x
        if cuda.threadIdx.x < 61:
            out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        i = 60 * cuda.blockIdx.x + cuda.threadIdx.x
        if cuda.threadIdx.x < 60:
            out[i] = x[i]


class StencilInPlace:
    """A stencil reads the neighbours' elements while they are overwritten; the edges lie in other blocks."""

    @cuda.jit
    def wrong(out):
        tile = cuda.shared.array(66, float32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t + 1] = out[i]
        if t == 0 and i > 0:
            tile[0] = out[i - 1]
        elif t == 0:
            tile[0] = 0
        cuda.syncthreads()
        out[i] = tile[t] + tile[t + 1]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(66, float32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t + 1] = x[i]
        if t == 0 and i > 0:
            tile[0] = x[i - 1]
        elif t == 0:
            tile[0] = 0
        cuda.syncthreads()
        out[i] = tile[t] + tile[t + 1]


class ColumnsMeet:
    """Blocks of rows and blocks of columns both write the corner that they share."""

    grid = 2
    block = 16

    @cuda.jit
    def wrong(m, out2):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            out2[0, t] = m[0, t]
        else:
            out2[t, 0] = m[t, 0]

    @cuda.jit
    def mended(m, out2):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            out2[0, t] = m[0, t]
        elif t > 0:
            out2[t, 0] = m[t, 0]


class GridStrideOverlap:
    """A loop over the grid whose stride is the block's, not the grid's."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        while i < 256:
            out[i] = x[i]
            i += cuda.blockDim.x

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        while i < 256:
            out[i] = x[i]
            i += cuda.gridsize(1)


class AtomicAgainstPlain:
    """One block initialises the counter that the others already count up."""

    @cuda.jit
    def wrong(x, count):
        if cuda.grid(1) == 0:
            count[0] = 0
        cuda.syncthreads()
        if x[cuda.grid(1)] > 0:
            cuda.atomic.add(count, 0, 1)

    @cuda.jit
    def mended(x, count):
        if x[cuda.grid(1)] > 0:
            cuda.atomic.add(count, 0, 1)


class TransposedInPlace:
    """Two blocks exchange their tiles in one matrix."""

    grid = (2, 2)
    block = (8, 8)

    @cuda.jit
    def wrong(out2):
        x, y = cuda.grid(2)
        if x < y:
            out2[y, x], out2[x, y] = out2[x, y], out2[y, x]
        elif x > y and x // 8 != y // 8:
            out2[y, x] = out2[x, y]

    @cuda.jit
    def mended(out2):
        x, y = cuda.grid(2)
        if x < y:
            out2[y, x], out2[x, y] = out2[x, y], out2[y, x]


class WordsOfOneElement:
    """Blocks write the two halves of 8-byte elements, and a whole one that reaches into the neighbour's half."""

    @cuda.jit
    def wrong(out):
        wide = out.view(np.float64)
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            if block % 2:
                wide[block // 2] = 1.0
            else:
                out[block] = 2.0

    @cuda.jit
    def mended(out):
        wide = out.view(np.float64)
        block = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            if block % 2:
                wide[block] = 1.0
            else:
                out[8 + block] = 2.0
