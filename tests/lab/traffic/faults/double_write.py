"""Two threads of a block write one element of global memory, with no barrier between."""

from numba import cuda

KIND = "double-write"


class PairsShareElement:
    """An index that loses its last bit."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        out[i // 2] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        if i % 2:
            out[i // 2] = x[i]


class AllWriteTheTotal:
    """Every thread stores the result of the block."""

    @cuda.jit
    def wrong(x, out):
        total = 0.0
        for i in range(64):
            total += x[i]
        out[0] = total

    @cuda.jit
    def mended(x, out):
        total = 0.0
        for i in range(64):
            total += x[i]
        if cuda.threadIdx.x == 0:
            out[0] = total


class PlainAccumulation:
    """A sum is built by reading and writing one element."""

    @cuda.jit
    def wrong(x, out):
        out[0] += x[cuda.threadIdx.x]

    @cuda.jit
    def mended(x, out):
        cuda.atomic.add(out, 0, x[cuda.threadIdx.x])


class ScatterWithDuplicates:
    """A scatter whose indices repeat."""

    @cuda.jit
    def wrong(x, idx, out):
        i = cuda.threadIdx.x
        out[idx[i] % 16] = x[i]

    @cuda.jit
    def mended(x, idx, out):
        i = cuda.threadIdx.x
        cuda.atomic.max(out, idx[i] % 16, x[i])


class FlagByAll:
    """All threads that see the condition set the flag, with the same value."""

    @cuda.jit
    def wrong(x, count):
        if x[cuda.threadIdx.x] > -10:
            count[0] = 1

    @cuda.jit
    def mended(x, count):
        if x[cuda.threadIdx.x] > -10:
            cuda.atomic.exch(count, 0, 1)


class RowsOverlap:
    """Each thread writes a stretch that runs into the next one's."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        for j in range(3):
            out[2 * i + j] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        for j in range(2):
            out[2 * i + j] = x[i]


class ForgetsOneDimension:
    """The y of the thread does not enter the index."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out[x] = m[y, x]

    @cuda.jit
    def mended(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out[8 * y + x] = m[y, x]


class WrongPitch:
    """Rows are laid out with a pitch below their width."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out[7 * y + x] = m[y, x]

    @cuda.jit
    def mended(m, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out[9 * y + x] = m[y, x]


class SurplusThreadsClamp:
    """Surplus threads are sent to the last element, which its owner writes too."""

    @cuda.jit
    def wrong(x, out, n):
        i = min(cuda.threadIdx.x, n - 1)
        out[i] = 2 * x[i]

    @cuda.jit
    def mended(x, out, n):
        i = cuda.threadIdx.x
        if i < n:
            out[i] = 2 * x[i]


class SymmetricTwice:
    """Both threads of a pair write the pair's two mirrored entries."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        value = m[y, x] + m[x, y]
        out2[y, x] = value
        out2[x, y] = value

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        if x <= y:
            value = m[y, x] + m[x, y]
            out2[y, x] = value
            if x < y:
                out2[x, y] = value


class TicketWithoutAtomic:
    """A place in the output is drawn from a counter that is not atomic."""

    @cuda.jit
    def wrong(x, count, out):
        i = cuda.threadIdx.x
        if x[i] > 0:
            at = count[0]
            count[0] = at + 1
            out[at] = x[i]

    @cuda.jit
    def mended(x, count, out):
        i = cuda.threadIdx.x
        if x[i] > 0:
            out[cuda.atomic.add(count, 0, 1)] = x[i]


class InitialisedBySomeoneElse:
    """One thread clears what others fill; a barrier makes it safe."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        if i == 0:
            for j in range(64):
                out[j] = 0
        if x[i] > 0:
            out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        if i == 0:
            for j in range(64):
                out[j] = 0
        cuda.syncthreads()
        if x[i] > 0:
            out[i] = x[i]


class LockWithoutFence:
    """A lock keeps threads apart, but its release must come behind a fence."""

    @cuda.jit
    def wrong(x, count, out):
        i = cuda.threadIdx.x
        done = False
        while not done:
            if cuda.atomic.cas(count, 0, 0, 1) == 0:
                out[0] = max(out[0], x[i])
                cuda.atomic.exch(count, 0, 0)
                done = True

    @cuda.jit
    def mended(x, count, out):
        i = cuda.threadIdx.x
        done = False
        while not done:
            if cuda.atomic.cas(count, 0, 0, 1) == 0:
                out[0] = max(out[0], x[i])
                cuda.threadfence()
                cuda.atomic.exch(count, 0, 0)
                done = True
