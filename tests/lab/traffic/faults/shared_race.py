"""Two threads meet in shared memory between barriers, and one of them writes."""

from numba import cuda, float32, int32

KIND = "shared-race"


class ReadsNeighbour:
    """The value of the next thread is read before a barrier says that it is there."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        out[i] = tile[(i + 63) % 64]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[(i + 63) % 64]


class ReusesTileTooSoon:
    """A loop overwrites the tile while slow threads still read its last contents."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        total = 0.0
        for step in range(3):
            tile[i] = x[64 * step + i]
            cuda.syncthreads()
            total += tile[63 - i]
        out[i] = total

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        total = 0.0
        for step in range(3):
            tile[i] = x[64 * step + i]
            cuda.syncthreads()
            total += tile[63 - i]
            cuda.syncthreads()
        out[i] = total


class TreeWithoutBarrier:
    """A reduction tree whose levels are not separated."""

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        half = 32
        while half:
            if i < half:
                sums[i] += sums[i + half]
            half //= 2
        if i == 0:
            out[0] = sums[0]

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        half = 32
        while half:
            if i < half:
                sums[i] += sums[i + half]
            cuda.syncthreads()
            half //= 2
        if i == 0:
            out[0] = sums[0]


class ScanInPlace:
    """A step of a scan reads and writes one array in the same interval."""

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        for log in range(6):
            if i >= 1 << log:
                sums[i] += sums[i - (1 << log)]
            cuda.syncthreads()
        out[i] = sums[i]

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        for log in range(6):
            left = 0.0
            if i >= 1 << log:
                left = sums[i - (1 << log)]
            cuda.syncthreads()
            sums[i] += left
            cuda.syncthreads()
        out[i] = sums[i]


class PlainHistogram:
    """Bins are counted up without atomics."""

    @cuda.jit
    def wrong(idx, out):
        bins = cuda.shared.array(8, int32)
        i = cuda.threadIdx.x
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        bins[idx[i] % 8] += 1
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


class AtomicAndPlain:
    """Some threads update a counter atomically while another reads it as it goes."""

    @cuda.jit
    def wrong(x, out):
        counter = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0:
            counter[0] = 0
        cuda.syncthreads()
        if x[i] > 0:
            cuda.atomic.add(counter, 0, 1)
        if i == 63:
            out[0] = counter[0]

    @cuda.jit
    def mended(x, out):
        counter = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0:
            counter[0] = 0
        cuda.syncthreads()
        if x[i] > 0:
            cuda.atomic.add(counter, 0, 1)
        cuda.syncthreads()
        if i == 63:
            out[0] = counter[0]


class WarpTreeWithoutSync:
    """Lanes of one warp do not run in step: only syncwarp orders them."""

    block = 32

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        sums[lane] = x[lane]
        half = 16
        while half:
            if lane < half:
                sums[lane] += sums[lane + half]
            half //= 2
        if lane == 0:
            out[0] = sums[0]

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        sums[lane] = x[lane]
        cuda.syncwarp()
        half = 16
        while half:
            if lane < half:
                sums[lane] += sums[lane + half]
            cuda.syncwarp()
            half //= 2
        if lane == 0:
            out[0] = sums[0]


class WarpSyncAcrossWarps:
    """A warp barrier does not order two warps."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncwarp()
        out[i] = tile[i ^ 32]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncwarp()
        out[i] = tile[i ^ 1]


class OneCellForAll:
    """Every thread leaves its value in the same cell."""

    @cuda.jit
    def wrong(x, out):
        last = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        last[0] = x[i]
        cuda.syncthreads()
        out[i] = last[0]

    @cuda.jit
    def mended(x, out):
        last = cuda.shared.array(1, float32)
        i = cuda.threadIdx.x
        if i == 63:
            last[0] = x[i]
        cuda.syncthreads()
        out[i] = last[0]


class HaloLoadedByOther:
    """The halo of a stencil is loaded by the first threads, and read by the last."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(66, float32)
        i = cuda.threadIdx.x
        tile[i + 1] = x[i + 1]
        cuda.syncthreads()
        if i < 2:
            tile[65 * i] = x[65 * i]
        out[i] = tile[i] + tile[i + 1] + tile[i + 2]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(66, float32)
        i = cuda.threadIdx.x
        tile[i + 1] = x[i + 1]
        if i < 2:
            tile[65 * i] = x[65 * i]
        cuda.syncthreads()
        out[i] = tile[i] + tile[i + 1] + tile[i + 2]


class TransposeInPlace:
    """Entries are swapped across the diagonal, each by both its threads."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        tile = cuda.shared.array((8, 8), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = m[y, x]
        cuda.syncthreads()
        tile[y, x] = tile[x, y]
        cuda.syncthreads()
        out2[y, x] = tile[y, x]

    @cuda.jit
    def mended(m, out2):
        tile = cuda.shared.array((8, 8), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = m[y, x]
        cuda.syncthreads()
        value = tile[x, y]
        cuda.syncthreads()
        tile[y, x] = value
        cuda.syncthreads()
        out2[y, x] = tile[y, x]


class OneBufferForTwo:
    """Loading the next slice while the last one is in use takes two buffers."""

    @cuda.jit
    def wrong(x, out):
        slices = cuda.shared.array((2, 64), float32)
        i = cuda.threadIdx.x
        slices[0, i] = x[i]
        cuda.syncthreads()
        total = 0.0
        for step in range(3):
            slices[0, i] = x[64 * (step + 1) + i]
            total += slices[0, 63 - i]
            cuda.syncthreads()
        out[i] = total

    @cuda.jit
    def mended(x, out):
        slices = cuda.shared.array((2, 64), float32)
        i = cuda.threadIdx.x
        slices[0, i] = x[i]
        cuda.syncthreads()
        total = 0.0
        for step in range(3):
            slices[(step + 1) % 2, i] = x[64 * (step + 1) + i]
            total += slices[step % 2, 63 - i]
            cuda.syncthreads()
        out[i] = total


class PublishedWithoutFence:
    """A flag that is set and taken up by atomics publishes data only behind a fence."""

    @cuda.jit
    def wrong(x, out):
        cell = cuda.shared.array(1, float32)
        flag = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0:
            flag[0] = 0
        cuda.syncthreads()
        if i == 0:
            cell[0] = x[0]
            cuda.atomic.exch(flag, 0, 1)
        elif i == 32 and cuda.atomic.add(flag, 0, 0) == 1:
            out[0] = cell[0]

    @cuda.jit
    def mended(x, out):
        cell = cuda.shared.array(1, float32)
        flag = cuda.shared.array(1, int32)
        i = cuda.threadIdx.x
        if i == 0:
            flag[0] = 0
        cuda.syncthreads()
        if i == 0:
            cell[0] = x[0]
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
        elif i == 32 and cuda.atomic.add(flag, 0, 0) == 1:
            out[0] = cell[0]
