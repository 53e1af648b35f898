"""The order of calls, the flushes, the percentiles, what an interruption leaves, and that the clock sees what it should."""

import time
from types import SimpleNamespace

import pytest
import torch

from trigemm.lab import timing
from trigemm.lab.timing import CpuStopwatch, Timing, ceilings, interleaved


class Script:
    """A stopwatch that takes no time: a call returns its own time in milliseconds."""

    def __init__(self):
        self.log = []
        self._samples = []

    def flush(self):
        self.log.append("flush")

    def warm_up(self, call):
        call()

    def time(self, call):
        self._samples.append(call())

    def samples(self):
        return self._samples


def named(script, name, times):
    """A call that logs its name and takes the next of some times; the last one again and again."""
    times = list(times)

    def call():
        script.log.append(name)
        return times.pop(0) if len(times) > 1 else times[0]

    return call


def test_timing_has_the_median_and_the_percentiles_whatever_the_order():
    samples = [float(n) for n in (7, 1, 3, 11, 5, 9, 2, 10, 4, 8, 6)]
    taken = Timing.of(samples)
    assert (taken.median_ms, taken.p20_ms, taken.p80_ms) == (6.0, 3.0, 9.0)
    assert taken.samples == tuple(samples)


def test_one_sample_is_its_own_median():
    assert Timing.of([4.0]) == Timing(4.0, 4.0, 4.0, (4.0,))


def test_each_round_calls_each_once_and_none_always_follows_the_same():
    script = Script()
    calls = {name: named(script, name, [1.0]) for name in "abc"}
    interleaved(calls, repeats=4, device="cpu", cold=False, stopwatch=script)
    assert script.log[:3] == ["a", "b", "c"]  # a warm-up of each
    assert "".join(script.log[3:]) == "abccbabcaacb"


def test_the_cache_is_flushed_before_each_timed_call_only():
    script = Script()
    interleaved({"a": named(script, "a", [1.0]), "b": named(script, "b", [1.0])}, repeats=2, device="cpu", stopwatch=script)
    assert script.log[2:] == ["flush", "a", "flush", "b", "flush", "b", "flush", "a"]
    assert "flush" not in script.log[:2]


def test_samples_are_given_to_the_call_that_took_them():
    script = Script()
    calls = {"fast": named(script, "fast", [0, 1.0, 2.0, 3.0]), "slow": named(script, "slow", [0, 10.0, 20.0, 30.0])}
    taken = interleaved(calls, repeats=3, device="cpu", stopwatch=script)
    assert taken["fast"].samples == (1.0, 2.0, 3.0)
    assert taken["slow"].samples == (10.0, 20.0, 30.0)
    assert not taken.interrupted


def test_an_interruption_keeps_what_was_timed():
    script = Script()
    calls = {"first": named(script, "first", [1.0]), "second": named(script, "second", [2.0])}
    turns = iter(range(100))

    def stop():
        if next(turns) == 3:  # after a warm-up and two rounds
            raise KeyboardInterrupt
        return 3.0

    taken = interleaved({**calls, "third": stop}, repeats=10, device="cpu", stopwatch=script)
    assert taken.interrupted
    # The third round begins with the second call, and the third interrupts it.
    assert {name: len(t.samples) for name, t in taken.items()} == {"first": 2, "second": 3, "third": 2}


def test_a_call_that_was_never_timed_is_left_out():
    def stop():
        raise KeyboardInterrupt

    taken = interleaved({"a": stop}, repeats=3, device="cpu", stopwatch=Script())
    assert taken == {}
    assert taken.interrupted


def test_a_time_limit_ends_it_after_three_rounds_at_the_earliest(monkeypatch):
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    seen = []
    taken = interleaved({"a": lambda: 1.0}, repeats=50, device="cpu", seconds=1.0, stopwatch=Script(), on_round=seen.append)
    assert len(taken["a"].samples) == 3
    assert seen == [1, 2, 3]
    assert not taken.interrupted


@pytest.mark.parametrize("repeats", [0, -3])
def test_repeats_must_be_positive(repeats):
    with pytest.raises(ValueError, match=f"repeats must be at least 1, got {repeats}"):
        interleaved({"a": lambda: None}, repeats=repeats, device="cpu")


def test_the_cpu_stopwatch_times_the_call_and_not_the_flush():
    stopwatch = CpuStopwatch()
    stopwatch.flush()
    stopwatch.time(lambda: time.sleep(0.02))
    stopwatch.flush()
    stopwatch.time(lambda: None)
    slept, nothing = stopwatch.samples()
    assert slept >= 20
    assert nothing < 20


def test_the_flush_touches_twice_the_last_level_cache():
    stopwatch = CpuStopwatch()
    before = stopwatch._buffer.copy()
    stopwatch.flush()
    assert stopwatch._buffer.nbytes >= 2 * timing._last_level_cache()
    assert (stopwatch._buffer != before).all()


def test_ceilings_are_rates_of_this_machine(monkeypatch):
    monkeypatch.setattr(timing, "_last_level_cache", lambda: 2**20)
    before = torch.get_float32_matmul_precision()
    measured = ceilings("cpu", torch.float32, "high")
    assert measured.best_gbps == max(measured.copy_gbps, measured.fill_gbps, measured.read_gbps)
    assert 0.01 < measured.best_gbps < 1e5
    assert 1e-4 < measured.gemm_tflops < 1e3
    assert torch.get_float32_matmul_precision() == before


def test_ceilings_turn_times_into_rates(monkeypatch):
    def scripted(calls, **_):
        return timing.Timings({name: Timing.of([ms]) for name, ms in zip(calls, (4.0, 1.0, 2.0, 0.5), strict=True)})

    monkeypatch.setattr(timing, "interleaved", scripted)
    monkeypatch.setattr(timing, "_last_level_cache", lambda: 2**20)
    measured = ceilings("cpu", torch.float32)
    gigabytes = 4 * 2**20 / 1e9
    assert measured.copy_gbps == pytest.approx(2 * gigabytes / 4e-3)
    assert measured.fill_gbps == pytest.approx(gigabytes / 1e-3)
    assert measured.read_gbps == pytest.approx(gigabytes / 2e-3)
    assert measured.gemm_tflops == pytest.approx(2 * 1024**3 / 0.5e-3 / 1e12)


def test_on_the_cpu_a_float32_product_may_stand_in_for_half_precision(monkeypatch):
    def scripted(calls, **_):
        return timing.Timings({name: Timing.of([0.5 if name == "torch.float32" else 4.0]) for name in calls})

    monkeypatch.setattr(timing, "interleaved", scripted)
    monkeypatch.setattr(timing, "_last_level_cache", lambda: 2**20)
    assert ceilings("cpu", torch.bfloat16).gemm_tflops == pytest.approx(2 * 512**3 / 0.5e-3 / 1e12)


@pytest.mark.gpu
def test_on_cuda_the_events_see_the_device_and_not_the_host():
    x = torch.randn(4096, 4096, device="cuda")
    tiny = torch.ones(1, device="cuda")

    def late():
        time.sleep(0.0005)  # the host is slow; the device is not
        tiny.add_(1)

    taken = interleaved({"product": lambda: x @ x, "late": late}, repeats=10, device="cuda")
    assert taken["product"].median_ms > 1
    assert taken["late"].median_ms < 0.1


@pytest.mark.gpu
def test_on_cuda_float32_may_take_three_float16_products():
    plain, half = (ceilings("cuda", dtype).gemm_tflops for dtype in (torch.float32, torch.float16))
    assert plain > 0.8 * half / 3
