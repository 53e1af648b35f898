"""The benchmark's order of business: verified first, then timed; a wrong kernel gets no time."""

import dataclasses
import math

import pytest
import torch

from trigemm.kernels import baseline
from trigemm.kernels.catalogue import LADDER
from trigemm.lab import bench, records
from trigemm.lab.problem import Problem, Shape
from trigemm.lab.timing import Ceilings, Timing, Timings
from trigemm.lab.workloads import Contender

PROBLEM = Problem(LADDER, Shape(B=2, T=40, NH=2, HS=8))
TIMES = {"baseline": 8.0, "baseline_alone": 5.0, "baseline_numpy": 6.0}


@pytest.fixture
def clock(monkeypatch):
    """Scripted times instead of measured ones; the calls of each run are kept."""
    seen = []

    def scripted(calls, *, repeats, **options):
        seen.append({"names": list(calls), "repeats": repeats, **options})
        for call in calls.values():
            call()
        times = [TIMES.get(name, 2.0) for name in calls]
        return Timings({name: Timing(ms, ms / 2, ms * 2, (ms,) * repeats) for name, ms in zip(calls, times, strict=True)})

    monkeypatch.setattr(bench, "interleaved", scripted)
    monkeypatch.setattr(bench, "ceilings", lambda *_: Ceilings(copy_gbps=10.0, fill_gbps=8.0, read_gbps=9.0, gemm_tflops=0.1))
    return seen


def with_kernel(monkeypatch, call, **fields):
    """All contenders and one more, number 9, that writes what `call` writes."""
    known = bench.contenders

    def more(work):
        contender = Contender("nine", "ours", lambda out: call(work, out), "highest", number=9)
        return [*known(work), dataclasses.replace(contender, **fields)]

    monkeypatch.setattr(bench, "contenders", more)


def right(work, out):
    whole = torch.empty_like(out)
    baseline.product(work.left, work.right, whole, alpha=work.alpha, precision="highest")
    out.copy_(torch.where(torch.ones_like(out, dtype=torch.bool).tril(), whole, out))


def wrong(work, out):
    right(work, out)
    out[-1, -1, 3, 2] += 1


def by_name(outcome):
    return {record["kernel"]: record for record in outcome.records}


def test_a_right_kernel_gets_a_time_and_a_record_with_all_fields(clock, monkeypatch):
    with_kernel(monkeypatch, right, executed_flops=77)
    outcome = bench.run(PROBLEM, kernels=["nine"], repeats=3)
    record = by_name(outcome)["nine"]
    assert records.complaint(record) is None
    assert record["verdict"] == "pass"
    assert 0 <= record["error_over_budget"] <= 1
    assert (record["median_ms"], record["p20_ms"], record["p80_ms"], record["repeats"]) == (2.0, 1.0, 4.0, 3)
    assert (record["baseline_ms"], record["speedup"], record["alone_ms"]) == (8.0, 4.0, 5.0)
    # The fastest full product: the baseline's product alone.
    assert (record["blas_ms"], record["speedup_blas"]) == (5.0, 2.5)
    flops, size = 4 * (40 * 41 // 2) * 2 * 8, 4 * (2 * 40 * 8 + 40 * 41 // 2) * 4
    assert record["flops_floor_ms"] == pytest.approx(flops / 0.1e12 * 1e3)
    assert record["bytes_floor_ms"] == pytest.approx(size / 10e9 * 1e3)
    assert record["floor_ms"] == max(record["flops_floor_ms"], record["bytes_floor_ms"])
    assert record["floor_share"] == pytest.approx(record["floor_ms"] / 2.0)
    assert record["useful_tflops"] == pytest.approx(flops / 2e-3 / 1e12)
    assert record["gbps"] == pytest.approx(size / 2e-3 / 1e9)
    assert record["executed_flops"] == 77
    assert record["ceilings"]["gemm_tflops"] == 0.1
    assert not outcome.failed
    assert outcome.fastest(["nine"]) is record


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (wrong, "(1, 1, 3, 2)"),
        (lambda work, out: (right(work, out), out[0, 0, 0].fill_(math.nan)), "nan"),
        (lambda work, out: (right(work, out), out[0, 0, 0, 1].zero_()), "outside the triangle"),
        (lambda work, out: (right(work, out), work.operands[0].zero_()), "operand"),
        (lambda work, out: int("no"), "raised ValueError"),
    ],
)
def test_a_wrong_kernel_gets_no_time(clock, monkeypatch, call, reason):
    with_kernel(monkeypatch, call)
    kept = []
    outcome = bench.run(PROBLEM, repeats=1, on_record=kept.append)
    record = by_name(outcome)["nine"]
    assert record["verdict"] == "fail"
    assert [record[name] for name in ("median_ms", "p20_ms", "p80_ms", "speedup", "floor_share", "gbps")] == [None] * 6
    assert records.complaint(record) is None
    assert outcome.failed
    assert kept[0] is record  # at once: before anything is timed
    assert "nine" not in clock[0]["names"]
    assert "strips" in clock[0]["names"]
    assert reason in outcome.reasons["nine"]


def test_a_kernel_that_failed_is_not_the_fastest(clock, monkeypatch):
    with_kernel(monkeypatch, wrong)
    outcome = bench.run(PROBLEM, kernels=["9"], repeats=1)
    assert outcome.fastest(["9"]) is None
    assert outcome.fastest([]) is None


def test_the_fastest_is_among_the_chosen_or_all_but_the_baselines(clock):
    outcome = bench.run(PROBLEM, repeats=1)
    assert outcome.fastest([])["kernel"] == "strips"
    assert outcome.fastest(["0"])["kernel"] == "baseline"
    assert outcome.fastest(["baseline", "baseline_numpy"])["kernel"] == "baseline_numpy"


def test_kernels_that_cannot_are_listed_and_skipped(clock):
    outcome = bench.run(PROBLEM, repeats=1)
    assert outcome.refused["tiles"] == "it runs on cuda, not on cpu"
    assert "tiles" not in by_name(outcome)


def test_a_kernel_that_cannot_is_an_error_when_asked_for(clock):
    with pytest.raises(ValueError, match="kernel tiles cannot take this problem: it runs on cuda, not on cpu"):
        bench.run(PROBLEM, kernels=["tiles"], repeats=1)


def test_a_kernel_that_is_not_there_is_an_error_with_those_that_are(clock):
    with pytest.raises(ValueError, match=r"there is no kernel '42'; there are 0 baseline, baseline_alone, .*7 strips"):
        bench.run(PROBLEM, kernels=["42"], repeats=1)


def test_the_baselines_are_always_timed(clock):
    bench.run(PROBLEM, kernels=["7"], repeats=1)
    assert clock[0]["names"] == ["baseline", "baseline_alone", "baseline_numpy", "strips"]


def test_repeats_are_exact_if_given_and_limited_by_time_if_not(clock):
    bench.run(PROBLEM, kernels=["0"], repeats=7)
    bench.run(PROBLEM, kernels=["0"], cold=False)
    given, default = clock
    assert (given["repeats"], given["seconds"], given["cold"]) == (7, None, True)
    assert (default["repeats"], default["seconds"], default["cold"]) == (100, bench.CPU_SECONDS, False)


def test_an_interruption_keeps_the_records_of_what_was_timed(clock, monkeypatch):
    def cut_short(calls, **_):
        timings = Timings({"baseline": Timing.of([3.0]), "baseline_alone": Timing.of([2.0])})
        timings.interrupted = True
        return timings

    monkeypatch.setattr(bench, "interleaved", cut_short)
    kept = []
    outcome = bench.run(PROBLEM, repeats=5, on_record=kept.append)
    assert outcome.interrupted
    assert [record["kernel"] for record in kept] == ["baseline", "baseline_alone"]
    assert kept[0]["repeats"] == 1


@pytest.mark.parametrize(("operation", "fill"), [("gemmt", 0.0), ("syrk", None), ("trmm", None), ("causal_scores", -math.inf)])
def test_the_public_operations_are_verified_and_timed(clock, operation, fill):
    outcome = bench.run(Problem(operation, Shape(B=1, T=33, NH=2, HS=7), fill=fill), repeats=1)
    assert [record["kernel"] for record in outcome.records] == ["baseline", "baseline_numpy", "trigemm"]
    assert {record["verdict"] for record in outcome.records} == {"pass"}
    assert outcome.fastest([])["speedup"] == 4.0


def test_everything_is_measured_for_real_once(monkeypatch):
    from trigemm.lab import timing

    monkeypatch.setattr(timing, "_last_level_cache", lambda: 2**20)
    stages = []
    outcome = bench.run(PROBLEM, repeats=2, on_progress=lambda stage, done, total: stages.append((stage, done, total)))
    assert {record["verdict"] for record in outcome.records} == {"pass"}
    assert all(0 < record["p20_ms"] <= record["median_ms"] <= record["p80_ms"] for record in outcome.records)
    assert outcome.rounds == 2
    assert ("verifying baseline", 0, 4) in stages
    assert stages[-1] == ("timing", 2, 2)
