"""Ranks without a process group, on one device: each computes what it would, and messages are copies, or nothing.

`Alone` is one rank, for its time: what it receives is copied from elsewhere in the same memory. `Together` are all ranks of a
problem, each in a thread, for their results.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trigemm.distributed.attention import SequenceAttention
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.scores import SequenceScores
from trigemm.distributed.split import rank_rows
from trigemm.distributed.syrk import SequenceSyrk


class Operations:
    """The operations of `trigemm` on a rank's rows of a sequence of `length`, as far as the benchmark calls them."""

    def __init__(self, peers: Peers, length: int):
        self._peers, self._length = peers, length

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor, *, return_weights: Sequence[int]) -> Any:
        form = (q.shape[3] ** -0.5, list(return_weights), q.dtype, 0.0, None)
        return SequenceAttention.apply(q, k, v, self._peers, self._length, self._length, *form)

    def causal_scores(self, q: Tensor, k: Tensor) -> Any:
        return SequenceScores.apply(q, k, self._peers, self._length, self._length, q.shape[3] ** -0.5, -torch.inf, None)

    def syrk(self, a: Tensor) -> Any:
        return SequenceSyrk.apply(a[None], self._peers, self._length, 1.0, "full", None)[0]


class Alone(Peers):
    """A rank of `size` that has no others; with `copies`, what it should receive is copied, on a stream of its own."""

    def __init__(self, rank: int, size: int, *, copies: bool):
        self.rank, self.size, self.operation = rank, size, "emulated"
        self._copies = copies
        self._stream = torch.cuda.Stream(priority=-2) if torch.cuda.is_available() else None
        self._noise: dict[tuple[torch.dtype, int], Tensor] = {}

    def exchange(self, sent: Mapping[int, Sequence[Tensor]], received: Mapping[int, Sequence[Tensor]]) -> Transfer:
        works: list[Any] = []
        if self._copies:
            tensors = [x for some in received.values() for x in some if x.numel()]
            sources = [self._source(x) for x in tensors]
            if self._stream is None:
                for x, source in zip(tensors, sources, strict=True):
                    x.copy_(source)
            else:
                self._stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._stream):
                    for x, source in zip(tensors, sources, strict=True):
                        x.copy_(source)
                works.append(self._stream.record_event())
        return Transfer(works, (), str)

    def _source(self, like: Tensor) -> Tensor:
        """Numbers of the right shape; kept, so that they are made once."""
        key = like.dtype, like.numel()
        if key not in self._noise:
            self._noise[key] = torch.randn(like.numel(), dtype=like.dtype, device=like.device)
        return self._noise[key].view(like.shape)


class Together(Peers):
    """One of several ranks that are threads of one process."""

    def __init__(self, rank: int, size: int, boxes: Mapping[tuple[int, int], "queue.Queue[Any]"]):
        self.rank, self.size, self.operation, self._boxes = rank, size, "emulated", boxes

    def exchange(self, sent: Mapping[int, Sequence[Tensor]], received: Mapping[int, Sequence[Tensor]]) -> Transfer:
        for to, tensors in sent.items():
            for x in tensors:
                if x.numel():
                    self._boxes[self.rank, to].put((x.clone(), torch.cuda.current_stream().record_event() if x.is_cuda else None))
        arriving = [
            Arrival(self._boxes[source, self.rank], x) for source, tensors in received.items() for x in tensors if x.numel()
        ]
        return Transfer(arriving, (), str)  # type: ignore[arg-type]


class Arrival:
    """A message that is copied to its place when it is waited for."""

    def __init__(self, box: "queue.Queue[Any]", into: Tensor):
        self._box, self._into = box, into

    def wait(self) -> None:
        x, sent = self._box.get(timeout=60)
        if sent is not None:
            torch.cuda.current_stream().wait_event(sent)
            x.record_stream(torch.cuda.current_stream())
        self._into.copy_(x)


def together(ranks: int, length: int, call: Callable[[Operations, int], tuple[Tensor, ...]]) -> list[Tensor]:
    """What a call gives all ranks, each result put together along dimension -2 in the order of the sequence."""
    boxes: dict[tuple[int, int], queue.Queue[Any]] = {(r, s): queue.Queue() for r in range(ranks) for s in range(ranks)}
    found: dict[int, tuple[Tensor, ...]] = {}

    def run(rank: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream() if torch.cuda.is_available() else None):
            found[rank] = call(Operations(Together(rank, ranks, boxes), length), rank)
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order = [row for rank in range(ranks) for rows in rank_rows(length, ranks, rank) for row in rows]
    inverse = torch.tensor(order).argsort().to(found[0][0].device)
    return [torch.cat(parts, -2).index_select(-2, inverse) for parts in zip(*(found[rank] for rank in range(ranks)), strict=True)]


def rows_of(x: Tensor, ranks: int, rank: int, dim: int) -> Tensor:
    """A rank's rows of a tensor, a copy."""
    return torch.cat([x.narrow(dim, rows.start, len(rows)) for rows in rank_rows(x.shape[dim], ranks, rank)], dim)
