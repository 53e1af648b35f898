"""Block sizes, warps and pipeline stages of the attention kernels, by kernel, precision and head size.

`benchmarks/attention.py --sweep` measures them. Float32 tiles are no larger than registers allow: in kernels that spill kilobytes
a thread, or have a hundred products in flight, ptxas (CUDA 13.0) was seen to make one with the descriptor of another.
"""

from typing import NamedTuple

import torch

PRECISIONS = {"highest": "float16x2", "high": "bf16x3", "medium": "bfloat16"}
# One bfloat16 part of each operand gave wrong gradients of float32 on an H200 (Triton 3.6): two are used for "medium" too.
BACKWARD_PRECISIONS = {**PRECISIONS, "highest": "bf16x6", "medium": "bf16x3"}


class Config(NamedTuple):
    """How a kernel is cut and compiled.

    bm, bn       queries and keys in a tile
    together     heads whose programs go from the longest rows to the shortest side by side, before those of the next; 0: all
    registers    at most so many a thread, so that more programs fit; 0 leaves it to the compiler
    first_stages of the pipeline of the first of two passes; 0: as of the second
    """

    bm: int
    bn: int
    num_warps: int
    num_stages: int
    together: int = 0
    registers: int = 0
    first_stages: int = 0

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        limit = {"maxnreg": self.registers} if self.registers else {}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit}


# Kernel -> dtype's bits -> largest head size -> configuration.
TABLE: dict[str, dict[int, dict[int, Config]]] = {
    "output": {
        16: {64: Config(64, 64, 4, 3), 128: Config(128, 64, 8, 3), 256: Config(64, 64, 8, 2)},
        32: {64: Config(64, 64, 4, 2), 128: Config(64, 32, 4, 2), 256: Config(64, 32, 4, 1)},
    },
    "weights": {
        16: {64: Config(64, 32, 4, 3, registers=80), 128: Config(128, 64, 8, 3), 256: Config(64, 64, 8, 2)},
        32: {64: Config(64, 32, 4, 3, registers=168, first_stages=4), 128: Config(64, 32, 4, 2), 256: Config(64, 32, 4, 1)},
    },
    "columns": {
        16: {64: Config(64, 128, 4, 3), 128: Config(64, 128, 8, 3), 256: Config(64, 64, 8, 2)},
        32: {64: Config(64, 64, 4, 2), 128: Config(32, 64, 4, 2), 256: Config(32, 64, 4, 1)},
    },
    "row_sums": {
        16: {64: Config(128, 64, 4, 3), 128: Config(128, 64, 8, 3), 256: Config(64, 64, 8, 2)},
        32: {64: Config(64, 64, 4, 2), 128: Config(64, 32, 4, 2), 256: Config(64, 32, 4, 1)},
    },
    "queries": {
        16: {64: Config(64, 64, 4, 3), 128: Config(64, 64, 4, 2), 256: Config(64, 32, 8, 2)},
        32: {64: Config(64, 32, 4, 2), 128: Config(64, 32, 8, 1), 256: Config(32, 32, 8, 1)},
    },
    "keys": {
        16: {64: Config(64, 64, 4, 2), 128: Config(64, 64, 8, 2), 256: Config(32, 64, 8, 1)},
        32: {64: Config(32, 64, 4, 1), 128: Config(32, 32, 8, 1), 256: Config(32, 32, 8, 1)},
    },
}


# What TMA does not load needs pointers, and those registers: tiles are smaller then.
BY_POINTERS = {64: Config(64, 32, 4, 1), 128: Config(128, 16, 8, 1), 256: Config(64, 16, 4, 1)}

# A launch of few rows has so few programs that the longest of them takes all the time: shorter ones, of half the rows.
FEW_ROWS = 2**15
OF_FEW_ROWS = {("weights", 16, 128): Config(64, 64, 4, 2, first_stages=4)}


def attention_config(kernel: str, dtype: torch.dtype, head_size: int, rows: int = FEW_ROWS, *, by_tma: bool = True) -> Config:
    """The configuration of a kernel for so many rows of queries, those of all heads, and operands that TMA loads, or not."""
    bits = 8 * dtype.itemsize
    by_size = TABLE[kernel][bits] if by_tma or bits < 32 or kernel not in ("output", "weights") else BY_POINTERS
    size = next(size for size in by_size if head_size <= size)
    return OF_FEW_ROWS.get((kernel, bits, size), by_size[size]) if rows < FEW_ROWS else by_size[size]


def product_precision(kernel: str, dtype: torch.dtype, precision: str) -> str:
    """How a kernel makes products (see `multiply`): at "highest", "high" or "medium" for float32, exactly for half precision."""
    if dtype != torch.float32:
        return "tf32"
    return (BACKWARD_PRECISIONS if kernel in ("row_sums", "queries", "keys") else PRECISIONS)[precision]
