"""Work in turn on some streams of a GPU, so that one fills what another leaves idle; on a CPU, one after the other."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Begun = TypeVar("Begun")


@lru_cache
def _beside(stream: torch.cuda.Stream, number: int, priority: int) -> torch.cuda.Stream:
    """Another stream, kept for the callers of this one."""
    return torch.cuda.Stream(stream.device, priority=priority)


class Lanes:
    """The present stream of a device and others beside it: these begin after what is queued now, and what comes later waits.

    Memory that is taken in a lane, and given back there, is free for what comes next in that lane and for nothing else.
    """

    def __init__(self, device: torch.device, *priorities: int):
        self._streams: list[torch.cuda.Stream] = []
        if device.type == "cuda":
            first = torch.cuda.current_stream(device)
            self._streams = [first, *(_beside(first, number, priority) for number, priority in enumerate(priorities))]

    def __enter__(self) -> "Lanes":
        for stream in self._streams[1:]:
            stream.wait_stream(self._streams[0])
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams[1:]:
            self._streams[0].wait_stream(stream)

    def order(self, number: int, after: int) -> None:
        """Let what is queued in a lane from now on wait for what is queued in another now."""
        if self._streams:
            self._streams[number].wait_stream(self._streams[after])

    def __getitem__(self, number: int) -> AbstractContextManager[Any]:
        """The context in which a lane is the present stream."""
        return torch.cuda.stream(self._streams[number]) if self._streams else nullcontext()


def in_turn(
    lanes: Lanes,
    used: Sequence[int],
    items: Sequence[Item],
    begin: Callable[[Item], Begun],
    finish: Callable[[Item, Begun], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Begin and finish items in some lanes, in turn: the next has begun before one is finished.

    But where it has a lane of its own, the first is finished at once: what is queued sooner starts sooner. What is to be queued
    `meanwhile` is so once the first has begun.
    """
    begun: list[Begun] = []
    if not items:
        meanwhile()
    for number, item in enumerate(items):
        ahead = number + 1 if number == 0 and len(used) > 1 else min(number + 2, len(items))
        while number + len(begun) < ahead:
            coming = number + len(begun)
            with lanes[used[coming % len(used)]]:
                begun.append(begin(items[coming]))
            if coming == 0:
                meanwhile()
        with lanes[used[number % len(used)]]:
            finish(item, begun.pop(0))
