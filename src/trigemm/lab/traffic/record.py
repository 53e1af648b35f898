"""`trace` and `record`: run kernels in numba-cuda's simulator and count what they move.

Both need the simulator, which numba-cuda turns on when NUMBA_ENABLE_CUDASIM=1 is set before numba is imported.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda.core import config
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.simulator.kernel import FakeCUDAKernel

from trigemm.kernels.threads.vector import load4, store4
from trigemm.lab.traffic.arrays import VECTOR_FUNCTIONS
from trigemm.lab.traffic.launch import BlockKind, Launch
from trigemm.lab.traffic.memory import AddressMap
from trigemm.lab.traffic.result import Traffic

ACCESS_LIMIT = 50_000_000


@contextmanager
def record(*, kind: BlockKind | None = None, limit: int = ACCESS_LIMIT) -> Iterator[list[Traffic]]:
    """Within the context, each launch of a numba-cuda kernel is counted; the list grows by one `Traffic` a launch."""
    launches: list[Traffic] = []
    addresses = AddressMap()
    running: list[Launch] = []
    VECTOR_FUNCTIONS.update((load4.__code__, store4.__code__))
    plain = FakeCUDAKernel.__call__

    def call(kernel: Any, *args: Any) -> Any:
        if running:
            running[-1].adopt(kernel.fn)
            return kernel.fn(*args)
        grid, block = normalize_kernel_dimensions(kernel.grid_dim, kernel.block_dim)
        launch = Launch(kernel.fn, grid, block, args, dynamic_bytes=kernel.dynshared_size, addresses=addresses, limit=limit)
        running.append(launch)
        try:
            launch.run(kind)
        finally:
            running.pop()
            launches.append(launch.traffic())

    FakeCUDAKernel.__call__ = call
    try:
        yield launches
    finally:
        FakeCUDAKernel.__call__ = plain


def trace(
    kernel: Callable[..., None], grid: Any, block: Any, *args: Any, kind: BlockKind | None = None, limit: int = ACCESS_LIMIT
) -> Traffic:
    """Count one launch of a numba-cuda kernel, `kernel[grid, block](*args)`."""
    with record(kind=kind, limit=limit) as launches:
        kernel[grid, block](*args)  # type: ignore[index]
    return launches[0]
