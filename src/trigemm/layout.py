"""How the elements of a tensor of up to four axes (batch, heads, positions, components) lie in memory.

Plain integers and nothing else, so that the same function serves the CPU and the tile kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RANK = 4
"""Axes of a layout; missing ones are padded on the left."""


def source_index(flat: int, size1: int, size2: int, size3: int, stride0: int, stride1: int, stride2: int, stride3: int) -> int:
    """Position in memory of element number `flat`, counted in row-major order over (size0, size1, size2, size3).

    Works on integers, on NumPy arrays of them, and inside a tile kernel, whose compiler takes no other annotation than `int`.

    >>> source_index(5, 1, 2, 3, 0, 0, 1, 2)  # element (1, 2) of a transposed 3 x 2 matrix
    5
    """
    last = flat % size3
    rest = flat // size3
    middle = rest % size2
    rest = rest // size2
    return (rest // size1) * stride0 + (rest % size1) * stride1 + middle * stride2 + last * stride3


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that two shapes broadcast to, or None where they don't.

    >>> broadcast_shape((7, 1), (300,)), broadcast_shape((2, 3), (2,))
    ((7, 300), None)
    """
    rank = max(len(a), len(b))
    pairs = zip((*(1,) * (rank - len(a)), *a), (*(1,) * (rank - len(b)), *b), strict=True)
    sizes = tuple(y if x == 1 else x if y in (1, x) else -1 for x, y in pairs)
    return None if -1 in sizes else sizes


@dataclass(frozen=True, slots=True)
class Layout:
    """Four sizes and four strides, in elements. A stretched axis has stride 0, and so has a missing one, of size 1.

    >>> x = Layout.contiguous((2, 3))
    >>> x
    Layout(shape=(1, 1, 2, 3), strides=(0, 0, 3, 1))
    >>> x.permute((1, 0)).strides
    (0, 0, 1, 3)
    >>> Layout.contiguous((3,)).expand((2, 3)).strides
    (0, 0, 0, 1)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> "Layout":
        """The row-major layout of a tensor of up to four axes; a longer shape is a ValueError."""
        if len(shape) > RANK:
            raise ValueError(f"a tensor has at most {RANK} axes; got shape {tuple(shape)}; merge some with reshape")
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
        padding = RANK - len(shape)
        return cls((1,) * padding + tuple(shape), (0,) * padding + tuple(strides))

    def permute(self, axes: Sequence[int]) -> "Layout":
        """Axis i of the result is axis `axes[i]`; `axes` counts the last len(axes) axes of the layout."""
        first = RANK - len(axes)
        order = (*range(first), *(first + axis for axis in axes))
        return Layout(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order))

    def expand(self, shape: Sequence[int]) -> "Layout":
        """Stretch axes of size 1 to `shape`, which this layout's shape must broadcast to."""
        padded = (1,) * (RANK - len(shape)) + tuple(shape)
        if broadcast_shape(self.shape, padded) != padded:
            raise ValueError(f"shape {self.shape} does not broadcast to {tuple(shape)}")
        sizes = zip(self.strides, self.shape, padded, strict=True)
        return Layout(padded, tuple(0 if size != wanted else stride for stride, size, wanted in sizes))

    def source_index(self, flat: Any) -> Any:
        """Position in memory of element number `flat`, an integer or an array of integers.

        >>> [Layout.contiguous((3, 2)).permute((1, 0)).source_index(i) for i in range(6)]
        [0, 2, 4, 1, 3, 5]
        """
        return source_index(flat, *self.shape[1:], *self.strides)


def merge(*layouts: Layout) -> tuple[Layout, ...]:
    """The same elements in the same order with as few axes as all layouts allow, for layouts of one shape.

    Fewer axes mean fewer divisions for `source_index`.

    >>> merge(Layout.contiguous((2, 3, 4)), Layout.contiguous((4,)).expand((2, 3, 4)))
    (Layout(shape=(1, 1, 6, 4), strides=(0, 0, 4, 1)), Layout(shape=(1, 1, 6, 4), strides=(0, 0, 0, 1)))
    """
    axes: list[tuple[int, tuple[int, ...]]] = []  # from the last on: size, and the stride in each layout
    for axis in reversed(range(RANK)):
        size, strides = layouts[0].shape[axis], tuple(x.strides[axis] for x in layouts)
        if size == 1:
            continue
        if axes and all(outer == inner * axes[-1][0] for outer, inner in zip(strides, axes[-1][1], strict=True)):
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, strides))
    axes += [(1, (0,) * len(layouts))] * (RANK - len(axes))
    sizes = tuple(size for size, _ in reversed(axes))
    return tuple(Layout(sizes, tuple(strides[i] for _, strides in reversed(axes))) for i in range(len(layouts)))
