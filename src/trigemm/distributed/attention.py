"""Causal attention of a sharded sequence: each rank has its queries, their output and their weights, and gathers keys and values.

A group of heads at a time: then each of the rank's two blocks of rows is attention of its queries to the first so many keys, as
one GPU computes it. The gradients gather the same again and make the weights from two numbers a row; those of keys and values are
summed at their owners.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trigemm.distributed.gather import Dealt
from trigemm.distributed.heads import Group, groups, put
from trigemm.distributed.lanes import Lanes, in_turn
from trigemm.distributed.peers import Peers
from trigemm.distributed.scores import PRIORITY, Gathered
from trigemm.distributed.split import Block, causal_blocks, fill_beyond
from trigemm.kernels.catalogue import serving
from trigemm.kernels.strips.product import sum_dtype
from trigemm.ops.attention_schema import kernel_form, row_statistics


class SequenceAttention(torch.autograd.Function):
    """The output, and the weights of some heads: this rank's rows of them.

    q (B,NH,T_rank,HS), k and v (B,NH_kv,S_rank,HS) -> (B,NH,T_rank,HS), (B,len(heads),T_rank,S).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        peers: Peers,
        queries: int,
        keys: int,
        scale: float,
        heads: Sequence[int],
        weights_dtype: torch.dtype,
        fill: float | None,
        precision: str | None,
    ) -> tuple[Tensor, Tensor]:
        dealt, blocks = Dealt(peers, keys), causal_blocks(queries, keys, peers.size, peers.rank)
        every = groups(q.shape[1], k.shape[1], dealt.bytes_of_head(k, v), heads)
        run = serving("causal_attention", q.device.type, q.dtype).run
        output = torch.empty_like(q)
        weights = q.new_empty((q.shape[0], len(heads), q.shape[2], keys), dtype=weights_dtype)
        statistics: list[Tensor] = []

        def compute(group: Group, gathered: Gathered) -> None:
            wholes, transfer = gathered
            transfer.wait()
            of_queries, out = group.queries_of(q), group.queries_of(output)
            with Lanes(q.device, PRIORITY) as beside:  # each block alone would leave a part of a GPU idle at its end
                for lane, block in enumerate(blocks):
                    with beside[lane]:
                        rows = of_queries[:, :, block.own]
                        stats = row_statistics(rows)
                        run(
                            rows,
                            *(x[:, :, : block.columns] for x in wholes),
                            out[:, :, block.own],
                            weights[:, group.listed, block.own, : block.columns],
                            q.new_empty(0),
                            stats,
                            fill=fill,
                            **form_of(group, block, scale, precision),
                        )
                    statistics.append(stats)
            put(output, group.heads, out)

        with Lanes(q.device, PRIORITY, PRIORITY) as lanes:
            if fill is not None:
                fill_beyond(weights, blocks, fill)  # first, but with the products before it where both could go on
            in_turn(lanes, (1, 2), every, lambda group: dealt.gather(group.keys_of(k), group.keys_of(v)), compute)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, output, *statistics)
        ctx.parameters = dealt, blocks, every, scale, precision
        return output, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, d_weights: Tensor | None) -> tuple[Any, ...]:
        q, k, v, output, *statistics = ctx.saved_tensors
        dealt, blocks, every, scale, precision = ctx.parameters
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        of_groups = [statistics[i : i + len(blocks)] for i in range(0, len(statistics), max(1, len(blocks)))] or [[]] * len(every)
        some = [item for item in zip(every, of_groups, strict=True) if d_output is not None or item[0].weighted]

        def compute(item: tuple[Group, list[Tensor]], gathered: Gathered) -> None:
            (group, of_blocks), (wholes, transfer) = item, gathered
            transfer.wait()
            of_output = None if d_output is None else group.queries_of(d_output)
            of_weights = None if d_weights is None or not group.weighted else d_weights[:, group.listed]
            of_queries, out, found = (group.queries_of(x) for x in (q, output, dq))
            memory, sums = dealt.wholes(wholes, sum_dtype(k.dtype))
            memory.zero_()
            for block, stats in zip(blocks, of_blocks, strict=True):
                seen = [x[:, :, : block.columns] for x in wholes]
                added = [torch.empty_like(x, dtype=y.dtype) for x, y in zip(seen, sums, strict=True)]
                serving("causal_attention_backward", q.device.type, q.dtype).run(
                    of_queries[:, :, block.own],
                    *seen,
                    out[:, :, block.own],
                    stats,
                    None if of_output is None else of_output[:, :, block.own],
                    None if of_weights is None else of_weights[:, :, block.own, : block.columns],
                    None,
                    found[:, :, block.own],
                    *added,
                    **form_of(group, block, scale, precision),
                )
                for x, y in zip(sums, added, strict=True):
                    x[:, :, : block.columns] += y
            put(dq, group.heads, found)
            owned = [group.keys_of(x) for x in (dk, dv)]
            dealt.sum(memory, owned)
            for x, y in zip((dk, dv), owned, strict=True):
                put(x, group.kv_heads, y)

        if d_weights is not None or d_output is not None:
            with Lanes(q.device, 0) as lanes:
                in_turn(lanes, (0, 1), some, lambda item: dealt.gather(item[0].keys_of(k), item[0].keys_of(v)), compute)
        return dq, dk, dv, *[None] * 8


def form_of(group: Group, block: Block, scale: float, precision: str | None) -> dict[str, Any]:
    """What the kernels of both directions are told of a block by name."""
    return kernel_form(
        block.columns, key_lengths=None, key_mask=None, scale=scale, softcap=None,
        window=None, heads=group.weighted, precision=precision,
    )  # fmt: skip
