"""The ordered list of all kernels, and which of them serves a call.

An operation's numbers begin with 0, the full product of the BLAS. On the ladder its rungs follow; elsewhere 1 is PUBLIC, what
users call, which goes to one of the kernels that follow.
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from trigemm.kernels.spec import ALL_DTYPES, KernelSpec
from trigemm.kernels.threads import limits

TILE_DTYPES = ("float32", "float16", "bfloat16")
LADDER = "causal_scores_qkvpacked"
PUBLIC = "trigemm"


def _needs_triton(problem: Mapping[str, Any]) -> str | None:
    if not find_spec("triton"):
        return "it needs Triton, which comes with PyTorch's GPU builds (pip install triton)"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return "it needs bfloat16 tensor cores: a GPU of compute capability 8.0 or higher"
    return None


def _products(operation: str, module: str | None = None) -> tuple[KernelSpec, KernelSpec]:
    """The two kernels behind an operation: the first that takes the device and the dtype serves a call."""
    entry = f"{module or operation}:{operation}"
    tiles, strips = f"trigemm.kernels.tiles.{entry}", f"trigemm.kernels.strips.{entry}"
    return (
        KernelSpec(
            2, "tiles", operation, "programs of tiles, on tensor cores (Triton)", "cuda", TILE_DTYPES, tiles, _needs_triton
        ),
        KernelSpec(3, "strips", operation, "a BLAS call a strip of rows", "any", ALL_DTYPES, strips),
    )


def _thread_level(number: int, name: str, idea: str) -> KernelSpec:
    """A rung written at the level of threads (numba-cuda)."""
    module = f"trigemm.kernels.threads.{name}"
    return KernelSpec(
        number, name, LADDER, idea, "cuda", ("float32",), f"{module}:scores", limits.refuse, f"{module}:predicted_traffic"
    )


CATALOGUE: tuple[KernelSpec, ...] = (
    KernelSpec(
        0, "baseline", LADDER, "permute, then the whole product by the BLAS", "any", ALL_DTYPES, "trigemm.kernels.baseline:scores"
    ),
    _thread_level(1, "naive", "each entry on its own, out of global memory"),
    _thread_level(2, "registers", "load a value once, use it eight times"),
    _thread_level(3, "vectorized", "16-byte loads and stores"),
    _thread_level(4, "shared", "the block loads a value once, for all its threads"),
    _thread_level(5, "transposed", "shared memory laid out for 16-byte, conflict-free reads; whole-sector stores"),
    KernelSpec(
        6,
        "tiles",
        LADDER,
        "a row of tiles a program, on tensor cores (Triton)",
        "cuda",
        TILE_DTYPES,
        "trigemm.kernels.tiles.gemmt:scores",
        _needs_triton,
        takes_keep=True,
    ),
    KernelSpec(
        7,
        "strips",
        LADDER,
        "a BLAS call a strip of rows",
        "any",
        ALL_DTYPES,
        "trigemm.kernels.strips.gemmt:scores",
        takes_keep=True,
    ),
    *_products("gemmt"),
    *_products("trmm"),
    *_products("syrk"),
    *_products("causal_softmax", "softmax"),
    *_products("causal_softmax_backward", "softmax"),
    *_products("causal_attention", "attention"),
    *_products("causal_attention_backward", "attention"),
)


@cache
def serving(operation: str, device: str, dtype: torch.dtype) -> KernelSpec:
    """The kernel that serves an operation on a device ("cpu" or "cuda") in a dtype: the first of the catalogue that takes them.

    >>> serving("gemmt", "cpu", torch.float32).name
    'strips'
    """
    name = str(dtype).removeprefix("torch.")
    return next(
        spec
        for spec in CATALOGUE
        if spec.operation == operation and spec.device in (device, "any") and name in spec.dtypes and spec.refuse({}) is None
    )
