"""The benchmark: every contender is verified at the very shape, and only then timed against the full product of the BLAS.

The floor of a workload is the larger of two times, both from ceilings measured in the same run: its bytes at the best bandwidth,
and its useful flops at the rate of a square GEMM (see `workloads` for what counts, `timing.ceilings` for the rates).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import torch

from trigemm.lab import environment
from trigemm.lab.problem import Problem
from trigemm.lab.records import Record
from trigemm.lab.timing import Timing, ceilings, interleaved
from trigemm.lab.verify import Verdict, verify_into
from trigemm.lab.workloads import Contender, Workload, build, contenders, no_kernel

DEFAULT_REPEATS = 100
# Without a number of repeats the CPU stops after this long, to keep the default run under a minute on two cores.
CPU_SECONDS = 15.0

# Full products that compute what the baseline computes, in the same precision.
_SAME_PRODUCT = ("baseline", "baseline_alone", "baseline_numpy")

OnProgress = Callable[[str, int, int], object]


@dataclass
class Outcome:
    """What a run came to: a record a contender, and the contenders that refused, with their sentences."""

    records: list[Record] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        return any(record["verdict"] == "fail" for record in self.records)

    def fastest(self, chosen: Sequence[str]) -> Record | None:
        """The fastest timed kernel among the chosen ones, or all; the baseline where no other was there to be timed."""
        timed = [record for record in self.records if record["median_ms"] is not None]
        if chosen:
            timed = [record for record in timed if not {record["kernel"], str(record["number"])}.isdisjoint(chosen)]
        elif self.failed or any(record["number"] for record in timed):
            timed = [record for record in timed if record["number"]]
        return min(timed, key=lambda record: record["median_ms"], default=None)


def choose(all_contenders: Sequence[Contender], asked: Sequence[str]) -> list[Contender]:
    """The contenders that were asked for by number or name, in catalogue order, with the baselines; if none were, the default.

    Raises ValueError for one that is not there or that cannot take the problem.
    """
    if not asked:
        return [c for c in all_contenders if c.by_default]
    wanted: set[str] = set()
    for key in asked:
        found = [c for c in all_contenders if key in (c.name, str(c.number))]
        if not found:
            raise no_kernel(key, [(c.number, c.name) for c in all_contenders])
        if found[0].refusal is not None:
            raise ValueError(f"kernel {found[0].name} cannot take this problem: {found[0].refusal}")
        wanted.add(found[0].name)
    return [c for c in all_contenders if c.name in wanted or c.number in (None, 0)]


def run(
    problem: Problem,
    *,
    kernels: Sequence[str] = (),
    repeats: int | None = None,
    cold: bool = True,
    on_record: Callable[[Record], object] = lambda record: None,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Outcome:
    """Verifies and times the contenders of a problem. `on_record` gets each record as soon as it is complete.

    KeyboardInterrupt while timing ends it: records of what was timed until then are made.
    Raises ValueError as `choose` and `build` do.
    """
    work = build(problem)
    chosen = choose(contenders(work), kernels)
    outcome = Outcome(refused={c.name: c.refusal for c in chosen if c.refusal is not None})
    able = [c for c in chosen if c.refusal is None]
    make = _RecordMaker(work, cold)

    verdicts: dict[str, Verdict] = {}
    for done, contender in enumerate(able):
        on_progress(f"verifying {contender.name}", done, len(able))
        verdict = verdicts[contender.name] = _verify(work, contender)
        if not verdict.passed:
            outcome.reasons[contender.name] = str(verdict.reason)
            record = make(contender, verdict, None, {})
            outcome.records.append(record)
            on_record(record)
    passed = [c for c in able if verdicts[c.name].passed]
    if not passed:
        return outcome

    on_progress("measuring the ceilings", 0, 1)
    make.measure_ceilings()
    total = DEFAULT_REPEATS if repeats is None else repeats
    timings = interleaved(
        {c.name: _bound(c, work) for c in passed},
        repeats=total,
        device=problem.device,
        cold=cold,
        seconds=CPU_SECONDS if repeats is None and problem.device == "cpu" else None,
        on_round=lambda done: on_progress("timing", done, total),
    )
    outcome.interrupted = timings.interrupted
    for contender in passed:
        if contender.name in timings:
            outcome.rounds = len(timings[contender.name].samples)
            record = make(contender, verdicts[contender.name], timings[contender.name], timings)
            outcome.records.append(record)
            on_record(record)
    order = [c.name for c in able]
    outcome.records.sort(key=lambda record: order.index(record["kernel"]))
    return outcome


def _verify(work: Workload, contender: Contender) -> Verdict:
    return verify_into(
        work.problem.operation,
        work.operands,
        contender.call,
        precision=contender.precision,
        writes_all=contender.writes_all,
        **work.parameters,
    )


def _bound(contender: Contender, work: Workload) -> Callable[[], object]:
    return lambda: contender.call(work.out)


class _RecordMaker:
    """Makes records of one run: what its contenders share is found out once."""

    def __init__(self, work: Workload, cold: bool) -> None:
        problem = work.problem
        self._work = work
        self._bytes_floor_ms: float | None = None
        self._flops_floor_ms: float | None = None
        self._shared: Record = {
            "device_name": environment.device_name(problem.device),
            "versions": environment.versions(problem.device),
            "commit": environment.commit(),
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "cold_l2": cold,
            "seed": problem.seed,
            "threads": torch.get_num_threads() if problem.device == "cpu" else None,
            "ceilings": None,
        }

    def measure_ceilings(self) -> None:
        problem = self._work.problem
        measured = ceilings(problem.device, problem.torch_dtype, problem.precision)
        self._bytes_floor_ms = self._work.useful_bytes / measured.best_gbps / 1e6
        self._flops_floor_ms = self._work.useful_flops / measured.gemm_tflops / 1e9
        self._shared["ceilings"] = asdict(measured)

    def __call__(self, contender: Contender, verdict: Verdict, timing: Timing | None, timings: Mapping[str, Timing]) -> Record:
        work, problem = self._work, self._work.problem
        median = timing.median_ms if timing else None
        baseline = timings["baseline"].median_ms if "baseline" in timings else None
        alone = timings["baseline_alone"].median_ms if "baseline_alone" in timings else None
        blas = min((timings[name].median_ms for name in _SAME_PRODUCT if name in timings), default=None)
        floors = [ms for ms in (self._bytes_floor_ms, self._flops_floor_ms) if ms is not None]
        floor = max(floors, default=None)
        return {
            "operation": problem.operation,
            "kernel": contender.name,
            "number": contender.number,
            "idea": contender.idea,
            "device": problem.device,
            "dtype": problem.dtype,
            "precision": contender.precision,
            "fill": problem.fill,
            "shape": asdict(problem.shape),
            "verdict": "pass" if verdict.passed else "fail",
            "error_over_budget": verdict.error_over_budget,
            "median_ms": median,
            "p20_ms": timing.p20_ms if timing else None,
            "p80_ms": timing.p80_ms if timing else None,
            "repeats": len(timing.samples) if timing else 0,
            "baseline_ms": baseline,
            "speedup": _ratio(baseline, median),
            "alone_ms": alone,
            "blas_ms": blas,
            "speedup_blas": _ratio(blas, median),
            "floor_ms": floor,
            "floor_share": _ratio(floor, median),
            "bytes_floor_ms": self._bytes_floor_ms,
            "flops_floor_ms": self._flops_floor_ms,
            "useful_flops": work.useful_flops,
            "executed_flops": contender.executed_flops,
            "useful_bytes": work.useful_bytes,
            "useful_tflops": _ratio(work.useful_flops / 1e9, median),
            "gbps": _ratio(work.useful_bytes / 1e6, median),
            **self._shared,
        }


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b
