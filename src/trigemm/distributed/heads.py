"""Heads in groups: what is gathered at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from trigemm.distributed import gather


@dataclass(frozen=True)
class Group:
    """Some key heads and all query heads that use them.

    kv_heads   ranges of key heads, in the order in which they are gathered
    query      as many query heads to each
    listed     places of this group's heads in the list of those whose weights are asked for
    weighted   these heads, counted among the group's query heads
    """

    kv_heads: tuple[range, ...]
    query: int
    listed: slice
    weighted: tuple[int, ...]

    @property
    def heads(self) -> tuple[range, ...]:
        return tuple(range(self.query * span.start, self.query * span.stop) for span in self.kv_heads)

    def keys_of(self, x: Tensor) -> Tensor:
        """The group's part of something of key heads (B,NH_kv,…)."""
        return joined(x, self.kv_heads)

    def queries_of(self, x: Tensor) -> Tensor:
        """The group's part of something of query heads (B,NH,…): a view where the heads follow each other."""
        return joined(x, self.heads)


def joined(x: Tensor, spans: Sequence[range]) -> Tensor:
    """Ranges of dimension 1: a view of a single one."""
    parts = [x[:, span.start : span.stop] for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def put(x: Tensor, spans: Sequence[range], found: Tensor) -> None:
    """Write what was found for ranges of dimension 1 to its place, if `joined` gave no view of it."""
    if len(spans) > 1:
        for span, part in zip(spans, found.split([len(span) for span in spans], 1), strict=True):
            x[:, span.start : span.stop] = part


def groups(heads: int, kv_heads: int, bytes_of_head: int, listed: Sequence[int] = (), *, hidden: bool = False) -> list[Group]:
    """All heads in groups, those whose weights are asked for first and in the order of their list.

    The first group is smaller than the others, unless something else hides how it comes.

    >>> [(group.kv_heads, group.weighted) for group in groups(8, 4, gather.GROUP_BYTES // 2, [5, 0])]
    [((range(2, 3),), (1,)), ((range(0, 2),), (0,)), ((range(3, 4),), ())]
    """
    first, most = (size // max(1, bytes_of_head) for size in (gather.FIRST_BYTES, gather.GROUP_BYTES))
    return _groups(heads // kv_heads if kv_heads else 1, kv_heads, tuple(listed), most if hidden else min(first, most), most)


@lru_cache
def _groups(query: int, kv_heads: int, listed: tuple[int, ...], first_most: int, most: int) -> list[Group]:
    """`query` heads to each key head; so many key heads in the first group, and in another, but where some must be together."""
    together: list[list[int]] = []  # key heads that must be in one group: a group's places in the list follow each other
    for head in listed:
        first = next((i for i, some in enumerate(together) if head // query in some), len(together))
        together[first:] = [list(dict.fromkeys([*(x for some in together[first:] for x in some), head // query]))]
    used = {x for some in together for x in some}
    together += [[x] for x in range(kv_heads) if x not in used]
    found: list[list[int]] = []
    for some in together:
        if found and len(found[-1]) + len(some) <= (most if len(found) > 1 else first_most):
            found[-1] += some
        else:
            found.append(list(some))
    made, first = [], 0
    for members in found:
        of_group = [head for head in listed if head // query in members]
        weighted = tuple(members.index(head // query) * query + head % query for head in of_group)
        made.append(Group(_spans(members), query, slice(first, first + len(of_group)), weighted))
        first += len(of_group)
    return made


def _spans(numbers: Sequence[int]) -> tuple[range, ...]:
    """Numbers as ranges of those that follow each other.

    >>> _spans([3, 4, 0, 1, 2])
    (range(3, 5), range(0, 3))
    """
    spans: list[range] = []
    for number in numbers:
        if spans and spans[-1].stop == number:
            spans[-1] = range(spans[-1].start, number + 1)
        else:
            spans.append(range(number, number + 1))
    return tuple(spans)
