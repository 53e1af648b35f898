from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe, active_children

import pytest
import torch

from trigemm.kernels.catalogue import CATALOGUE
from trigemm.kernels.spec import KernelSpec
from trigemm.lab import sweep
from trigemm.lab.cases import KERNEL_OPERATIONS, OPERATIONS
from trigemm.lab.sweep import CUDA_FORMS, Sweep, Tally

TILES = {spec.operation: spec for spec in CATALOGUE if spec.name == "tiles" and spec.operation in KERNEL_OPERATIONS}
HAS_CUDA = torch.cuda.is_available()


def leaves_out_the_last_row(a, b, out, *, alpha, diagonal, fill, precision):
    out.fill_(fill if fill is not None else 0.0)
    out[..., :-1, :] = (alpha * (a @ b).tril(diagonal))[..., :-1, :]


BROKEN = KernelSpec(1, "broken", "gemmt", "", "any", ("float32",), f"{__name__}:leaves_out_the_last_row")


def test_a_seed_gives_the_same_cases_and_operations_take_turns():
    first, second = ([repr(case) for case in Sweep(seed=3).cases(100)] for _ in range(2))
    assert first == second
    assert first != [repr(case) for case in Sweep(seed=4).cases(100)]
    assert len(set(first)) == 100
    assert Counter(case.operation for case in Sweep().cases(140)) == dict.fromkeys(OPERATIONS, 20)


def test_forms_are_limited_where_kernels_are_compiled():
    def forms(device):
        cases = Sweep(device=device).cases(3 * CUDA_FORMS)
        return {(case.operation, case.dtype, case.precision, case.layouts, case.out, case.gradient) for case in cases}

    assert len(forms("cuda")) <= CUDA_FORMS < len(forms("cpu"))
    assert len({repr(case) for case in Sweep(device="cuda").cases(3 * CUDA_FORMS)}) == 3 * CUDA_FORMS


def test_what_a_kernel_refuses_is_not_tried():
    spec = KernelSpec(
        1, "picky", "causal_scores_qkvpacked", "", "any", ("float16",), "", lambda problem: problem["fill"] and "no fill"
    )
    cases = list(Sweep((spec.operation,), kernels={spec.operation: spec}).cases(40))
    assert len(cases) >= 30
    assert {case.dtype for case in cases} == {"float16"}
    assert not any(case.parameters["fill"] for case in cases)


def test_tallies_and_the_smallest_failure(monkeypatch):
    monkeypatch.setattr("trigemm.lab.sweep.verify_case", lambda case, *, device, kernel: verify(case, leaves_out_the_last_row))
    from trigemm.lab.verify import verify_case as verify_really

    def verify(case, kernel):
        return verify_really(case, kernel=kernel)

    spec = KernelSpec(1, "broken", "gemmt", "", "any", ("float32",), "trigemm.kernels.strips.gemmt:gemmt")
    sweep, tallies, calls = Sweep(("gemmt",), kernels={"gemmt": spec}, largest=40), {}, []
    sweep.run(10, tallies, lambda: calls.append(1))
    tally = tallies["gemmt"]
    assert tally.cases == len(calls) == 10
    assert 0 < tally.failed <= 10
    assert tally.seconds > 0
    assert tally.worst_error_over_budget > 1
    case, verdict = sweep.smallest(tally.failure)
    assert not verdict.passed
    assert max(case.sizes.values()) == 1
    assert sweep.as_python(case).endswith("kernel='trigemm.kernels.strips.gemmt:gemmt'))")


def test_what_was_done_before_an_interruption_is_kept():
    tallies: dict[str, Tally] = {}

    def interrupt():
        if sum(tally.cases for tally in tallies.values()) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sweep(largest=40).run(10, tallies, interrupt)
    assert sum(tally.cases for tally in tallies.values()) == 3


# In the interpreter NumPy computes, and warns where a sum overflows, as is right for huge operands.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("operation", TILES)
def test_tile_kernels(operation, device):
    """In the interpreter where there is no GPU; its products of bfloat16 are wrong, so it gets none."""
    sweep = Sweep(
        (operation,),
        TILES[operation].dtypes if HAS_CUDA else ("float32", "float16"),
        ("highest", "high", "medium") if HAS_CUDA else ("highest", "high"),
        device,
        seed=1,
        kernels=TILES,
        largest=1024 if HAS_CUDA else 40,
    )
    tallies: dict[str, Tally] = {}
    sweep.run(100 if HAS_CUDA else 8, tallies)
    tally = tallies[operation]
    assert tally.cases > 0
    assert not tally.failed, f"{tally.reason}\n{sweep.as_python(tally.failure)}"


def test_processes_that_share_a_sweep_find_what_one_finds():
    sweep = Sweep(seed=4, largest=20)
    alone, shared, seen = {}, {}, []
    sweep.run(30, alone)
    sweep.run(30, shared, lambda: seen.append(1), jobs=2)
    assert len(seen) == 30
    assert shared.keys() == alone.keys()
    for operation, tally in alone.items():
        found = shared[operation]
        assert (found.cases, found.failed, found.worst_error_over_budget) == (
            tally.cases,
            tally.failed,
            tally.worst_error_over_budget,
        )


def test_processes_hand_back_each_result_and_end_where_it_is_interrupted():
    tallies: dict[str, Tally] = {}

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sweep(largest=20).run(100_000, tallies, interrupt, jobs=2)
    assert sum(tally.cases for tally in tallies.values()) == 1
    assert active_children() == []


def test_a_process_that_ends_before_its_time_is_an_error():
    def kill():
        for process in active_children():
            process.kill()

    with pytest.raises(RuntimeError, match="a process that verified cases ended before its time"):
        Sweep(largest=20).run(100_000, {}, kill, jobs=2)


def test_an_error_of_the_device_in_a_process_is_raised_here(monkeypatch):
    @contextmanager
    def in_a_thread(jobs, *task):
        ours, theirs = Pipe()
        with ours, theirs, ThreadPoolExecutor(1) as pool:
            pool.submit(sweep._work, theirs, *task, jobs)
            yield [ours]

    def check(self, case):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(sweep, "_processes", in_a_thread)
    monkeypatch.setattr(Sweep, "check", check)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        Sweep().run(4, {}, jobs=2)
