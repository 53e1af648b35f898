"""Global memory: which addresses an array has.

Allocations begin at multiples of 512 bytes, as on a device, and a view keeps its offset.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALLOCATION_ALIGNMENT = 512  # bytes


@dataclass(eq=False)
class Allocation:
    """A stretch of global memory. `owner` keeps the host memory behind it alive, which begins at `pointer`."""

    owner: Any
    pointer: int
    start: int
    nbytes: int


class AddressMap:
    """Gives each allocation that a launch sees its addresses; the same for all launches that share the map."""

    def __init__(self) -> None:
        self._by_pointer: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []
        self._end = ALLOCATION_ALIGNMENT

    def address(self, array: NDArray[Any]) -> int:
        """The address of the array's first element."""
        owner, pointer, nbytes = _owner(array)
        allocation = self._by_pointer.get(pointer)
        if allocation is None or allocation.nbytes < nbytes:
            allocation = Allocation(owner, pointer, self._end, nbytes)
            self._by_pointer[pointer] = allocation
            self._starts.append(self._end)
            self._allocations.append(allocation)
            self._end += -(-max(nbytes, 1) // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        return allocation.start + _pointer(array) - pointer

    def allocation(self, address: int) -> Allocation:
        """The allocation that holds an address."""
        return self._allocations[bisect_right(self._starts, address) - 1]


def _pointer(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _owner(array: NDArray[Any]) -> tuple[Any, int, int]:
    """The object that owns an array's memory, where that memory begins, and its size in bytes."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if hasattr(owner.base, "untyped_storage"):  # a torch tensor: several may share one storage
        storage = owner.base.untyped_storage()
        return storage, storage.data_ptr(), storage.nbytes()
    low, high = np.lib.array_utils.byte_bounds(owner)
    return owner, low, high - low
