"""`trigemm report`: tables from records."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from trigemm.cli.terminal import console
from trigemm.lab import records as files
from trigemm.lab import report as lab

DEFAULT_FOLDER = Path("benchmarks/results")


def report(
    records: Annotated[
        list[Path] | None, typer.Argument(help=f"Files of JSON lines from `bench --save`. Default: {DEFAULT_FOLDER}/*.jsonl")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown as it is.")] = False,
    update: Annotated[
        Path | None, typer.Option(help="Rewrite what stands between <!-- table:NAME --> and <!-- /table -->.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the reference case as a bar chart into this file.")] = None,
) -> None:
    """Make the tables of the README from records. Measures nothing."""
    try:
        paths = records or sorted(DEFAULT_FOLDER.glob("*.jsonl"))
        if not paths:
            raise ValueError(
                f"no records: {DEFAULT_FOLDER} has no .jsonl file; name files, or make one with `trigemm bench --save FILE`"
            )
        if plot is not None:
            lab.check_plot(plot)
        kept, broken = files.read(paths)
        for line in broken:
            typer.echo(f"skipped {line}", err=True)
        if not kept:
            typer.echo(f"error: there is no benchmark record in {', '.join(map(str, paths))}", err=True)
            raise typer.Exit(1)
        if update is not None:
            _rewrite(update, kept)
        if plot is not None:
            lab.plot(kept, plot)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(f"error: cannot write {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    if markdown:
        typer.echo(lab.markdown(kept), nl=False)
    elif update is None and plot is None:
        console().print(Markdown(lab.markdown(kept)))


def _rewrite(path: Path, kept: list[files.Record]) -> None:
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot update {path}: {error.strerror}; give a file with <!-- table:NAME --> in it") from None
    after = lab.update(before, kept)
    if after != before:
        path.write_text(after, encoding="utf-8")
