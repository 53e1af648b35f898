"""The machine: runs the threads of one block, one at a time, and switches only where a thread waits.

A CUDA thread that never waits runs from start to end on whatever Python thread is at hand, and the next one follows on the same
Python thread. One that waits at a barrier keeps its Python thread asleep and hands the turn to another. So exactly one of them is
awake at any time, the order is always the same, and a kernel without barriers costs no switch at all.
"""

import sys
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import c_ulong, py_object, pythonapi
from threading import Event, Thread, get_ident
from typing import Any, Literal

import numpy as np

from trigemm.lab.traffic.log import WARP, Fault, Line, Log, Sync

PATIENCE = 60.0  # seconds that a kernel may take without an access to memory
TICK = 0.05  # seconds

Dim3 = tuple[int, int, int]


class LimitReached(BaseException):
    """Raised inside a kernel that made too many accesses."""


class Silent(BaseException):
    """Raised inside a kernel that made no access for too long."""


class Stopped(BaseException):
    """Raised inside the waiting threads of a launch that has failed, to end them."""


class CudaThread:
    """One CUDA thread of the block: where it is, and what it waits for."""

    __slots__ = ("awake", "number", "place", "position", "value", "waits_for")

    def __init__(self, number: int, place: Dim3) -> None:
        self.number = number
        self.place = place
        self.awake: LockType | None = None
        self.waits_for: tuple[str, int] | None = None  # ("barrier", 0), or ("warp", mask of lanes)
        self.position: tuple[tuple[Any, int], ...] = ()  # the calls that lead to the barrier
        self.value: Any = None  # what it brings to a vote or a shuffle, then the values of all


class Machine:
    """Runs block after block of one launch.

    `enter(thread)` is called whenever another thread gets the turn. `limit` bounds the accesses of the launch.
    """

    def __init__(self, log: Log, block: Dim3, enter: Callable[[CudaThread], None], limit: int) -> None:
        self.log = log
        self.block = block
        self.limit = limit
        self.accesses = 0  # of the blocks that have ended
        self.thread = CudaThread(0, (0, 0, 0))
        self._enter = enter
        self._failure: BaseException | None = None
        self._finished = allocate_lock()
        self._idle: list[LockType] = []
        self._owner = 0
        self._closed = False
        self._watch = Event()
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        Thread(target=self._watchdog, daemon=True).start()

    def run(self, body: Callable[[], None], reverse: bool = False) -> None:
        """Run `body` once for each thread of a block; raises what a thread raised."""
        width, height, depth = self.block
        places = [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
        threads = [CudaThread(number, place) for number, place in enumerate(places)]
        self._body = body
        self._fresh = deque(reversed(threads) if reverse else threads)
        self._ready: deque[CudaThread] = deque()
        self._waiting: dict[int, CudaThread] = {}
        self._failure = None
        self._finished.acquire()
        self._hand_over()
        try:
            self._finished.acquire()
        except KeyboardInterrupt:
            self._stop(Stopped)
            self._finished.acquire()
            raise
        finally:
            self._finished.release()
        self.accesses += len(self.log.places)  # complete ones: a launch may be stopped between an address and its place
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the Python threads that wait for work."""
        self._closed = True
        self._watch.set()
        sys.unraisablehook = self._hook
        while self._idle:
            self._idle.pop().release()

    # The turn goes from thread to thread; each method below is called by the one that has it.

    def _hand_over(self) -> None:
        """Give the turn to a thread that can run: a fresh one, else one that has waited long enough, else back to `run`."""
        if self._fresh and self._failure is None:
            if self._idle:
                self._idle.pop().release()
            else:
                Thread(target=self._work, daemon=True).start()
            return
        if not self._ready and self._waiting:
            self._release_waiting()
        if self._ready:
            lock = self._ready.popleft().awake
            assert lock is not None
            lock.release()
        else:
            self._owner = 0
            self._finished.release()

    def _work(self) -> None:
        """A Python thread's life: run fresh CUDA threads one after the other, then hand over and wait for more."""
        sleep = allocate_lock()
        sleep.acquire()
        while not self._closed:
            while self._fresh and self._failure is None:
                self._take_turn(self._fresh.popleft())
                self._run_body()
            self._idle.append(sleep)
            self._hand_over()
            sleep.acquire()

    def _run_body(self) -> None:
        try:
            with np.errstate(all="ignore"):
                self._body()
        except BaseException as error:  # whatever the kernel raises ends the launch, and is raised by `run`
            self._waiting.pop(self.thread.number, None)
            if self._failure is None:
                self._failure = error

    def _take_turn(self, thread: CudaThread) -> None:
        self._owner = get_ident()
        self.thread = thread
        self.log.begin_segment(thread.number)
        self._enter(thread)

    def wait(self, kind: str, mask: int, position: tuple[tuple[Any, int], ...], value: Any = None) -> dict[int, Any]:
        """Wait at a barrier, or for the lanes of `mask`; returns what each thread that took part brought."""
        thread = self.thread
        thread.waits_for, thread.position, thread.value = (kind, mask), position, value
        if thread.awake is None:
            thread.awake = allocate_lock()
            thread.awake.acquire()
        self._waiting[thread.number] = thread
        self._hand_over()
        thread.awake.acquire()
        if self._failure is not None:
            raise Stopped
        self._take_turn(thread)
        values: dict[int, Any] = thread.value
        return values

    def _release_waiting(self) -> None:
        """Nothing else can run: let those go on that wait for nobody any more."""
        if self._failure is not None:
            self._set_ready(list(self._waiting.values()))
            return
        groups = self._complete_warps()
        if groups:
            for group in groups:
                if group[0].waits_for[0] == "warp":  # type: ignore[index]
                    self._synchronised("warp", group)
                self._set_ready(group)
            return
        group = list(self._waiting.values())
        if any(thread.waits_for != ("barrier", 0) for thread in group):
            self._report("some lanes of a warp never reach it", group)
        elif len(group) < int(np.prod(self.block)):
            self._report("not reached by all threads of the block", group)
        elif any(thread.position != group[0].position for thread in group):
            self._report("threads of one block wait at different barriers", group)
        self._synchronised("barrier", group)
        self.log.barriers[self._line(group[0])] += 1
        self.log.interval += 1
        self._set_ready(group)

    def _complete_warps(self) -> list[list[CudaThread]]:
        """The groups of lanes that wait for one another only, and wait in the same place."""
        groups: dict[Any, list[CudaThread]] = {}
        for thread in self._waiting.values():
            if thread.waits_for[0] != "barrier":  # type: ignore[index]
                groups.setdefault((thread.number // WARP, thread.waits_for), []).append(thread)
        complete = []
        for (warp, (_, mask)), group in groups.items():
            lanes = [warp * WARP + lane for lane in range(WARP) if mask >> lane & 1]
            if all(number not in self._waiting or self._waiting[number] in group for number in lanes):
                complete.append(group)
        return complete

    def _synchronised(self, kind: Literal["barrier", "warp"], group: Sequence[CudaThread]) -> None:
        self.log.syncs.append(Sync(kind, len(self.log.addresses), tuple(thread.number for thread in group)))

    def _set_ready(self, group: Sequence[CudaThread]) -> None:
        values = {thread.number: thread.value for thread in group}
        for thread in sorted(group, key=lambda thread: thread.number):
            thread.value = values
            del self._waiting[thread.number]
            self._ready.append(thread)

    def _line(self, thread: CudaThread) -> Line:
        return self.log.line_of(*thread.position[0])

    def _report(self, why: str, group: Sequence[CudaThread]) -> None:
        for thread in group:
            self.log.faults.append(Fault("barrier", self._line(thread), thread.number, "", "", why))

    def _watchdog(self) -> None:
        """Stop a kernel that never ends, from outside: it may be in a loop that never comes back to this class."""
        quiet, before = 0.0, -1
        while not self._watch.wait(TICK):
            now = self.accesses + len(self.log.addresses)
            quiet = quiet + TICK if now == before and self._owner else 0.0
            before = now
            if (now > self.limit or quiet > PATIENCE) and self._owner and self._failure is None:
                self._stop(LimitReached if now > self.limit else Silent)
                quiet = 0.0

    def _unraisable(self, unraisable: Any) -> None:
        """Say nothing of a stop that met a destructor, where Python can only print it: the next tick stops the thread again."""
        if not issubclass(unraisable.exc_type, (LimitReached, Silent)):
            self._hook(unraisable)

    def _stop(self, reason: type[BaseException]) -> None:
        """Raise `reason` in the CUDA thread that is running, wherever it is."""
        pythonapi.PyThreadState_SetAsyncExc(c_ulong(self._owner), py_object(reason))
