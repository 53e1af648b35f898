"""An element of an output that no thread wrote. The output is `out`, or what `outputs` names."""

from numba import cuda, float32

KIND = "unwritten-output"
outputs = ("out",)
grid = 4  # of 64 threads: one for each of the 256 elements


class GridTooSmall:
    """The grid was rounded down."""

    grid = 3

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        for i in range(cuda.grid(1), 256, cuda.gridsize(1)):
            out[i] = x[i]


class GuardTooStrict:
    """The guard turns the last element away."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        if i < 255:
            out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        if i < 256:
            out[i] = x[i]


class EdgesOfStencil:
    """The edges have no neighbours, and no value either."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        if 0 < i < 255:
            out[i] = x[i - 1] + x[i + 1]

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        if 0 < i < 255:
            out[i] = x[i - 1] + x[i + 1]
        else:
            out[i] = 0


class OnlyWhereTrue:
    """A condition on the data without an else."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.grid(1)
        if x[i] > 0:
            out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.grid(1)
        out[i] = x[i] if x[i] > 0 else 0


class EverySecond:
    """Each thread owns two elements and writes the first."""

    grid = 2

    @cuda.jit
    def wrong(x, out):
        i = 2 * cuda.grid(1)
        out[i] = x[i] + x[i + 1]

    @cuda.jit
    def mended(x, out):
        i = 2 * cuda.grid(1)
        out[i] = x[i] + x[i + 1]
        out[i + 1] = x[i] - x[i + 1]


class OnlyFirstTileRow:
    """The block.s row does not enter the index, so that rows below the first tile are never reached."""

    grid = (2, 2)
    block = (8, 8)
    outputs = ("out2",)

    @cuda.jit
    def wrong(m, out2):
        x = cuda.grid(1)
        y = cuda.threadIdx.y
        if cuda.blockIdx.y == 0:
            out2[y, x] = m[y, x]

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.grid(2)
        out2[y, x] = m[y, x]


class UpperTriangle:
    """Only the lower triangle is computed, and the whole square was promised."""

    grid = (2, 2)
    block = (8, 8)
    outputs = ("out2",)

    @cuda.jit
    def wrong(m, out2):
        x, y = cuda.grid(2)
        if x <= y:
            out2[y, x] = m[y, x]

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.grid(2)
        out2[y, x] = m[y, x] if x <= y else 0


class ResultKept:
    """The result stays in shared memory."""

    @cuda.jit
    def wrong(x, out):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = 2 * x[cuda.grid(1)]

    @cuda.jit
    def mended(x, out):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = 2 * x[cuda.grid(1)]
        out[cuda.grid(1)] = tile[t]


class LoopStopsEarly:
    """A grid-stride loop that makes one round too few."""

    grid = 1

    @cuda.jit
    def wrong(x, out):
        for step in range(3):
            i = 64 * step + cuda.threadIdx.x
            out[i] = x[i]

    @cuda.jit
    def mended(x, out):
        for step in range(4):
            i = 64 * step + cuda.threadIdx.x
            out[i] = x[i]


class LeaderOnly:
    """One thread of each block writes for all."""

    @cuda.jit
    def wrong(x, out):
        if cuda.threadIdx.x == 0:
            out[cuda.grid(1)] = x[cuda.grid(1)]

    @cuda.jit
    def mended(x, out):
        if cuda.threadIdx.x == 0:
            for i in range(cuda.grid(1), cuda.grid(1) + 64):
                out[i] = x[i]


class SecondOutputForgotten:
    """Of two outputs one is never written."""

    outputs = ("out", "x")

    @cuda.jit
    def wrong(x, out):
        out[cuda.grid(1)] = 1

    @cuda.jit
    def mended(x, out):
        out[cuda.grid(1)] = 1
        x[cuda.grid(1)] = 2


class PaddedColumns:
    """The grid covers the rounded-down width of the matrix."""

    grid = (1, 2)
    block = (8, 8)
    outputs = ("out2",)

    @cuda.jit
    def wrong(m, out2):
        x, y = cuda.grid(2)
        out2[y, x] = m[y, x]

    @cuda.jit
    def mended(m, out2):
        x, y = cuda.grid(2)
        out2[y, x] = m[y, x]
        out2[y, x + 8] = m[y, x + 8]


class OddElements:
    """Vector writes of whole pairs stop before an odd end."""

    grid = 2

    @cuda.jit
    def wrong(x, out):
        i = 2 * cuda.grid(1) + 1
        if i + 1 < 256:
            out[i] = x[i]
            out[i + 1] = x[i + 1]

    @cuda.jit
    def mended(x, out):
        i = 2 * cuda.grid(1)
        if i + 1 < 256:
            out[i] = x[i]
            out[i + 1] = x[i + 1]
