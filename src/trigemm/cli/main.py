"""The `trigemm` command. Each subcommand is a file of its own."""

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import trigemm
from trigemm.cli.bench import bench
from trigemm.cli.report import report
from trigemm.cli.tiles import SizesCommand, tiles
from trigemm.cli.traffic import app as traffic
from trigemm.cli.verify import verify


class Commands(TyperGroup):
    """Where standard output cannot be written, one sentence; where its reader has gone, none."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
            if error.errno != errno.EPIPE:
                print(f"error: cannot write to standard output: {error.strerror}", file=sys.stderr)
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        """A value that cannot be read is named beside what it should have been."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # Typer reads values by pydantic, whose words leave them out.
            invalid: list[Any] = getattr(error.__cause__, "errors", list)()
            if invalid:
                error.message += f"; got {invalid[0]['input']!r}"
            raise


app = typer.Typer(
    cls=Commands,
    help=trigemm.__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trigemm {trigemm.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


app.command()(bench)
app.command()(report)
app.command(cls=SizesCommand)(tiles)
app.add_typer(traffic, name="traffic")
app.command()(verify)
