"""What every rank of a process group does in these tests: checks by name, each against the result of one process.

`run` is the target of the processes, which are forked from a server that has imported torch already.
"""

import faulthandler
import os
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import trigemm
from trigemm import distributed
from trigemm.distributed import gather

TIMEOUT = {"cpu": timedelta(seconds=30), "cuda": timedelta(seconds=180)}
"""How long ranks wait for each other: on a GPU one may still compile what another has compiled."""

LIMIT = {"cpu": 120, "cuda": 400}
"""Seconds for all checks of a group. A rank that is not done by then leaves word of where it is."""

PATIENCE = timedelta(seconds=10)
"""How long ranks wait for one that is dead."""

CHECKS: dict[str, Callable[[DeviceMesh], None]] = {}


def check(function: Callable[[DeviceMesh], None]) -> Callable[[DeviceMesh], None]:
    CHECKS[function.__name__] = function
    return function


def run(rank: int, ranks: int, device: str, folder: str) -> None:
    """Run every check as one rank of a group; leave a file for each, empty or with what went wrong, and one with all seconds."""
    torch.set_num_threads(1)
    stack = Path(folder, f"stack-{rank}").open("w", encoding="utf-8")  # noqa: SIM115, it must stay open
    faulthandler.dump_traceback_later(LIMIT[device], file=stack)
    if device == "cuda":
        torch.cuda.set_device(rank)
        os.environ |= {
            "TORCH_NCCL_BLOCKING_WAIT": "1",
            "NCCL_NVLS_ENABLE": "0",
        }  # a message that fails then raises where it is used
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT[device])
    mesh = init_device_mesh(device, (ranks,))
    for name, function in CHECKS.items():
        torch.manual_seed(len(name))  # the same operands on every rank
        begin = time.monotonic()
        try:
            function(mesh)
            found = ""
        except BaseException:
            found = traceback.format_exc()
        Path(folder, f"{name}-{rank}").write_text(found)
        with Path(folder, f"seconds-{rank}").open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - begin:5.1f} s {name}\n")
        if found:
            os._exit(1)  # the ranks are out of step; the others will see that this one is gone
    os._exit(0)  # without waiting for ranks that are dead


def operands(mesh: DeviceMesh, dtype: torch.dtype, *shapes: Sequence[int]) -> list[Tensor]:
    return [torch.randn(*shape, dtype=torch.float64).to(mesh.device_type, dtype) for shape in shapes]


def compare(
    mesh: DeviceMesh,
    operation: Callable[..., Any],
    tensors: Sequence[Tensor],
    spread: Callable[[Tensor, int], DTensor],
    gather: Callable[[DTensor], Tensor],
) -> list[DTensor]:
    """Results and gradients of an operation on sharded tensors: no more than twice as wrong as those of one process."""
    runs = []
    for kind in ("exact", "alone", "sharded"):
        leaves = [x.double() if kind == "exact" else x.clone() for x in tensors]
        leaves = [x.detach().requires_grad_() for x in leaves]
        given = [spread(x, i) for i, x in enumerate(leaves)] if kind == "sharded" else leaves
        found = operation(distributed if kind == "sharded" else trigemm, *given)
        runs.append((leaves, found if isinstance(found, tuple) else (found,)))
    (exact, wanted), (alone, plain), (leaves, sharded) = runs
    whole = [gather(x) for x in sharded]
    upstream = [
        torch.randn(x.shape, dtype=torch.float64, device=x.device).to(y.dtype) for x, y in zip(wanted, plain, strict=True)
    ]
    for results in (wanted, plain, whole):
        torch.autograd.backward(results, [g.to(x.dtype) for g, x in zip(upstream, results, strict=True)])
    pairs = list(zip(wanted, plain, whole, strict=True))
    pairs += [(x.grad, y.grad, z.grad) for x, y, z in zip(exact, alone, leaves, strict=True)]
    for reference, one, many in pairs:
        assert many.dtype == one.dtype
        close(reference, one, many)
    return list(sharded)


def close(reference: Tensor, one: Tensor, many: Tensor) -> None:
    finite = reference.isfinite()
    assert torch.equal(finite, many.isfinite())
    assert torch.equal(reference[~finite], many[~finite].double())
    if finite.any():
        scale = reference[finite].abs().max().clamp(min=1e-30)
        errors = [((x.double() - reference)[finite].abs().max() / scale).item() for x in (one, many)]
        roundings = 16 if many.dtype == torch.float64 else 2  # in float64 the reference is one process itself
        assert errors[1] <= 2 * errors[0] + roundings * torch.finfo(many.dtype).eps, errors


def over_sequence(mesh: DeviceMesh, *dims: int) -> Callable[[Tensor, int], DTensor]:
    return lambda x, i: distributed.shard_sequence(x, mesh, dims[i])


DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def compare_scores(mesh: DeviceMesh, dtype: torch.dtype, queries: int, keys: int, fill: float) -> None:
    (result,) = compare(
        mesh,
        lambda m, q, k: m.causal_scores(q, k, scale=0.3, fill=fill),
        operands(mesh, dtype, (2, 4, queries, 16), (2, 2, keys, 16)),
        over_sequence(mesh, 2, 2),
        lambda x: distributed.unshard_sequence(x),
    )
    assert result.placements == (Shard(2),)


@check
def scores_of_a_sequence(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    compare_scores(mesh, torch.float64, 8 * ranks, 8 * ranks, -torch.inf)
    compare_scores(mesh, torch.float32, 4 * ranks + 3, 6 * ranks + 1, 0.5)
    compare_scores(mesh, torch.bfloat16, 3, 5, -torch.inf)


@check
def packed_scores_and_their_softmax(mesh: DeviceMesh) -> None:
    (qkv,) = operands(mesh, torch.float32, (2, 4 * mesh.size() + 1, 3, 2, 16))
    compare(
        mesh,
        lambda m, qkv: m.causal_softmax(m.causal_scores_qkvpacked(qkv)),
        (qkv,),
        over_sequence(mesh, 1),
        lambda x: distributed.unshard_sequence(x),
    )


def compare_attention(mesh: DeviceMesh, dtype: torch.dtype, queries: int, keys: int, **asked: Any) -> None:
    results = compare(
        mesh,
        lambda m, *x: m.causal_attention(*x, **asked),
        operands(mesh, dtype, (2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16)),
        over_sequence(mesh, 2, 2, 2),
        lambda x: distributed.unshard_sequence(x),
    )
    assert all(x.placements == (Shard(2),) for x in results)


@check
def attention_of_a_sequence(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    compare_attention(mesh, torch.float64, 8 * ranks, 8 * ranks, return_weights=True, fill=0.5)
    compare_attention(mesh, torch.float32, 4 * ranks + 3, 6 * ranks + 1, return_weights=[3, 1], precision="highest")
    compare_attention(mesh, torch.bfloat16, 32 * ranks, 32 * ranks, return_weights=[2], weights_dtype=torch.float32)
    compare_attention(mesh, torch.bfloat16, 3, 5)


@check
def weights_alone_have_gradients(mesh: DeviceMesh) -> None:
    tensors = operands(mesh, torch.float64, (1, 2, 4 * mesh.size(), 16), *[(1, 1, 4 * mesh.size(), 16)] * 2)
    compare(
        mesh,
        lambda m, *x: m.causal_attention(*x, return_weights=[1])[1],
        [*tensors[:2], tensors[2] * 0],
        over_sequence(mesh, 2, 2, 2),
        lambda x: distributed.unshard_sequence(x),
    )


def compare_syrk(mesh: DeviceMesh, dtype: torch.dtype, rows: int, uplo: str) -> None:
    (result,) = compare(
        mesh,
        lambda m, a, c: m.syrk(a, alpha=2.0, beta=-0.5, c=c, uplo=uplo),
        operands(mesh, dtype, (rows, 24), (rows, rows)),
        over_sequence(mesh, 0, 0),
        lambda x: distributed.unshard_sequence(x),
    )
    assert result.placements == (Shard(0),)


@check
def syrk_of_rows(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    compare_syrk(mesh, torch.float64, 8 * ranks, "full")
    compare_syrk(mesh, torch.float32, 4 * ranks + 3, "full")
    compare_syrk(mesh, torch.float32, 4 * ranks + 3, "lower")
    compare_syrk(mesh, torch.bfloat16, 3, "upper")
    sharded = distributed.shard_sequence(operands(mesh, torch.float32, (2, 3 * ranks, 5))[0], mesh)
    whole = distributed.syrk(sharded, replicate=True)
    assert whole.placements == (Replicate(),)
    plain = distributed.unshard_sequence(sharded)
    torch.testing.assert_close(whole.to_local(), trigemm.syrk(plain))


@check
def large_problems_are_worked_on_in_parts(mesh: DeviceMesh) -> None:
    before, rows = (gather.GROUP_BYTES, gather.PIECE_BYTES, gather.MIRRORED_BYTES), 4 * mesh.size() + 1
    try:
        gather.GROUP_BYTES = 2 * 2 * rows * 16 * 4  # a key head at a time
        gather.PIECE_BYTES = gather.MIRRORED_BYTES = 2 * 24 * 4  # two rows or fewer
        compare_scores(mesh, torch.float32, rows, rows, 0.0)
        compare_attention(mesh, torch.float32, rows, rows, return_weights=[3, 0])
        compare_attention(mesh, torch.float32, rows, rows, return_weights=[3, 0, 2])  # key heads 1 and 0, in this order
        compare_syrk(mesh, torch.float64, 8 * mesh.size(), "full")
        compare_syrk(mesh, torch.float64, 32 * mesh.size(), "full")  # rows come to where the result will be
        compare_syrk(mesh, torch.float32, 8 * mesh.size() + 3, "lower")
    finally:
        gather.GROUP_BYTES, gather.PIECE_BYTES, gather.MIRRORED_BYTES = before


@check
def sequences_come_back(mesh: DeviceMesh) -> None:
    for length in (1, 2 * mesh.size(), 5 * mesh.size() + 2):
        (x,) = operands(mesh, torch.float32, (3, length, 2))
        x.requires_grad_()
        sharded = distributed.shard_sequence(x, mesh, 1)
        order = distributed.sequence_order(length, mesh.size()).to(x.device)
        assert sharded.placements == (Shard(1),)
        assert torch.equal(sharded.full_tensor(), x[:, order])
        back = distributed.unshard_sequence(sharded, 1)
        assert torch.equal(back, x)
        upstream = torch.randn_like(x)
        back.backward(upstream)
        assert torch.equal(x.grad, upstream)


BATCHED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gemmt": (lambda m, a, b: trigemm.gemmt(a, b, diagonal=1), ((5, 4, 7, 6), (5, 4, 6, 9))),
    "trmm": (lambda m, a, b: trigemm.trmm(a, b, side="right", transpose=True), ((5, 4, 9, 6), (5, 4, 7, 6))),
    "syrk": (lambda m, a, c: trigemm.syrk(a, beta=0.5, c=c), ((5, 4, 7, 6), (5, 4, 7, 7))),
    "causal_scores": (lambda m, q, k: trigemm.causal_scores(q, k), ((5, 8, 7, 16), (5, 4, 9, 16))),
    "causal_softmax": (lambda m, x: trigemm.causal_softmax(x), ((5, 4, 7, 9),)),
    "causal_attention": (lambda m, *x: trigemm.causal_attention(*x), ((5, 8, 7, 16), (5, 4, 9, 16), (5, 4, 9, 16))),
    "columns": (
        lambda m, *x: trigemm.causal_attention(*x, return_weights="columns"),
        ((5, 8, 7, 16), (5, 4, 9, 16), (5, 4, 9, 16)),
    ),
    "weights": (lambda m, *x: m.causal_attention(*x, return_weights=True), ((5, 8, 7, 16), (5, 4, 9, 16), (5, 4, 9, 16))),
}


@check
def batch_and_heads_need_no_communication(mesh: DeviceMesh) -> None:
    for dim in (0, 1):
        for operation, shapes in BATCHED.values():
            tensors = operands(mesh, torch.float64, *shapes)
            results = compare(
                mesh,
                operation,
                tensors,
                lambda x, i, dim=dim: DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(dim)]),
                lambda x: x.full_tensor(),
            )
            assert all(x.placements == (Shard(dim),) for x in results)
            leaves = [distribute_tensor(x, mesh, [Shard(dim)]).requires_grad_() for x in tensors]
            with CommDebugMode() as communication:
                found = operation(distributed, *leaves)
                sum((x.to_local().sum() for x in (found if isinstance(found, tuple) else (found,))), torch.zeros(())).backward()
            assert not communication.get_comm_counts()
            assert all(x.grad.placements == (Shard(dim),) for x in leaves)


@check
def packed_projections_are_sharded_by_heads(mesh: DeviceMesh) -> None:
    (qkv,) = operands(mesh, torch.float64, (2, 5, 3, 4, 16))
    (result,) = compare(
        mesh,
        lambda m, qkv: trigemm.causal_scores_qkvpacked(qkv),
        (qkv,),
        lambda x, i: DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(3)]),
        lambda x: x.full_tensor(),
    )
    assert result.placements == (Shard(1),)


@check
def listed_weights_and_masks_are_sharded_by_batch(mesh: DeviceMesh) -> None:
    q, k, v = operands(mesh, torch.float64, (4, 4, 7, 16), (4, 2, 9, 16), (4, 2, 9, 16))
    lengths = torch.tensor([9, 3, 7, 4], device=q.device)
    spread = [distribute_tensor(x, mesh, [Shard(0)]) for x in (q, k, v, lengths)]
    found = trigemm.causal_attention(*spread[:3], return_weights=[2, 0], key_lengths=spread[3])
    wanted = trigemm.causal_attention(q, k, v, return_weights=[2, 0], key_lengths=lengths)
    for x, y in zip(found, wanted, strict=True):
        assert x.placements == (Shard(0),)
        torch.testing.assert_close(x.full_tensor(), y)


@check
def a_mesh_of_two_dimensions(mesh: DeviceMesh) -> None:
    if mesh.size() != 4:
        return
    grid = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("data", "sequence"))
    tensors = operands(grid, torch.float64, (3, 4, 11, 16), (3, 2, 13, 16), (3, 2, 13, 16))
    for dim in (0, 1):

        def spread(x: Tensor, _: int, dim: int = dim) -> DTensor:
            whole = DTensor.from_local(x, grid, [Replicate()] * 2)
            sharded = whole.redistribute(placements=[Shard(dim), Replicate()])
            return distributed.shard_sequence(sharded, dim=2, mesh_dim="sequence")

        results = compare(
            grid,
            lambda m, *x: m.causal_attention(*x, return_weights=True),
            tensors,
            spread,
            lambda x: distributed.unshard_sequence(x),
        )
        assert all(x.placements == (Shard(dim), Shard(2)) for x in results)


@check
def sums_that_are_pending_stay_so(mesh: DeviceMesh) -> None:
    a, b = operands(mesh, torch.float64, (4, 3), (3, 5))
    pending = DTensor.from_local(a / mesh.size(), mesh, [Partial()])
    whole = DTensor.from_local(b, mesh, [Replicate()])
    for operation in (trigemm.gemmt, trigemm.trmm):
        result = operation(pending, whole)
        assert result.placements == (Partial(),)
        torch.testing.assert_close(result.full_tensor(), operation(a, b))


@check
def other_placements_are_refused(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    q, x = operands(mesh, torch.float32, (2 * ranks, 2 * ranks, 4 * ranks, 16), (ranks, 4 * ranks, 4 * ranks))
    by_rows, by_batch, by_heads, whole = (distribute_tensor(q, mesh, [p]) for p in (Shard(2), Shard(0), Shard(1), Replicate()))
    refused(
        lambda: trigemm.gemmt(by_rows, by_rows.mT), "gemmt: operands must be replicated, or sharded alike over a batch dimension"
    )
    refused(lambda: trigemm.causal_attention(by_rows, by_rows, by_rows), "causal_attention: .* functions of trigemm.distributed")
    square = distribute_tensor(x, mesh, [Shard(0)])
    refused(lambda: trigemm.gemmt(square, square, out=square), "out= does not work with DTensors")
    refused(lambda: distributed.causal_scores(by_rows, whole), "all alike.* got q .*Shard.* k .*Replicate")
    refused(lambda: distributed.causal_scores(by_rows, q), "k .*not a DTensor")
    refused(lambda: distributed.causal_attention(by_heads, by_heads, by_heads, return_weights=[1]), "or sharded alike")
    for option in ({"window": 3}, {"window": 1}, {"softcap": 1.0}, {"key_lengths": torch.tensor([3, 4])}):
        words = f"{next(iter(option))} works only where the sequence is not sharded"
        refused(lambda: distributed.causal_attention(*[by_rows] * 3, **option), words)  # noqa: B023
    refused(lambda: distributed.causal_attention(*[by_rows] * 3, return_weights="columns"), "columns.* works only where")
    for wrong in ("low", ["high"]):
        refused(lambda wrong=wrong: distributed.causal_scores(by_rows, by_rows, precision=wrong), "must be one of", ValueError)
    refused(lambda: distributed.syrk(square, replicate=True), "replicate is for", ValueError)
    refused(lambda: distributed.unshard_sequence(by_batch, 2), "must be sharded over dimension 2", ValueError)
    refused(lambda: distributed.shard_sequence(by_rows, dim=2), "must be replicated", ValueError)
    refused(lambda: distributed.shard_sequence(q, mesh, 4), "dim must be a dimension of x", ValueError)
    refused(lambda: distributed.shard_sequence(q, mesh, mesh_dim="x"), "mesh_dim must name one", ValueError)
    refused(lambda: distributed.shard_sequence(q), "needs a mesh", TypeError)
    if ranks > 1:
        refused(lambda: trigemm.gemmt(*[distribute_tensor(x[:1], mesh, [Shard(0)])] * 2), "no fewer entries than ranks")
        few = distribute_tensor(q[:, :1], mesh, [Shard(1)])
        refused(lambda: distributed.causal_attention(by_heads, few, few, return_weights=True), "do not divide the sizes")


def refused(call: Callable[[], Any], match: str, kind: type[Exception] = NotImplementedError) -> None:
    with pytest.raises(kind, match=match):
        call()


@check
def a_rank_that_does_not_answer_stops_the_others(mesh: DeviceMesh) -> None:
    ranks = mesh.size()
    if ranks == 1 or mesh.device_type == "cuda":
        return
    impatient = DeviceMesh.from_group(dist.new_group(timeout=timedelta(seconds=1)), mesh.device_type)
    (a,) = operands(mesh, torch.float32, (8 * ranks, 3))
    if mesh.get_rank() < ranks - 1:
        rows = distributed.shard_sequence(a, impatient)
        refused(lambda: distributed.syrk(rows), "syrk: rank . of . lost touch with rank .*timeout", RuntimeError)
    dist.barrier()


@check
def a_rank_that_dies_stops_the_others(mesh: DeviceMesh) -> None:
    """The last check: the last rank is gone after it."""
    ranks = mesh.size()
    if ranks == 1:
        return
    impatient = DeviceMesh.from_group(dist.new_group(timeout=PATIENCE), mesh.device_type)
    q = distributed.shard_sequence(operands(mesh, torch.float32, (1, 2, 8 * ranks, 16))[0], impatient, 2)
    dist.barrier(impatient.get_group())
    if mesh.get_rank() == ranks - 1:
        os._exit(17)
    begin = time.monotonic()
    refused(
        lambda: distributed.causal_attention(q, q, q),
        "causal_attention: rank . of . lost touch with rank .*timeout",
        RuntimeError,
    )
    assert time.monotonic() - begin < 2 * PATIENCE.total_seconds()
