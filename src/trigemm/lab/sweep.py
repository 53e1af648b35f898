"""Many random cases, and what they come to: a tally for each operation."""

import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Any, cast

import torch

from trigemm.kernels.spec import ALL_DTYPES, KernelSpec
from trigemm.lab.cases import OPERATIONS, PRECISIONS, Case, shrink
from trigemm.lab.judge import Verdict
from trigemm.lab.verify import verify_case

# Kernels are compiled on CUDA: limiting the forms of cases limits how many. On the CPU each case has its own form.
CUDA_FORMS = 150

# A case, its verdict, and how many seconds it took.
Result = tuple[Case, Verdict, float]


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
        results = self._checked(count) if jobs == 1 else self._checked_by(jobs, count)
        with closing(results):
            for case, verdict, seconds in results:
                tallies.setdefault(case.operation, Tally()).add(case, verdict, seconds)
                on_case()

    def _checked(self, count: int, share: int = 0, shares: int = 1) -> Generator[Result, None, None]:
        for case in self.cases(count, share, shares):
            start = time.perf_counter()
            try:
                verdict = self.check(case)
            except RuntimeError as error:
                # A device works on while Python does: what broke it may also be a case just before.
                raise RuntimeError(f"{error}\nThis case met it: {self.as_python(case)}") from error
            yield case, verdict, time.perf_counter() - start

    def _checked_by(self, jobs: int, count: int) -> Generator[Result, None, None]:
        """What `_checked` gives, from so many processes, each result as soon as it is there."""
        # More shares than processes: those that must compile more kernels do not hold up the end.
        shares = min(count, 8 * jobs)
        waiting = iter(range(shares))
        with _processes(jobs, self, count, shares) as connections:
            for connection in connections:
                connection.send(next(waiting, None))
            busy = list(connections)
            while busy:
                for ready in wait(busy):
                    connection = cast(Connection, ready)
                    try:
                        received = connection.recv()
                    except (EOFError, ConnectionError):
                        raise RuntimeError("a process that verified cases ended before its time") from None
                    if isinstance(received, RuntimeError):
                        raise received
                    if received is not None:
                        yield received
                        continue
                    share = next(waiting, None)
                    connection.send(share)
                    if share is None:
                        busy.remove(connection)

    def smallest(self, failure: Case) -> tuple[Case, Verdict]:
        """The simplest failing case found from one that failed, and its verdict."""
        case = shrink(failure, lambda simpler: not self.check(simpler).passed)
        return case, self.check(case)


@contextmanager
def _processes(jobs: int, sweep: Sweep, count: int, shares: int) -> Iterator[list[Connection]]:
    """Processes that verify the shares they are sent, each through its connection. They end with the block."""
    context = get_context("spawn")
    processes: list[SpawnProcess] = []
    connections: list[Connection] = []
    try:
        # What a terminal or `timeout` sends to the whole group is for this process to act on: the others start with it blocked.
        resource_tracker.ensure_running()  # started by the first process, it would unblock them again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, sweep, count, shares, jobs))
                process.start()
                processes.append(process)
                connections.append(ours)
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield connections
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for connection in connections:
            connection.close()


def _work(connection: Connection, sweep: Sweep, count: int, shares: int, jobs: int) -> None:
    # Each process takes its part of the threads.
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    # The other end closes where that process ends, however it does.
    with suppress(EOFError, ConnectionError):
        for share in iter(connection.recv, None):
            try:
                for result in sweep._checked(count, share, shares):
                    connection.send(result)
            except RuntimeError as error:
                connection.send(RuntimeError(str(error)))
                return
            connection.send(None)
