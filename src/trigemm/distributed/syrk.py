"""One large matrix times its own transpose: each rank has its rows of the matrix and of the product.

A rank computes what of the lower triangle is in its rows. Products of its own rows with each other need no message, and take up
what the others leave idle. Other ranks' rows come in rounds, to where the rows of the rank's head will be in its result: nothing
of these is written before all have been used, so that little other memory is needed. Then what mirrors into another rank's rows
is turned and sent there, while the last of the own products, that of the head, is computed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trigemm.distributed import gather
from trigemm.distributed.gather import Dealt
from trigemm.distributed.lanes import Lanes, in_turn
from trigemm.distributed.moves import copy, copy_transposed
from trigemm.distributed.peers import Peers, Transfer
from trigemm.distributed.rounds import Round, rounds
from trigemm.distributed.scores import Part, product_gradients
from trigemm.distributed.split import Block, causal_blocks, fill_beyond, rank_rows
from trigemm.ops.schema import gemmt_write, syrk_write
from trigemm.triangle import ceil_div

TILE = 256
"""Pieces of more rows than this have a multiple of it, as tiles of products have."""

ALIGNED = 64
"""Entries: a place that begins at a multiple of them is read as fast as any."""


class SequenceSyrk(torch.autograd.Function):
    """alpha * a @ aᵀ, or a triangle of it with zeros elsewhere, this rank's rows: a (B,N_rank,K) -> (B,N_rank,N)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, peers: Peers, size: int, alpha: float, uplo: str, precision: str | None) -> Tensor:
        ctx.save_for_backward(a)
        dealt = Dealt(peers, size)
        ctx.parameters = dealt, alpha, uplo, precision
        out = a.new_empty((*a.shape[:-1], size))
        half = "lower" if uplo == "lower" else "full"
        if dealt.others:
            Share(dealt, a, out, alpha, precision).compute(half)
        else:
            syrk_write(a, None, alpha, 0.0, half, precision, out=out)
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


class Share:
    """What a rank does for a product: with its own rows in lanes 0 and 1, with other ranks' in lanes 2 and 3, which go first."""

    def __init__(self, dealt: Dealt, a: Tensor, out: Tensor, alpha: float, precision: str | None):
        self._dealt, self._a, self._out = dealt, a, out
        self._alpha, self._precision = alpha, precision
        self._head, self._tail = dealt.rows(dealt.peers.rank)
        self._landed: dict[int, Tensor] = {}

    def compute(self, half: str) -> None:
        head, tail, peers, length = self._head, self._tail, self._dealt.peers, self._dealt.length
        a, out, of_head, of_tail = self._a, self._out, self._own(self._head), self._own(self._tail)
        below = out[:, of_tail, head.start : head.stop]
        fetched = rounds(length, peers.size, peers.rank, self._fetched_rows())
        with Lanes(a.device, 0, -1, -1) as lanes:

            def own_products() -> None:
                self._multiply(of_tail, a[:, of_head], below)
                with lanes[1]:
                    self._square(tail, half)

            with lanes[2]:
                self._aside = self._place_aside()
            in_turn(lanes, (2,), fetched, self._fetch, self._use, own_products)
            with lanes[2]:
                copy(self._aside, out[:, of_head, : head.start])
            for lane in (0, 1, 3):
                lanes.order(lane, after=2)  # now the rows of the head are free
            with lanes[1]:
                self._square(head, half)
            if half == "lower":
                fill_beyond(out, causal_blocks(length, length, peers.size, peers.rank), 0.0)
                return
            copy_transposed(below, out[:, of_head, tail.start : tail.stop])
            every = rounds(length, peers.size, peers.rank, self._mirrored_rows())
            in_turn(lanes, (2, 3), every, self._send_mirrored, self._write_mirrored)

    def _fetch(self, of: Round) -> Transfer:
        """Send this rank's rows; receive others' where they fit into the head's rows of the result, or into new memory."""
        batch, depth = self._a.shape[0], self._a.shape[2]
        sent = {of.target: [self._a[:, self._own(of.sends)].contiguous()]}
        if not of.comes:
            return self._dealt.peers.exchange(sent, {})
        self._landed.pop(of.slot, None)
        room, size = _half(len(self._head) * self._dealt.length), len(of.comes) * depth
        if batch == 1 and size <= room:
            place = self._out[0, : len(self._head)].view(-1)[of.slot * room :][:size]
            self._landed[of.slot] = place.view(1, len(of.comes), depth)
        else:
            self._landed[of.slot] = self._a.new_empty((batch, len(of.comes), depth))
        return self._dealt.peers.exchange(sent, {of.source: [self._landed[of.slot]]})

    def _use(self, of: Round, transfer: Transfer) -> None:
        """The product of a round. What belongs to the head's rows is kept aside, for these are not free."""
        transfer.wait()
        if of.own and of.columns:
            own, columns = self._own(of.own), slice(of.columns.start, of.columns.stop)
            out = self._aside[:, :, columns] if of.own == self._head else self._out[:, own, columns]
            self._multiply(own, self._landed[of.slot], out)

    def _send_mirrored(self, of: Round) -> tuple[Tensor, Transfer]:
        """Send to the rank whose rows came what the product with them mirrors into; receive likewise."""
        product = self._out[:, self._own(of.own), of.columns.start : of.columns.stop]
        turned = product.new_empty(product.mT.shape)
        copy_transposed(product, turned)
        coming = product.new_empty((product.shape[0], len(of.mirrored), len(of.beside)))
        return coming, self._dealt.peers.exchange({of.source: [turned]}, {of.target: [coming]})

    def _write_mirrored(self, of: Round, arriving: tuple[Tensor, Transfer]) -> None:
        coming, transfer = arriving
        transfer.wait()
        copy(coming, self._out[:, self._own(of.mirrored), of.beside.start : of.beside.stop])

    def _multiply(self, own: slice, rows: Tensor, out: Tensor) -> None:
        """Some of this rank's rows times others above them."""
        gemmt_write(self._a[:, own], rows.mT, self._alpha, "lower", rows.shape[1], None, self._precision, out=out, keep=False)

    def _square(self, rows: range, half: str) -> None:
        """The head or the tail times itself."""
        own = self._own(rows)
        out = self._out[:, own, rows.start : rows.stop]
        syrk_write(self._a[:, own], None, self._alpha, 0.0, half, self._precision, out=out)

    def _own(self, rows: range) -> slice:
        """Where rows of this rank are among its rows."""
        first = rows.start - self._head.start
        if rows.start >= self._head.stop:
            first = len(self._head) + rows.start - self._tail.start
        return slice(first, first + len(rows))

    def _place_aside(self) -> Tensor:
        """Memory for the head's products with rows above it: in the tail's rows beyond its own columns, if it fits in there."""
        free = self._out[:, self._own(self._tail), self._tail.stop :][:, : len(self._head), : self._head.start]
        shape = self._out.shape[0], len(self._head), self._head.start
        return free if free.shape == shape else self._out.new_empty(shape)

    def _fetched_rows(self) -> int:
        """How many rows come at a time: two such pieces fit into the head's rows of the result, or are small."""
        batch, _, depth = self._a.shape
        length, ranks = self._dealt.length, self._dealt.peers.size
        last = ceil_div(length, ceil_div(length, ranks)) - 1  # it has the shortest head; later ranks have no rows
        free = _half(len(rank_rows(length, ranks, last)[0]) * length) // max(1, depth) if batch == 1 else 0
        few = gather.PIECE_BYTES // max(1, batch * depth * self._a.element_size())
        return _whole_tiles(free if free >= TILE else max(free, few))

    def _mirrored_rows(self) -> int:
        """How many of another rank's rows are written at a time: as many as may be, in pieces of about one size."""
        longest = ceil_div(ceil_div(self._dealt.length, self._dealt.peers.size), 2)
        most = max(1, gather.MIRRORED_BYTES // max(1, self._out.shape[0] * longest * self._out.element_size()))
        even = ceil_div(longest, ceil_div(longest, most))
        return min(most, ceil_div(even, ALIGNED) * ALIGNED)


def _half(entries: int) -> int:
    """Entries of each of two parts of some memory."""
    return entries // 2 // ALIGNED * ALIGNED


def _whole_tiles(rows: int) -> int:
    return max(1, rows - rows % TILE if rows > TILE else rows)


def triangle_of_rows(x: Tensor, rows: tuple[range, range], uplo: str) -> Tensor:
    """A rank's rows of the triangle of a square matrix, from its rows of the matrix; zeros elsewhere."""
    keep = torch.tril if uplo == "lower" else torch.triu
    parts = x.split([len(span) for span in rows], -2)
    return torch.cat([keep(part, span.start) for part, span in zip(parts, rows, strict=True)], -2)
