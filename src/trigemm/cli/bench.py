"""`trigemm bench`: verify, time, print."""

import json
import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from trigemm.cli.terminal import cannot_write, console, progress, signals_interrupt
from trigemm.kernels.catalogue import LADDER
from trigemm.lab import bench as lab
from trigemm.lab import environment, records
from trigemm.lab.problem import DEFAULT_SHAPES, Problem, Shape
from trigemm.lab.workloads import listing
from trigemm.ops.checks import check_fill

_OPERATIONS = "; ".join(f"{name} (B={B} T={T} NH={NH} HS={HS})" for name, (B, T, NH, HS) in DEFAULT_SHAPES.items())


def bench(
    operation: Annotated[str, typer.Option(help=f"What to time, here with its default sizes: {_OPERATIONS}.")] = LADDER,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="Number or name of a kernel, as in --list; may be repeated. The baselines are always timed beside it: ratios "
            "are of times of one run. Default: the whole ladder; of another operation 1, what users call."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the kernels of the operation and measure nothing.")] = False,
    batch: Annotated[int | None, typer.Option(help="B. There are B * NH matrices.")] = None,
    seq: Annotated[int | None, typer.Option(help="T: the triangle has T rows and T columns.")] = None,
    heads: Annotated[int | None, typer.Option(help="NH.")] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="HS: the inner size; of trmm, (T,T) x (T,HS), the width of the result.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float64, float32, float16 or bfloat16.")] = "float32",
    precision: Annotated[
        str, typer.Option(help='Of float32 products: "highest", "high" (TF32) or "medium" (bfloat16).')
    ] = "highest",
    fill: Annotated[str, typer.Option(help='Value above the diagonal, such as 0 or -inf; "none" leaves it unwritten.')] = "none",
    repeats: Annotated[int | None, typer.Option(help="Default: 100; on the CPU as many as fit in 15 s, 3 at least.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="Do not flush the caches between calls.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines on standard output, one a kernel, and nothing else.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Append the records to this file, as JSON lines, when all were timed or on interruption."),
    ] = None,
) -> None:
    """Check each kernel against the referee at the very shape, then time it against the full product of the BLAS.

    With no options: the reference case, on CUDA if there is one, else on the CPU. A kernel that fails the check gets no time, and
    the exit code is 1. The floor is the larger of two times, at rates measured in the same run: that of the bytes that must move,
    and that of the triangle's floating-point operations.

    Kernel 0 is the baseline: on the ladder a permutation and the whole product, elsewhere the product alone. baseline_alone is
    the same without the permutation, baseline_tf32 in TF32, baseline_numpy the product by NumPy. The last line sets the fastest
    of the kernels, or of those asked for, beside kernel 0.
    """
    try:
        if operation not in DEFAULT_SHAPES:
            raise ValueError(f"unknown operation {operation!r}; known are {', '.join(DEFAULT_SHAPES)}")
        if list_:
            _list(operation, kernel or [], as_json)
            return
        if repeats is not None and repeats < 1:
            raise ValueError(f"--repeats must be at least 1, got {repeats}")
        shape = Shape.of(operation, batch, seq, heads, head_dim)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        problem = Problem(operation, shape, dtype, precision, _fill(fill), device)
        check_fill(operation, problem.fill, getattr(torch, dtype))
        if save is not None:
            records.check_writable(save)

        def on_record(record: records.Record) -> None:
            if save is not None:
                records.append(save, record)
            if as_json:
                typer.echo(records.encode(record))

        with signals_interrupt(), progress("preparing") as on_progress:
            outcome = lab.run(
                problem, kernels=kernel or (), repeats=repeats, cold=not warm, on_record=on_record, on_progress=on_progress
            )
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(cannot_write(error), err=True)
        raise typer.Exit(1) from None
    except RuntimeError as error:
        typer.echo(f"error: the device failed: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted before anything was timed", err=True)
        raise typer.Exit(130) from None
    _show(console(stderr=as_json), problem, outcome, kernel or [])
    if outcome.interrupted:
        raise typer.Exit(130)
    if outcome.failed:
        raise typer.Exit(1)


def _fill(text: str) -> float | None:
    try:
        return None if text.lower() == "none" else float(text)
    except ValueError:
        raise ValueError(f'--fill is a number, inf, -inf, nan or "none", got {text!r}') from None


def _list(operation: str, asked: list[str], as_json: bool) -> None:
    rows = listing(operation, asked)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    table = Table("number", "kernel", "device", "dtypes", "idea", title=operation)
    for row in rows:
        table.add_row(
            "" if row["number"] is None else str(row["number"]),
            row["kernel"],
            row["device"],
            " ".join(row["dtypes"]),
            row["idea"],
        )
    console().print(table)


def _show(out: Console, problem: Problem, outcome: lab.Outcome, chosen: list[str]) -> None:
    sizes = " ".join(f"{name}={getattr(problem.shape, name)}" for name in ("B", "T", "NH", "HS"))
    precision = f" {problem.precision}" if problem.dtype == "float32" else ""
    fill = "" if problem.operation in ("syrk", "trmm") else f"  fill={problem.fill}"
    table = Table(title=f"{problem.operation}  {sizes}  {problem.dtype}{precision}{fill}")
    table.add_column("kernel")
    table.add_column("verdict")
    for heading in ("error/budget", r"median \[p20-p80] ms", "vs baseline", "of floor", "useful TFLOP/s", "GB/s"):
        table.add_column(heading, justify="right")
    for record in outcome.records:
        passed = record["verdict"] == "pass"
        name = record["kernel"] if record["number"] is None else f"{record['number']} {record['kernel']}"
        error = record["error_over_budget"]
        cells = [name, "pass" if passed else "[bold red]FAIL", "-" if error is None else f"{error:.2f}"]
        if passed:
            spread = f"{record['median_ms']:.4g} [{record['p20_ms']:.4g}-{record['p80_ms']:.4g}]"
            cells += [
                spread,
                _ratio(record["speedup"]),
                f"{record['floor_share']:.0%}",
                f"{record['useful_tflops']:.3g}",
                f"{record['gbps']:.3g}",
            ]
        table.add_row(*cells)
    out.print(table)
    for name, reason in outcome.reasons.items():
        out.print(f"{name} failed verification and got no time: {reason}", style="red", highlight=False, markup=False)
    for name, sentence in outcome.refused.items():
        out.print(f"{name} skipped: {sentence}", highlight=False, markup=False)
    if outcome.rounds:
        why = " (interrupted)" if outcome.interrupted else ""
        floor = next(record for record in outcome.records if record["floor_ms"] is not None)
        out.print(
            f"{outcome.rounds} repeats{why} on {environment.device_name(problem.device)}; "
            f"floor {floor['floor_ms']:.4g} ms (bytes {floor['bytes_floor_ms']:.4g}, flops {floor['flops_floor_ms']:.4g})",
            highlight=False,
        )
    unsteady = [record["kernel"] for record in outcome.records if record["p20_ms"] and record["p80_ms"] > 3 * record["p20_ms"]]
    if unsteady:
        out.print(
            f"times of {', '.join(unsteady)} differ more than threefold: so short a call says little on this machine",
            highlight=False,
            markup=False,
        )
    best = outcome.fastest(chosen)
    if best is None:
        out.print("no kernel was timed")
        return
    baseline = best["baseline_ms"]
    against = "nothing" if baseline is None else f"{baseline:.4f} ms"
    out.print(f"time {best['median_ms']:.4f} ms vs {against} for {environment.blas_name(problem.device)}", highlight=False)


def _ratio(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.2f}x"
