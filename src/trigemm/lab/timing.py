"""Time on a device: kernels and baselines interleaved round by round, cold caches, medians with their spread; and the ceilings.

Between two timed calls a buffer of at least twice the last-level cache is overwritten, so that a call finds none of its operands
there. On CUDA a pair of device events stands around the call alone. The stream is first kept busy for longer than the host needs
to enqueue the call, so no launch overhead falls between the events; the events are read after one synchronisation at the end.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Protocol

import numpy
import torch

_MIB = 2**20
_FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one call in milliseconds, with their median and their 20th and 80th percentile."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Timing":
        """
        >>> Timing.of([3.0, 1.0, 2.0, 5.0, 4.0])
        Timing(median_ms=3.0, p20_ms=1.8, p80_ms=4.2, samples=(3.0, 1.0, 2.0, 5.0, 4.0))
        """
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], tuple(samples))
        tenths = quantiles(samples, n=10, method="inclusive")
        return cls(tenths[4], tenths[1], tenths[7], tuple(samples))


class Timings(dict[str, Timing]):
    """The timing of each call by its name."""

    interrupted = False


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches in plain torch calls: bandwidths in GB/s (read and written bytes both count), GEMM in TFLOP/s."""

    copy_gbps: float
    fill_gbps: float
    read_gbps: float
    gemm_tflops: float

    @property
    def best_gbps(self) -> float:
        return max(self.copy_gbps, self.fill_gbps, self.read_gbps)


class Stopwatch(Protocol):
    """Flushes the caches of a device and times calls on it."""

    def flush(self) -> None: ...

    def warm_up(self, call: Callable[[], object]) -> None: ...

    def time(self, call: Callable[[], object]) -> None: ...

    def samples(self) -> list[float]:
        """The times of all calls that were timed, in order, in milliseconds."""
        ...


class CpuStopwatch:
    """The host's clock around each call."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._buffer = numpy.zeros(2 * _last_level_cache() // 4, dtype=numpy.float32)

    def flush(self) -> None:
        numpy.add(self._buffer, 1, out=self._buffer)
        _come_to_rest()

    def warm_up(self, call: Callable[[], object]) -> None:
        call()

    def time(self, call: Callable[[], object]) -> None:
        begin = time.perf_counter()
        call()
        self._samples.append((time.perf_counter() - begin) * 1e3)

    def samples(self) -> list[float]:
        return self._samples


class CudaStopwatch:
    """Device events around each call, on the current stream."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._buffer = torch.empty(2 * max(properties.L2_cache_size, 32 * _MIB), dtype=torch.uint8, device=device)
        self._longest_enqueue = 0.0

    def flush(self) -> None:
        self._buffer.zero_()

    def warm_up(self, call: Callable[[], object]) -> None:
        call()  # may compile
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        call()
        self._longest_enqueue = max(self._longest_enqueue, time.perf_counter() - begin)
        torch.cuda.synchronize(self._device)

    def time(self, call: Callable[[], object]) -> None:
        # In cycles of a clock of at most 2 GHz; capped, for a call that blocks the host would never be hidden.
        torch.cuda._sleep(int(min(2 * self._longest_enqueue + 20e-6, 2e-3) * 2e9))
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        self._events.append((begin, end))

    def samples(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        return [begin.elapsed_time(end) for begin, end in self._events]


def interleaved(
    callables: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    device: str | torch.device,
    cold: bool = True,
    seconds: float | None = None,
    on_round: Callable[[int], object] = lambda done: None,
    stopwatch: Stopwatch | None = None,
) -> Timings:
    """Times each call `repeats` times, round by round; every round calls each once, and no call always follows the same one.

    cold       flush the last-level cache before each call; False leaves it warm
    seconds    stop early, after at least three rounds, once this much time has gone by (None: never)
    on_round   told the number of rounds done after each
    stopwatch  another way to measure, for tests

    KeyboardInterrupt ends the measurement: what was timed by then is returned (`interrupted`); calls with no sample are left out.
    Raises ValueError where `repeats` is not positive.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if stopwatch is None:
        device = torch.device(device)
        stopwatch = CudaStopwatch(device) if device.type == "cuda" else CpuStopwatch()
    names = list(callables)
    timed: list[str] = []
    timings = Timings()
    try:
        for name in names:
            stopwatch.warm_up(callables[name])
        begin = time.monotonic()
        for done in range(repeats):
            if seconds is not None and done >= _FEWEST_ROUNDS and time.monotonic() - begin > seconds:
                break
            turn = done // 2 % len(names) if names else 0
            order = names[turn:] + names[:turn]
            for name in order if done % 2 == 0 else reversed(order):
                if cold:
                    stopwatch.flush()
                stopwatch.time(callables[name])
                timed.append(name)
            on_round(done + 1)
    except KeyboardInterrupt:
        timings.interrupted = True
    samples: dict[str, list[float]] = {name: [] for name in names}
    for name, sample in zip(timed, stopwatch.samples(), strict=False):
        samples[name].append(sample)
    timings.update({name: Timing.of(times) for name, times in samples.items() if times})
    return timings


def ceilings(device: str | torch.device, dtype: torch.dtype, precision: str = "highest") -> Ceilings:
    """Bandwidth of a copy, a fill and a sum, and the rate of a square GEMM, measured now.

    The rate is that of the fastest way to a product of this dtype. On CUDA a float32 result can also be had from float16
    products: two parts to a number, three products to a product. On the CPU a float32 product stands in for half precision where
    it is faster.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    elements = (512 * _MIB if on_gpu else 4 * _last_level_cache()) // 4
    source = torch.ones(elements, device=device)
    target = torch.zeros(elements, device=device)
    ways = {dtype: 1}
    if on_gpu and dtype == torch.float32:
        ways[torch.float16] = 3
    elif not on_gpu and dtype.itemsize < 4:
        ways[torch.float32] = 1
    size = 4096 if on_gpu else 1024 if dtype.itemsize >= 4 else 512
    factor = torch.randn(size, size, device=device)

    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "fill": lambda: target.fill_(1.0),
        "read": lambda: source.sum(),
    }
    for way in ways:
        operand = factor.to(way)
        calls[str(way)] = partial(torch.matmul, operand, operand, out=torch.empty_like(operand))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        times = interleaved(calls, repeats=20 if on_gpu else 5, device=device)
    finally:
        torch.set_float32_matmul_precision(before)
    if times.interrupted:
        raise KeyboardInterrupt
    gigabytes = 4 * elements / 1e9
    return Ceilings(
        copy_gbps=2 * gigabytes / times["copy"].median_ms * 1e3,
        fill_gbps=gigabytes / times["fill"].median_ms * 1e3,
        read_gbps=gigabytes / times["read"].median_ms * 1e3,
        gemm_tflops=max(2 * size**3 / times[str(way)].median_ms / products / 1e9 for way, products in ways.items()),
    )


def _come_to_rest(longest: float = 0.5) -> None:
    """Waits until no other thread of this process runs, for `longest` seconds at most.

    The threads of a BLAS wait for more work in a loop, OpenBLAS's for 0.1 s, and would take that time from the next call.
    """
    end = time.monotonic() + longest
    busy = True
    while busy and time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.005)
        busy = time.process_time() - before > 0.001


def _last_level_cache() -> int:
    """Bytes of the CPU's largest cache; 32 MiB where the system does not tell."""
    units = {"": 1, "K": 1024, "M": _MIB, "G": 1024 * _MIB}
    sizes = [32 * _MIB]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG]?)", file.read_text().strip())
        if found:
            sizes.append(int(found[1]) * units[found[2]])
    return max(sizes)
