"""`trigemm traffic`: count what kernels move, without a GPU."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from trigemm.cli.terminal import cannot_write

SMALL = {"B": 1, "T": 256, "NH": 1, "HS": 64}

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})

Json = Annotated[bool, typer.Option("--json", help="Print JSON lines and nothing else: one a kernel, or one a launch.")]
Save = Annotated[Path | None, typer.Option(help="Append the same records to this file, as JSON lines.")]
Lines = Annotated[bool, typer.Option("--lines", help="Print the source, each line with its counts, the most wasteful marked.")]


@app.callback(invoke_without_command=True)
def traffic(
    context: typer.Context,
    kernel: Annotated[list[str] | None, typer.Option(help="Number or name of a rung; may be repeated. Default: all.")] = None,
    batch: Annotated[int, typer.Option(help="B.")] = SMALL["B"],
    seq: Annotated[int, typer.Option(help="T.")] = SMALL["T"],
    heads: Annotated[int, typer.Option(help="NH.")] = SMALL["NH"],
    head_dim: Annotated[int, typer.Option(help="HS.")] = SMALL["HS"],
    lines: Lines = False,
    as_json: Json = False,
    save: Save = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the counts of the thread-level rungs into this file.")] = None,
    nsight: Annotated[
        bool, typer.Option("--nsight", help="On a machine with a GPU: run the same launches under ncu too, and compare.")
    ] = False,
) -> None:
    """Count the memory transactions of the ladder's kernels in a simulator, beside what their closed forms predict.

    Exit code 1 where a count differs from its prediction or, with --nsight, from what the GPU measures.
    """
    if context.invoked_subcommand is not None:
        return
    shape = {"B": batch, "T": seq, "NH": heads, "HS": head_dim}
    with _reported_errors():
        _check(shape, save, plot)
        right = (
            _nsight(shape, kernel or [], as_json, save) if nsight else _ladder(shape, kernel or [], lines, as_json, save, plot)
        )
    if not right:
        raise typer.Exit(1)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    script: Annotated[Path, typer.Argument(help="A Python script that launches numba-cuda kernels.")],
    args: Annotated[list[str] | None, typer.Argument(help="What the script finds in sys.argv.")] = None,
    lines: Lines = False,
    as_json: Json = False,
    save: Save = None,
    flops: Annotated[bool, typer.Option("--flops", help="Count floating-point operations too; takes longer.")] = False,
    limit: Annotated[
        int,
        typer.Option(help="Loads, stores and atomics of all threads after which a launch is stopped, as one that never ends."),
    ] = 50_000_000,
    nsight: Annotated[
        bool, typer.Option("--nsight", help="On a machine with a GPU: run the script under ncu too, and compare.")
    ] = False,
) -> None:
    """Run a script under the simulator, unchanged: each launch is counted and searched for faults.

    Options come before the script's name. Exit code 1 where a fault is found or the script fails.
    """
    with _reported_errors():
        if not script.is_file():
            raise ValueError(f"there is no script {script}")
        if limit < 1:
            raise ValueError(f"--limit must be at least 1, got {limit}")
        _check({}, save, None)
        right = _run(script, args or [], lines, as_json, save, flops, limit, nsight)
    if not right:
        raise typer.Exit(1)


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Errors that a user can mend become a sentence and an exit code."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(cannot_write(error), err=True)
        raise typer.Exit(1) from None
    except RuntimeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


def _check(shape: dict[str, int], save: Path | None, plot: Path | None) -> None:
    """Refuse what cannot work before anything is counted, and turn the simulator on."""
    from trigemm.lab import records, report

    options = {"B": "batch", "T": "seq", "NH": "heads", "HS": "head-dim"}
    for name, size in shape.items():
        if size < 1:
            raise ValueError(f"--{options[name]} must be at least 1, got {size}: nothing is moved for an empty tensor")
    if save is not None:
        records.check_writable(save)
    if plot is not None and find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib (pip install 'trigemm[lab]')")
    if plot is not None:
        report.check_plot(plot)
    if find_spec("numba_cuda") is None:
        raise ValueError("counting needs numba-cuda (pip install 'trigemm[lab]')")
    wanted = {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}
    if "numba" in sys.modules and os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
        # Numba looks at its environment once, when it is imported: begin again, with the simulator on.
        program = "from trigemm.cli.main import app; app()"
        os.execve(sys.executable, [sys.executable, "-c", program, *sys.argv[1:]], os.environ | wanted)
    os.environ.update(wanted)


def _console(stderr: bool = False) -> Console:
    """Standard output or error; where it is no terminal, wide enough for the tables."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=180)


def _ladder(shape: dict[str, int], keys: list[str], lines: bool, as_json: bool, save: Path | None, plot: Path | None) -> bool:
    from trigemm.lab.traffic import ladder, tables
    from trigemm.lab.traffic.plots import plot_ladder

    runs = []
    right = True
    for spec in ladder.chosen(keys):
        if not keys and (reason := spec.refuse({**shape, "fill": None})) is not None:
            typer.echo(f"{spec.name} is left out: {reason}", err=True)
            continue
        with Console(stderr=True).status(f"counting {spec.name}"):
            counted = ladder.trace_rung(spec, shape)
        differences = ladder.differences(spec, shape, counted)
        right = right and not differences
        runs.append((spec, counted))
        record = {"number": spec.number, "shape": shape, "predicted": ladder.predicted(spec, shape)}
        _emit({**counted.as_json(), **record, "as_predicted": not differences}, as_json, save)
    if not runs:
        raise ValueError("no rung takes these sizes")
    if not as_json:
        console = _console()
        console.print(tables.ladder_table(runs, shape))
        for _, counted in runs if lines else ():
            console.print(tables.annotated_source(counted))
    if plot is not None:
        drawn = [counted for spec, counted in runs if ladder.is_thread_level(spec)]
        if not drawn:
            raise ValueError("--plot draws thread-level rungs, and none was counted")
        plot_ladder(drawn, plot)
    return right


def _emit(record: dict[str, Any], as_json: bool, save: Path | None) -> None:
    from trigemm.lab import records

    if save is not None:
        records.append(save, record)
    if as_json:
        typer.echo(records.encode(record))


def _run(
    script: Path, args: list[str], lines: bool, as_json: bool, save: Path | None, flops: bool, limit: int, nsight: bool
) -> bool:
    from trigemm.lab.traffic import tables
    from trigemm.lab.traffic.script import run_script

    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        found = run_script(script, args, limit=limit, count_flops=flops)
    console = _console()
    for launch in found.launches:
        _emit(launch.as_json(), as_json, save)
        if not as_json:
            console.print(tables.launch_table(launch))
            if lines:
                console.print(tables.annotated_source(launch))
            if launch.findings:
                console.print(tables.findings_text(launch))
    findings = sum(len(launch.findings or ()) for launch in found.launches)
    if found.failure is not None:
        typer.echo(f"error: {found.failure}", err=True)
    elif not as_json:
        typer.echo(f"{_number(len(found.launches), 'launch', 'launches')}, {_number(findings, 'finding', 'findings')}")
    right = found.failure is None and findings == 0
    if not nsight or found.failure is not None:
        return right
    counted = [launch.as_json() for launch in found.launches]
    names = {launch.kernel for launch in found.launches}
    return _compare(counted, [sys.executable, str(script), *args], names, {}, as_json, save) and right


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _nsight(shape: dict[str, int], keys: list[str], as_json: bool, save: Path | None) -> bool:
    import json

    from trigemm.lab.traffic import ladder

    specs = [spec for spec in ladder.chosen(keys) if ladder.is_thread_level(spec)]
    if not specs:
        raise ValueError("--nsight compares thread-level rungs, and none was asked for")
    counted = []
    for spec in specs:
        with Console(stderr=True).status(f"counting {spec.name}"):
            counted.append(ladder.trace_rung(spec, shape).as_json())
    asked = json.dumps({"shape": shape, "kernels": [spec.name for spec in specs]})
    return _compare(counted, [sys.executable, "-m", "trigemm.lab.traffic.launches", asked], None, shape, as_json, save)


def _compare(
    counted: list[dict[str, Any]],
    command: list[str],
    kernels: set[str] | None,
    shape: dict[str, int],
    as_json: bool,
    save: Path | None,
) -> bool:
    """Run a command under ncu and set what it measures beside what was counted, launch by launch."""
    from datetime import UTC, datetime

    import torch

    from trigemm.lab import environment
    from trigemm.lab.traffic import nsight, tables

    if not torch.cuda.is_available():
        raise ValueError("--nsight compares with a GPU, and torch finds no CUDA device; without it, counting needs none")
    with Console(stderr=True).status("measuring under Nsight Compute"):
        measured = nsight.measure(command, kernels)
    if len(measured) != len(counted):
        raise RuntimeError(f"{len(counted)} launches were counted and {len(measured)} measured: they cannot be compared")
    circumstances = {
        "shape": shape,
        "device_name": environment.device_name("cuda"),
        "versions": environment.versions("cuda"),
        "commit": environment.commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    comparisons = [nsight.compare(record, launch) for record, launch in zip(counted, measured, strict=True)]
    for comparison in comparisons:
        _emit({**comparison, **circumstances}, as_json, save)
    if not as_json:
        _console().print(tables.comparison_table(comparisons))
    return all(comparison["equal"] for comparison in comparisons)
