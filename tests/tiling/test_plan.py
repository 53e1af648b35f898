"""Plans: what candidates need, what bounds them, and how the pick moves with the sizes."""

from dataclasses import replace
from math import isinf

import pytest
import torch

from trigemm.tiling import known, plan, predicted_traffic
from trigemm.tiling.plan import launch_options

H200 = known("h200")


def test_the_pick_is_the_fastest_and_all_fit():
    found = plan(4096, 2048, 1024)
    times = [candidate.predicted_ms for candidate in found.candidates]
    assert found.pick is found.candidates[0]
    assert times == sorted(times)
    assert len({candidate.block for candidate in found.candidates}) == len(times) > 20
    for candidate in found.candidates:
        assert candidate.traffic == predicted_traffic(4096, 2048, 1024, *candidate.block, itemsize=2)
        assert candidate.shared_bytes * candidate.per_sm <= H200.shared_per_sm
        assert candidate.registers * 32 * candidate.num_warps * candidate.per_sm <= H200.registers_per_sm
        assert candidate.waves == pytest.approx(candidate.traffic.tiles / (132 * candidate.per_sm))


def test_a_candidate_in_figures():
    (candidate,) = plan(1024, 512, 256, "bfloat16", blocks=[(128, 64, 32)]).candidates
    assert (candidate.traffic.tiles, candidate.traffic.loads) == (64, 1024 * 256 * 8 + 256 * 512 * 8)
    assert candidate.reuse == pytest.approx(128 * 64 / (128 + 64))  # of a whole tile: BM BN / (BM + BN)
    moved = 2 * (candidate.traffic.loads + 1024 * 512)
    assert candidate.intensity == pytest.approx(2 * 1024 * 512 * 256 / moved)
    assert candidate.shared_bytes == candidate.num_stages * (128 + 64) * 32 * 2


def test_smaller_blocks_load_more_and_make_more_tiles():
    candidates = plan(2048, 2048, 512, blocks=[(edge, edge, 64) for edge in (128, 64, 32)]).candidates
    by_edge = sorted(candidates, key=lambda candidate: candidate.block)
    loads = [candidate.traffic.loads for candidate in by_edge]
    tiles = [candidate.traffic.tiles for candidate in by_edge]
    assert loads == sorted(loads, reverse=True)
    assert tiles == sorted(tiles, reverse=True)
    assert loads[0] == 4 * loads[2]


def test_a_small_product_gets_smaller_tiles_than_a_large_one():
    def area(found):
        return found.pick.block[0] * found.pick.block[1]

    small, large = plan(512, 512, 2048), plan(8192, 8192, 2048)
    assert area(small) < area(large)
    assert small.pick.traffic.tiles > plan(512, 512, 2048, blocks=[large.pick.block]).pick.traffic.tiles


def test_what_bounds_a_product():
    assert plan(8192, 8192, 8192).pick.bound == "tensor cores"
    assert plan(16384, 16384, 16, "float16").pick.bound == "memory"
    assert plan(64, 64, 8192, blocks=[(64, 64, 32)]).pick.bound == "latency"
    assert plan(4096, 4096, 4096, blocks=[(32, 32, 32)]).pick.bound == "L2 cache"


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (8192, 8192, 64)])
def test_no_prediction_is_below_the_ceilings(sizes):
    m, n, k = sizes
    for candidate in plan(*sizes).candidates:
        seconds = candidate.predicted_ms / 1e3
        assert 2 * m * n * k / seconds <= 1e12 * H200.tensor_tflops
        assert 2 * (m * k + k * n + m * n) / seconds <= 1e9 * H200.memory_gbps


def test_a_slower_device_takes_longer():
    half = replace(H200, tensor_tflops=H200.tensor_tflops / 2, memory_gbps=H200.memory_gbps / 2)
    assert plan(4096, 4096, 4096, device=half).pick.predicted_ms > 1.8 * plan(4096, 4096, 4096).pick.predicted_ms


def test_a_triangle_counts_live_tiles_alone():
    whole, half = plan(4096, 4096, 512), plan(4096, 4096, 512, diagonal=0)
    assert all(candidate.block[0] % candidate.block[1] == 0 for candidate in half.candidates)
    block = (128, 128, 64)
    (dense,) = plan(4096, 4096, 512, blocks=[block]).candidates
    (live,) = plan(4096, 4096, 512, blocks=[block], diagonal=0).candidates
    assert (dense.traffic.tiles, live.traffic.tiles) == (32 * 32, 32 * 33 // 2)
    assert half.pick.predicted_ms < 0.75 * whole.pick.predicted_ms


@pytest.mark.parametrize("dtype", ["float16", torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", ["h200", "h100", "a100", "l40s"])
def test_there_is_a_pick_on_every_device_in_every_dtype(device, dtype):
    pick = plan(777, 555, 333, dtype, device).pick
    assert pick.per_sm > 0
    assert pick.traffic.stores == 777 * 555


def test_a_tile_that_does_not_fit_is_listed_without_a_time():
    found = plan(1024, 1024, 1024, blocks=[(512, 512, 64), (128, 128, 64), (128, 128, 64)])
    fits, too_large = found.candidates
    assert fits.block == found.pick.block == (128, 128, 64)
    assert (too_large.per_sm, isinf(too_large.predicted_ms)) == (0, True)
    assert "512 x 512 x 64 loads" in found.reason
    assert "a multiprocessor cannot hold it" in found.reason
    alone = plan(1024, 1024, 1024, blocks=[(512, 512, 64)])
    assert alone.pick.traffic.loads == 2 * 2 * 1024 * 1024
    assert "holds none of these" in alone.reason


def test_the_reason_weighs_the_pick_against_its_neighbours():
    found = plan(1024, 1024, 1024)
    assert found.reason.startswith("{} x {} x {}: ".format(*found.pick.block))
    assert "times less, but makes" in found.reason
    assert "times as much" in found.reason


def test_a_tile_keeps_its_accumulator_in_registers():
    assert launch_options((128, 128, 64), "bfloat16", H200) == (4, 3)
    assert launch_options((128, 256, 64), "bfloat16", H200) == (8, 4)
    assert launch_options((128, 128, 32), "float32", H200)[0] == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((4, 5, 6, "float64"), "dtype must be one of float16, bfloat16, float32; got float64"),
        ((4, 0, 6), "sizes must be positive; got M, N, K = 4, 0, 6"),
        ((4, 5, 6, "float32", "h300"), "no device 'h300'"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        plan(*arguments)
