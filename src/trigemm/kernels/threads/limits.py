"""What the rungs take, in terms of the problem alone; no kernel compiler is needed to ask."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

TILE = 128
SLICE = 32
MAX_HEADS = 65535
ANY = {"B": 1, "T": TILE, "NH": 1, "HS": SLICE, "fill": None}


def refuse(problem: Mapping[str, Any]) -> str | None:
    """Why the rungs cannot take a problem (B, T, NH, HS, fill), as a sentence that says what would work; None if they can.

    What the problem leaves open is not held against it.

    >>> refuse({"B": 1, "T": 256, "NH": 2, "HS": 64, "fill": None})
    >>> refuse({"B": 1, "T": 200, "NH": 2, "HS": 64, "fill": None})
    'the thread-level kernels need T to be a multiple of 128, got T=200; the kernel "tiles" takes any T'
    """
    B, T, NH, HS, fill = (problem.get(name, default) for name, default in ANY.items())
    if find_spec("numba_cuda") is None:
        return "the thread-level kernels need numba-cuda (pip install 'trigemm[lab]')"
    if fill is not None:
        return (
            "the thread-level kernels never write above the diagonal, so they take fill=None only, "
            f'got fill={fill}; the kernel "tiles" fills the other half'
        )
    if T % TILE:
        return f'the thread-level kernels need T to be a multiple of {TILE}, got T={T}; the kernel "tiles" takes any T'
    if HS % SLICE or HS == 0:
        return (
            f'the thread-level kernels need HS to be a positive multiple of {SLICE}, got HS={HS}; the kernel "tiles" takes any HS'
        )
    if B * NH > MAX_HEADS or T // TILE > MAX_HEADS:
        return (
            f"the thread-level kernels need B * NH and T / {TILE} to be at most {MAX_HEADS}, the limit of a launch grid, "
            f"got B={B}, NH={NH} and T={T}; split the batch"
        )
    return None
