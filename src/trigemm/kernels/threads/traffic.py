"""What a rung is predicted to ask of memory: its closed forms, summed over the tiles of a launch. Standard library only."""

from dataclasses import asdict, dataclass

from trigemm.kernels.threads.limits import TILE


@dataclass(frozen=True)
class TileTraffic:
    """Global memory traffic of one block, in warp requests and in 32-byte sectors, as Nsight Compute counts them."""

    load_requests: int
    load_sectors: int
    store_requests: int
    store_sectors: int


def total(B: int, T: int, NH: int, below: TileTraffic, diagonal: TileTraffic) -> dict[str, int]:
    """The traffic of a launch: n = T / 128 tiles on the diagonal of each of B * NH heads, and n (n - 1) / 2 below it.

    Exact for qkv and out that begin at a multiple of 32 bytes (PyTorch's begin at a multiple of 512).

    >>> total(1, 256, 2, TileTraffic(5, 20, 3, 12), TileTraffic(1, 2, 1, 2))
    {'load_requests': 14, 'load_sectors': 48, 'store_requests': 10, 'store_sectors': 32}
    """
    n = T // TILE
    per_tile = asdict(diagonal)
    return {name: B * NH * (n * per_tile[name] + n * (n - 1) // 2 * count) for name, count in asdict(below).items()}
