"""The thread-level rungs of the ladder, counted: of the blocks that are equal in kind, one runs in the simulator."""

from collections.abc import Callable, Hashable, Mapping
from math import sqrt

import torch

from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.spec import KernelSpec
from trigemm.kernels.threads.limits import TILE
from trigemm.lab.traffic.record import record
from trigemm.lab.traffic.result import Traffic

ITEM = 4  # bytes of a float32
LINE = 128  # bytes: the largest unit by which the alignment of an address can change a count


def rungs() -> list[KernelSpec]:
    """The thread-level kernels of the ladder, those with closed forms of their traffic."""
    return [spec for spec in CATALOGUE if spec.operation == LADDER and spec.predict is not None]


def block_kind(T: int, NH: int, HS: int) -> Callable[[int, int, int], Hashable]:
    """What two blocks of a rung's launch must share to make the same requests, sectors and wavefronts.

    Where the block lies decides what its threads do: nothing above the diagonal, part of a tile on it, a whole tile below it. And
    the addresses at which its tiles of q, k and out begin, modulo a cache line, decide how the accesses fall into sectors: all
    other addresses of the block are at distances from these that are the same in every block.
    """
    row = 3 * NH * HS

    def kind(x: int, y: int, z: int) -> Hashable:
        if x > y:
            return "above"
        batch, head = divmod(z, NH)
        q = (batch * T + y * TILE) * row + head * HS
        k = (batch * T + x * TILE) * row + (NH + head) * HS
        out = (z * T + y * TILE) * T + x * TILE
        return x == y, *(ITEM * first % LINE for first in (q, k, out))

    return kind


def trace_rung(spec: KernelSpec, shape: Mapping[str, int], *, every_block: bool = False, seed: int = 0) -> Traffic:
    """The counts of one rung at B, T, NH, HS, on random qkv. Its local arrays are registers when compiled, and not counted."""
    B, T, NH, HS = (shape[name] for name in ("B", "T", "NH", "HS"))
    qkv = torch.randn(B, T, 3, NH, HS, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(B, NH, T, T)
    with record(kind=None if every_block else block_kind(T, NH, HS), count_local=False) as launches:
        spec.run(qkv, out, scale=1 / sqrt(HS), fill=None, precision="highest")
    launches[0].kernel = spec.name
    return launches[0]


def counted(traffic: Traffic) -> dict[str, int]:
    """The counts of a launch that a rung's closed forms predict, by the same names."""
    loads, stores = traffic.total("global", "load"), traffic.total("global", "store")
    return {
        "load_requests": loads.requests,
        "load_sectors": loads.sectors,
        "store_requests": stores.requests,
        "store_sectors": stores.sectors,
    }


def predicted(spec: KernelSpec, shape: Mapping[str, int]) -> dict[str, int]:
    """What the rung's closed forms say."""
    assert spec.predicted_traffic is not None
    return spec.predicted_traffic(**shape)


def differences(spec: KernelSpec, shape: Mapping[str, int], traffic: Traffic) -> dict[str, tuple[int, int]]:
    """Where count and prediction differ: name -> (counted, predicted)."""
    expected = predicted(spec, shape)
    return {name: (value, expected[name]) for name, value in counted(traffic).items() if value != expected[name]}
