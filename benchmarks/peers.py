"""trigemm against what else computes the same: PyTorch, torch.compile, SDPA, SciPy's BLAS, CuPy's cuBLAS and JAX.

    python benchmarks/peers.py [--device cuda] [--dtype bfloat16 …] [--operation syrk …] [--repeats N] [--json] [--save FILE]

All get the same operands and take turns, with the caches flushed before each call. Each is verified first, against the float64
referee, in the triangle that was asked for: a peer may be ten times as wrong as trigemm may, for its order of summation is its
own, and one that is wrong has no time. Each call gives a new result; on the CPU, in memory that the process has already touched.
Scores and gemmt leave what lies above the diagonal to the library; syrk is asked for twice, mirrored and as one triangle. An
interrupted run keeps what it has.

Peers that are not installed are named and skipped. trigemm needs none of them: pip install scipy, "jax[cpu]" or "jax[cuda13]",
cupy-cuda13x (or those for CUDA 12). CuPy has syrk and no trmm; JAX, jax.lax.linalg.symmetric_product. On a GPU JAX has a stream
of its own, so its times include its launch and the host's waiting for it, some tens of microseconds.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import torch
import typer
from peer_calls import Call, Case, Peer, Unable, as_tensors, operands, peers, versions
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from trigemm.cli.terminal import console, progress, signals_interrupt
from trigemm.kernels.spec import ALL_DTYPES
from trigemm.lab import environment, records
from trigemm.lab.budget import float32_precision
from trigemm.lab.judge import Verdict
from trigemm.lab.records import Record
from trigemm.lab.report.rows import sizes, spread, title
from trigemm.lab.timing import interleaved
from trigemm.lab.verify import verify_into

PEERS_BUDGET = 10.0
WRONG = "wrong"
CPU_SECONDS = 6.0  # of timing a case, without a number of repeats
OnProgress = Callable[[str, int, int], object]


def cases(device: str, tiny: bool) -> list[Case]:
    long, heads, batch = (4096, 12, 8) if device == "cuda" else (2048, 12, 1)
    found = [
        Case("causal_scores_qkvpacked", 8, 1024, 12, 64),
        Case("gemmt", 1, long, 1, long),
        Case("syrk", 1, long, 1, long, "mirrored"),
        Case("syrk", 1, long, 1, long, "triangle"),
        Case("trmm", 1, long, heads, 128),
        Case("causal_softmax", batch, 1024, 12, 64),
        Case("causal_attention", batch, 1024, 12, 64, "weights"),
    ]
    return [replace(case, B=1, T=48, NH=1, HS=16) for case in found] if tiny else found


def verify(case: Case, peer: Peer, call: Call, given: Sequence[Tensor]) -> Verdict:
    """The worst verdict on the results of a call."""
    worst = Verdict(True, 0.0)
    asked = [case.parameters]
    if case.operation == "causal_attention":
        asked = [{"return_weights": False}] + ([{"return_weights": True}] if peer.gives is None else [])
    for number, parameters in enumerate(asked):
        verdict = verify_into(
            case.operation, given, lambda out, i=number: out.copy_(as_tensors(call())[i]), writes_all=True, **parameters
        )
        worst = max(worst, verdict, key=lambda one: one.error_over_budget)
    if peer.name != "trigemm" and 1 < worst.error_over_budget <= PEERS_BUDGET:
        return replace(worst, passed=True, reason=None)
    return worst


def measure(
    case: Case,
    contenders: Sequence[Peer],
    dtype: str,
    device: str,
    circumstances: Record,
    *,
    repeats: int | None = None,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> tuple[list[Record], bool]:
    """A record for each that could be verified, trigemm's first; and whether timing was interrupted."""
    given = operands(case, getattr(torch, dtype), device)
    calls: dict[str, Call] = {}
    verdicts: dict[str, Verdict] = {}
    skipped: dict[str, str] = {}
    for done, peer in enumerate(contenders):
        on_progress(f"{case.operation} {dtype}: verifying {peer.name}", done, len(contenders))
        try:
            call = peer.call(case, *given)
            call()
        except Unable as reason:
            skipped[peer.name] = str(reason)
            continue
        except Exception as error:  # of any library, in its own words
            if peer.name == "trigemm" or "CUDA error" in str(error):
                raise
            skipped[peer.name] = f"raised {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            continue
        verdicts[peer.name] = verify(case, peer, call, given)
        if verdicts[peer.name].passed:
            calls[peer.name] = call
        else:
            skipped[peer.name] = WRONG
    total = repeats or (100 if device == "cuda" else 20)
    times = interleaved(
        calls,
        repeats=total,
        device=device,
        seconds=CPU_SECONDS if repeats is None and device == "cpu" else None,
        on_round=lambda done: on_progress(f"{case.operation} {dtype}: timing", done, total),
    )
    baseline = times["eager"].median_ms if "eager" in times else None
    made = []
    for peer in contenders:
        verdict, timing = verdicts.get(peer.name), times.get(peer.name)
        if verdict is None or (verdict.passed and timing is None):
            continue
        made.append(
            {
                "operation": f"peers.{case.operation}", "kernel": peer.name, "mode": case.mode, "gives": peer.gives,
                "device": device, "dtype": dtype, "precision": "highest", "fill": None,
                "shape": {"B": case.B, "T": case.T, "NH": case.NH, "HS": case.HS},
                "verdict": "pass" if verdict.passed else "fail", "error_over_budget": verdict.error_over_budget,
                "reason": verdict.reason, "skipped": skipped,
                "median_ms": timing and timing.median_ms, "p20_ms": timing and timing.p20_ms, "p80_ms": timing and timing.p80_ms,
                "repeats": len(timing.samples) if timing else 0, "baseline_ms": baseline,
                "speedup": baseline / timing.median_ms if baseline and timing else None, "floor_ms": None, "floor_share": None,
                "cold_l2": True, "seed": 0, "when": datetime.now(UTC).isoformat(timespec="seconds"), **circumstances,
            }
        )  # fmt: skip
    return made, times.interrupted


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of any size: page faults of new memory would take longer than what is measured."""
    with suppress(AttributeError, OSError, TypeError):
        mmap_max, trim_threshold = -4, -1
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def show(found: Sequence[Record], stderr: bool) -> None:
    """A table of what was timed, what failed and what was skipped."""
    table = Table("operation", "P x T x HS", "dtype", "library", title=f"on {found[0]['device_name']}")
    for heading in ("error/budget", r"ms, median \[p20-p80]", "trigemm is"):
        table.add_column(heading, justify="right")
    for what, group in groupby(found, lambda record: (title(record), sizes(record), record["dtype"])):
        ours, *others = group
        for record in (ours, *others):
            name = record["kernel"] + (f" ({record['gives']})" if record["gives"] else "")
            time, ratio = f"[bold red]FAIL[/] {escape(str(record['reason']))}", ""
            if record["median_ms"] is not None:
                time = spread(record, 1)
                if record is not ours and ours["median_ms"] is not None:
                    faster = record["median_ms"] / ours["median_ms"]
                    ratio = f"[{'green' if faster >= 1 else 'red'}]{faster:.2f}x as fast"
            table.add_row(*what, name, f"{record['error_over_budget']:.2f}", time, ratio)
        for name, reason in ours["skipped"].items():
            if reason != WRONG:
                table.add_row(*what, name, "", f"skipped: {escape(reason)}")
        table.add_section()
    console(stderr=stderr).print(table)


def main(
    operation: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="May be repeated. Default: float32; on CUDA bfloat16 too.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Default: 100; on the CPU up to 20, in 6 s a case.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on standard output, and nothing else.")] = False,
    save: Annotated[Path | None, typer.Option(help="Append the records to this file, as JSON lines.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Make every case small: to try the script.")] = False,
) -> None:
    """Time trigemm and its peers on the same operands, each verified first."""
    found: list[Record] = []
    interrupted = False
    try:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtypes = dtype or ["float32", "bfloat16"][: 2 if device == "cuda" else 1]
        chosen = choose(device, dtypes, operation, repeats, tiny)
        if save is not None:
            records.check_writable(save)
        keep_freed_memory()
        circumstances = {
            "device_name": environment.device_name(device), "commit": environment.commit(),
            "versions": {**environment.versions(device), **versions(device)},
            "threads": torch.get_num_threads() if device == "cpu" else None,
        }  # fmt: skip
        with signals_interrupt(), progress("preparing") as on_progress, float32_precision("highest"):
            for case, each in chosen:
                made, interrupted = measure(
                    case, peers(case, device), each, device, circumstances, repeats=repeats, on_progress=on_progress
                )
                for record in made:
                    if save is not None:
                        records.append(save, record)
                    if as_json:
                        typer.echo(records.encode(record))
                found += made
                if interrupted:
                    break
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except (OSError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if found:
            show(found, as_json)
    if interrupted:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130)
    if any(record["verdict"] == "fail" for record in found):
        raise typer.Exit(1)


def choose(
    device: str, dtypes: Sequence[str], asked: Sequence[str] | None, repeats: int | None, tiny: bool
) -> list[tuple[Case, str]]:
    """The cases to measure, each in each dtype. Raises ValueError for what there is not."""
    found = cases(device, tiny)
    operations = list(dict.fromkeys(case.operation for case in found))
    for what, values, known in (
        ("device", [device], ("cpu", "cuda")),
        ("dtype", dtypes, ALL_DTYPES),
        ("operation", asked or (), operations),
    ):
        for value in values:
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, and torch finds no CUDA device; --device cpu works here")
    if repeats is not None and repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {repeats}")
    return [(case, dtype) for dtype in dtypes for case in found if case.operation in (asked or operations)]


if __name__ == "__main__":
    typer.run(main)
