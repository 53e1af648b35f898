"""Two shared arrays that lie in the same memory: what one holds is overwritten through the other."""

import numpy as np
from numba import cuda, float32, float64, int32, uint8

KIND = "aliasing"
dynamic = 1024


@cuda.jit(device=True)
def scratch():
    """One array, however often it is asked for."""
    return cuda.shared.array(64, float32)


@cuda.jit(device=True)
def other_scratch():
    return cuda.shared.array(64, float32)


@cuda.jit(device=True)
def fill_and_swap(left, right, value):
    i = cuda.threadIdx.x
    left[i] = value
    right[i] = -value
    cuda.syncthreads()
    return left[63 - i]


class TwoTypes:
    """Dynamic shared memory is one stretch: each declaration begins at its start."""

    @cuda.jit
    def wrong(x, idx, out):
        values = cuda.shared.array(0, float32)
        keys = cuda.shared.array(0, int32)
        i = cuda.threadIdx.x
        values[i] = x[i]
        keys[i] = idx[i]
        out[i] = values[i] * keys[i]

    @cuda.jit
    def mended(x, idx, out):
        values = cuda.shared.array(0, float32)
        keys = cuda.shared.array(0, int32)[64:]
        i = cuda.threadIdx.x
        values[i] = x[i]
        keys[i] = idx[i]
        out[i] = values[i] * keys[i]


class OverlapByOne:
    """The second part begins one element too early."""

    @cuda.jit
    def wrong(x, out):
        low = cuda.shared.array(0, float32)[:65]
        high = cuda.shared.array(0, float32)[64:]
        i = cuda.threadIdx.x
        low[i + 1] = x[i]
        if i == 0:
            low[0] = 0
        cuda.syncthreads()
        high[i] = 2 * x[i]
        cuda.syncthreads()
        out[i] = low[i + 1] + high[i]

    @cuda.jit
    def mended(x, out):
        low = cuda.shared.array(0, float32)[:65]
        high = cuda.shared.array(0, float32)[65:]
        i = cuda.threadIdx.x
        low[i + 1] = x[i]
        if i == 0:
            low[0] = 0
        cuda.syncthreads()
        high[i] = 2 * x[i]
        cuda.syncthreads()
        out[i] = low[i + 1] + high[i]


class OffsetOfWrongType:
    """64 float64 take the room of 128 float32."""

    @cuda.jit
    def wrong(x, out):
        exact = cuda.shared.array(0, float64)
        rough = cuda.shared.array(0, float32)[64:]
        i = cuda.threadIdx.x
        exact[i] = x[i]
        cuda.syncthreads()
        rough[i] = x[i]
        cuda.syncthreads()
        out[i] = exact[i] - rough[i]

    @cuda.jit
    def mended(x, out):
        exact = cuda.shared.array(0, float64)
        rough = cuda.shared.array(0, float32)[128:]
        i = cuda.threadIdx.x
        exact[i] = x[i]
        cuda.syncthreads()
        rough[i] = x[i]
        cuda.syncthreads()
        out[i] = exact[i] - rough[i]


class OneCallForTwoArrays:
    """A device function that makes a shared array makes the same one each time."""

    @cuda.jit
    def wrong(x, out):
        first = scratch()
        second = scratch()
        i = cuda.threadIdx.x
        first[i] = x[i]
        second[i] = -x[i]
        out[i] = first[i] - second[i]

    @cuda.jit
    def mended(x, out):
        first = scratch()
        second = other_scratch()
        i = cuda.threadIdx.x
        first[i] = x[i]
        second[i] = -x[i]
        out[i] = first[i] - second[i]


class MadeInLoop:
    """An array that is made anew in each round of a loop is the same array in each round."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(64, float32)
        first = tile
        for step in range(2):
            tile = cuda.shared.array(64, float32)
            tile[i] = x[64 * step + i]
            if step == 0:
                first = tile
        out[i] = first[i] - tile[i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        tiles = cuda.shared.array((2, 64), float32)
        for step in range(2):
            tiles[step, i] = x[64 * step + i]
        out[i] = tiles[0, i] - tiles[1, i]


class ThirdOverFirst:
    """Of three parts the third lies over the first."""

    @cuda.jit
    def wrong(x, out):
        first = cuda.shared.array(0, float32)[:64]
        second = cuda.shared.array(0, float32)[64:128]
        third = cuda.shared.array(0, float32)[:64]
        i = cuda.threadIdx.x
        first[i] = x[i]
        second[i] = 2 * x[i]
        third[i] = 3 * x[i]
        out[i] = first[i] + second[i] + third[i]

    @cuda.jit
    def mended(x, out):
        first = cuda.shared.array(0, float32)[:64]
        second = cuda.shared.array(0, float32)[64:128]
        third = cuda.shared.array(0, float32)[128:192]
        i = cuda.threadIdx.x
        first[i] = x[i]
        second[i] = 2 * x[i]
        third[i] = 3 * x[i]
        out[i] = first[i] + second[i] + third[i]


class PingPong:
    """Two buffers that take turns must be two."""

    @cuda.jit
    def wrong(x, out):
        source = cuda.shared.array(0, float32)
        target = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        source[i] = x[i]
        cuda.syncthreads()
        target[i] = source[i] + source[i ^ 1]
        cuda.syncthreads()
        out[i] = source[i] + target[i]

    @cuda.jit
    def mended(x, out):
        both = cuda.shared.array(0, float32)
        source, target = both[:64], both[64:]
        i = cuda.threadIdx.x
        source[i] = x[i]
        cuda.syncthreads()
        target[i] = source[i] + source[i ^ 1]
        cuda.syncthreads()
        out[i] = source[i] + target[i]


class SquareOverRow:
    """A matrix and a vector, both cut from the start."""

    block = (8, 8)

    @cuda.jit
    def wrong(m, out2):
        square = cuda.shared.array(0, float32)[:64].reshape((8, 8))
        row = cuda.shared.array(0, float32)[:8]
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        square[y, x] = m[y, x]
        cuda.syncthreads()
        if y == 0:
            row[x] = m[8, x]
        cuda.syncthreads()
        out2[y, x] = square[y, x] * row[x]

    @cuda.jit
    def mended(m, out2):
        square = cuda.shared.array(0, float32)[:64].reshape((8, 8))
        row = cuda.shared.array(0, float32)[64:72]
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        square[y, x] = m[y, x]
        cuda.syncthreads()
        if y == 0:
            row[x] = m[8, x]
        cuda.syncthreads()
        out2[y, x] = square[y, x] * row[x]


class CountersOverTable:
    """Counters are updated in the place of a table that is still in use."""

    @cuda.jit
    def wrong(x, idx, out):
        table = cuda.shared.array(0, int32)
        bins = cuda.shared.array(0, int32)
        i = cuda.threadIdx.x
        table[i] = i % 8
        cuda.syncthreads()
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, table[i], 1)
        cuda.syncthreads()
        if i < 8:
            out[i] = bins[i]

    @cuda.jit
    def mended(x, idx, out):
        table = cuda.shared.array(0, int32)
        bins = cuda.shared.array(0, int32)[64:]
        i = cuda.threadIdx.x
        table[i] = i % 8
        cuda.syncthreads()
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, table[i], 1)
        cuda.syncthreads()
        if i < 8:
            out[i] = bins[i]


class EachWarpItsOwn:
    """Each warp declares the memory that it works in, at the same place as the other."""

    @cuda.jit
    def wrong(x, out):
        i = cuda.threadIdx.x
        if i < 32:
            mine = cuda.shared.array(0, float32)
            mine[i] = x[i]
        else:
            theirs = cuda.shared.array(0, float32)
            theirs[i - 32] = -x[i]
        cuda.syncthreads()
        if i < 32:
            out[i] = mine[31 - i]

    @cuda.jit
    def mended(x, out):
        i = cuda.threadIdx.x
        if i < 32:
            mine = cuda.shared.array(0, float32)
            mine[i] = x[i]
        else:
            theirs = cuda.shared.array(0, float32)[32:]
            theirs[i - 32] = -x[i]
        cuda.syncthreads()
        if i < 32:
            out[i] = mine[31 - i]


class PassedOn:
    """The two arrays meet in a device function that takes them for different ones."""

    @cuda.jit
    def wrong(x, out):
        left = cuda.shared.array(0, float32)
        right = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        out[i] = fill_and_swap(left, right, x[i])

    @cuda.jit
    def mended(x, out):
        left = cuda.shared.array(0, float32)
        right = cuda.shared.array(0, float32)[64:]
        i = cuda.threadIdx.x
        out[i] = fill_and_swap(left, right, x[i])


class FlagsOverValues:
    """A byte for each thread, over values of four bytes."""

    @cuda.jit
    def wrong(x, out):
        values = cuda.shared.array(0, float32)
        flags = cuda.shared.array(0, uint8)
        i = cuda.threadIdx.x
        values[i] = x[i]
        cuda.syncthreads()
        flags[i] = 1 if x[i] > 0 else 0
        cuda.syncthreads()
        out[i] = values[i] if flags[i] else 0

    @cuda.jit
    def mended(x, out):
        values = cuda.shared.array(0, float32)
        flags = cuda.shared.array(0, uint8)[256:]
        i = cuda.threadIdx.x
        values[i] = x[i]
        cuda.syncthreads()
        flags[i] = 1 if x[i] > 0 else 0
        cuda.syncthreads()
        out[i] = values[i] if flags[i] else 0


class ReusedAfterUse:
    """Memory may be used twice, but not while what it held is needed."""

    @cuda.jit
    def wrong(x, out):
        early = cuda.shared.array(0, float32)
        late = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        early[i] = x[i]
        cuda.syncthreads()
        late[i] = x[i] * x[i]
        cuda.syncthreads()
        out[i] = early[63 - i] + late[63 - i]

    @cuda.jit
    def mended(x, out):
        early = cuda.shared.array(0, float32)
        late = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        early[i] = x[i]
        cuda.syncthreads()
        out[i] = early[63 - i]
        cuda.syncthreads()
        late[i] = x[i] * x[i]
        cuda.syncthreads()
        out[i] += late[63 - i]


class ViewOfTheSameName:
    """Reading one array in two ways through a view is no alias."""

    @cuda.jit
    def wrong(x, out):
        values = cuda.shared.array(0, float32)
        bits = cuda.shared.array(0, int32)
        i = cuda.threadIdx.x
        values[i] = x[i]
        bits[i] &= 0x7FFFFFFF
        out[i] = values[i]

    @cuda.jit
    def mended(x, out):
        values = cuda.shared.array(0, float32)
        bits = values.view(np.int32)
        i = cuda.threadIdx.x
        values[i] = x[i]
        bits[i] &= 0x7FFFFFFF
        out[i] = values[i]
