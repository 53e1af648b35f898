"""Arrays that `cuda.device_array` made: their elements hold nothing until a kernel or the host writes them.

An element that the host copies back although nothing wrote it is an output that was forgotten.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator.cudadrv import devicearray
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numpy.typing import NDArray

from trigemm.lab.traffic.launch import Launch
from trigemm.lab.traffic.log import Integers
from trigemm.lab.traffic.memory import AddressMap
from trigemm.lab.traffic.result import Finding, Traffic


class DeviceArrays:
    """Which bytes of the arrays that were made without contents have been written."""

    def __init__(self, addresses: AddressMap, launches: list[Traffic]) -> None:
        self._addresses = addresses
        self._launches = launches
        self._written: dict[int, NDArray[np.bool_]] = {}  # by the address at which an allocation begins
        self._writer: dict[int, tuple[int, Launch, str]] = {}

    def made(self, array: NDArray[Any]) -> None:
        """`array` was made without contents."""
        self._written[self._addresses.address(array)] = np.zeros(array.nbytes, dtype=bool)

    def filled(self, array: NDArray[Any]) -> None:
        """The host wrote all of `array`."""
        written = self._written_bytes(array)
        if written is not None:
            written[...] = True

    def launched(self, launch: Launch, stored: Integers, size: int) -> None:
        """A launch stored `size` bytes at each of these addresses."""
        for name, array in launch.arrays.items():
            start = self._addresses.allocation(self._addresses.address(array)).start
            if start in self._written:
                mask = self._written[start]
                inside = stored[(stored >= start) & (stored < start + len(mask))] - start
                for byte in range(size):
                    mask[np.minimum(inside + byte, len(mask) - 1)] = True
                if len(inside):
                    self._writer[start] = (len(self._launches) - 1, launch, name)

    def copied_back(self, array: NDArray[Any]) -> None:
        """The host reads all of `array`."""
        written = self._written_bytes(array)
        address = self._addresses.address(array)
        start = self._addresses.allocation(address).start
        if written is None or start not in self._writer:
            return
        missing = np.argwhere(~written.all(axis=-1))
        number, launch, name = self._writer[start]
        findings = self._launches[number].findings
        if len(missing) and findings is not None:
            first = address + int(np.dot(missing[0], array.strides))
            why = f"{len(missing)} of {array.size} elements were copied back although no thread wrote them"
            kernel, index = launch.function.__name__, launch.memories[name].index(first)
            finding = Finding("unwritten-output", kernel, launch.definition(), name, index, (), (), why)
            if finding not in findings:
                findings.append(finding)

    def _written_bytes(self, array: NDArray[Any]) -> NDArray[np.bool_] | None:
        """Whether each byte of each element has been written, (…, size of an element); None if `array` was made otherwise."""
        address = self._addresses.address(array)
        start = self._addresses.allocation(address).start
        if start not in self._written:
            return None
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        return np.lib.stride_tricks.as_strided(self._written[start][address - start :], shape, strides)


@contextmanager
def watched(arrays: DeviceArrays) -> Iterator[None]:
    """Tell `arrays` what a script does with device arrays."""
    array_type = FakeCUDAArray
    plain = devicearray.device_array, array_type.copy_to_host, array_type.copy_to_device, array_type.__setitem__

    def device_array(*args: Any, **kwargs: Any) -> FakeCUDAArray:
        array = plain[0](*args, **kwargs)
        arrays.made(array._ary)
        return array

    def copy_to_host(self: FakeCUDAArray, *args: Any, **kwargs: Any) -> Any:
        arrays.copied_back(self._ary)
        return plain[1](self, *args, **kwargs)

    def copy_to_device(self: FakeCUDAArray, *args: Any, **kwargs: Any) -> Any:
        arrays.filled(self._ary)
        return plain[2](self, *args, **kwargs)

    def setitem(self: FakeCUDAArray, index: Any, value: Any) -> None:
        arrays.filled(self._ary[(*index, ...) if isinstance(index, tuple) else (index, ...)])
        plain[3](self, index, value)

    cuda.device_array = devicearray.device_array = device_array
    array_type.copy_to_host, array_type.copy_to_device, array_type.__setitem__ = copy_to_host, copy_to_device, setitem
    try:
        yield
    finally:
        cuda.device_array = devicearray.device_array = plain[0]
        array_type.copy_to_host, array_type.copy_to_device, array_type.__setitem__ = plain[1:]
