"""Many random cases, and what they come to: a tally for each operation."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from typing import Any

import torch

from trigemm.kernels.spec import ALL_DTYPES, KernelSpec
from trigemm.lab.cases import OPERATIONS, PRECISIONS, Case, shrink
from trigemm.lab.judge import Verdict
from trigemm.lab.verify import verify_case

# Kernels are compiled on CUDA: limiting the forms of cases limits how many. On the CPU each case has its own form.
CUDA_FORMS = 150


@dataclass
class Tally:
    """What the cases of one operation came to: the first that failed, and the one that is worst in terms of its budget."""

    cases: int = 0
    failed: int = 0
    seconds: float = 0.0
    worst_error_over_budget: float = 0.0
    worst: Case | None = None
    failure: Case | None = None
    reason: str | None = None

    def add(self, case: Case, verdict: Verdict, seconds: float) -> None:
        self.cases += 1
        self.seconds += seconds
        if self.worst is None or verdict.error_over_budget > self.worst_error_over_budget:
            self.worst, self.worst_error_over_budget = case, verdict.error_over_budget
        if not verdict.passed:
            self.failed += 1
            if self.failure is None:
                self.failure, self.reason = case, verdict.reason


@dataclass(frozen=True)
class Sweep:
    """Random cases, the same ones for the same seed.

    kernels   an operation's kernel of the catalogue, to verify in place of the public operation
    largest   no size exceeds it
    """

    operations: Sequence[str] = OPERATIONS
    dtypes: Sequence[str] = ALL_DTYPES
    precisions: Sequence[str] = PRECISIONS
    device: str = "cpu"
    seed: int = 0
    kernels: Mapping[str, KernelSpec] = field(default_factory=dict)
    largest: int = 1024

    def cases(self, count: int, share: int = 0, shares: int = 1) -> Iterator[Case]:
        """At most `count` cases, or one of the `shares` that they fall into by form; operations take turns.

        What a kernel refuses is drawn again, and left out in the end.
        """
        forms = count if self.device == "cpu" else CUDA_FORMS
        for number in range(count):
            if number % forms % shares != share:
                continue
            form = number % forms
            operation = self.operations[form % len(self.operations)]
            kernel = self.kernels.get(operation)
            for attempt in range(20):
                case = Case.random(
                    Random(f"{self.seed} case {number} {attempt}"),
                    Random(f"{self.seed} form {form} {attempt}"),
                    operations=[operation],
                    dtypes=[name for name in self.dtypes if kernel is None or name in kernel.dtypes],
                    precisions=self.precisions,
                    for_kernel=kernel is not None,
                    largest=self.largest,
                )
                if kernel is None or kernel.refuse({**case.sizes, **case.parameters}) is None:
                    yield case
                    break

    def check(self, case: Case) -> Verdict:
        """The verdict on one case."""
        kernel = self.kernels.get(case.operation)
        return verify_case(case, device=self.device, kernel=None if kernel is None else kernel.run)

    def as_python(self, case: Case) -> str:
        """One line of Python that verifies a case as this sweep does."""
        options: dict[str, Any] = {} if self.device == "cpu" else {"device": self.device}
        if case.operation in self.kernels:
            options["kernel"] = self.kernels[case.operation].entry_point
        return case.as_python(**options)

    def run(self, count: int, tallies: dict[str, Tally], on_case: Callable[[], object] = lambda: None, jobs: int = 1) -> None:
        """Verify `count` cases into `tallies`, one an operation, in `jobs` processes.

        Interrupted, the tallies hold what was done until then.
        """
        if jobs == 1:
            self._add_to(tallies, self._checked(count, 0, 1), on_case)
            return
        # More shares than processes: those that must compile more kernels do not hold up the end.
        shares = min(count, 8 * jobs)
        context = get_context("spawn")
        with context.Pool(jobs, _be_one_of, (jobs,)) as pool:
            tasks = ((self, count, share, shares) for share in range(shares))
            for results in pool.imap_unordered(_share, tasks):
                self._add_to(tallies, results, on_case)

    def _checked(self, count: int, share: int, shares: int) -> Iterator[tuple[Case, Verdict, float]]:
        for case in self.cases(count, share, shares):
            start = time.perf_counter()
            verdict = self.check(case)
            yield case, verdict, time.perf_counter() - start

    @staticmethod
    def _add_to(tallies: dict[str, Tally], results: Iterable[tuple[Case, Verdict, float]], on_case: Callable[[], object]) -> None:
        for case, verdict, seconds in results:
            tallies.setdefault(case.operation, Tally()).add(case, verdict, seconds)
            on_case()

    def smallest(self, failure: Case) -> tuple[Case, Verdict]:
        """The simplest failing case found from one that failed, and its verdict."""
        case = shrink(failure, lambda simpler: not self.check(simpler).passed)
        return case, self.check(case)


def _be_one_of(jobs: int) -> None:
    """Start of a process that shares the machine with others: each takes its part of the threads."""
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))


def _share(task: tuple[Sweep, int, int, int]) -> list[tuple[Case, Verdict, float]]:
    sweep, count, share, shares = task
    return list(sweep._checked(count, share, shares))
