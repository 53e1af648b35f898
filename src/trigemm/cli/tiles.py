"""`trigemm tiles`: which tile to cut a product into."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from trigemm.cli.terminal import console
from trigemm.lab import records, timing
from trigemm.tiling import devices
from trigemm.tiling.plan import Candidate, Plan, plan

SHOWN = 12


class SizesCommand(TyperCommand):
    """A command whose arguments are sizes: "-1" is a wrong size, not an unknown option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for argument in args:
            if re.fullmatch(r"-\d+", argument):
                raise typer.BadParameter(f"sizes must be positive; got {argument}")
        return super().parse_args(ctx, args)


def tiles(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of the product.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Its columns.")],
    k: Annotated[int, typer.Argument(metavar="K", help="The inner size.")],
    block: Annotated[
        list[str] | None,
        typer.Option(metavar="BM,BN,BK", help="A tile; may be repeated. Default: all that the device's multiprocessors hold."),
    ] = None,
    triangle: Annotated[bool, typer.Option("--triangle", help="The lower triangle of the product: live tiles alone.")] = False,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(devices.names())}; or auto: the GPU of this machine.")] = "h200",
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output, with every candidate.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw loads against parallel tiles into this file.")] = None,
) -> None:
    """Compare tiles for a product (M,K) x (K,N): what they load, how many run side by side, how long it should take.

    Loads and stores are exact, also where blocks do not divide the sizes. Registers and times are predictions of a model, with
    the device's ceilings: measured on the H200 and with `--device auto`, scaled from the datasheet elsewhere.
    """
    try:
        if plot is not None:
            _check_plot(plot)
        gpu = devices.here(_measure) if device == "auto" else devices.known(device)
        blocks = None if not block else [_block(text) for text in block]
        found = plan(m, n, k, dtype, gpu, blocks=blocks, diagonal=0 if triangle else None)
        if plot is not None:
            from trigemm.tiling.plots import plot_trade_off

            plot_trade_off(found, plot)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(records.encode(_as_json(found)))
    else:
        _show(console(), found, len(found.candidates) if block else SHOWN)


def _measure() -> tuple[float, float]:
    """GB/s of a copy and TFLOP/s of a product of 16-bit floats, measured now."""
    measured = timing.ceilings("cuda", torch.float16)
    return measured.copy_gbps, measured.gemm_tflops


def _check_plot(path: Path) -> None:
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib (pip install 'trigemm[lab]')")
    from trigemm.lab.report import check_plot

    check_plot(path)


def _block(text: str) -> tuple[int, int, int]:
    try:
        bm, bn, bk = map(int, text.split(","))
    except ValueError:
        raise ValueError(f"--block takes three integers BM,BN,BK such as 128,256,64; got {text!r}") from None
    return bm, bn, bk


def _as_json(found: Plan) -> dict[str, Any]:
    def row(candidate: Candidate) -> dict[str, Any]:
        traffic = candidate.traffic
        return {**asdict(candidate), "loads": traffic.loads, "stores": traffic.stores, "masked": traffic.masked}

    return {
        "m": found.m,
        "n": found.n,
        "k": found.k,
        "dtype": found.dtype,
        "diagonal": found.diagonal,
        "device": asdict(found.device),
        "pick": list(found.pick.block),
        "reason": found.reason,
        "candidates": [row(candidate) for candidate in found.candidates],
    }


def _show(out: Console, found: Plan, most: int) -> None:
    device = found.device
    what = "product" if found.diagonal is None else "lower triangle of the product"
    source = "measured" if device.measured else "from the datasheet"
    ceilings = f"{device.memory_gbps:.0f} GB/s, {device.tensor_tflops:.0f} TFLOP/s ({source})"
    table = Table(
        title=f"{what} ({found.m},{found.k}) x ({found.k},{found.n})  {found.dtype}  {device.name}: {device.sms} SMs, {ceilings}"
    )
    for heading in (
        "BM x BN x BK", "loads", "stores", "masked", "reuse", "flop/byte", "tiles", "tiles/SM", "waves", "shared KB", "registers",
        "predicted ms",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    table.add_column("bound by")
    for number, candidate in enumerate(found.candidates[:most]):
        table.add_row(*_cells(candidate), style="bold" if number == 0 else None)
    out.print(table)
    hidden = len(found.candidates) - most
    if hidden > 0:
        out.print(f"{hidden} slower tiles are not shown; --json has them all", highlight=False)
    out.print(found.reason, highlight=False)


def _cells(candidate: Candidate) -> Sequence[str]:
    traffic = candidate.traffic
    return (
        " x ".join(map(str, candidate.block)),
        f"{traffic.loads:,}",
        f"{traffic.stores:,}",
        f"{traffic.masked:,}",
        f"{candidate.reuse:.1f}",
        f"{candidate.intensity:.1f}",
        f"{traffic.tiles:,}",
        str(candidate.per_sm),
        _number(candidate.waves),
        f"{candidate.shared_bytes / 1024:.4g}",
        str(candidate.registers),
        _number(candidate.predicted_ms),
        candidate.bound,
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"
