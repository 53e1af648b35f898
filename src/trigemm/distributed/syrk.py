"""One large matrix times its own transpose: each rank has its rows of the matrix and of the product.

A rank computes what of the lower triangle is in its rows. Half of that, or more, needs no other rank's rows: these come in
pieces meanwhile, and are used before it, so that as few as two of them are in memory. Then what mirrors into another rank's rows
is sent there, in the same pieces.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trigemm.distributed import gather
from trigemm.distributed.gather import Dealt
from trigemm.distributed.lanes import Lanes, in_turn
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.scores import Part, product_gradients
from trigemm.distributed.split import Block, causal_blocks, fill_beyond, part
from trigemm.ops.products import gemmt, syrk
from trigemm.triangle import ceil_div

TILE = 256
"""Pieces of more rows than this have a multiple of it, as tiles of products have."""

Arriving = tuple[dict[int, Tensor], Transfer]


class SequenceSyrk(torch.autograd.Function):
    """alpha * a @ aᵀ, or a triangle of it with zeros elsewhere, this rank's rows: a (B,N_rank,K) -> (B,N_rank,N)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, peers: Peers, size: int, alpha: float, uplo: str, precision: str | None) -> Tensor:
        ctx.save_for_backward(a)
        dealt = Dealt(peers, size)
        ctx.parameters = dealt, alpha, uplo, precision
        out = a.new_empty((*a.shape[:-1], size))
        full = uplo != "lower"
        share = Share(dealt, a, out, alpha, precision)
        pieces = share.pieces()
        with Lanes(a.device, 0, -1) as lanes:
            in_turn(lanes, (2,), pieces, share.fetch, share.multiply, lambda: share.multiply_own(lanes, full))
            if full:
                in_turn(lanes, (2,), pieces, share.send_mirrored, share.write_mirrored)
        return triangle_of_rows(out, dealt.rows(peers.rank), uplo) if uplo == "upper" else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (a,) = ctx.saved_tensors
        dealt, alpha, uplo, precision = ctx.parameters
        if uplo == "upper":
            grad = triangle_of_rows(grad, dealt.rows(dealt.peers.rank), uplo)
        size, rows, depth = dealt.length, a.shape[1], a.shape[2]
        blocks = [Block(slice(0, rows), size, size)] if rows else []
        if uplo == "lower":
            blocks = causal_blocks(size, size, dealt.peers.size, dealt.peers.rank)
        # Each column of the gradients is made of the same column of the matrix, so some columns at a time are enough.
        width = max(1, gather.GROUP_BYTES // max(1, dealt.bytes_of_head(a[:, None, :, :1])))
        a, grad, left, right = a[:, None], grad[:, None], torch.zeros_like(a)[:, None], torch.empty_like(a)[:, None]
        cuts = [slice(first, min(first + width, depth)) for first in range(0, depth, width)]
        parts = [Part(a[..., cut], grad, left[..., cut], a[..., cut], right[..., cut]) for cut in cuts]
        product_gradients(dealt, blocks, parts, alpha, precision)
        return (left + right)[:, 0], *[None] * 5


class Piece(NamedTuple):
    """A part of every rank's head, or of its tail."""

    number: int
    tail: bool


class Share:
    """What a rank does for a product."""

    def __init__(self, dealt: Dealt, a: Tensor, out: Tensor, alpha: float, precision: str | None):
        self._dealt, self._a, self._out, self._rank = dealt, a, out, dealt.peers.rank
        self._form: dict[str, Any] = {"alpha": alpha, "precision": precision}
        entries = a.shape[0] * a.shape[2] * max(1, len(dealt.others))
        height = max(1, gather.PIECE_BYTES // max(1, entries * a.element_size()))
        height -= height % TILE if height > TILE else 0
        self._parts = ceil_div(ceil_div(ceil_div(dealt.length, dealt.peers.size), 2), height)

    def pieces(self) -> list[Piece]:
        """All pieces in the order in which they come."""
        return [Piece(number, tail) for number in range(self._parts) for tail in (False, True)] if self._dealt.others else []

    def multiply_own(self, lanes: Lanes, full: bool) -> None:
        """The products of this rank's rows with each other; zeros above the diagonal where the product is not mirrored."""
        a, out = self._a, self._out
        head, tail = self._dealt.rows(self._rank)
        runs = [head, tail] if head.stop < tail.start else [range(head.start, tail.stop)]
        top = 0
        for run in runs:
            own = slice(top, top + len(run))
            square = out[:, own, run.start : run.stop]
            syrk(a[:, own], uplo="full" if full else "lower", out=square, **self._form)
            top += len(run)
        if len(runs) > 1:
            with lanes[1]:
                first, second = slice(0, len(head)), slice(len(head), None)
                below = out[:, second, head.start : head.stop]
                gemmt(a[:, second], a[:, first].mT, diagonal=len(head), out=below, **self._form)
                if full:
                    out[:, first, tail.start : tail.stop] = below.mT
        if not full:
            fill_beyond(out, causal_blocks(self._dealt.length, self._dealt.length, self._dealt.peers.size, self._rank), 0.0)

    def fetch(self, piece: Piece) -> Arriving:
        """Send this rank's rows of a piece to the ranks that have rows below them; receive others' that lie above its own."""
        mine = self._rows(self._rank, piece)
        rows = self._a[:, self._own(mine)].contiguous()
        sent = {rank: [rows] for rank in self._dealt.others if self._below(rank, mine)}
        coming = {}
        for rank in self._dealt.others:
            theirs = self._rows(rank, piece)
            if self._below(self._rank, theirs):
                coming[rank] = self._a.new_empty((self._a.shape[0], len(theirs), self._a.shape[2]))
        return coming, self._exchange(sent, coming)

    def multiply(self, piece: Piece, arriving: Arriving) -> None:
        """The products of this rank's rows with the rows that come, above them."""
        coming, transfer = arriving
        transfer.wait()
        for rank, rows in coming.items():
            theirs = self._rows(rank, piece)
            own = self._own(*self._below(self._rank, theirs))
            out = self._out[:, own, theirs.start : theirs.stop]
            gemmt(self._a[:, own], rows.mT, diagonal=len(theirs), out=out, **self._form)

    def send_mirrored(self, piece: Piece) -> Arriving:
        """Send to the ranks whose rows came what their products mirror into; receive likewise."""
        mine, sent, coming = self._rows(self._rank, piece), {}, {}
        for rank in self._dealt.others:
            theirs = self._rows(rank, piece)
            if below := self._below(self._rank, theirs):
                sent[rank] = [self._out[:, self._own(*below), theirs.start : theirs.stop].mT.contiguous()]
            if below := self._below(rank, mine):
                coming[rank] = self._out.new_empty((self._out.shape[0], len(mine), sum(map(len, below))))
        return coming, self._exchange(sent, coming)

    def write_mirrored(self, piece: Piece, arriving: Arriving) -> None:
        coming, transfer = arriving
        transfer.wait()
        mine = self._rows(self._rank, piece)
        for rank, x in coming.items():
            below = self._below(rank, mine)
            for rows, block in zip(below, x.split([len(rows) for rows in below], -1), strict=True):
                self._out[:, self._own(mine), rows.start : rows.stop] = block

    def _exchange(self, sent: dict[int, list[Tensor]], coming: dict[int, Tensor]) -> Transfer:
        return self._dealt.peers.exchange(sent, {rank: [x] for rank, x in coming.items()})

    def _rows(self, rank: int, piece: Piece) -> range:
        """A rank's rows of a piece."""
        return part(self._dealt.rows(rank)[piece.tail], piece.number, self._parts)

    def _below(self, rank: int, rows: range) -> list[range]:
        """Those blocks of a rank that lie below another's rows: its head and its tail, its tail, or none."""
        return [block for block in self._dealt.rows(rank) if rows and block and block.start >= rows.stop]

    def _own(self, *rows: range) -> slice:
        """Where rows of this rank, which follow each other in its share, are in it."""
        head, tail = self._dealt.rows(self._rank)
        first = rows[0].start - head.start if rows[0].start < head.stop else len(head) + rows[0].start - tail.start
        return slice(first, first + sum(map(len, rows)))


def triangle_of_rows(x: Tensor, rows: tuple[range, range], uplo: str) -> Tensor:
    """A rank's rows of the triangle of a square matrix, from its rows of the matrix; zeros elsewhere."""
    keep = torch.tril if uplo == "lower" else torch.triu
    parts = x.split([len(span) for span in rows], -2)
    return torch.cat([keep(part, span.start) for part, span in zip(parts, rows, strict=True)], -2)
