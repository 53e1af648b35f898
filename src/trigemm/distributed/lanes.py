"""Work in turn on two streams of a GPU, so that one fills what the other leaves idle; on a CPU, one after the other."""

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

    `meanwhile` is done in the present stream once the first two have begun.
    """
    begun: list[Begun] = []
    for number in range(len(items) + 1):
        if number < len(items):
            with lanes[used[number % len(used)]]:
                begun.append(begin(items[number]))
        if number == min(1, len(items)):
            meanwhile()
        if number:
            with lanes[used[(number - 1) % len(used)]]:
                finish(items[number - 1], begun.pop(0))
