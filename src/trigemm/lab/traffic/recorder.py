"""`trace` and `record`: run kernels in numba-cuda's simulator, count what they move and look for faults.

Both need the simulator, which numba-cuda turns on when NUMBA_ENABLE_CUDASIM=1 is set before numba is imported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numba.cuda.core import config
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.kernel import FakeCUDAKernel

from trigemm.kernels.threads.vector import load4, store4
from trigemm.lab.traffic import machine
from trigemm.lab.traffic.frames import VECTOR_FUNCTIONS
from trigemm.lab.traffic.launch import BlockKind, Launch, Options
from trigemm.lab.traffic.limits import check_launch
from trigemm.lab.traffic.memory import AddressMap
from trigemm.lab.traffic.outputs import DeviceArrays, watched
from trigemm.lab.traffic.result import Finding, Traffic
from trigemm.lab.traffic.sanitize import Sanitizer

ACCESS_LIMIT = 50_000_000
STUCK = "a thread that waits for another one without a barrier never goes on in the simulator"


class KernelError(RuntimeError):
    """A kernel stopped in the simulator. `traffic` holds what was counted until then."""

    def __init__(self, message: str, traffic: Traffic) -> None:
        super().__init__(message)
        self.traffic = traffic


class Recorder:
    """The launches that were recorded so far."""

    def __init__(self, options: Options) -> None:
        self.launches: list[Traffic] = []
        self._options = options
        self._addresses = AddressMap()
        self._running: Launch | None = None
        self.device_arrays = DeviceArrays(self._addresses, self.launches)

    def call(self, kernel: Any, *args: Any) -> Any:
        """What calling a kernel or a device function does while launches are recorded."""
        if self._running is not None:
            self._running.adopt(kernel.fn)
            return kernel.fn(*args)
        grid, block = normalize_kernel_dimensions(kernel.grid_dim, kernel.block_dim)
        try:
            check_launch(grid, block, kernel.dynshared_size)
        except ValueError as refusal:
            message = f"kernel {kernel.fn.__name__} cannot be launched: {refusal}"
            self.launches.append(Traffic(kernel.fn.__name__, grid, block, prod(grid), error=message))
            raise KernelError(message, self.launches[-1]) from None

        def launch(limit: int) -> Launch:
            options = replace(self._options, limit=limit)
            return Launch(kernel.fn, grid, block, kernel.dynshared_size, args, self._addresses, options)

        first = launch(self._options.limit)
        before = [array.copy() for array in first.arrays.values()] if self._options.sanitize else []
        sanitizer = Sanitizer(kernel.fn.__name__) if self._options.sanitize else None
        error = self._run(first, sanitizer)
        traffic = first.traffic()
        if sanitizer is not None:
            sanitizer.finish()
            if error is None:
                self._look_at_outputs(first, sanitizer)
            findings = sanitizer.findings()
            if error is None and sanitizer.order.relied_on_atomics:
                # Only the atomics of this very run kept some accesses apart: see whether those of another order do so too.
                findings = _united(findings, self._reversed(launch(4 * first.machine.accesses + 10_000), before))
            traffic.findings = findings
        self.launches.append(traffic)
        if sanitizer is not None:
            self.device_arrays.launched(first, *sanitizer.stored())
        if error is not None:
            traffic.error = str(error)
            raise KernelError(str(error), traffic) from error.__cause__
        return None

    def _run(self, launch: Launch, sanitizer: Sanitizer | None, *, reverse: bool = False) -> RuntimeError | None:
        """Run a launch; returns what stopped it, in a sentence."""
        self._running = launch
        name = launch.function.__name__
        try:
            launch.run(self._options.kind, None if sanitizer is None else sanitizer.look, reverse=reverse)
        except machine.LimitReached:
            return RuntimeError(
                f"kernel {name} was stopped after {launch.machine.accesses:,} accesses to memory, more than the limit of"
                f" {launch.machine.limit:,} (each load, store and atomic operation of each thread counts, looked at every"
                f" {machine.TICK:g} seconds): {STUCK}; raise the limit if the kernel is merely long"
            )
        except machine.Silent:
            return RuntimeError(
                f"kernel {name} was stopped because it made no access to memory for {machine.PATIENCE:g} seconds: {STUCK}"
            )
        except Exception as error:
            where = launch.where(error)
            stopped = RuntimeError(f"kernel {name} failed{where}: {type(error).__name__}: {error}")
            stopped.__cause__ = error
            return stopped
        finally:
            self._running = None
        return None

    def _reversed(self, launch: Launch, before: list[np.ndarray[Any, Any]]) -> list[Finding]:
        """The findings of the same launch with blocks and threads from last to first. What it writes is undone.

        A kernel whose threads wait for earlier ones may not come to an end in this order: then nothing is found.
        """
        after = [array.copy() for array in launch.arrays.values()]
        _fill(launch, before)
        sanitizer = Sanitizer(launch.function.__name__)
        error = self._run(launch, sanitizer, reverse=True)
        sanitizer.finish()
        _fill(launch, after)
        return [] if error is not None else sanitizer.findings()

    def _look_at_outputs(self, launch: Launch, sanitizer: Sanitizer) -> None:
        outputs = self._options.outputs
        regions = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, True)
        for name, region in regions.items():
            if name not in launch.arrays:
                raise ValueError(f"outputs: kernel {launch.function.__name__} has no array {name!r}, only {list(launch.arrays)}")
            array, memory = launch.arrays[name], launch.memories[name]
            index = np.nonzero(np.broadcast_to(region, array.shape))
            required = memory.starts[0] + sum(i * stride for i, stride in zip(index, array.strides, strict=True))
            sanitizer.unwritten_outputs(name, memory, launch.definition(), np.asarray(required, dtype=np.int64))


def _fill(launch: Launch, contents: list[np.ndarray[Any, Any]]) -> None:
    """Give the launch's arrays these contents."""
    for array, content in zip(launch.arrays.values(), contents, strict=True):
        if array.flags.writeable:
            array[...] = content


def _united(first: list[Finding], second: list[Finding]) -> list[Finding]:
    known = {(finding.kind, finding.line, finding.array) for finding in first}
    return first + [finding for finding in second if (finding.kind, finding.line, finding.array) not in known]


@contextmanager
def record(
    *,
    kind: BlockKind | None = None,
    outputs: Iterable[str] | Mapping[str, Any] = (),
    sanitize: bool = True,
    count_local: bool = True,
    count_flops: bool = False,
    limit: int = ACCESS_LIMIT,
) -> Iterator[list[Traffic]]:
    """Within the context, each launch of a numba-cuda kernel is counted; the list grows by one `Traffic` a launch.

    kind         kind(x, y, z) of a block's place in the grid: of blocks with equal kinds one runs, and counts for all
    outputs      names of parameters that the kernel must write in full, or a mapping of such names to boolean masks
    sanitize     look for faults; not where `kind` is given
    count_local  count local arrays too: they take most of the time, and the compiler may keep them in registers
    count_flops  count floating-point operations too, at a price in time
    limit        accesses to memory after which a launch is stopped, as a kernel that never ends: loads, stores and atomic
                 operations, one for each thread that makes it, in any space, over all blocks that run
    """
    if not config.ENABLE_CUDASIM:
        raise RuntimeError(
            "counting needs numba-cuda's simulator: set NUMBA_ENABLE_CUDASIM=1 in the environment before numba is imported"
            " (the command `trigemm traffic` does so itself)"
        )
    VECTOR_FUNCTIONS.update((load4.__code__, store4.__code__))
    recorder = Recorder(Options(kind, outputs, sanitize and kind is None, count_local, count_flops, limit))
    plain = FakeCUDAKernel.__call__, FakeCUDAKernel.__getitem__, FakeCUDAKernel.forall
    FakeCUDAKernel.__call__ = lambda kernel, *args: recorder.call(kernel, *args)
    # Numba's simulator writes a launch's sizes into the kernel, where the next launch finds the shared memory of this one.
    FakeCUDAKernel.__getitem__ = lambda kernel, sizes: plain[1](_unconfigured(kernel), sizes)
    FakeCUDAKernel.forall = _forall
    try:
        with watched(recorder.device_arrays):
            yield recorder.launches
    finally:
        FakeCUDAKernel.__call__, FakeCUDAKernel.__getitem__, FakeCUDAKernel.forall = plain


def _unconfigured(kernel: Any) -> Any:
    """The same kernel, without the sizes of a launch."""
    kernel = copy(kernel)
    kernel.grid_dim, kernel.block_dim, kernel.dynshared_size = None, None, 0
    return kernel


def _forall(kernel: Any, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
    """`kernel.forall`, with blocks of 128 threads where the driver would choose their size."""
    block = tpb or 128
    if ntasks == 0:
        return lambda *args: None
    return kernel[-(-ntasks // block), block, stream, sharedmem]


def trace(kernel: Callable[..., None], grid: Any, block: Any, *args: Any, **options: Any) -> Traffic:
    """Count one launch of a numba-cuda kernel, `kernel[grid, block](*args)`, and look for its faults.

    NumPy arrays stand for arrays on the device: a view keeps its offset and its strides. Options are those of `record`.
    """
    with record(**options) as launches:
        kernel[grid, block](*args)  # type: ignore[index]
    return launches[0]
