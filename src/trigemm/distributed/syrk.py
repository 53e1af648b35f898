"""One large matrix times its own transpose: each rank has its rows of the matrix and of the product.

Every rank computes the tiles of the lower triangle that are in its rows. Those that mirror into another rank's rows are sent
there while the next are computed.
"""

from typing import Any

from torch import Tensor, cat, tril, triu
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from trigemm.distributed.ring import Ring, Transfer
from trigemm.distributed.rotation import Rotation, Visit
from trigemm.distributed.scores import score_gradients, write_scores
from trigemm.distributed.split import Block
from trigemm.ops.products import syrk


class RingSyrk(Function):
    """alpha * a @ aᵀ, or a triangle of it with zeros elsewhere, this rank's rows: a (B,N_rank,K) -> (B,N_rank,N)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, group: ProcessGroup, size: int, alpha: float, uplo: str, precision: str | None) -> Tensor:
        ctx.save_for_backward(a)
        ctx.parameters = group, size, alpha, uplo, precision
        rotation = Rotation.of(Ring(group, "syrk"), size, size, 0, a)
        out = a.new_empty((*a.shape[:-1], size))
        mirror = None if uplo == "lower" else Mirror(rotation, out)
        for visit in rotation.visits(a):
            for block in visit.blocks:
                if block.rows == block.columns:
                    square = "full" if mirror else "lower"
                    syrk(a[..., block.own, :], alpha=alpha, uplo=square, precision=precision, out=out[(..., *block.of)])
                elif block.live or not mirror:
                    (part,) = visit.of(block)
                    write_scores(a, part, out, block, alpha, 0.0, precision)
            if mirror:
                mirror.reflect(visit)
        if mirror:
            mirror.finish()
        return triangle_of_rows(out, rotation.columns_of(rotation.ring.rank), uplo) if uplo == "upper" else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (a,) = ctx.saved_tensors
        group, size, alpha, uplo, precision = ctx.parameters
        rotation = Rotation.of(Ring(group, "syrk"), size, size, 0 if uplo == "lower" else size, a)
        if uplo == "upper":
            grad = triangle_of_rows(grad, rotation.columns_of(rotation.ring.rank), uplo)
        left, right = score_gradients(rotation, a, a, grad, alpha, precision)
        return left + right, *[None] * 5


class Mirror:
    """Writes the transpose of what is computed, which lies in the rows of the rank that the columns came from."""

    def __init__(self, rotation: Rotation, out: Tensor):
        self._rotation, self._out = rotation, out
        self._coming: tuple[Transfer, tuple[range, range], list[Block]] | None = None

    def reflect(self, visit: Visit) -> None:
        """Mirror the blocks of a visit, to be called at each in order."""
        rotation, ring, out = self._rotation, self._rotation.ring, self._out
        lower = [block for block in visit.blocks if block.columns.stop <= block.rows.start]
        if visit.piece is None:
            for block in lower:
                self._write(block, visit.columns, out[(..., *block.of)].mT)
            return
        sent = [out[(..., *block.of)].mT.contiguous() for block in lower]
        # At this step, the rank as far to the right as the visitor's is to the left has the same piece of this rank's columns.
        source = (2 * ring.rank - visit.source) % ring.size
        columns = rotation.columns_of(ring.rank, visit.piece)
        expected = [block for block in rotation.blocks(source, columns) if block.columns.stop <= block.rows.start]
        shapes = [(*out.shape[:-2], len(block.columns), len(block.rows)) for block in expected]
        self.finish()
        self._coming = ring.exchange(visit.source, sent, source, shapes, out), columns, expected

    def finish(self) -> None:
        """Write what is on its way."""
        if self._coming is not None:
            transfer, columns, blocks = self._coming
            for block, part in zip(blocks, transfer.wait(), strict=True):
                self._write(block, columns, part)

    def _write(self, block: Block, columns: tuple[range, range], part: Tensor) -> None:
        head, tail = self._rotation.columns_of(self._rotation.ring.rank)
        start = block.columns.start - head.start if block.visitor == 0 else len(head) + block.columns.start - tail.start
        self._out[..., start : start + len(block.columns), block.rows.start : block.rows.stop] = part


def triangle_of_rows(x: Tensor, rows: tuple[range, range], uplo: str) -> Tensor:
    """A rank's rows of the triangle of a square matrix, from its rows of the matrix; zeros elsewhere."""
    parts = x.split([len(span) for span in rows], -2)
    return cat([(tril if uplo == "lower" else triu)(part, span.start) for part, span in zip(parts, rows, strict=True)], -2)
