"""Sharding rules: what torch's DTensor needs to know to run the operations on each rank's part of a batch.

Every operation works on each matrix of a batch by itself. So operands that are sharded alike over a batch dimension (heads are
one) give a result that is sharded alike, without communication; and so do the derivatives, which are made of the same operations.
The rules say that, and refuse every other placement: DTensor would gather, unasked, what it has no rule for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Row = list[Placement]


def register() -> None:
    """Register the rules of all operations with DTensor."""
    for name in ("gemmt", "trmm", "syrk", "causal_softmax", "causal_softmax_backward"):
        packet = getattr(torch.ops.trigemm, name)
        register_sharding(packet.default)(_rule(name))
        if "out" in packet.overloads():
            register_sharding(packet.out)(_refusal_of_out(name))
    for operation in (torch.ops.trigemm.causal_attention.default, torch.ops.trigemm.causal_attention_backward.default):
        register_sharding(operation)(_attention_rule(operation))


def _rule(name: str) -> Callable[..., list[tuple[Row, list[Placement | None]]]]:
    def rule(*arguments: Any) -> list[tuple[Row, list[Placement | None]]]:
        operands = [x for x in arguments if hasattr(x, "placements")]
        rows = _rows(operands, linear=name == "trmm" or (name == "gemmt" and not arguments[5]))
        for dim in range(operands[0].mesh.ndim):
            if not any(_fits(operands, row, dim) for row in rows):
                raise NotImplementedError(_unsupported(name, operands, max(x.ndim for x in operands) - 2))
        return [(row[:1], _spread(row[1:], arguments)) for row in rows]

    return rule


def _rows(operands: list[Any], *, linear: bool) -> list[Row]:
    """The placements, on one dimension of the mesh, of the result and the operands that need no communication."""
    rank = max(x.ndim for x in operands)
    replicated: Row = [Replicate() for _ in range(len(operands) + 1)]
    rows = [replicated]
    for dim in range(rank - 2):
        own = [dim - rank + x.ndim for x in operands]
        shards = [Shard(d) if d >= 0 and x.shape[d] > 1 else Replicate() for x, d in zip(operands, own, strict=True)]
        rows.append([Shard(dim), *shards])
    if linear:  # in each operand: a sum that is still to be made may be made later
        rows += [[Partial(), *[Partial() if x is y else Replicate() for x in operands]] for y in operands]
    return rows


def _fits(operands: list[Any], row: Row, dim: int) -> bool:
    """Whether the operands have the placements of a row on a dimension of the mesh, or come to them by slicing alone."""
    ranks = operands[0].mesh.size(dim)
    for x, wanted in zip(operands, row[1:], strict=True):
        given = x.placements[dim]
        if given != wanted and not (given.is_replicate() and wanted.is_shard()):
            return False
        if isinstance(wanted, Shard) and x.shape[wanted.dim] < ranks:
            return False
    return True


def _attention_rule(operation: torch._ops.OpOverload) -> Callable[..., list[tuple[Row, list[Placement | None]]]]:
    """Attention is sharded over the batch or the heads. Listed heads are numbered over all of them, so those must be whole."""
    schema = operation._schema
    results = ("output", "weights", "sums", "stats") if len(schema.returns) == 4 else ("q", "k", "v")

    def place(name: str, dim: int, there: bool) -> Placement:
        without_heads = name in ("key_lengths", "key_mask", "weights", "d_weights")
        return Replicate() if not there or (dim == 1 and without_heads) else Shard(dim + (name == "stats"))

    def rule(*arguments: Any) -> list[tuple[Row, list[Placement | None]]]:
        given = dict(zip((argument.name for argument in schema.arguments), arguments, strict=True))
        operands = {name: x for name, x in given.items() if hasattr(x, "placements")}
        q, k = operands["q"], operands["k"]
        keeps = "stats" not in results or (q.mesh.device_type == "cuda" and q.tensor_meta.dtype != torch.float64)
        there = {"stats": keeps, "sums": bool(given.get("sums"))}
        rows: list[Row] = [[Replicate() for _ in (*results, *operands)]]
        for dim in (0,) if given["heads"] else (0, 1):
            sharded: Row = [place(name, dim, there.get(name, True)) for name in results]
            rows.append(sharded + [place(name, dim, x.shape.numel() > 0) for name, x in operands.items()])
        for dim in range(q.mesh.ndim):
            shared = q.placements[dim].is_shard(1) and q.shape[1] != k.shape[1]
            if shared and (q.shape[1] % q.mesh.size(dim) or k.shape[1] % q.mesh.size(dim)):
                raise NotImplementedError(
                    f"causal_attention: {q.mesh.size(dim)} ranks do not divide {q.shape[1]} and {k.shape[1]} heads"
                )
            if not any(_fits(list(operands.values()), row[len(results) - 1 :], dim) for row in rows):
                raise NotImplementedError(_unsupported("causal_attention", list(operands.values()), 1 if given["heads"] else 2))
        return [(row[: len(results)], _spread(row[len(results) :], arguments)) for row in rows]

    return rule


def _spread(placements: Row, arguments: tuple[Any, ...]) -> list[Placement | None]:
    """One entry an argument: the placement of an operand, None for a parameter."""
    left = iter(placements)
    return [next(left) if hasattr(x, "placements") else None for x in arguments]


def _unsupported(name: str, operands: list[Any], batch: int) -> str:
    given = "; ".join(f"{tuple(x.shape)} {list(x.placements)}" for x in operands)
    dims = "no dimension (there is no batch)" if batch <= 0 else " or ".join(str(d) for d in range(batch))
    return (
        f"{name}: operands must be replicated, or sharded alike over a batch dimension with no fewer entries than ranks, here "
        f"{dims}; got {given}. x.redistribute(placements=...) changes placements; rows of a sequence or of one large matrix are "
        "shared out by the functions of trigemm.distributed"
    )


def _refusal_of_out(name: str) -> Callable[..., Any]:
    def rule(*arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{name}: out= does not work with DTensors; leave it away")

    return rule
