"""Messages between the ranks of a process group: torch.distributed's own, point to point."""

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class Transfer:
    """Messages under way. Until they have been waited for, the tensors belong to them."""

    def __init__(self, works: Sequence[dist.Work], tensors: Sequence[Tensor], failure: Callable[[int], str]):
        self._works, self._tensors, self._failure = works, tensors, failure

    def wait(self) -> None:
        """Wait for all: on a GPU, let what is queued in the present stream from now on wait."""
        for number, work in enumerate(self._works):
            try:
                work.wait()
            except RuntimeError as error:
                raise RuntimeError(f"{self._failure(number)} ({error})") from error
        self._tensors = ()


class Peers:
    """The ranks of a process group, as one operation sees them."""

    def __init__(self, group: ProcessGroup, operation: str):
        self.group, self.operation = group, operation
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, sent: Mapping[int, Sequence[Tensor]], received: Mapping[int, Sequence[Tensor]]) -> Transfer:
        """Send contiguous tensors to other ranks, and receive some from others; nothing is sent for empty ones."""
        messages, peers = [], []
        for step in range(1, self.size):  # every rank has another partner at every step
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            for call, tensors, peer in ((dist.isend, sent.get(to, ()), to), (dist.irecv, received.get(source, ()), source)):
                for x in tensors:
                    if x.numel():
                        messages.append(dist.P2POp(call, x, group=self.group, group_peer=peer))
                        peers.append(peer)
        tensors = [message.tensor for message in messages]
        try:
            works = dist.batch_isend_irecv(messages) if messages else []
        except RuntimeError as error:
            raise RuntimeError(f"{self._failure(peers)} ({error})") from error
        together = len(works) < len(messages)  # they may go as one
        return Transfer(works, tensors, lambda number: self._failure(peers if together else [peers[number]]))

    def _failure(self, peers: Sequence[int]) -> str:
        named = " or ".join(map(str, sorted(set(peers))))
        return (
            f"{self.operation}: rank {self.rank} of {self.size} lost touch with rank {named}, "
            "which has stopped, failed, or not answered within the timeout of the process group"
        )
