"""The tile sizes behind the reductions and short rows of trigemm.tensor on a GPU, tried against each other and against PyTorch.

    python benchmarks/tensor.py --sweep [--seconds 60]

Each candidate is verified; all of a case take turns, caches flushed. What is in use is marked. In Triton's interpreter
(TRITON_INTERPRET=1 … --device cpu --elements 8192) the times mean nothing.
"""

import time
from functools import cache
from itertools import product
from unittest.mock import patch

from tensor_cases import Call, cases

from trigemm.kernels.tiles import reduce, rowwise
from trigemm.lab.timing import interleaved
from trigemm.tensor.cuda import CudaBackend

TILES = [{"LOADS": loads, "WARPS": warps} for loads, warps in ((8, 4), (4, 4), (16, 4), (4, 8), (8, 8))]
WIDTHS = [{**tile, "NARROW": width} for width, tile in product((32, 64, 128), TILES)]
PIECES = [{**tile, "PROGRAMS": programs} for programs, tile in product((1024, 512, 2048, 4096), TILES)]
ROWS = [{"ELEMENTS": elements} for elements in (4096, 2048, 1024)]
SWEPT = {
    "sum_axis1": (reduce, "_plan", TILES),
    "max_axis1": (reduce, "_plan", TILES),
    "sum_axis1_of_3": (reduce, "_plan", TILES),
    "log_softmax": (rowwise, "_launch", ROWS),
    "sum_axis1_of_4": (reduce, "_plan", PIECES),
    "sum_axis2_of_4": (reduce, "_plan", PIECES),
    "sum": (reduce, "_plan", PIECES),
    "sum_axis0": (reduce, "_plan", WIDTHS),
}


def variant(module, plans: str, settings: dict[str, int], call: Call) -> Call:
    """The call with plans of its own, made under these settings."""
    own = cache(getattr(module, plans).__wrapped__)

    def run():
        setattr(module, plans, own)
        return call()

    with patch.multiple(module, **settings):
        run()
    return run


def sweep(device: str, elements: int, seconds: float) -> None:
    """Prints the times of all candidates, the fastest first, until time is up."""
    end = time.monotonic() + seconds
    made = {}
    for case in cases(device, elements, CudaBackend(device)):
        made.setdefault(case.name, case)  # of several shapes the first: the short rows
    for name, (module, plans, candidates) in SWEPT.items():
        if time.monotonic() > end:
            print(f"{name}: left out, the time is up")
            continue
        case, kept, calls = made[name], getattr(module, plans), {}
        try:
            for settings in candidates:
                used = all(getattr(module, key) == value for key, value in settings.items())
                label = ", ".join(f"{key} {value}" for key, value in settings.items()) + (" (in use)" if used else "")
                calls[label] = variant(module, plans, settings, case.ours)
                case.error(calls[label])
            calls["torch"] = case.theirs
            if case.others:
                calls["CuPy"] = case.others
            times = interleaved(calls, repeats=20, seconds=3.0, device=device)
        finally:
            setattr(module, plans, kept)
        print(case.label)
        for label, timing in sorted(times.items(), key=lambda item: item[1].median_ms):
            print(f"  {1e3 * timing.median_ms:8.1f} us  {label}", flush=True)
