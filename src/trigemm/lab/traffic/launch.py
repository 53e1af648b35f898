"""One launch of a kernel in the simulator: its arguments become arrays that log, its blocks run one by one, each is counted."""

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from types import CellType, CodeType
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator.args import ArgHint, In
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from trigemm.lab.traffic.arrays import traced
from trigemm.lab.traffic.count import Counts, count
from trigemm.lab.traffic.flops import FlopCounter
from trigemm.lab.traffic.log import BlockLog, Line, Log, TracedMemory
from trigemm.lab.traffic.machine import Machine
from trigemm.lab.traffic.memory import AddressMap
from trigemm.lab.traffic.module import TracedModule
from trigemm.lab.traffic.result import Access, Traffic, add_up

Dim3 = tuple[int, int, int]
BlockKind = Callable[[int, int, int], Hashable]


@dataclass(frozen=True)
class Options:
    """What a launch is run for; see `record`."""

    kind: BlockKind | None
    outputs: Iterable[str] | Mapping[str, Any]
    sanitize: bool
    count_local: bool
    count_flops: bool
    limit: int


class Launch:
    """A launch, ready to run. Names of arrays are those of the kernel's parameters."""

    def __init__(
        self,
        function: Callable[..., None],
        grid: Dim3,
        block: Dim3,
        dynamic_bytes: int,
        args: tuple[Any, ...],
        addresses: AddressMap,
        options: Options,
    ) -> None:
        self.function = function
        self.grid = grid
        self.block = block
        self.log = Log()
        self.flop_counter = FlopCounter(self.log) if options.count_flops else None
        self.machine = Machine(self.log, block, lambda thread: self.module.enter_thread(thread), options.limit)
        prepare = self.flop_counter.array if self.flop_counter else lambda data: data
        code = function.__code__
        self.module = TracedModule(grid, block, dynamic_bytes, self.machine, code, prepare, options.count_local)
        self.counts: dict[int, Counts] = {}
        self.barriers: Counter[Line] = Counter()
        self.flops: Counter[Line] | None = Counter() if options.count_flops else None
        self.traced = 0
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.memories: dict[str, TracedMemory] = {}
        self._addresses = addresses
        self._restore: list[Callable[[], None]] = []
        self._adopted: set[Callable[..., Any]] = set()
        self._codes: set[CodeType] = set()
        names = [*inspect.signature(function).parameters, *(f"argument {i}" for i in range(len(args)))]
        self.args = [self._argument(name, arg) for name, arg in zip(names, args, strict=False)]

    def _argument(self, name: str, arg: Any) -> Any:
        """What the kernel gets for an argument."""
        if isinstance(arg, ArgHint):
            arg = np.copy(arg.value) if isinstance(arg, In) else arg.value
        if isinstance(arg, FakeWithinKernelCUDAArray):
            arg = arg._item
        if isinstance(arg, FakeCUDAArray):
            arg = arg._ary
        if hasattr(arg, "untyped_storage"):  # a torch tensor
            arg = arg.detach().numpy()
        if isinstance(arg, tuple):
            return tuple(self._argument(f"{name}[{i}]", item) for i, item in enumerate(arg))
        if isinstance(arg, np.ndarray) and arg.ndim:
            memory = self.module.memory(name, "global")
            address = self._addresses.address(arg)
            memory.starts, memory.dims = [address], tuple(zip(arg.shape, arg.strides, strict=True))
            self.arrays[name] = arg
            self.memories[name] = memory
            return traced(self.module.prepare(arg), address, memory, self.module)
        return arg

    def run(self, kind: BlockKind | None, watch: Callable[[int, BlockLog], None] | None, *, reverse: bool = False) -> None:
        """Run the blocks, or of those that `kind` maps to equal keys only the first, which then counts for all.

        `watch` gets the number and the log of each block that ran. `reverse` runs blocks and threads from last to first.
        """
        width, height, depth = self.grid
        places = [(x, y, z) for z, y, x in product(range(depth), range(height), range(width))]
        kinds: dict[Hashable, list[int]] = {}
        for number, place in enumerate(places):
            kinds.setdefault(number if kind is None else kind(*place), []).append(number)
        self.adopt(self.function)
        try:
            for same in sorted(kinds.values(), reverse=reverse):
                self.module.enter_block(*places[same[0]])
                try:
                    self.machine.run(lambda: self.function(*self.args), reverse)
                finally:
                    log = self.log.close()
                    self.traced += 1
                    for at, counts in count(log).items() if len(log.address) else ():
                        self.counts[at] = self.counts.get(at, Counts()) + counts * len(same)
                    for line, times in log.barriers.items():
                        self.barriers[line] += times * len(same)
                    if self.flops is not None and self.flop_counter is not None:
                        for line, times in self.flop_counter.by_line().items():
                            self.flops[line] += times * len(same)
                    if watch is not None:
                        watch(same[0], log)
        finally:
            self.machine.close()
            while self._restore:
                self._restore.pop()()

    def adopt(self, function: Callable[..., Any]) -> None:
        """Make `cuda` mean this launch's module in a function that the kernel calls, until the launch ends."""
        if function in self._adopted:
            return
        self._adopted.add(function)
        self._codes.add(function.__code__)
        names = function.__globals__
        for name in [name for name, value in names.items() if value is cuda]:
            names[name] = self.module
            self._restore.append(lambda name=name: names.__setitem__(name, cuda))  # type: ignore[misc]
        for cell in function.__closure__ or ():
            if _contents(cell) is cuda:
                cell.cell_contents = self.module
                self._restore.append(lambda cell=cell: setattr(cell, "cell_contents", cuda))  # type: ignore[misc]

    def definition(self) -> Line:
        """The line that defines the kernel."""
        code = self.function.__code__
        return Line(code.co_filename, code.co_firstlineno, code.co_name)

    def where(self, error: BaseException) -> str:
        """The innermost line of the kernel's own code that an exception passed through, as " in line …"."""
        place = ""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in self._codes:
                thread = self.machine.thread.number
                place = f" in line {trace.tb_lineno} (thread {thread})"
            trace = trace.tb_next
        return place

    def traffic(self) -> Traffic:
        """The counts so far."""

        def rows() -> Any:
            for place, counts in sorted(self.counts.items()):
                memory = self.log.site(place).memory
                yield Access(memory.space, memory.name, self.log.site(place).operation, self.log.line(place)), counts

        return Traffic(
            self.function.__name__,
            self.grid,
            self.block,
            prod(self.grid),
            self.traced,
            add_up(rows()),
            self.barriers,
            self.flops,
        )


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None
