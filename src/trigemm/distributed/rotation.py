"""A triangle whose rows stay with their ranks while its columns come round.

Each rank first uses its own columns and then, as they arrive, those of the others. The next are on their way while the present
ones are used. Columns travel in pieces, so that what is in flight stays small beside what a rank holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from trigemm.distributed.ring import Ring, Shape, Transfer
from trigemm.distributed.split import Block, blocks, part, rank_rows
from trigemm.triangle import ceil_div

PIECE_BYTES = 2**25


@dataclass(frozen=True)
class Visit:
    """Columns at a rank: its own (`piece` is None) or a piece of another's, with what each tensor has for them."""

    source: int
    piece: int | None
    columns: tuple[range, range]
    blocks: tuple[Block, ...]
    tensors: list[Tensor]

    def of(self, block: Block) -> list[Tensor]:
        """What each tensor has for the columns of a block."""
        return self.tensors[block.visitor :: len(self.columns)]


@dataclass(frozen=True)
class Rotation:
    """The share of a rank in the triangle c - r <= diagonal of a matrix, and the way its columns take.

    A tensor has its rows along dimension -2: those that belong to the rank's own rows or columns, its head before its tail.
    """

    ring: Ring
    rows: int
    columns: int
    diagonal: int
    pieces: int

    @classmethod
    def of(cls, ring: Ring, rows: int, columns: int, diagonal: int, *tensors: Tensor, larger: int = 1) -> "Rotation":
        """The rotation of these tensors: in as few pieces as `larger` * PIECE_BYTES allows, the same number on every rank."""
        most = ceil_div(columns, ring.size)
        size = sum(x.element_size() * x.shape[:-2].numel() * x.shape[-1] for x in tensors) * most
        return cls(ring, rows, columns, diagonal, max(1, ceil_div(size, larger * PIECE_BYTES)))

    def columns_of(self, rank: int, piece: int | None = None) -> tuple[range, range]:
        head, tail = rank_rows(self.columns, self.ring.size, rank)
        return (head, tail) if piece is None else (part(head, piece, self.pieces), part(tail, piece, self.pieces))

    def blocks(self, rank: int, columns: Sequence[range]) -> tuple[Block, ...]:
        """The blocks that a rank's rows make with some columns."""
        return tuple(blocks(rank_rows(self.rows, self.ring.size, rank), columns, self.diagonal))

    def own(self, piece: int | None, *tensors: Tensor) -> list[Tensor]:
        """Each tensor's rows for this rank's own columns, or a piece of them: views, two a tensor."""
        head, _ = whole = self.columns_of(self.ring.rank)
        before = (0, len(head))
        return [
            x.narrow(-2, offset + span.start - start.start, len(span))
            for x in tensors
            for offset, start, span in zip(before, whole, self.columns_of(self.ring.rank, piece), strict=True)
        ]

    def shapes(self, rank: int, piece: int, like: Sequence[Tensor]) -> list[Shape]:
        """The shapes that tensors with these batches and widths have for a piece of a rank's columns."""
        return [(*x.shape[:-2], len(span), x.shape[-1]) for x in like for span in self.columns_of(rank, piece)]

    def visits(self, *tensors: Tensor) -> Iterator[Visit]:
        """This rank's own columns, and then every piece of every other rank's."""
        ring = self.ring
        order = [(piece, (ring.rank - step) % ring.size) for piece in range(self.pieces) for step in range(1, ring.size)]

        def send(index: int, present: list[Tensor]) -> Transfer | None:
            if index == len(order):
                return None
            piece, source = order[index]
            if index % (ring.size - 1) == 0:
                present = [x.contiguous() for x in self.own(piece, *tensors)]
            return ring.pass_on(present, self.shapes(source, piece, tensors))

        coming = send(0, [])
        yield self._visit(ring.rank, None, self.own(None, *tensors))
        for index, (piece, source) in enumerate(order):
            assert coming is not None
            present = coming.wait()
            coming = send(index + 1, present)
            yield self._visit(source, piece, present)

    def _visit(self, source: int, piece: int | None, tensors: list[Tensor]) -> Visit:
        columns = self.columns_of(source, piece)
        return Visit(source, piece, columns, self.blocks(self.ring.rank, columns), tensors)


class Sums:
    """Sums over all rows, for each column: they travel with the columns, every rank adds its share, and come home whole.

    Args:
        totals: where this rank's columns are summed, in the dtype of sums; zeros to begin with.
    """

    def __init__(self, rotation: Rotation, *totals: Tensor):
        self._rotation, self._totals = rotation, totals
        self._coming: tuple[Transfer, int, int] | None = None

    def share(self, visit: Visit) -> list[Tensor]:
        """Where to add this rank's share for the columns of a visit; to be followed by `pass_on`."""
        if visit.piece is None:
            return self._rotation.own(None, *self._totals)
        return [x.new_zeros(shape) for x, shape in self._shapes(visit.source, visit.piece)]

    def pass_on(self, visit: Visit, share: list[Tensor]) -> None:
        if visit.piece is None:
            return
        for x, y in zip(share, self._arrived(visit), strict=False):
            x += y
        # What comes next from the left is meant for the columns before these; after a round, those are this rank's own.
        source = (visit.source - 1) % self._rotation.ring.size
        shapes = [shape for _, shape in self._shapes(source, visit.piece)]
        self._coming = self._rotation.ring.pass_on(share, shapes), source, visit.piece

    def finish(self) -> None:
        """Wait for the last sums to come home."""
        self._arrived(None)

    def _shapes(self, rank: int, piece: int) -> list[tuple[Tensor, Shape]]:
        shapes = self._rotation.shapes(rank, piece, self._totals)
        return [(x, shape) for x, shape in zip((x for x in self._totals for _ in range(2)), shapes, strict=True)]

    def _arrived(self, visit: Visit | None) -> list[Tensor]:
        """The sums that have come for this visit; those that have come home are added to the totals."""
        if self._coming is None:
            return []
        transfer, source, piece = self._coming
        self._coming = None
        came = transfer.wait()
        if source != self._rotation.ring.rank:
            return came
        for x, y in zip(self._rotation.own(piece, *self._totals), came, strict=True):
            x += y
        return []
