"""Transaction counts of CUDA kernels without a GPU, and their faults: `trace` one launch, or `record` all in a context.

With NUMBA_ENABLE_CUDASIM=1 in the environment before numba is imported:

    @cuda.jit
    def every_second(x, out):
        i = cuda.grid(1)
        out[i] = x[2 * i]

    traffic = trace(every_second, 1, 32, np.zeros(64, np.float32), np.zeros(32, np.float32))
    traffic.total("global", "load").sectors   # 8: 32 elements, 8 bytes apart
    traffic.total("global", "store").sectors  # 4
    traffic.findings                          # []

What is named here is imported when it is first used, so that the modules for a GPU can be used without the simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trigemm.lab.traffic.recorder import KernelError, record, trace
    from trigemm.lab.traffic.result import Finding, Traffic

__all__ = ["Finding", "KernelError", "Traffic", "record", "trace"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "result" if name in ("Finding", "Traffic") else "recorder"
    return getattr(import_module(f"{__name__}.{home}"), name)
