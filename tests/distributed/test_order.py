"""Results do not depend on which lane is faster: whatever a GPU may do before something else, it does here at some time."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from trigemm import causal_attention, causal_scores
from trigemm.distributed import attention, gather, scores
from trigemm.distributed.split import rank_rows
from trigemm.kernels.catalogue import serving

sys.path.insert(0, str(Path(__file__).parent))

from deferred import Lanes, Peers, Simulation

syrk = import_module("trigemm.distributed.syrk")


@pytest.fixture(autouse=True)
def small_pieces_and_no_memory_that_happens_to_be_right(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(syrk, "TILE", 4)
    torch.use_deterministic_algorithms(True)  # new memory is NaN
    yield
    torch.use_deterministic_algorithms(False)


def rows_of(x: Tensor, ranks: int, rank: int, dim: int) -> Tensor:
    return torch.cat([x.narrow(dim, rows.start, len(rows)) for rows in rank_rows(x.shape[dim], ranks, rank)], dim)


def ordered_by_chance(
    monkeypatch: pytest.MonkeyPatch, ranks: int, seed: int, call: Callable[[Peers, int], Tensor], length: int
) -> Tensor:
    """What a call gives all ranks, put together along dimension -2 in the order of the sequence."""
    simulation = Simulation()
    with monkeypatch.context() as patch:
        patch.setattr(attention, "serving", lambda *which: SimpleNamespace(run=simulation.later(serving(*which).run)))
        for module in (attention, scores, syrk, gather):
            for name in ("gemmt_write", "syrk_write", "copy", "copy_transposed", "fill_beyond", "put"):
                if callable(getattr(module, name, None)):
                    patch.setattr(module, name, simulation.later(getattr(module, name)))
            if hasattr(module, "Lanes"):
                patch.setattr(module, "Lanes", lambda device, *priorities: Lanes(simulation, len(priorities)))
        found = []
        for rank in range(ranks):
            simulation.current = [simulation.queue()]
            found.append(call(Peers(simulation, rank, ranks), rank))
    simulation.run(seed)
    assert not simulation.posted
    order = torch.tensor([row for rank in range(ranks) for rows in rank_rows(length, ranks, rank) for row in rows])
    return torch.cat(found, -2).index_select(-2, order.argsort())


@pytest.mark.parametrize("uplo", ["full", "lower"])
@pytest.mark.parametrize(("ranks", "rows", "depth"), [(2, 64, 24), (2, 63, 24), (3, 60, 17), (4, 64, 100), (5, 41, 9)])
@pytest.mark.parametrize("piece", [8, 2**20])
def test_syrk(monkeypatch: pytest.MonkeyPatch, ranks: int, rows: int, depth: int, uplo: str, piece: int) -> None:
    monkeypatch.setattr(gather, "PIECE_BYTES", piece)
    monkeypatch.setattr(gather, "MIRRORED_BYTES", 8 * piece)
    a = torch.randn(1, rows, depth, dtype=torch.float64)
    wanted = a @ a.mT if uplo == "full" else (a @ a.mT).tril()
    for seed in range(8):
        found = ordered_by_chance(
            monkeypatch,
            ranks,
            seed,
            lambda peers, rank: syrk.SequenceSyrk.apply(rows_of(a, ranks, rank, 1), peers, rows, 1.0, uplo, None),
            rows,
        )
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("group", [1, 2**20])
def test_scores(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    monkeypatch.setattr(gather, "GROUP_BYTES", group)
    ranks, length = 3, 21
    q, k = (torch.randn(2, heads, length, 8, dtype=torch.float64) for heads in (6, 3))
    for seed in range(8):
        found = ordered_by_chance(
            monkeypatch,
            ranks,
            seed,
            lambda peers, rank: scores.SequenceScores.apply(
                *(rows_of(x, ranks, rank, 2) for x in (q, k)), peers, length, length, 8**-0.5, -torch.inf, None
            ),
            length,
        )
        torch.testing.assert_close(found, causal_scores(q, k))


@pytest.mark.parametrize("group", [1, 2**20])
@pytest.mark.parametrize("listed", [(), (1, 0), (5, 0, 4)])
def test_attention(monkeypatch: pytest.MonkeyPatch, group: int, listed: tuple[int, ...]) -> None:
    monkeypatch.setattr(gather, "GROUP_BYTES", group)
    ranks, length = 3, 21
    q, k, v = (torch.randn(2, heads, length, 8, dtype=torch.float64) for heads in (6, 3, 3))
    wanted = causal_attention(q, k, v, return_weights=list(listed))
    for result in (0, 1):
        for seed in range(8):
            found = ordered_by_chance(
                monkeypatch,
                ranks,
                seed,
                lambda peers, rank, result=result: attention.SequenceAttention.apply(
                    *(rows_of(x, ranks, rank, 2) for x in (q, k, v)),
                    *(peers, length, length, 8**-0.5, listed, q.dtype, 0.0, None),
                )[result],
                length,
            )
            torch.testing.assert_close(found, wanted[result])


@pytest.mark.parametrize(("ranks", "rows"), [(2, 512), (4, 256), (8, 128)])
def test_a_square_matrix_needs_no_memory_for_the_rows_that_come(ranks: int, rows: int) -> None:
    """They lie in the rows of the result that are written last, and the products kept aside in its corner."""
    simulation = Simulation()
    simulation.current = [simulation.queue()]
    length = ranks * rows
    for rank in range(ranks):
        a, out = torch.empty(1, rows, length), torch.empty(1, rows, length)
        share = syrk.Share(gather.Dealt(Peers(simulation, rank, ranks), length), a, out, 1.0, None)
        assert share._place_aside().untyped_storage().data_ptr() == out.data_ptr()
        assert share._fetched_rows() == rows // 4
        for of in syrk.rounds(length, ranks, rank, rows // 4):
            share._fetch(of)
        assert {x.untyped_storage().data_ptr() for x in share._landed.values()} == {out.data_ptr()}
