"""An index below zero. It counts from the end of the array, and returns something without complaint."""

from numba import cuda, float32

KIND = "negative-index"


class LeftOfFirst:
    """The first element has no left neighbour."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i] - x[i - 1]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        if i > 0:
            out[i] = x[i] - x[i - 1]


class ScanStep:
    """A step of a scan looks further left than there is."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[i] + tile[i - 4]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[i] + tile[i - 4] if i >= 4 else tile[i]


class Reversed:
    """A reversal that is off by one, and works all the same."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i] = x[-1 - i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = x[x.size - 1 - i]


class CornerOfStencil:
    """Only the corner thread steps out in both directions."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        if x > 0 or y > 0:
            out2[y, x] = m[y - 1, x]

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        if y > 0:
            out2[y, x] = m[y - 1, x]


class SentinelAsIndex:
    """-1 marks "none" in the data, and is used as an index."""

    @cuda.jit
    def wrong(x, parent, out):
        i = cuda.threadIdx.x
        out[i] = x[parent[i]]

    @cuda.jit
    def mended(x, parent, out):
        i = cuda.threadIdx.x
        if parent[i] >= 0:
            out[i] = x[parent[i]]


class WriteBehindStart:
    """A write goes to the end of the array instead of before its start."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i - 2] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        if i >= 2:
            out[i - 2] = x[i]


class CountsDownPastZero:
    """A loop that counts down one time too often."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        j = 3
        total = 0.0
        while j >= -1:
            total += x[j]
            j -= 1
        out[i] = total

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        j = 3
        total = 0.0
        while j >= 0:
            total += x[j]
            j -= 1
        out[i] = total


class LocalWindow:
    """A ring of the last values, read before its start."""

    @cuda.jit
    def wrong(x, out):
        last = cuda.local.array(4, float32)
        i = cuda.threadIdx.x
        for j in range(4):
            last[j] = x[i + j]
        out[i] = last[0 - 1 - i % 4]

    @cuda.jit
    def mended(x, out):
        last = cuda.local.array(4, float32)
        i = cuda.threadIdx.x
        for j in range(4):
            last[j] = x[i + j]
        out[i] = last[3 - i % 4]


class AtomicBin:
    """Negative values have a bin below the first."""

    @cuda.jit
    def wrong(x, count):
        cuda.atomic.add(count, 3 if x[cuda.threadIdx.x] > 0 else -3, 1)

    @cuda.jit
    def mended(x, count):
        cuda.atomic.add(count, 3 if x[cuda.threadIdx.x] > 0 else 0, 1)


class DiagonalAbove:
    """The distance to the diagonal as an index."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        cuda.atomic.add(out, y - x, m[y, x])

    @cuda.jit
    def mended(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        cuda.atomic.add(out, y - x + 7, m[y, x])


class ViewBeforeStart:
    """An index relative to a view, left of where the view begins."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        right = x[64:]
        out[i] = right[i - 8]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = x[64 + i - 8]


class UnderflowOfBlockStart:
    """Only the first block has nothing to its left."""

    grid = 4

    @cuda.jit
    def wrong(x, out):
        start = cuda.blockIdx.x * cuda.blockDim.x
        out[cuda.grid(1)] = x[start - 1]

    @cuda.jit
    def mended(x, out):
        start = cuda.blockIdx.x * cuda.blockDim.x
        out[cuda.grid(1)] = x[max(start - 1, 0)]
