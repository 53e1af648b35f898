"""The `trigemm` command. Each subcommand is a file of its own."""

from typing import Annotated

import typer

import trigemm
from trigemm.cli.bench import bench
from trigemm.cli.report import report
from trigemm.cli.tiles import SizesCommand, tiles
from trigemm.cli.traffic import app as traffic
from trigemm.cli.verify import verify

app = typer.Typer(
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
