"""Tile sizes, warps and pipeline stages of the tile kernels, by dtype and precision.

Measured on one H200 with the L2 flushed; `benchmarks/tune_tiles.py` measures them again.
"""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Config:
    """How a product is cut and computed.

    precision is what `multiply_add` takes; blocks are BM, BN, BK in elements (BK 0: all of K).
    """

    precision: str
    blocks: tuple[int, int, int]
    num_warps: int
    num_stages: int


HALF = {
    "gemmt": Config("tf32", (128, 128, 64), num_warps=8, num_stages=3),
    "syrk": Config("tf32", (128, 128, 64), num_warps=8, num_stages=3),
    "trmm": Config("tf32", (128, 128, 64), num_warps=4, num_stages=3),
}
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


@dataclass(frozen=True)
class RowConfig(Config):
    """The same for products by rows of tiles.

    group          how many matrices are worked on at a time
    stores_by_tma  whether tiles are stored by TMA, else by the threads
    registers      the most that a thread may have; None: as many as it likes
    """

    group: int = 32
    stores_by_tma: bool = False
    registers: int | None = None


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


TRMM_TF32 = TrmmConfig("tf32", (128, 128, 32), num_warps=4, num_stages=3, by_tma=True)
ROW_HALF = RowConfig("tf32", (64, 128, 0), num_warps=4, num_stages=3)
ROW_FLOAT32 = {
    "highest": RowConfig("float16x2", (128, 64, 0), num_warps=4, num_stages=3, group=96, stores_by_tma=True),
    "high": RowConfig("float16", (128, 64, 0), num_warps=4, num_stages=3, group=96, stores_by_tma=True),
    "medium": RowConfig("bfloat16", (64, 64, 0), num_warps=4, num_stages=2),
}


def product_config(operation: str, dtype: torch.dtype, precision: str) -> Config:
    """For an operation by tiles; `precision` is "highest", "high" or "medium" and concerns float32 alone."""
    return FLOAT32[precision] if dtype == torch.float32 else HALF[operation]


def triangle_config(operation: str, dtype: torch.dtype, precision: str, entries: int, k: int) -> TriangleConfig:
    """For gemmt or syrk: `entries` of the triangle, of `k` products each."""
    return TriangleConfig(**vars(product_config(operation, dtype, precision)))


def trmm_config(dtype: torch.dtype, precision: str, addressable: bool) -> TrmmConfig:
    """For trmm, of operands that are `addressable` by TMA or not."""
    if dtype == torch.float32 and precision == "high" and addressable:
        return TRMM_TF32
    return TrmmConfig(**vars(product_config("trmm", dtype, precision)))


def row_config(dtype: torch.dtype, precision: str, aligned: bool = True) -> RowConfig:
    """For a product by rows of tiles, with the whole inner dimension in one tile.

    Rows of the result that are not `aligned` to 16 bytes are stored an element at a time by the threads. An address for each of
    a larger tile's elements would not fit their registers.
    """
    config = ROW_FLOAT32[precision] if dtype == torch.float32 else ROW_HALF
    return config if aligned else replace(config, blocks=(64, 64, 0), num_warps=4, stores_by_tma=False)
