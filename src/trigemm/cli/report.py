"""`trigemm report`: tables and a page from records."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from trigemm.cli.terminal import cannot_write, console
from trigemm.lab import report as lab
from trigemm.lab.records import Record, errors_name


def report(
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files of JSON lines, from `bench --save` and `traffic --save`. "
            f"Default: benchmarks/FOLDER/*.jsonl, FOLDER being {', '.join(lab.FOLDERS)}."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write all of it into this file, as one HTML page.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    update: Annotated[
        Path | None,
        typer.Option(help="Rewrite what stands between <!-- table:NAME --> and <!-- /table -->, where there are records."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the reference case as a bar chart into this file.")] = None,
) -> None:
    """Show what was measured, from records: tables, or a page with charts and a tile explorer. Measures nothing.

    Lines that are no record, and times from other versions than the latest of their problem, are named and left out.
    """
    try:
        paths = records or lab.default_files(Path("benchmarks"))
        if not paths:
            raise ValueError(
                f"no records: no .jsonl file in {', '.join(lab.FOLDERS)} of the folder benchmarks; "
                "name files, or make one with `trigemm bench --save FILE`"
            )
        if plot is not None:
            lab.check_plot(plot)
        loaded = lab.load(paths)
        for line in loaded.skipped:
            typer.echo(f"skipped {line}", err=True)
        kept = loaded.benchmarks
        tables = markdown or update is not None or plot is not None or output is None
        if not kept and (tables or not (loaded.counted or loaded.measured or loaded.searches)):
            typer.echo(
                f"error: there is no benchmark record in {', '.join(map(str, paths))}; tables are made of what "
                "`bench --save` writes, a page also of what `traffic --save` does, neither of what `verify --save` does",
                err=True,
            )
            raise typer.Exit(1)
        if update is not None:
            _rewrite(update, kept)
        if plot is not None:
            lab.plot(kept, plot)
        if output is not None:
            _write(output, lab.page(loaded))
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    except OSError as error:
        typer.echo(cannot_write(error), err=True)
        raise typer.Exit(2) from None
    if markdown:
        typer.echo(lab.markdown(kept), nl=False)
    elif update is None and plot is None and output is None:
        console().print(Markdown(lab.markdown(kept)))


def _rewrite(path: Path, kept: list[Record]) -> None:
    reason = None if path.is_file() or not path.exists() else "it is no file"
    try:
        before = "" if reason else path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "it is not text in UTF-8"
    if reason:
        raise ValueError(f"cannot update {path}: {reason}; give a file with <!-- table:NAME --> in it")
    after, left = lab.update(before, kept)
    if left:
        typer.echo(f"left as they are, for want of records: {', '.join(left)}", err=True)
    if after != before:
        _write(path, after)


def _write(path: Path, text: str) -> None:
    """Write a file that is whole or, where that fails, as it was."""
    path = path.resolve()
    with errors_name(path):
        if path.exists() and not path.is_file():  # a device
            path.write_text(text, encoding="utf-8")
            return
        partial = path.with_name(path.name + ".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            if path.exists():
                shutil.copymode(path, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
