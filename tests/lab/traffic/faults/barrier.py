"""A barrier that not all threads of the block reach, or at which they do not stand in the same place."""

from numba import cuda, float32

KIND = "barrier"


@cuda.jit(device=True)
def total_of_block(sums, value):
    """The sum over the block. All of its threads must call it."""
    i = cuda.threadIdx.x
    sums[i] = value
    cuda.syncthreads()
    half = 32
    while half:
        if i < half:
            sums[i] += sums[i + half]
        cuda.syncthreads()
        half //= 2
    return sums[0]


class HalfTheBlock:
    """Only the first threads come to the barrier."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        if i < 32:
            cuda.syncthreads()
        out[i] = tile[i]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[i]


class EarlyReturn:
    """Surplus threads leave before the barrier."""

    @cuda.jit
    def wrong(x, out, n):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        if i >= n:
            return
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[n - 1 - i]

    @cuda.jit
    def mended(x, out, n):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        if i < n:
            tile[i] = x[i]
        cuda.syncthreads()
        if i < n:
            out[i] = tile[n - 1 - i]


class DependsOnData:
    """Whether a thread waits depends on its value."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i]
        if x[i] > 0:
            cuda.syncthreads()
            out[i] = 0

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i]
        cuda.syncthreads()
        if x[i] > 0:
            out[i] = 0


class BothBranches:
    """Each half of the block waits at a barrier of its own."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        if i < 32:
            out[i] = x[i]
            cuda.syncthreads()
        else:
            out[i] = -x[i]
            cuda.syncthreads()

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i] if i < 32 else -x[i]
        cuda.syncthreads()


class TripCountDiffers:
    """Threads go round a loop with a barrier a different number of times."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        total = 0.0
        for step in range(2 + i % 2):
            total += x[64 * step + i]
            cuda.syncthreads()
        out[i] = total

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        total = 0.0
        for step in range(3):
            if step < 2 + i % 2:
                total += x[64 * step + i]
            cuda.syncthreads()
        out[i] = total


class BreaksOut:
    """A thread that has found what it looks for leaves the loop, and the others wait for it."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i] = -1
        for step in range(3):
            if x[64 * step + i] > 0:
                out[i] = step
                break
            cuda.syncthreads()

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = -1
        for step in range(3):
            if out[i] < 0 and x[64 * step + i] > 0:
                out[i] = step
            cuda.syncthreads()


class OnlyOneWarp:
    """The warp that does the last steps alone still calls the barrier of the block."""

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        if i < 32:
            sums[i] += sums[i + 32]
            cuda.syncthreads()
            out[i] = sums[31 - i]

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = x[i]
        cuda.syncthreads()
        if i < 32:
            sums[i] += sums[i + 32]
            cuda.syncwarp()
            out[i] = sums[31 - i]


class InsideDeviceFunction:
    """A device function with a barrier is called by some threads only."""

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        sums[i] = 0
        cuda.syncthreads()
        if i < 48:
            out[i] = total_of_block(sums, x[i])

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        total = total_of_block(sums, x[i] if i < 48 else 0.0)
        if i < 48:
            out[i] = total


class TwoCallsOfOneFunction:
    """The two halves call the same device function, but from different lines."""

    @cuda.jit
    def wrong(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        if i < 32:
            out[i] = total_of_block(sums, x[i])
        else:
            out[i] = -total_of_block(sums, x[i])

    @cuda.jit
    def mended(x, out):
        sums = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        total = total_of_block(sums, x[i])
        out[i] = total if i < 32 else -total


class LastBlockIsShort:
    """Only in the last block do some threads have no element, and skip the barrier."""

    grid = 2

    @cuda.jit
    def wrong(x, out, n):
        i = cuda.grid(1)
        if i < n + 64:
            out[i] = x[i]
            cuda.syncthreads()
            out[i] += 1

    @cuda.jit
    def mended(x, out, n):
        i = cuda.grid(1)
        if i < n + 64:
            out[i] = x[i]
        cuda.syncthreads()
        if i < n + 64:
            out[i] += 1


class CountingBarrier:
    """A barrier that counts is a barrier too."""

    @cuda.jit
    def wrong(x, out, n):
        i = cuda.threadIdx.x
        if i < n:
            out[i] = cuda.syncthreads_count(x[i] > 0)

    @cuda.jit
    def mended(x, out, n):
        i = cuda.threadIdx.x
        positive = cuda.syncthreads_count(i < n and x[i] > 0)
        if i < n:
            out[i] = positive


class MaskOfAbsentLanes:
    """Half a warp waits for the other half, which is at the barrier of the block."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i]
        if i % 32 < 16:
            cuda.syncwarp(0xFFFFFFFF)
        cuda.syncthreads()

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i]
        if i % 32 < 16:
            cuda.syncwarp(0x0000FFFF)
        cuda.syncthreads()
