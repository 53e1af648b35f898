"""Many random cases, and what they come to: a tally for each operation."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

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

    def cases(self, count: int) -> Iterator[Case]:
        """At most `count` cases; operations take turns. What a kernel refuses is drawn again, and left out in the end."""
        forms = count if self.device == "cpu" else CUDA_FORMS
        for number in range(count):
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

    def run(self, count: int, tallies: dict[str, Tally], on_case: Callable[[], object] = lambda: None) -> None:
        """Verify `count` cases into `tallies`, one an operation. Interrupted, they hold what was done until then."""
        for case in self.cases(count):
            start = time.perf_counter()
            verdict = self.check(case)
            tallies.setdefault(case.operation, Tally()).add(case, verdict, time.perf_counter() - start)
            on_case()

    def smallest(self, failure: Case) -> tuple[Case, Verdict]:
        """The simplest failing case found from one that failed, and its verdict."""
        case = shrink(failure, lambda simpler: not self.check(simpler).passed)
        return case, self.check(case)
