"""The ladder's rungs: sampling counts what tracing every block counts, closed forms are right, and no rung has a fault."""

import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from trigemm.lab.traffic import ladder

SMALL = {"B": 1, "T": 256, "NH": 2, "HS": 32}
ODD = {"B": 2, "T": 128, "NH": 1, "HS": 32}
RUNGS = ladder.rungs()


def test_the_ladder_has_its_thread_level_rungs():
    assert [spec.name for spec in RUNGS][:4] == ["naive", "registers", "vectorized", "shared"]


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


@pytest.mark.parametrize("spec", RUNGS, ids=lambda spec: spec.name)
def test_predictions_hold_at_another_depth(spec):
    shape = {"B": 3, "T": 384, "NH": 5, "HS": 64 if spec.name == "shared" else 32}
    assert ladder.differences(spec, shape, ladder.trace_rung(spec, shape)) == {}


def test_blocks_differ_in_kind_by_their_place_and_alignment():
    kind = ladder.block_kind(T=256, NH=3, HS=32)
    assert kind(1, 0, 0) == "above" == kind(1, 0, 5)
    assert kind(0, 0, 0) == kind(1, 1, 4) != kind(0, 1, 0)
    assert len({ladder.block_kind(T=256, NH=3, HS=4)(0, 0, head) for head in range(3)}) == 3
