"""What the site is made of beside the pages in this folder: notebooks, tables and the report from records, commands."""

import json
import os
import re
from pathlib import Path

import nbformat
import typer
from latex2mathml.converter import convert as mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from trigemm.cli.main import app
from trigemm.kernels.catalogue import CATALOGUE
from trigemm.lab import report

ROOT = Path(__file__).parents[1]
MARKER = re.compile(r"<!-- (table|command|rungs|lines):(\S+) -->")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def notebooks() -> list[Path]:
    return sorted((ROOT / "tutorial").glob("*.ipynb"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Notebooks take the place of "tutorial" in the contents."""
    pages = [f"tutorial/{path.stem}.md" for path in notebooks()]
    config.nav = [{"Tutorial": pages} if item == "tutorial" else item for item in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies elsewhere or is made from records."""
    for path in notebooks():
        text, pictures = _notebook(path)
        files.append(File.generated(config, f"tutorial/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorial/{name}", content=picture))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        files.append(File.generated(config, name.lower(), content=_moved((ROOT / name).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "report.html", content=report.page(_records())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts things where a page asks for them: tables, commands, rungs of an operation, lines of a file of records."""
    make = {"table": _table, "command": _command, "rungs": _rungs, "lines": _lines}
    return MARKER.sub(lambda found: make[found[1]](found[2]), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas become MathML, which browsers draw by themselves."""
    return FORMULA.sub(lambda found: mathml(found[2], display="inline" if found[1] == "span" else "block"), html)


def _records() -> report.Loaded:
    # Named from where the site is built: a page shows the places of lines that it left out.
    return report.load(report.default_files(Path(os.path.relpath(ROOT / "benchmarks"))))


def _table(name: str) -> str:
    return report.table(name, _records().benchmarks)


def _lines(request: str) -> str:
    """FILE|FIELD=VALUE,…|FIELD,…: those fields of the lines of a file under benchmarks/ that have these values."""
    name, wanted, fields = request.split("|")
    conditions = dict(each.split("=") for each in wanted.split(",") if each)
    columns = fields.split(",")
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for line in (ROOT / "benchmarks" / name).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if all(str(record.get(field)) == value for field, value in conditions.items()):
            cells = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in (record[column] for column in columns))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _rungs(operation: str) -> str:
    """The kernels of an operation, as the catalogue has them."""
    rows = [
        f"| {spec.number} {spec.name} | {spec.idea} | `{spec.entry_point.split(':')[0].removeprefix('trigemm.')}` |"
        for spec in CATALOGUE
        if spec.operation == operation
    ]
    return "\n".join(["| rung | idea | module of trigemm |", "|---|---|---|", *rows])


def _command(name: str) -> str:
    """What a command does, its arguments and its options, from the command line itself."""
    command = typer.main.get_command(app)
    for word in name.split("."):
        command = command.commands[word]
    lines = [command.help or "", "", "| | |", "|---|---|"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            names = parameter.metavar or str(parameter.name).upper()
        else:
            names = ", ".join(parameter.opts + parameter.secondary_opts)
        cell = (parameter.help or "").replace("|", "\\|").replace("<", "&lt;")
        if parameter.default not in (None, False) and not callable(parameter.default) and "Default" not in cell:
            cell += f" Default: `{parameter.default}`."
        lines.append(f"| `{names}` | {cell} |")
    return "\n".join(lines)


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, with the outputs that are stored in it, and its pictures by name."""
    exporter = MarkdownExporter()
    text, resources = exporter.from_notebook_node(nbformat.read(path, as_version=4), {"unique_key": path.stem})
    return text, resources["outputs"]


def _moved(text: str) -> str:
    """A page of the project's root as a page of this folder: links to what the site lacks become names of files."""
    return LINK.sub(lambda link: _link(link[1], link[2]), text)


def _link(text: str, target: str) -> str:
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')})"
    return text if text.startswith("`") else f"{text} (`{os.path.normpath(target)}`)"
