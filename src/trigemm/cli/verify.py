"""`trigemm verify`: random cases against the referee."""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trigemm.cli.terminal import cannot_write, console, progress, signals_interrupt
from trigemm.kernels.spec import ALL_DTYPES

INTERRUPTED = "interrupted: not all cases were tried"

if TYPE_CHECKING:
    from trigemm.kernels.spec import KernelSpec
    from trigemm.lab.sweep import Sweep, Tally


def verify(
    operation: Annotated[list[str] | None, typer.Option(help="Verify this operation; may be repeated. Default: all.")] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            help="Verify this kernel of each operation: a number from 1 or a name, as `bench --list --operation NAME` has them. "
            "Default: trigemm, what users call."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Verify this dtype; may be repeated. Default: all.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="Verify float32 at this precision; may be repeated. Default: highest, high, medium.")
    ] = None,
    cases: Annotated[int, typer.Option(help="How many random cases.")] = 1000,
    seed: Annotated[int, typer.Option(help="Which ones: a seed gives the same cases each time.")] = 0,
    jobs: Annotated[int, typer.Option(help="How many processes share the cases.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each operation and nothing else.")] = False,
    save: Annotated[Path | None, typer.Option(help="Append the same objects to this file.")] = None,
) -> None:
    """Compare random cases with the referee: shapes, strides, dtypes, diagonals, and every byte around.

    Exit code 1 and the smallest failing case, as a line of Python, where something is wrong.
    """
    from trigemm.lab import records
    from trigemm.lab.sweep import Tally

    try:
        if jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {jobs}")
        sweep = _sweep(operation, kernel, device, dtype, precision, cases, seed)
        if save is not None:
            records.check_writable(save)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None

    tallies: dict[str, Tally] = {}
    with signals_interrupt():
        stopped = _run(sweep, cases, jobs, tallies)
        summaries = [_summary(sweep, name, tally, smallest=stopped is None) for name, tally in tallies.items()]
    unsaved = None
    for summary in summaries:
        if save is not None and unsaved is None:
            try:
                records.append(save, summary)
            except OSError as error:
                unsaved = cannot_write(error)
        if as_json:
            typer.echo(records.encode(summary))
    if not as_json:
        _show(summaries)
    for summary in summaries:
        if summary["failed"]:
            typer.echo(f"{summary['operation']} fails: {summary['reason']}\n{summary['failure']}", err=True)
    for message in (stopped, unsaved):
        if message is not None:
            typer.echo(message, err=True)
    if stopped == INTERRUPTED:
        raise typer.Exit(130)
    if stopped is not None or unsaved is not None or any(summary["failed"] for summary in summaries):
        raise typer.Exit(1)


def _sweep(
    operations: list[str] | None,
    kernel: str | None,
    device: str | None,
    dtypes: list[str] | None,
    precisions: list[str] | None,
    cases: int,
    seed: int,
) -> "Sweep":
    """The sweep that was asked for. Raises ValueError where there is none."""
    import torch

    from trigemm.kernels.catalogue import PUBLIC
    from trigemm.lab.cases import OPERATIONS, PRECISIONS
    from trigemm.lab.sweep import Sweep

    if cases < 1:
        raise ValueError(f"--cases must be at least 1, got {cases}")
    for what, given, known in (
        ("operation", operations, OPERATIONS),
        ("dtype", dtypes, ALL_DTYPES),
        ("precision", precisions, PRECISIONS),
    ):
        for name in given or ():
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}; known are {', '.join(known)}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; known are cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, and torch finds no CUDA device; --device cpu works here")
    found = _kernels(kernel or PUBLIC, operations or OPERATIONS, device)
    chosen, kernels = tuple(found), {name: spec for name, spec in found.items() if spec is not None}
    if os.environ.get("TRITON_INTERPRET") == "1" and any(spec.name == "tiles" for spec in kernels.values()):
        dtypes, precisions = _as_interpreted(dtypes, precisions)
    dtypes = dtypes or list(ALL_DTYPES)
    for name, spec in kernels.items():
        if not set(dtypes) & set(spec.dtypes):
            raise ValueError(f"kernel {spec.name} of {name} takes {', '.join(spec.dtypes)}, not {', '.join(dtypes)}")
    return Sweep(chosen, dtypes, precisions or PRECISIONS, device, seed, kernels)


def _kernels(key: str, operations: Sequence[str], device: str) -> "dict[str, KernelSpec | None]":
    """Each operation's kernel of this number or name; None for what users call."""
    from trigemm.kernels.catalogue import CATALOGUE, LADDER, PUBLIC
    from trigemm.lab.cases import KERNEL_OPERATIONS
    from trigemm.lab.workloads import no_kernel

    public = [name for name in operations if key == PUBLIC or (key == "1" and name != LADDER)]
    # The baseline writes the whole square, whatever the fill: it is no kernel in this sense.
    among = [s for s in CATALOGUE if s.number and s.operation in operations and s.operation in KERNEL_OPERATIONS]
    kernels = {spec.operation: spec for spec in among if key in (str(spec.number), spec.name)}
    if not public and not kernels:
        listed = [(spec.number, f"{spec.name} ({spec.operation})") for spec in among]
        raise no_kernel(key, [*listed, (None if LADDER in operations else 1, PUBLIC)])
    simulated = "1" in (os.environ.get("TRITON_INTERPRET"), os.environ.get("NUMBA_ENABLE_CUDASIM"))
    for spec in kernels.values():
        if spec.device not in ("any", device) and not simulated:
            raise ValueError(
                f"kernel {spec.name} runs on {spec.device}, not on {device}; TRITON_INTERPRET=1 or NUMBA_ENABLE_CUDASIM=1 in the "
                "environment simulates it on the CPU"
            )
    return {**dict.fromkeys(public), **kernels}


def _as_interpreted(dtypes: list[str] | None, precisions: list[str] | None) -> tuple[list[str], list[str]]:
    """The dtypes and precisions, all if none were asked for, of which Triton's interpreter computes the products right."""
    from trigemm.lab.cases import PRECISIONS

    reason = "Triton's interpreter computes bfloat16 products wrong"
    for asked, what in ((dtypes, "bfloat16"), (precisions, "medium")):
        if what in (asked or ()):
            raise ValueError(f"{what} cannot be verified here: {reason}; a GPU can, without TRITON_INTERPRET=1")
    typer.echo(f'bfloat16 and precision "medium" are left out: {reason}', err=True)
    return dtypes or [x for x in ALL_DTYPES if x != "bfloat16"], precisions or [x for x in PRECISIONS if x != "medium"]


def _run(sweep: "Sweep", cases: int, jobs: int, tallies: "dict[str, Tally]") -> str | None:
    """Run the sweep behind a progress bar; why it stopped early, or None."""
    try:
        with progress("verifying") as on_progress:
            numbers = count(1)
            sweep.run(cases, tallies, lambda: on_progress("verifying", next(numbers), cases), jobs)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RuntimeError as error:
        # The device itself failed: no later call on it means anything.
        return f"stopped by an error of the device: {error}\nWith CUDA_LAUNCH_BLOCKING=1 the case that causes it meets it."
    return None


def _summary(sweep: "Sweep", operation: str, tally: "Tally", smallest: bool) -> dict[str, Any]:
    """A tally as a record."""
    from datetime import UTC, datetime

    from trigemm.lab import environment

    failure, reason = tally.failure, tally.reason
    if failure is not None and smallest:
        # Interrupted, the case is told as it was found.
        with suppress(KeyboardInterrupt):
            failure, verdict = sweep.smallest(failure)
            reason = verdict.reason
    return {
        "operation": operation,
        "kernel": sweep.kernels[operation].name if operation in sweep.kernels else None,
        "device": sweep.device,
        "device_name": environment.device_name(sweep.device),
        "dtypes": list(sweep.dtypes),
        "seed": sweep.seed,
        "cases": tally.cases,
        "passed": tally.cases - tally.failed,
        "failed": tally.failed,
        "worst_error_over_budget": tally.worst_error_over_budget,
        "worst": None if tally.worst is None else sweep.as_python(tally.worst),
        "failure": None if failure is None else sweep.as_python(failure),
        "reason": reason,
        "seconds": round(tally.seconds, 3),
        "versions": environment.versions(sweep.device),
        "commit": environment.commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _show(summaries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("operation")
    for heading in ("cases", "failed", "worst error/budget", "s"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        table.add_row(
            summary["operation"],
            str(summary["cases"]),
            f"[bold red]{summary['failed']}" if summary["failed"] else "0",
            f"{summary['worst_error_over_budget']:.2f}",
            f"{summary['seconds']:.1f}",
        )
    console().print(table)
