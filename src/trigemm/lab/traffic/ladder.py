"""The ladder, counted: thread-level rungs in the simulator, one block of each kind, and the tile-level one in the interpreter."""

from collections.abc import Callable, Hashable, Mapping
from math import sqrt
from typing import Any

import torch

from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.spec import KernelSpec
from trigemm.kernels.threads.limits import TILE
from trigemm.lab.traffic.result import Traffic, add_up

ITEM = 4  # bytes of a float32
LINE = 128  # bytes: the largest unit by which the alignment of an address can change a count

Shape = Mapping[str, int]


def rungs() -> list[KernelSpec]:
    """The kernels of the ladder whose traffic can be counted: those for a GPU."""
    return [spec for spec in CATALOGUE if spec.operation == LADDER and spec.device == "cuda"]


def is_thread_level(spec: KernelSpec) -> bool:
    """Whether the rung says what each thread does, so that its requests and sectors can be counted and predicted."""
    return spec.predict is not None


def chosen(keys: list[str]) -> list[KernelSpec]:
    """The rungs of these numbers or names; all where there are none. Raises ValueError for an unknown one."""
    known = rungs()
    for key in keys:
        if not any(key in (spec.name, str(spec.number)) for spec in known):
            listed = ", ".join(f"{spec.number} {spec.name}" for spec in known)
            raise ValueError(f"no kernel {key!r} whose traffic can be counted; there are {listed}")
    return [spec for spec in known if not keys or spec.name in keys or str(spec.number) in keys]


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


def run_rung(spec: KernelSpec, qkv: torch.Tensor, out: torch.Tensor) -> None:
    """Run a rung on its tensors, in float32 and without a fill."""
    spec.run(qkv, out, scale=1 / sqrt(qkv.shape[-1]), fill=None, precision="highest")


def tensors(shape: Shape, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Random qkv, and an out that nothing is written into."""
    B, T, NH, HS = (shape[name] for name in ("B", "T", "NH", "HS"))
    qkv = torch.randn(B, T, 3, NH, HS, generator=torch.Generator().manual_seed(0))
    return qkv.to(device), torch.empty(B, NH, T, T, device=device)


def trace_rung(spec: KernelSpec, shape: Shape, *, every_block: bool = False, **options: Any) -> Traffic:
    """The counts of one rung at B, T, NH, HS. Raises ValueError where the rung does not take the shape.

    A thread-level rung's local arrays are registers when compiled, and not counted. Of a tile-level rung one head runs, and
    counts for all: no head's masks differ from another's. Programs that repair look after rows of several heads; what they load
    is then counted once a head.
    """
    reason = spec.refuse({**shape, "fill": None})
    if reason is not None:
        raise ValueError(f"{spec.name}: {reason}")
    qkv, out = tensors(shape)
    if not is_thread_level(spec):
        return _trace_tiles(spec, qkv, out, every_block)
    from trigemm.lab.traffic.recorder import record

    kind = None if every_block else block_kind(shape["T"], shape["NH"], shape["HS"])
    with record(kind=kind, count_local=False, **options) as launches:
        run_rung(spec, qkv, out)
    launches[0].kernel = spec.name
    return launches[0]


def _trace_tiles(spec: KernelSpec, qkv: torch.Tensor, out: torch.Tensor, every_block: bool) -> Traffic:
    from trigemm.lab.traffic.tiles import record_tiles

    heads = 1 if every_block else out.shape[0] * out.shape[1]
    with record_tiles() as launches:
        run_rung(spec, *((qkv, out) if every_block else (qkv[:1, :, :, :1], out[:1, :1])))
    first = launches[0]
    blocks = sum(launch.blocks for launch in launches)
    rows = add_up((access, counts * heads) for launch in launches for access, counts in launch.rows.items())
    return Traffic(spec.name, first.grid, first.block, blocks * heads, blocks, rows)


def counted(traffic: Traffic) -> dict[str, int]:
    """The counts of a launch that a rung's closed forms predict, by the same names."""
    loads, stores = traffic.total("global", "load"), traffic.total("global", "store")
    return {
        "load_requests": loads.requests,
        "load_sectors": loads.sectors,
        "store_requests": stores.requests,
        "store_sectors": stores.sectors,
    }


def predicted(spec: KernelSpec, shape: Shape) -> dict[str, int] | None:
    """What the rung's closed forms say; None where it has none."""
    return None if spec.predicted_traffic is None else spec.predicted_traffic(**shape)


def differences(spec: KernelSpec, shape: Shape, traffic: Traffic) -> dict[str, tuple[int, int]]:
    """Where count and prediction differ: name -> (counted, predicted)."""
    expected = predicted(spec, shape) or {}
    return {name: (value, expected[name]) for name, value in counted(traffic).items() if expected.get(name, value) != value}


def savings(before: Traffic, after: Traffic) -> dict[str, float]:
    """How many times less a rung asks of memory than the one before: only what changed, by name."""
    first, second = counted(before), counted(after)
    for name, traffic in ((first, before), (second, after)):
        name["shared_wavefronts"] = traffic.total("shared").wavefronts
    return {
        name: first[name] / second[name]
        for name in first
        if first[name] and second[name] and abs(first[name] / second[name] - 1) > 0.005
    }
