"""The ladder's rungs: sampling counts what tracing every block counts, closed forms are right, and no rung has a fault."""

import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from trigemm.lab.traffic import ladder

SMALL = {"B": 1, "T": 256, "NH": 2, "HS": 32}
ODD = {"B": 2, "T": 128, "NH": 1, "HS": 32}
RUNGS = [spec for spec in ladder.rungs() if ladder.is_thread_level(spec)]


def test_the_ladder_has_its_thread_level_rungs():
    assert [spec.name for spec in RUNGS][:4] == ["naive", "registers", "vectorized", "shared"]
    assert [spec.name for spec in ladder.rungs()][-1] == "tiles"


@pytest.mark.parametrize("spec", RUNGS, ids=lambda spec: spec.name)
def test_sampled_totals_equal_those_of_every_block(spec):
    shape = SMALL if spec.name in ("registers", "shared") else ODD
    sampled = ladder.trace_rung(spec, shape)
    every = ladder.trace_rung(spec, shape, every_block=True)
    assert sampled.traced < every.traced == every.blocks == sampled.blocks
    assert sampled.rows == every.rows
    assert sampled.barriers == every.barriers
    assert every.findings == []
    assert ladder.differences(spec, shape, every) == {}


@pytest.mark.parametrize("name", ["registers", "shared"])
def test_predictions_hold_at_another_size(name):
    (spec,) = ladder.chosen([name])
    shape = {"B": 3, "T": 384, "NH": 5, "HS": 64}
    assert ladder.differences(spec, shape, ladder.trace_rung(spec, shape)) == {}


def test_what_a_rung_saves_is_named():
    naive, registers = (ladder.trace_rung(spec, ODD) for spec in ladder.chosen(["naive", "2"]))
    saved = ladder.savings(naive, registers)
    assert saved == {"load_requests": 8.0, "load_sectors": pytest.approx(8, rel=0.1)}


def test_blocks_differ_in_kind_by_their_place_and_alignment():
    kind = ladder.block_kind(T=256, NH=3, HS=32)
    assert kind(1, 0, 0) == "above" == kind(1, 0, 5)
    assert kind(0, 0, 0) == kind(1, 1, 4) != kind(0, 1, 0)
    assert len({ladder.block_kind(T=256, NH=3, HS=4)(0, 0, head) for head in range(3)}) == 3
