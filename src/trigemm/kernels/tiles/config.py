"""Tile sizes, warps and pipeline stages of the tile kernels, by dtype and precision.

Measured on one H200 with the L2 flushed; `benchmarks/tune_tiles.py` measures them again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """How a product is cut and computed.

    precision is what `multiply_add` takes; blocks are BM, BN, BK in elements (BK 0: all of K).
    """

    precision: str
    blocks: tuple[int, int, int]
    num_warps: int
    num_stages: int


HALF = Config("tf32", (128, 128, 64), num_warps=4, num_stages=3)
FLOAT32 = {
    "highest": Config("bf16x6", (128, 128, 64), num_warps=8, num_stages=3),
    "high": Config("bf16x3", (128, 128, 64), num_warps=8, num_stages=3),
    "medium": Config("bfloat16", (128, 128, 64), num_warps=4, num_stages=2),
}


@dataclass(frozen=True)
class TriangleConfig(Config):
    """The same for a result of which one triangle is computed, gemmt's and syrk's. BN may be twice BM.

    by_tma  whether TMA loads the operands, where it can address them
    side    tiles are counted square by square, of so many rows and columns; 0: as large as a tile
    """

    by_tma: bool = False
    side: int = 0


MULTIPROCESSORS = 132  # of an H200
POINTERS_FEW = TriangleConfig("tf32", (64, 64, 64), num_warps=4, num_stages=3)
POINTERS = TriangleConfig("tf32", (128, 128, 64), num_warps=8, num_stages=3)
TWO_A_MULTIPROCESSOR = TriangleConfig("tf32", (64, 64, 64), num_warps=4, num_stages=6, by_tma=True)
LARGE = TriangleConfig("tf32", (128, 128, 64), num_warps=4, num_stages=3, by_tma=True)
WIDE = TriangleConfig("tf32", (128, 256, 64), num_warps=8, num_stages=4, by_tma=True, side=1024)

# (up to so many tiles of 64 x 64 for each multiprocessor, configuration)
GEMMT = (
    (0.5, TriangleConfig("tf32", (64, 32, 256), num_warps=4, num_stages=3, by_tma=True)),
    (2, TWO_A_MULTIPROCESSOR),
    (4, replace(TWO_A_MULTIPROCESSOR, num_stages=3)),  # so that four fit
    (16, LARGE),
    (math.inf, WIDE),
)
SYRK = (
    (0.5, TriangleConfig("tf32", (64, 64, 128), num_warps=4, num_stages=4, by_tma=True)),
    (2, TWO_A_MULTIPROCESSOR),
    (4, TriangleConfig("tf32", (64, 128, 64), num_warps=4, num_stages=3, by_tma=True)),
    (12, WIDE),
    (16, LARGE),
    (math.inf, WIDE),
)


@dataclass(frozen=True)
class RowConfig(Config):
    """The same for products by rows of tiles.

    group          how many matrices are worked on at a time
    stores_by_tma  whether tiles are stored by TMA, else by the threads
    registers      the most that a thread may have; None: as many as it likes
    parts          whether float32 columns are split in memory, once for all rows of tiles, before they are multiplied
    """

    group: int = 32
    stores_by_tma: bool = False
    registers: int | None = None
    parts: bool = False


@dataclass(frozen=True)
class TrmmConfig(Config):
    """The same for trmm.

    by_tma          whether TMA loads the operands
    crossed_stages  stages for the tiles that the diagonal crosses; None: num_stages
    group           how many matrices are worked on at a time; 0: all
    registers       the most that a thread may have; None: as many as it likes
    """

    by_tma: bool = False
    crossed_stages: int | None = None
    group: int = 0
    registers: int | None = None


# By TMA: (up to so many rows, configuration)
TRMM_HALF = (
    (2048, TrmmConfig("tf32", (64, 128, 64), num_warps=4, num_stages=3, by_tma=True, group=24)),
    (math.inf, TrmmConfig(**vars(HALF))),
)
TRMM_HIGH = (
    (2048, TrmmConfig("tf32", (64, 128, 32), num_warps=4, num_stages=3, by_tma=True, group=24)),
    (math.inf, TrmmConfig("tf32", (128, 128, 32), num_warps=8, num_stages=3, by_tma=True, registers=128)),
)
SHORT = 64
"""Inner dimensions up to this have configurations of their own in products by rows."""

ROW_HALF = {
    True: RowConfig("tf32", (64, 128, 0), num_warps=4, num_stages=3, registers=128),
    False: RowConfig("tf32", (128, 128, 0), num_warps=8, num_stages=3, group=8, registers=128),
}
UNALIGNED_HALF = RowConfig("tf32", (64, 128, 0), num_warps=4, num_stages=3)
ROW_FLOAT32 = {
    "highest": RowConfig("float16x2", (128, 64, 0), num_warps=4, num_stages=3, group=96, stores_by_tma=True),
    "high": RowConfig("float16", (128, 64, 0), num_warps=4, num_stages=3, group=96, stores_by_tma=True),
    "medium": RowConfig("bfloat16", (64, 64, 0), num_warps=4, num_stages=2),
}


def _up_to(table: Sequence[tuple[float, C]], size: float) -> C:
    """The first configuration that serves a size; the last one of a table serves any."""
    return next(config for most, config in table if size <= most)


def triangle_config(operation: str, dtype: torch.dtype, precision: str, entries: int, by_tma: bool) -> TriangleConfig:
    """For gemmt or syrk, of so many `entries` in the triangles of all matrices; by_tma, whether TMA can address the operands.

    `precision` is "highest", "high" or "medium" and concerns float32 alone. What decides is how many programs a multiprocessor
    holds at a time, and how many there are for it.
    """
    squares = entries / 64**2 / MULTIPROCESSORS  # tiles of 64 x 64 for each multiprocessor
    if dtype == torch.float32:
        config = TriangleConfig(**vars(FLOAT32[precision]), by_tma=by_tma)
        if by_tma and precision == "medium":
            return replace(config, blocks=(128, 128, 32), num_stages=4)
        return replace(config, blocks=(64, 64, 64), num_warps=4, num_stages=3) if by_tma and squares <= 4 else config
    if not by_tma:
        return POINTERS_FEW if squares <= 2 else POINTERS
    return _up_to(SYRK if operation == "syrk" else GEMMT, squares)


def trmm_config(dtype: torch.dtype, precision: str, m: int, addressable: bool) -> TrmmConfig:
    """For trmm of `m` rows, of operands that are `addressable` by TMA or not."""
    if addressable and (dtype != torch.float32 or precision == "high"):
        return _up_to(TRMM_HIGH if dtype == torch.float32 else TRMM_HALF, m)
    return TrmmConfig(**vars(FLOAT32[precision] if dtype == torch.float32 else HALF))


def row_config(dtype: torch.dtype, precision: str, m: int, k: int, aligned: bool = True) -> RowConfig:
    """For a product of `m` rows by rows of tiles, with the whole inner dimension `k` in one tile.

    A pass that splits the columns of a float32 product pays where each would else be split often, or is long. Rows of the result
    that are not `aligned` to 16 bytes are stored an element at a time by the threads: an address for each of a larger tile's
    elements would not fit their registers.
    """
    if dtype != torch.float32:
        config = ROW_HALF[k <= SHORT]
    else:
        config = ROW_FLOAT32[precision]
        if precision != "medium" and (k > SHORT or m >= 2048):
            config = replace(config, blocks=(64, 64, 0), num_stages=2, group=32, stores_by_tma=False, parts=True)
    return config if aligned else replace(config, blocks=(64, 64, 0), num_warps=4, stores_by_tma=False, registers=None)
