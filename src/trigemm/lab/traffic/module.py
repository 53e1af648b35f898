"""What `cuda` means inside a running kernel: numba-cuda's own simulated module, with arrays that log and threads of the machine.

Beyond numba's simulator it has `cuda.syncwarp`, shuffles and votes, the loads and stores with a cache hint, and any number of
shared arrays on one source line.
"""

from collections import Counter
from collections.abc import Callable
from dis import get_instructions
from math import prod
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Literal

import numpy as np
from numba.cuda.np import numpy_support
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAAtomic, FakeCUDAModule
from numba.cuda.types import Type
from numpy.typing import NDArray

from trigemm.lab.traffic.arrays import TracedArray, traced
from trigemm.lab.traffic.limits import check_shared
from trigemm.lab.traffic.log import WARP, Made, Space, Sync, TracedMemory, instruction
from trigemm.lab.traffic.machine import CudaThread, Machine

ALIGNMENT = 256  # bytes: of every array in a space of its own
Dim = tuple[int, int, int]
Prepare = Callable[[NDArray[Any]], NDArray[Any]]
FULL_WARP = 0xFFFFFFFF


class Stack:
    """The calls from a frame outwards to the kernel: which barrier a thread stands at."""

    def __init__(self, kernel: CodeType) -> None:
        self.kernel = kernel

    def __call__(self, frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
        calls = []
        while frame is not None:
            calls.append((frame.f_code, instruction(frame.f_code, frame.f_lasti)))
            if frame.f_code is self.kernel:
                break
            frame = frame.f_back
        return tuple(calls)


def assigned_name(code: CodeType, offset: int) -> str:
    """The variable that takes the result of the call at `offset` of the bytecode, or "array"."""
    following = next((found for found in get_instructions(code) if found.offset > offset), None)
    if following is None or not following.opname.startswith("STORE_"):
        return "array"
    # Some versions of Python store and load in one instruction of two names.
    return following.argval[0] if isinstance(following.argval, tuple) else str(following.argval)


class Allocator:
    """`cuda.shared.array` and `cuda.local.array`: one stretch of memory for each call in the source.

    A thread that comes to the call again gets the same shared memory again, under a name of another `generation`.
    """

    GENERATIONS = 8  # beyond which they are no longer told apart

    def __init__(self, module: "TracedModule", space: Literal["shared", "local"]) -> None:
        self.module = module
        self.space = space
        self.memories: dict[tuple[CodeType, int, int], TracedMemory] = {}
        self.static_bytes = 0  # of the shared arrays of all blocks: the kernel is compiled with each of them
        self.forget()

    def forget(self) -> None:
        """A new block begins: nothing is allocated."""
        self.arrays: dict[tuple[CodeType, int, int], TracedArray] = {}
        self.made: Counter[tuple[int, CodeType, int]] = Counter()
        for memory in self.memories.values():
            memory.starts.clear()
        self.end = ALIGNMENT

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> TracedArray | NDArray[Any]:
        frame = _getframe(1)
        code, offset = frame.f_code, instruction(frame.f_code, frame.f_lasti)
        kind = numpy_support.as_dtype(dtype) if isinstance(dtype, Type) else np.dtype(dtype)
        if self.space == "local":
            return self._make((code, offset, 0), shape, kind) if self.module.count_local else _blank(shape, kind)
        caller = (self.module.thread, code, offset)
        generation = min(self.made[caller], self.GENERATIONS)
        self.made[caller] += 1
        if (code, offset, generation) not in self.arrays:
            self.arrays[code, offset, generation] = self._make((code, offset, generation), shape, kind)
        made = self.arrays[code, offset, generation]
        log = self.module.log
        log.made.append(Made(self.module.thread, made._memory, len(log.addresses)))
        return made

    def _make(self, key: tuple[CodeType, int, int], shape: Any, kind: np.dtype[Any]) -> TracedArray:
        if key not in self.memories:
            memory = self.module.memory(assigned_name(*key[:2]), self.space)
            memory.declared_in, memory.dynamic, memory.generation = key[0], shape == 0, key[2]
            self.memories[key] = memory
            if self.space == "shared" and not memory.dynamic and memory.generation == 0:
                self.static_bytes += _elements(shape) * kind.itemsize
                check_shared(self.static_bytes, self.module.dynamic_bytes)
        memory = self.memories[key]
        first = self.arrays.get((*key[:2], 0))
        if memory.dynamic:
            pool = self.module.dynamic_shared
            data = self.module.prepare(pool[: len(pool) // kind.itemsize * kind.itemsize].view(kind))
            start = ALIGNMENT
        elif first is not None:
            data, start = first._data, first._address
        else:
            data = self.module.prepare(_blank(shape, kind))
            start = self._take(data.nbytes)
        memory.starts.append(start)
        memory.dims = tuple(zip(data.shape, data.strides, strict=True))
        return traced(data, start, memory, self.module)

    def _take(self, nbytes: int) -> int:
        start = self.end
        self.end += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        return start


def _blank(shape: Any, kind: np.dtype[Any]) -> NDArray[Any]:
    """Memory that nothing wrote: all bits are set, which is NaN or -1."""
    return np.frombuffer(bytearray(b"\xff" * (_elements(shape) * kind.itemsize)), dtype=kind).reshape(shape)


def _elements(shape: Any) -> int:
    return prod(shape) if isinstance(shape, tuple) else int(shape)


class TracedAtomic:
    """`cuda.atomic`: numba's simulated operations, logged as one access."""

    def __init__(self, module: "TracedModule") -> None:
        self._module = module
        self._plain = FakeCUDAAtomic()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._plain, name)

        def atomic(array: TracedArray, *args: Any) -> Any:
            index = (0,) * array._data.ndim if name == "compare_and_swap" else args[0]
            frame = _getframe(1)
            resolved = array._resolve(index, frame)
            if resolved is None:
                return array._data.dtype.type(0)
            address = array._log(array._data[(*resolved, ...)], "atomic", frame)
            self._module.took_part("atomic", address)
            return operation(array._data, *args)

        return atomic


class TracedModule(FakeCUDAModule):  # type: ignore[misc]
    """The module `cuda` of one launch."""

    threadIdx: Any = None
    blockIdx: Any = None
    laneid: int = 0

    def __init__(
        self, grid: Dim, block: Dim, dynamic_bytes: int, machine: Machine, kernel: CodeType, prepare: Prepare, count_local: bool
    ) -> None:
        super().__init__(grid, block, 0)
        self.machine = machine
        self.log = machine.log
        self.thread = 0
        self.prepare = prepare
        self.count_local = count_local
        self._stack = Stack(kernel)
        self.dynamic_bytes = dynamic_bytes
        self._shared = Allocator(self, "shared")
        self._local = Allocator(self, "local")
        self._atomic = TracedAtomic(self)
        self._const = self
        self._cg = self
        self.dynamic_shared = np.zeros(0, dtype=np.uint8)
        self._constants: dict[int, tuple[Any, TracedArray]] = {}

    def memory(self, name: str, space: Space) -> TracedMemory:
        return TracedMemory(name, space, self.log.addresses.append, self.log.places.append)

    def enter_block(self, x: int, y: int, z: int) -> None:
        self.blockIdx = Dim3(x, y, z)
        self.dynamic_shared = np.frombuffer(bytearray(b"\xff" * self.dynamic_bytes), dtype=np.uint8)
        self._shared.forget()
        self._local.forget()
        self._shared.end += -(-self.dynamic_bytes // ALIGNMENT) * ALIGNMENT

    def enter_thread(self, thread: CudaThread) -> None:
        self.threadIdx = Dim3(*thread.place)
        self.thread = thread.number
        self.laneid = thread.number % WARP

    def array_like(self, array: np.ndarray[Any, Any]) -> TracedArray:
        """`cuda.const.array_like`: read through a cache of its own."""
        if id(array) not in self._constants:
            frame = _getframe(1)
            memory = self.memory(assigned_name(frame.f_code, instruction(frame.f_code, frame.f_lasti)), "constant")
            self._constants[id(array)] = (array, traced(array, 0, memory, self))
        return self._constants[id(array)][1]

    def this_grid(self) -> "TracedModule":
        """`cuda.cg.this_grid()`: its `sync` is a barrier of the block, so the grid must be one block."""
        return self

    def sync(self) -> None:
        if self.gridDim.x * self.gridDim.y * self.gridDim.z > 1:
            raise NotImplementedError("the simulator runs blocks one by one: a grid-wide barrier needs a grid of one block")
        self._barrier()

    # Barriers and fences

    def took_part(self, kind: Any, address: int = 0) -> None:
        """The running thread alone makes an event that can order it with others."""
        self.log.syncs.append(Sync(kind, len(self.log.addresses), (self.thread,), address))

    def _barrier(self, value: Any = None) -> list[Any]:
        return list(self.machine.wait("barrier", 0, self._stack(_getframe(2)), value).values())

    def syncthreads(self) -> None:
        self._barrier()

    def syncthreads_count(self, predicate: Any) -> int:
        return sum(map(bool, self._barrier(predicate)))

    def syncthreads_and(self, predicate: Any) -> int:
        return int(all(self._barrier(predicate)))

    def syncthreads_or(self, predicate: Any) -> int:
        return int(any(self._barrier(predicate)))

    def threadfence(self) -> None:
        self.took_part("fence")

    threadfence_block = threadfence_system = threadfence

    # Warps

    def _lanes(self, kind: str, mask: int, value: Any = None) -> dict[int, Any]:
        """What the lanes of `mask` brought, by lane."""
        found = self.machine.wait(kind, int(mask) & FULL_WARP, self._stack(_getframe(2)), value)
        return {number % WARP: value for number, value in found.items()}

    def syncwarp(self, mask: int = FULL_WARP) -> None:
        self._lanes("warp", mask)

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._lanes("shuffle", mask, value).get(int(lane) % WARP, value)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._lanes("shuffle", mask, value).get(self.laneid - int(delta), value)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._lanes("shuffle", mask, value).get(self.laneid + int(delta), value)

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:
        return self._lanes("shuffle", mask, value).get(self.laneid ^ int(lane_mask), value)

    def all_sync(self, mask: int, predicate: Any) -> bool:
        return all(self._lanes("vote", mask, predicate).values())

    def any_sync(self, mask: int, predicate: Any) -> bool:
        return any(self._lanes("vote", mask, predicate).values())

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        return len({bool(value) for value in self._lanes("vote", mask, predicate).values()}) == 1

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        return sum(1 << lane for lane, value in self._lanes("vote", mask, predicate).items() if value)

    def match_any_sync(self, mask: int, value: Any) -> int:
        return sum(1 << lane for lane, other in self._lanes("vote", mask, value).items() if other == value)

    def match_all_sync(self, mask: int, value: Any) -> tuple[int, bool]:
        same = all(other == value for other in self._lanes("vote", mask, value).values())
        return (int(mask) if same else 0), same

    def lanemask_lt(self) -> int:
        return (1 << self.laneid) - 1

    # Loads and stores with a cache hint: the same access as without

    def _hinted_load(self, array: TracedArray, index: Any) -> Any:
        return array._load_otherwise(index, _getframe(1))

    def _hinted_store(self, array: TracedArray, index: Any, value: Any) -> None:
        array._store_otherwise(index, value, _getframe(1))

    ldca = ldcg = ldcs = ldlu = ldcv = _hinted_load
    stcg = stcs = stwb = stwt = _hinted_store

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cuda.{name} is not part of the simulator")
