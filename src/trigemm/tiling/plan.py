"""Which tile to choose: a small one makes many independent tiles, a large one loads less. `plan` weighs that on a device.

A tile needs its first loads, its steps, and its store. A step takes as long as its product on the tensor cores or its loads out
of the L2 cache; and never less than the time until its loads arrive, shared among the steps that the pipeline keeps under way.
Multiprocessors work in waves: each takes as many tiles as it can hold, and the last wave may leave some without. Tiles held side
by side wait at the same time, but share tensor cores, L2 cache and memory. A wave lasts for the longer: what one of its tiles
takes by itself, or what all of them need of what they share. No product is faster than the memory, which must read each operand
and write the result once.

The rates are the device's ceilings. `Costs` has what those do not say: `benchmarks/tiles.py --fit` finds it from records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, gcd, inf

import torch

from trigemm.tiling.devices import Device, known
from trigemm.tiling.traffic import Traffic, predicted_traffic
from trigemm.triangle import ceil_div

Block = tuple[int, int, int]

# Bytes of an element, and products of 16-bit floats that a product costs: one of float32 is made of three in TF32, at half rate.
DTYPES = {"float16": (2, 1), "bfloat16": (2, 1), "float32": (4, 6)}
EDGES = (32, 64, 128, 256)  # of candidate tiles
DEPTH_BYTES = (64, 128, 256)  # of a row of a tile of `a`
WARP = 32
MOST_REGISTERS = 255  # of a thread
WARPGROUP_ROWS = 64  # a tile with fewer cannot use the products that four warps compute together, while they do other things
MMA_DEPTH_BYTES = 32  # of a row of `a`: what one instruction of the tensor cores takes
L2_BYTES = 64  # that an L2 cache hands out at a time
RESERVED_SHARED = 1024  # bytes of shared memory that the driver takes for each block


@dataclass(frozen=True, slots=True)
class Costs:
    """What the model takes from measurement beside a device's ceilings.

    start_us  of a launch: until the first tile begins, and after the last has ended
    tile_us   of a tile: until its first loads arrive, and after its last product
    load_us   from a load to the product that uses it, beside the time of its transfer
    mma_us    of an instruction of the tensor cores that its warps wait for: in tiles of fewer than 64 rows
    l2_share  bytes that a multiprocessor gets out of L2 while all do, as a multiple of its share of the memory's bandwidth
    """

    start_us: float = 3.86
    tile_us: float = 1.17
    load_us: float = 0.676
    mma_us: float = 0.036
    l2_share: float = 2.31


COSTS = Costs()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tile, what it moves, what it needs of a multiprocessor, and how long the product should take with it.

    block         BM, BN, BK
    traffic       elements and bytes between global memory and the chip
    reuse         multiplications made with each element loaded
    intensity     useful floating-point operations for each byte loaded or stored
    shared_bytes  of shared memory, at most, for `num_stages` steps that are under way
    registers     of a thread: an estimate
    per_sm        tiles that a multiprocessor holds at the same time; 0: it cannot hold one
    waves         of tiles over the device
    predicted_ms  infinite where a multiprocessor cannot hold the tile
    bound         what the predicted time is made of most: "tensor cores", "L2 cache", "memory" or "latency"
    """

    block: Block
    num_warps: int
    num_stages: int
    traffic: Traffic
    reuse: float
    intensity: float
    shared_bytes: int
    registers: int
    per_sm: int
    waves: float
    predicted_ms: float
    bound: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates from the fastest to the slowest, and why the first is the pick."""

    m: int
    n: int
    k: int
    dtype: str
    device: Device
    diagonal: int | None
    candidates: tuple[Candidate, ...]
    reason: str

    @property
    def pick(self) -> Candidate:
        """The candidate with the shortest predicted time."""
        return self.candidates[0]


def plan(
    m: int,
    n: int,
    k: int,
    dtype: str | torch.dtype = "bfloat16",
    device: str | Device = "h200",
    *,
    blocks: Sequence[Block] | None = None,
    diagonal: int | None = None,
    costs: Costs = COSTS,
) -> Plan:
    """Candidate tiles for a product (M,K) x (K,N) on a device, and the one to pick.

    dtype     float16, bfloat16 or float32
    device    a name of the data file (`trigemm.tiling.names()`) or a `Device`
    blocks    the tiles (BM, BN, BK) to compare; None: all powers of two that the tile kernels take and a multiprocessor holds
    diagonal  None: the whole product. An integer: its lower triangle; BM must then be a multiple of BN

    Raises ValueError for an unknown dtype or device, and for sizes or blocks that do not fit.

    >>> picked = plan(4096, 4096, 4096).pick
    >>> picked.traffic.tiles, round(picked.waves, 1), picked.bound
    (512, 3.9, 'tensor cores')
    >>> plan(15, 9, 12, "float32", blocks=[(5, 3, 6)]).pick.traffic.loads
    864
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"plan: dtype must be one of {', '.join(DTYPES)}; got {name}")
    if min(m, n, k) < 1:
        raise ValueError(f"plan: sizes must be positive; got M, N, K = {m}, {n}, {k}")
    gpu = known(device) if isinstance(device, str) else device
    given = _all_blocks(DTYPES[name][0], diagonal) if blocks is None else list(dict.fromkeys(blocks))
    found = [_candidate(m, n, k, name, gpu, block, diagonal, costs) for block in given]
    if blocks is None:
        found = [candidate for candidate in found if candidate.per_sm]
    if not found:
        raise ValueError(f"plan: no tile of {name} fits on a multiprocessor of {gpu.name}; name some in blocks")
    # Of those as fast, to a nanosecond, the one with the fewest loads and steps.
    ordered = tuple(sorted(found, key=lambda tile: (round(tile.predicted_ms, 6), tile.traffic.loads, -tile.block[2])))
    return Plan(m, n, k, name, gpu, diagonal, ordered, _reason(ordered, gpu))


def launch_options(block: Block, dtype: str, device: Device) -> tuple[int, int]:
    """num_warps and num_stages for a tile: what keeps its accumulator in registers and its steps in shared memory.

    >>> launch_options((128, 128, 64), "bfloat16", known("h200"))
    (4, 3)
    """
    bm, bn, bk = block
    itemsize, _ = DTYPES[dtype]
    num_warps = 4 if bm * bn * itemsize <= 2 * 128 * 128 else 8
    tiles = max(1, min(4, _held_by_registers(block, dtype, num_warps, device)))
    return num_warps, max(2, min(4, device.shared_per_sm // tiles // ((bm + bn) * bk * itemsize)))


def _all_blocks(itemsize: int, diagonal: int | None) -> list[Block]:
    depths = [size // itemsize for size in DEPTH_BYTES]
    return [block for block in product(EDGES, EDGES, depths) if diagonal is None or block[0] % block[1] == 0]


def _registers(block: Block, dtype: str, num_warps: int) -> int:
    """Of a thread: its part of the accumulator and, of float32, of the parts that the operands are split into; and the rest."""
    bm, bn, bk = block
    threads = num_warps * WARP
    split = 2.5 * (bm + bn) * bk / threads if dtype == "float32" else 0
    return ceil((40 + 1.25 * bm * bn / threads + split) / 8) * 8  # a thread's registers come in eights


def _held_by_registers(block: Block, dtype: str, num_warps: int, device: Device) -> int:
    registers = _registers(block, dtype, num_warps)
    return 0 if registers > MOST_REGISTERS else device.registers_per_sm // (registers * num_warps * WARP)


def _candidate(m: int, n: int, k: int, dtype: str, device: Device, block: Block, diagonal: int | None, costs: Costs) -> Candidate:
    bm, bn, bk = block
    itemsize, _ = DTYPES[dtype]
    traffic = predicted_traffic(m, n, k, bm, bn, bk, itemsize=itemsize, diagonal=diagonal)
    num_warps, num_stages = launch_options(block, dtype, device)
    # Products that are not waited for keep the operands of one more step.
    shared_bytes = (num_stages if bm >= WARPGROUP_ROWS else num_stages - 1) * (bm + bn) * bk * itemsize
    per_sm = min(
        _held_by_registers(block, dtype, num_warps, device),
        device.shared_per_sm // (shared_bytes + RESERVED_SHARED) if shared_bytes <= device.shared_per_block else 0,
        device.warps_per_sm // num_warps,
    )
    seconds, bound = _time((m, n, k), device, dtype, block, num_stages, traffic, per_sm, costs)
    return Candidate(
        block=block,
        num_warps=num_warps,
        num_stages=num_stages,
        traffic=traffic,
        reuse=traffic.stores * k / traffic.loads if traffic.loads else 0.0,
        intensity=2 * traffic.stores * k / ((traffic.loaded_bytes + traffic.stored_bytes) or 1),
        shared_bytes=shared_bytes,
        registers=_registers(block, dtype, num_warps),
        per_sm=per_sm,
        waves=traffic.tiles / (device.sms * per_sm) if per_sm else inf,
        predicted_ms=1e3 * seconds,
        bound=bound,
    )


def _time(
    sizes: Block, device: Device, dtype: str, block: Block, num_stages: int, traffic: Traffic, per_sm: int, costs: Costs
) -> tuple[float, str]:
    """Seconds for a product, and what bounds it."""
    if per_sm == 0:
        return inf, "registers or shared memory"
    (m, n, k), (bm, bn, bk) = sizes, block
    itemsize, products = DTYPES[dtype]
    steps = ceil_div(k, bk)
    memory_rate = device.memory_gbps * 1e9 / device.sms
    loads = (bm * _from_l2(min(bk, k), k, itemsize) + bk * _from_l2(min(bn, n), n, itemsize)) / (memory_rate * costs.l2_share)
    step = {"tensor cores": 2 * bm * bn * bk * products * device.sms / (device.tensor_tflops * 1e12), "L2 cache": loads}
    longest = max(step, key=lambda name: step[name])
    waited = 0 if bm >= WARPGROUP_ROWS else bk * itemsize / MMA_DEPTH_BYTES * costs.mma_us * 1e-6
    arrival = (costs.load_us * 1e-6 + loads + waited) / (num_stages - 1)
    store = bm * bn * itemsize / memory_rate

    def wave(held: int) -> tuple[float, dict[str, float]]:
        """Seconds of `held` tiles side by side on each multiprocessor, and what they are made of."""
        shared = {longest: held * steps * step[longest], "memory": held * store}
        latency = costs.tile_us * 1e-6 + steps * max(0.0, arrival - step[longest])
        alone = {longest: steps * step[longest], "memory": store, "latency": latency}
        return max(((sum(parts.values()), parts) for parts in (shared, alone)), key=lambda timed: timed[0])

    waves, rest = divmod(traffic.tiles, device.sms * per_sm)
    of_whole, of_last = wave(per_sm), wave(ceil_div(rest, device.sms))
    chip = waves * of_whole[0] + (of_last[0] if rest else 0)
    memory = ((m * k + k * n) * itemsize + traffic.stored_bytes) / (device.memory_gbps * 1e9)
    parts = (of_whole if waves else of_last)[1]
    return costs.start_us * 1e-6 + max(chip, memory), "memory" if memory > chip else max(parts, key=lambda name: parts[name])


def _from_l2(length: int, row: int, itemsize: int) -> float:
    """Bytes that the L2 cache hands out for `length` elements that follow one another, on average over rows of `row` elements.

    What begins anywhere, at a multiple of so many bytes, needs more of them than what begins with one of the cache's pieces.
    """
    return length * itemsize + L2_BYTES - gcd(row * itemsize, L2_BYTES)


def _reason(candidates: Sequence[Candidate], device: Device) -> str:
    """Why the first candidate is the pick, in sentences."""
    pick = candidates[0]
    if not pick.per_sm:
        return f"A multiprocessor of {device.name} holds none of these: they need too many registers or too much shared memory."
    tiles = pick.traffic.tiles
    said = [f"{_name(pick)}: {pick.predicted_ms:.3g} ms predicted, bound by {pick.bound}."]
    used = min(tiles, device.sms)
    said.append(
        f"{tiles} tile{'s' * (tiles != 1)} occupy {used} of {device.sms} multiprocessors in {pick.waves:.2g} waves of "
        f"{device.sms * pick.per_sm}."
    )
    fewest = min(candidates, key=lambda candidate: (candidate.traffic.loads, candidate.predicted_ms))
    most = max(candidates, key=lambda candidate: (candidate.traffic.tiles, -candidate.predicted_ms))
    if fewest.traffic.loads < pick.traffic.loads:
        said.append(
            f"{_name(fewest)} loads {pick.traffic.loads / fewest.traffic.loads:.2g} times less, but makes {fewest.traffic.tiles}"
            f" tiles; {_slower(fewest)}."
        )
    if most.traffic.tiles > tiles:
        said.append(
            f"{_name(most)} makes {most.traffic.tiles} tiles, but loads {most.traffic.loads / pick.traffic.loads:.2g} times "
            f"as much; {_slower(most)}."
        )
    return " ".join(said)


def _name(candidate: Candidate) -> str:
    return "{} x {} x {}".format(*candidate.block)


def _slower(candidate: Candidate) -> str:
    return f"{candidate.predicted_ms:.3g} ms" if candidate.per_sm else "a multiprocessor cannot hold it"
