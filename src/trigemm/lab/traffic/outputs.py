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
from trigemm.lab.traffic.log import Integers, TracedMemory
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
        mask = self._mask(array)
        if mask is not None:
            mask[self._bytes(array)] = True

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
        mask = self._mask(array)
        start = self._addresses.allocation(self._addresses.address(array)).start
        if mask is None or start not in self._writer:
            return
        elements = self._bytes(array)
        missing = np.flatnonzero(~mask[elements].all(axis=1))
        number, launch, name = self._writer[start]
        findings = self._launches[number].findings
        if len(missing) and findings is not None:
            memory: TracedMemory = launch.memories[name]
            index = memory.index(start + int(elements[missing[0], 0]))
            why = f"{len(missing)} of {array.size} elements were copied back although no thread wrote them"
            kernel = launch.function.__name__
            finding = Finding("unwritten-output", kernel, launch.definition(), name, index, (), (), why)
            if finding not in findings:
                findings.append(finding)

    def _mask(self, array: NDArray[Any]) -> NDArray[np.bool_] | None:
        return self._written.get(self._addresses.allocation(self._addresses.address(array)).start)

    def _bytes(self, array: NDArray[Any]) -> Integers:
        """For each element, where its bytes lie in its allocation: (elements, size of one)."""
        address = self._addresses.address(array)
        offset: Integers = np.array(address - self._addresses.allocation(address).start, dtype=np.int64).reshape(
            (1,) * array.ndim
        )
        for axis, (n, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
            offset = offset + (np.arange(n) * stride).reshape((n,) + (1,) * (array.ndim - axis - 1))
        within: Integers = offset.reshape(-1, 1) + np.arange(array.itemsize)
        return within


@contextmanager
def watched(arrays: DeviceArrays) -> Iterator[None]:
    """Tell `arrays` what a script does with device arrays."""
    plain = devicearray.device_array, FakeCUDAArray.copy_to_host, FakeCUDAArray.copy_to_device

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

    cuda.device_array = devicearray.device_array = device_array
    FakeCUDAArray.copy_to_host, FakeCUDAArray.copy_to_device = copy_to_host, copy_to_device
    try:
        yield
    finally:
        cuda.device_array = devicearray.device_array = plain[0]
        FakeCUDAArray.copy_to_host, FakeCUDAArray.copy_to_device = plain[1:]
