"""An index beyond the array."""

from numba import cuda, float32

KIND = "out-of-range"
grid = 2
block = 40  # of 80 threads, 64 have an element


class NoGuard:
    """More threads than elements, and no guard."""

    @cuda.jit
    def wrong(short, out):
        i = cuda.grid(1)
        out[i] = short[i]

    @cuda.jit
    def mended(short, out):
        i = cuda.grid(1)
        if i < short.shape[0]:
            out[i] = short[i]


class GuardOffByOne:
    """A guard that lets the first surplus thread through."""

    @cuda.jit
    def wrong(short, out):
        i = cuda.grid(1)
        if i <= short.size:
            out[i] = short[i]

    @cuda.jit
    def mended(short, out):
        i = cuda.grid(1)
        if i < short.size:
            out[i] = short[i]


class NeighbourOfLast:
    """The last element has no right neighbour."""

    @cuda.jit
    def wrong(short, out):
        i = cuda.grid(1)
        if i < 64:
            out[i] = short[i] + short[i + 1]

    @cuda.jit
    def mended(short, out):
        i = cuda.grid(1)
        if i < 63:
            out[i] = short[i] + short[i + 1]


class RowsAndColumnsSwapped:
    """The indices of a wide matrix in the wrong order."""

    grid = (2, 1)
    block = (16, 8)

    @cuda.jit
    def wrong(wide, out):
        column, row = cuda.grid(2)
        out[32 * row + column] = wide[column, row]

    @cuda.jit
    def mended(wide, out):
        column, row = cuda.grid(2)
        out[32 * row + column] = wide[row, column]


class SharedHaloTooSmall:
    """The tile has no room for the halo."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(40, float32)
        t = cuda.threadIdx.x
        tile[t] = x[cuda.grid(1)]
        if t == 0:
            tile[40] = x[200]
        cuda.syncthreads()
        out[cuda.grid(1)] = tile[t]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(41, float32)
        t = cuda.threadIdx.x
        tile[t] = x[cuda.grid(1)]
        if t == 0:
            tile[40] = x[200]
        cuda.syncthreads()
        out[cuda.grid(1)] = tile[t]


class LocalLoopTooLong:
    """A loop over a local array that goes one too far."""

    @cuda.jit
    def wrong(x, out):
        mine = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for j in range(5):
            mine[j] = x[i]
        out[i] = mine[0]

    @cuda.jit
    def mended(x, out):
        mine = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for j in range(4):
            mine[j] = x[i]
        out[i] = mine[0]


class UncheckedIndices:
    """A gather whose indices come from data."""

    @cuda.jit
    def wrong(idx, short, out):
        i = cuda.grid(1)
        out[i] = short[idx[i]]

    @cuda.jit
    def mended(idx, short, out):
        i = cuda.grid(1)
        if idx[i] < 64:
            out[i] = short[idx[i]]


class BinOfLargestValue:
    """The largest value falls into a bin beyond the last."""

    @cuda.jit
    def wrong(idx, count):
        cuda.atomic.add(count, idx[cuda.grid(1)] // 14, 1)

    @cuda.jit
    def mended(idx, count):
        cuda.atomic.add(count, idx[cuda.grid(1)] // 16, 1)


class RowOfSlice:
    """A view is shorter than the array that it was cut from."""

    @cuda.jit
    def wrong(x, out):
        half = x[64:]
        i = cuda.grid(1)
        out[i] = half[i + 128]

    @cuda.jit
    def mended(x, out):
        half = x[64:]
        i = cuda.grid(1)
        out[i] = half[i + 64]


class WriteInsideTheBufferButOutsideTheRow:
    """A column beyond the row lands in the next row, and no one is told."""

    grid = 1
    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out2[y, x + 9] = m[y, x]

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out2[y, x + 8] = m[y, x]


class GridStrideStart:
    """A grid-stride loop whose bound is the grid's, not the array's."""

    @cuda.jit
    def wrong(short, out):
        i = cuda.grid(1)
        while i < 2 * cuda.gridsize(1):
            out[i] = short[i]
            i += cuda.gridsize(1)

    @cuda.jit
    def mended(short, out):
        i = cuda.grid(1)
        while i < short.size:
            out[i] = short[i]
            i += cuda.gridsize(1)


class DynamicSharedTooSmall:
    """The launch gives less dynamic shared memory than the kernel uses."""

    dynamic = 160

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        tile[2 * t] = x[t]
        out[cuda.grid(1)] = tile[2 * t]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        out[cuda.grid(1)] = tile[t]


class AtomicBeyondEnd:
    """A queue that is never checked for being full."""

    @cuda.jit
    def wrong(x, count, short):
        short[cuda.atomic.add(count, 0, 1)] = x[cuda.grid(1)]

    @cuda.jit
    def mended(x, count, short):
        at = cuda.atomic.add(count, 0, 1)
        if at < short.size:
            short[at] = x[cuda.grid(1)]
