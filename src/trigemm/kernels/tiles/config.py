"""Tile sizes, warps and pipeline stages of the tile kernels, by dtype and precision."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Config:
    """How a product is cut and computed.

    precision is what `multiply_add` takes; blocks are BM, BN, BK in elements.
    """

    precision: str
    blocks: dict[str, Any]
    num_warps: int
    num_stages: int


HALF = Config("tf32", {"BM": 128, "BN": 128, "BK": 64}, num_warps=8, num_stages=3)
FLOAT32 = {
    "highest": Config("tf32x3", {"BM": 128, "BN": 128, "BK": 32}, num_warps=8, num_stages=3),
    "high": Config("tf32", {"BM": 128, "BN": 128, "BK": 32}, num_warps=8, num_stages=3),
    "medium": Config("bfloat16", {"BM": 128, "BN": 128, "BK": 32}, num_warps=8, num_stages=3),
}


def product_config(dtype: torch.dtype, precision: str) -> Config:
    """The configuration for a dtype and a precision of "highest", "high" or "medium" (which concerns float32 alone)."""
    return FLOAT32[precision] if dtype == torch.float32 else HALF


def trmm_config(dtype: torch.dtype, precision: str) -> Config:
    """As `product_config`, for a product whose left operand is triangular."""
    return product_config(dtype, precision)
