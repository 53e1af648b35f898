"""Ranks on paper: what each queues in its lanes and sends is only noted, and then done in any order that a GPU may choose.

Each lane does its work in the order in which it was queued, and each rank its messages, a group at a time, as NCCL does. A
message is delivered once both of its ranks have come to it; what is received is NaN from when the receiver has.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

Place = tuple[Any, int]
"""A queue, and how much of it must be done."""


class Work:
    """Something to do in a queue: `ready` says whether it may be done now, beyond that some places have been reached."""

    def __init__(self, do: Callable[[], None], ready: Callable[[], bool] = lambda: True, after: Sequence[Place] = ()):
        self.do, self.ready, self.after = do, ready, after


class Queue:
    def __init__(self) -> None:
        self.works: list[Work] = []
        self.done = 0

    def put(self, work: Work) -> None:
        self.works.append(work)

    @property
    def end(self) -> Place:
        return self, len(self.works)

    @property
    def next(self) -> Work | None:
        """What may be done now."""
        work = self.works[self.done] if self.done < len(self.works) else None
        return work if work and work.ready() and all(queue.done >= count for queue, count in work.after) else None


class Simulation:
    """Some ranks, whose present one is that which is being asked for its work."""

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self.posted: dict[tuple[int, int, int], Tensor] = {}  # by sender, receiver and number, what is on its way
        self.current: list[Queue] = []

    def queue(self) -> Queue:
        self.queues.append(Queue())
        return self.queues[-1]

    def later(self, function: Callable[..., Any]) -> Callable[..., None]:
        """The function, done in the present lane when its turn comes."""
        return lambda *args, **kwargs: self.current[-1].put(Work(lambda: function(*args, **kwargs)))

    def run(self, seed: int) -> None:
        """Do everything, in an order of chance."""
        chance = random.Random(seed)
        while any(queue.done < len(queue.works) for queue in self.queues):
            able = [queue for queue in self.queues if queue.next]
            assert able, "all wait for each other"
            queue = chance.choice(able)
            queue.works[queue.done].do()
            queue.done += 1


class Lanes:
    """In place of `trigemm.distributed.lanes.Lanes`."""

    def __init__(self, simulation: Simulation, count: int):
        self._simulation = simulation
        self._queues = [simulation.current[-1], *(simulation.queue() for _ in range(count))]

    def __enter__(self) -> "Lanes":
        for number in range(1, len(self._queues)):
            self.order(number, after=0)
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(1, len(self._queues)):
            self.order(0, after=number)

    def order(self, number: int, after: int) -> None:
        self._queues[number].put(Work(lambda: None, after=[self._queues[after].end]))

    def __getitem__(self, number: int) -> AbstractContextManager[None]:
        @contextmanager
        def present() -> Any:
            self._simulation.current.append(self._queues[number])
            yield
            self._simulation.current.pop()

        return present()


class Peers:
    """In place of `trigemm.distributed.peers.Peers`."""

    def __init__(self, simulation: Simulation, rank: int, size: int):
        self.rank, self.size, self.operation = rank, size, "noted"
        self._simulation, self._messages, self._counts = simulation, simulation.queue(), {}

    def _number(self, source: int, to: int) -> tuple[int, int, int]:
        self._counts[source, to] = self._counts.get((source, to), 0) + 1
        return source, to, self._counts[source, to]

    def exchange(self, sent: Mapping[int, Sequence[Tensor]], received: Mapping[int, Sequence[Tensor]]) -> Any:
        posted = self._simulation.posted
        out = [(self._number(self.rank, to), x) for to, some in sent.items() for x in some if x.numel()]
        coming = [(self._number(source, self.rank), x) for source, some in received.items() for x in some if x.numel()]
        assert all(x.is_contiguous() for _, x in (*out, *coming))

        def begin() -> None:
            for _, x in coming:
                x.fill_(torch.nan)
            posted.update(out)

        def deliver() -> None:
            for key, x in coming:
                x.copy_(posted.pop(key))

        here = self._simulation.current[-1]
        self._messages.put(Work(begin, after=[here.end]))
        self._messages.put(Work(deliver, ready=lambda: all(key in posted for key, _ in coming)))
        self._messages.put(Work(lambda: None, ready=lambda: not any(key in posted for key, _ in out)))
        return Arriving(self._simulation, self._messages.end)


class Arriving:
    def __init__(self, simulation: Simulation, end: Place):
        self._simulation, self._end = simulation, end

    def wait(self) -> None:
        self._simulation.current[-1].put(Work(lambda: None, after=[self._end]))
