"""Messages between the ranks of a process group that sit in a circle: torch.distributed's own, point to point."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

Shape = Sequence[int]


class Transfer:
    """Messages under way. `wait` gives what was received; until then the tensors belong to the messages."""

    def __init__(self, works: Sequence[dist.Work], sent: Sequence[Tensor], received: list[Tensor], failure: str):
        self._works, self._sent, self._received, self._failure = works, sent, received, failure

    def wait(self) -> list[Tensor]:
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            raise RuntimeError(f"{self._failure} ({error})") from error
        return self._received


class Ring:
    """The ranks of a process group in a circle, as one operation sees them."""

    def __init__(self, group: ProcessGroup, operation: str):
        self.group, self.operation = group, operation
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def exchange(self, to: int, sent: Sequence[Tensor], source: int, shapes: Sequence[Shape], like: Tensor) -> Transfer:
        """Send contiguous tensors to a rank, and receive some of those shapes from another; nothing is sent for empty ones."""
        received = [like.new_empty(shape) for shape in shapes]
        peers = f"rank {source} or {to}" if source != to else f"rank {to}"
        failure = (
            f"{self.operation}: rank {self.rank} of {self.size} lost touch with {peers}, which has stopped, failed, "
            "or not answered within the timeout of the process group"
        )
        messages = [
            dist.P2POp(call, x, group=self.group, group_peer=peer)
            for call, tensors, peer in ((dist.isend, sent, to), (dist.irecv, received, source))
            for x in tensors
            if x.numel()
        ]
        try:
            works = dist.batch_isend_irecv(messages) if messages else []
        except RuntimeError as error:
            raise RuntimeError(f"{failure} ({error})") from error
        return Transfer(works, sent, received, failure)

    def pass_on(self, sent: Sequence[Tensor], shapes: Sequence[Shape]) -> Transfer:
        """Send to the right-hand neighbour, receive from the left."""
        return self.exchange((self.rank + 1) % self.size, sent, (self.rank - 1) % self.size, shapes, sent[0])
