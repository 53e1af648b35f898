"""A tiled product that counts what it loads and stores: what a tile kernel does, on NumPy arrays and torch tensors."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from trigemm.tiling.traffic import Moved, Traffic, check_sizes, live_tiles
from trigemm.triangle import Triangle, ceil_div


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A product and what was moved for it."""

    product: Any
    traffic: Traffic

    @property
    def loads(self) -> int:
        """Elements loaded, of both operands."""
        return self.traffic.loads

    @property
    def stores(self) -> int:
        """Elements stored."""
        return self.traffic.stores


class GlobalMatrix:
    """A matrix in global memory. Tiles of it are loaded and stored, and their elements counted."""

    def __init__(self, data: Any):
        self.data = data
        self.elements = self.masked = 0

    def load(self, row: int, column: int, rows: int, columns: int, dtype: Any) -> Any:
        """The tile [rows, columns] whose first element is (row, column), with zeros beyond the border."""
        inside = self.data[row : row + rows, column : column + columns]
        self._count(inside.shape[0] * inside.shape[1], rows * columns)
        tile = _zeros(self.data, (rows, columns), dtype)
        tile[: inside.shape[0], : inside.shape[1]] = inside
        return tile

    def store(self, tile: Any, row: int, column: int, diagonal: int | None) -> None:
        """Write a tile whose first element is (row, column), cut at the border and, unless it is None, at the diagonal."""
        inside = self.data[row : row + tile.shape[0], column : column + tile.shape[1]]
        rows, columns = inside.shape
        values = tile[:rows, :columns]
        if diagonal is None:
            stored = rows * columns
        else:
            in_tile = diagonal + row - column
            stored = Triangle(rows, columns, "lower", in_tile).size
            values = _module(tile).tril(values, in_tile)  # the matrix holds zeros above the diagonal already
        inside[:] = values
        self._count(stored, tile.shape[0] * tile.shape[1])

    def _count(self, elements: int, attempted: int) -> None:
        self.elements += elements
        self.masked += attempted - elements

    @property
    def moved(self) -> Moved:
        return Moved(self.elements, self.elements * self.data.itemsize, self.masked)


def tiled_matmul(a: Any, b: Any, block_m: int, block_n: int, block_k: int, *, diagonal: int | None = None) -> TiledProduct:
    """a @ b, (M,K) x (K,N) -> (M,N), by tiles [block_m, block_n] in steps of block_k, and the elements that it moved.

    `a` and `b` are NumPy arrays or torch tensors of one dtype; so is the product. float16 and bfloat16 are added up in float32.

    diagonal   None: the whole product. An integer: its lower triangle (`torch.tril`), zeros above; only live tiles are
               computed, and block_m must be a multiple of block_n.

    Raises TypeError for operands that are not of one kind and dtype, ValueError for shapes or blocks that do not fit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.standard_normal((15, 12)), rng.standard_normal((12, 9))
    >>> result = tiled_matmul(a, b, 5, 3, 6)
    >>> np.allclose(result.product, a @ b), result.loads, result.stores
    (True, 864, 135)
    >>> tiled_matmul(a, b, 5, 3, 6).traffic.a
    Moved(elements=540, bytes=4320, masked=0)
    """
    _check_operands(a, b)
    (m, k), n = a.shape, b.shape[1]
    check_sizes(m, n, k, block_m, block_n, block_k)
    wide = _module(a).float32 if str(a.dtype).rpartition(".")[2] in ("float16", "bfloat16") else a.dtype
    matrix_a, matrix_b, matrix_c = GlobalMatrix(a), GlobalMatrix(b), GlobalMatrix(_zeros(a, (m, n), a.dtype))
    everywhere = product(range(ceil_div(m, block_m)), range(ceil_div(n, block_n)))
    tiles = list(everywhere if diagonal is None else live_tiles(m, n, block_m, block_n, diagonal))
    for i, j in tiles:  # each on its own: on a GPU they run side by side
        row, column = i * block_m, j * block_n
        acc = _zeros(a, (block_m, block_n), wide)
        for depth in range(0, k, block_k):
            tile_a = matrix_a.load(row, depth, block_m, block_k, wide)
            tile_b = matrix_b.load(depth, column, block_k, block_n, wide)
            acc += tile_a @ tile_b
        matrix_c.store(acc, row, column, diagonal)
    return TiledProduct(matrix_c.data, Traffic(matrix_a.moved, matrix_b.moved, matrix_c.moved, len(tiles)))


def _check_operands(a: Any, b: Any) -> None:
    given = " and ".join(f"{type(x).__name__} {tuple(getattr(x, 'shape', ()))} {getattr(x, 'dtype', '')}" for x in (a, b))
    if not any(isinstance(a, kind) and isinstance(b, kind) for kind in (np.ndarray, torch.Tensor)) or a.dtype != b.dtype:
        raise TypeError(f"tiled_matmul takes two NumPy arrays or two torch tensors of one dtype; got {given}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"tiled_matmul takes matrices (M,K) and (K,N); got {given}")


def _module(x: Any) -> Any:
    return torch if isinstance(x, torch.Tensor) else np


def _zeros(like: Any, shape: tuple[int, int], dtype: Any) -> Any:
    return like.new_zeros(shape, dtype=dtype) if isinstance(like, torch.Tensor) else np.zeros(shape, dtype)
