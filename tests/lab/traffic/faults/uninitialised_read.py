"""A read of shared or local memory that nothing wrote."""

from numba import cuda, float32, int32

KIND = "uninitialised-read"


class AccumulatorNotCleared:
    """A local sum that starts from whatever is there."""

    @cuda.jit
    def wrong(x, out):
        total = cuda.local.array(1, float32)
        i = cuda.threadIdx.x
        total[0] += x[i]
        out[i] = total[0]

    @cuda.jit
    def mended(x, out):
        total = cuda.local.array(1, float32)
        i = cuda.threadIdx.x
        total[0] = 0
        total[0] += x[i]
        out[i] = total[0]


class HistogramNotCleared:
    """Shared bins are counted up without having been set to zero."""

    @cuda.jit
    def wrong(idx, out):
        bins = cuda.shared.array(8, int32)
        i = cuda.threadIdx.x
        cuda.atomic.add(bins, idx[i] % 8, 1)
        cuda.syncthreads()
        if i < 8:
            out[i] = bins[i]

    @cuda.jit
    def mended(idx, out):
        bins = cuda.shared.array(8, int32)
        i = cuda.threadIdx.x
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, idx[i] % 8, 1)
        cuda.syncthreads()
        if i < 8:
            out[i] = bins[i]


class TailNotLoaded:
    """A tile is read in full, but its tail has no threads to fill it."""

    @cuda.jit
    def wrong(x, out, n):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        if i < n:
            tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[63 - i]

    @cuda.jit
    def mended(x, out, n):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i] if i < n else 0.0
        cuda.syncthreads()
        out[i] = tile[63 - i]


class HaloForgotten:
    """The cells at both ends of a stencil's tile."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(66, float32)
        i = cuda.threadIdx.x
        tile[i + 1] = x[i]
        cuda.syncthreads()
        out[i] = tile[i] + tile[i + 2]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(66, float32)
        i = cuda.threadIdx.x
        tile[i + 1] = x[i]
        if i == 0:
            tile[0] = 0
            tile[65] = 0
        cuda.syncthreads()
        out[i] = tile[i] + tile[i + 2]


class OnlyOnOneBranch:
    """A local value that one of two branches forgets."""

    @cuda.jit
    def wrong(x, out):
        value = cuda.local.array(2, float32)
        i = cuda.threadIdx.x
        value[0] = x[i]
        if x[i] > 0:
            value[1] = 1
        out[i] = value[0] + value[1]

    @cuda.jit
    def mended(x, out):
        value = cuda.local.array(2, float32)
        i = cuda.threadIdx.x
        value[0] = x[i]
        value[1] = 1 if x[i] > 0 else 0
        out[i] = value[0] + value[1]


class LoopOneShort:
    """The loop that fills is shorter than the loop that reads."""

    @cuda.jit
    def wrong(x, out):
        window = cuda.local.array(5, float32)
        i = cuda.threadIdx.x
        total = 0.0
        for j in range(4):
            window[j] = x[i + j]
        for j in range(5):
            total += window[j]
        out[i] = total

    @cuda.jit
    def mended(x, out):
        window = cuda.local.array(5, float32)
        i = cuda.threadIdx.x
        total = 0.0
        for j in range(5):
            window[j] = x[i + j]
        for j in range(5):
            total += window[j]
        out[i] = total


class ReadsBeforeWriting:
    """The value of the last round is used in the first round."""

    @cuda.jit
    def wrong(x, out):
        last = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        for step in range(3):
            out[i] += x[64 * step + i] - last[i]
            last[i] = x[64 * step + i]

    @cuda.jit
    def mended(x, out):
        last = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        last[i] = 0
        for step in range(3):
            out[i] += x[64 * step + i] - last[i]
            last[i] = x[64 * step + i]


class WrittenAfterBarrier:
    """The write comes in a later interval than the read."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        out[i] = tile[63 - i]
        cuda.syncthreads()
        tile[i] = x[i]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[63 - i]


class ContentsOfLastBlock:
    """Shared memory does not last from one block to the next."""

    grid = 2

    @cuda.jit
    def wrong(x, out):
        table = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            table[i] = 2 * x[i]
        cuda.syncthreads()
        out[cuda.grid(1)] = table[63 - i]

    @cuda.jit
    def mended(x, out):
        table = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        table[i] = 2 * x[i]
        cuda.syncthreads()
        out[cuda.grid(1)] = table[63 - i]


class OtherColumnOfMatrix:
    """A padded tile is read in the column that pads it."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        tile = cuda.shared.array((8, 9), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = m[y, x]
        cuda.syncthreads()
        out2[y, x] = tile[x, y + 1]

    @cuda.jit
    def mended(m, out2):
        tile = cuda.shared.array((8, 9), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = m[y, x]
        cuda.syncthreads()
        out2[y, x] = tile[x, y]


class UpperTriangleOfLocal:
    """Only the lower half of a small local matrix is filled."""

    @cuda.jit
    def wrong(x, out):
        square = cuda.local.array((3, 3), float32)
        i = cuda.threadIdx.x
        for row in range(3):
            for column in range(row + 1):
                square[row, column] = x[i + row + column]
        out[i] = square[0, 2]

    @cuda.jit
    def mended(x, out):
        square = cuda.local.array((3, 3), float32)
        i = cuda.threadIdx.x
        for row in range(3):
            for column in range(row + 1):
                square[row, column] = x[i + row + column]
        out[i] = square[2, 0]


class WarpReadsTooEarly:
    """A lane reads, and only after the warp barrier is the value written."""

    block = 32

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        out[i] = tile[31 - i]
        cuda.syncwarp()
        tile[i] = x[i]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncwarp()
        out[i] = tile[31 - i]
