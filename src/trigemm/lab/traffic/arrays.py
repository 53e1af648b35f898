"""Arrays that log: what a kernel gets in place of its arguments, its shared and its local arrays.

Indexing with whole numbers reads or writes one element and logs it. A slice makes a view and logs nothing, as when compiled.
"""

from dataclasses import replace
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trigemm.lab.traffic.frames import VECTOR_FUNCTIONS, caller, shown
from trigemm.lab.traffic.log import Fault, Log, Operation, TracedMemory


class Running(Protocol):
    """What an array must know of the launch in which it is used."""

    log: Log
    thread: int


class TracedArray:
    """An array in any space; `_address` is the address of its first element. Made by `traced`."""

    __slots__ = ("_address", "_data", "_dims", "_memory", "_run")

    def __init__(self, data: NDArray[Any], address: int, memory: TracedMemory, run: Running) -> None:
        self._data = data
        self._address = address
        self._memory = memory
        self._run = run
        self._dims = tuple(zip(data.shape, data.strides, strict=True))

    # A simulation spends its time in __getitem__ and __setitem__. An index inside the array takes the short way through them,
    # which is written out for one and for two dimensions in the classes below.

    def __getitem__(self, index: Any) -> Any:
        address = self._inside(index)
        if address is None:
            return self._load_otherwise(index, _getframe(1))
        frame = _getframe(1)
        memory = self._memory
        if frame.f_code is not memory.load_code:
            self._enter_load(frame.f_code)
        memory.log_address(address)
        memory.log_place(frame.f_lasti + memory.load_base)
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        address = self._inside(index)
        if address is None:
            self._store_otherwise(index, value, _getframe(1))
            return
        frame = _getframe(1)
        memory = self._memory
        if frame.f_code is not memory.store_code:
            self._enter_store(frame.f_code)
        memory.log_address(address)
        memory.log_place(frame.f_lasti + memory.store_base)
        self._data[index] = value

    def _inside(self, index: Any) -> int | None:
        """The address of an element that is named by whole numbers inside the array; None for any other index."""
        address = self._address
        try:
            if len(index) != len(self._dims):
                return None
            for i, (n, stride) in zip(index, self._dims, strict=True):
                if not 0 <= i < n:
                    return None
                address += i * stride
        except TypeError:
            return None
        return None if self._data.dtype.names else address

    def _enter_load(self, code: CodeType) -> None:
        self._memory.load_code = code
        self._memory.load_base = self._run.log.base(self._memory, "load", code, self._data.itemsize)

    def _enter_store(self, code: CodeType) -> None:
        self._memory.store_code = code
        self._memory.store_base = self._run.log.base(self._memory, "store", code, self._data.itemsize)

    def _load_otherwise(self, index: Any, frame: FrameType) -> Any:
        """Anything but an access inside the array: a view, a field, an index outside."""
        if isinstance(index, str):
            return self._field(index, frame)
        resolved = self._resolve(index, frame)
        if resolved is None:
            vector = isinstance(index, slice)
            return np.zeros(index.stop - index.start, self._data.dtype) if vector else np.zeros((), self._data.dtype)[()]
        view = self._data[(*resolved, ...)]
        if view.ndim or view.dtype.names:
            return self._view(view)
        self._log(view, "load", frame)
        return view[()]

    def _store_otherwise(self, index: Any, value: Any, frame: FrameType) -> None:
        if isinstance(index, str):
            self._view(self._data[index])._assign(value, frame)
            return
        resolved = self._resolve(index, frame)
        if resolved is not None:
            self._view(self._data[(*resolved, ...)])._assign(value, frame)

    def _assign(self, value: Any, frame: FrameType) -> None:
        """Write the whole view: by one instruction in a vector function, else element by element."""
        values = np.asarray(value)
        self._data[...] = values
        if frame.f_code in VECTOR_FUNCTIONS:
            self._log(self._data, "store", frame)
        else:
            for at in np.ndindex(self._data.shape):
                self._log(self._data[(*at, ...)], "store", frame)

    def _resolve(self, index: Any, frame: FrameType) -> tuple[Any, ...] | None:
        """The index in NumPy's full form, or None where it lies outside. Faults go to the log."""
        parts = index if isinstance(index, tuple) else (index,)
        if Ellipsis in [part for part in parts if not isinstance(part, np.ndarray)]:
            at = parts.index(Ellipsis)
            missing = self._data.ndim - (len(parts) - 1)
            parts = (*parts[:at], *[slice(None)] * missing, *parts[at + 1 :])
        if len(parts) > self._data.ndim:
            raise IndexError(f"{self._memory.name} has {self._data.ndim} dimensions and is indexed with {len(parts)}")
        for part, n in zip(parts, self._data.shape, strict=False):
            if isinstance(part, slice):
                if frame.f_code in VECTOR_FUNCTIONS and not 0 <= part.start <= part.stop <= n:
                    self._fault("out-of-range", index, frame)
                    return None
                continue
            if not -n <= part < n:
                self._fault("out-of-range", index, frame)
                return None
            if part < 0:
                self._fault("negative-index", index, frame)
        return parts

    def _fault(self, kind: str, index: Any, frame: FrameType) -> None:
        log = self._run.log
        frame = caller(frame)
        text = ", ".join(shown(part) for part in (index if isinstance(index, tuple) else (index,)))
        line = log.line_of(frame.f_code, frame.f_lasti)
        why = f"the array has shape {self._data.shape}"
        log.faults.append(Fault(kind, line, self._run.thread, self._memory.name, text, why))

    def _log(self, view: NDArray[Any], operation: Operation, frame: FrameType) -> int:
        """Log one access to the adjacent bytes of `view`; returns its address."""
        frame = caller(frame)
        address = self._address_of(view)
        self._memory.log_address(address)
        base = self._run.log.base(self._memory, operation, frame.f_code, view.nbytes)
        self._memory.log_place(base + frame.f_lasti)
        return address

    def _address_of(self, view: NDArray[Any]) -> int:
        return self._address + int(view.__array_interface__["data"][0] - self._data.__array_interface__["data"][0])

    def _view(self, data: NDArray[Any]) -> "TracedArray":
        memory = self._memory
        if data.itemsize != self._data.itemsize:  # the places of a memory are those of one size
            memory = replace(memory, load_code=None, store_code=None)
        return traced(data, self._address_of(data), memory, self._run)

    def _field(self, name: str, frame: FrameType) -> Any:
        """A field of a structure or of an array of structures. The field of one structure is read at once."""
        data = self._data[name]
        if data.ndim:
            return self._view(data)
        self._log(data, "load", frame)
        return data[()]

    def copy(self) -> NDArray[Any]:
        """The elements, read by one instruction: what a vector load takes (see VECTOR_FUNCTIONS)."""
        self._log(self._data, "load", _getframe(1))
        return self._data.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The elements, read one by one: for NumPy functions that a kernel calls."""
        frame = _getframe(1)
        for at in np.ndindex(self._data.shape):
            self._log(self._data[(*at, ...)], "load", frame)
        return np.array(self._data, dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        if self._data.dtype.names and name in self._data.dtype.names:
            return self._field(name, _getframe(1))
        value = getattr(self._data, name)
        return self._view(value) if isinstance(value, np.ndarray) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._view(self._data[name])._assign(value, _getframe(1))

    def reshape(self, *shape: Any, **options: Any) -> "TracedArray":
        return self._view(self._data.reshape(*shape, **options))

    def view(self, *dtype: Any) -> "TracedArray":
        return self._view(self._data.view(*dtype))

    def ravel(self, order: Any = "C") -> "TracedArray":
        return self._view(self._data.ravel(order))

    def transpose(self, *axes: Any) -> "TracedArray":
        return self._view(self._data.transpose(*axes))

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"<{self._memory.space} array {self._memory.name}: {self._data.dtype} {self._data.shape}>"


class TracedVector(TracedArray):
    """An array of numbers in one dimension."""

    __slots__ = ("_n", "_stride")

    def __init__(self, data: NDArray[Any], address: int, memory: TracedMemory, run: Running) -> None:
        super().__init__(data, address, memory, run)
        ((self._n, self._stride),) = self._dims

    def __getitem__(self, index: Any) -> Any:
        try:
            inside = 0 <= index < self._n
        except TypeError:
            inside = False
        frame = _getframe(1)
        if not inside:
            return self._load_otherwise(index, frame)
        memory = self._memory
        if frame.f_code is not memory.load_code:
            self._enter_load(frame.f_code)
        memory.log_address(self._address + index * self._stride)
        memory.log_place(frame.f_lasti + memory.load_base)
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            inside = 0 <= index < self._n
        except TypeError:
            inside = False
        frame = _getframe(1)
        if not inside:
            self._store_otherwise(index, value, frame)
            return
        memory = self._memory
        if frame.f_code is not memory.store_code:
            self._enter_store(frame.f_code)
        memory.log_address(self._address + index * self._stride)
        memory.log_place(frame.f_lasti + memory.store_base)
        self._data[index] = value


class TracedMatrix(TracedArray):
    """An array of numbers in two dimensions."""

    __slots__ = ("_columns", "_rows", "_stride", "_stride2")

    def __init__(self, data: NDArray[Any], address: int, memory: TracedMemory, run: Running) -> None:
        super().__init__(data, address, memory, run)
        (self._rows, self._stride), (self._columns, self._stride2) = self._dims

    def __getitem__(self, index: Any) -> Any:
        try:
            row, column = index
            inside = 0 <= row < self._rows and 0 <= column < self._columns
        except (TypeError, ValueError):
            inside = False
        frame = _getframe(1)
        if not inside:
            return self._load_otherwise(index, frame)
        memory = self._memory
        if frame.f_code is not memory.load_code:
            self._enter_load(frame.f_code)
        memory.log_address(self._address + row * self._stride + column * self._stride2)
        memory.log_place(frame.f_lasti + memory.load_base)
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            row, column = index
            inside = 0 <= row < self._rows and 0 <= column < self._columns
        except (TypeError, ValueError):
            inside = False
        frame = _getframe(1)
        if not inside:
            self._store_otherwise(index, value, frame)
            return
        memory = self._memory
        if frame.f_code is not memory.store_code:
            self._enter_store(frame.f_code)
        memory.log_address(self._address + row * self._stride + column * self._stride2)
        memory.log_place(frame.f_lasti + memory.store_base)
        self._data[index] = value


def traced(data: NDArray[Any], address: int, memory: TracedMemory, run: Running) -> TracedArray:
    """The array `data` as one that logs; its first element has this address."""
    kind = {1: TracedVector, 2: TracedMatrix}.get(data.ndim, TracedArray) if data.dtype.names is None else TracedArray
    return kind(data, address, memory, run)
