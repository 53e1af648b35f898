"""The README's examples give what they say, its tables are the records', its commands exist, and its links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest
import typer

from trigemm.cli.main import app
from trigemm.lab import report

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = ["gemmt", "trmm", "syrk", "causal_scores", "causal_scores_qkvpacked"]
COMMANDS = re.findall(r"^trigemm (\w+)([^#\n]*)", README, re.MULTILINE)


def test_examples_run_and_print_what_the_readme_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    example = doctest.DocTestParser().get_doctest(code, {}, "README", "README.md", 0)
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=printed.append)
    assert result.failed == 0, "".join(printed)
    for operation in OPERATIONS:
        assert f"trigemm.{operation}(" in code


def test_tables_are_what_the_records_say():
    loaded = report.load(
        [path for kind in ("results", "attention", "peers") for path in sorted((ROOT / "benchmarks" / kind).glob("*.jsonl"))]
    )
    assert loaded.benchmarks
    assert loaded.skipped == []
    assert report.update(README, loaded.benchmarks)[0] == README, "run: trigemm report --update README.md"


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_commands_and_their_options_exist(command, arguments):
    known = typer.main.get_command(app).commands[command]
    options = {name for parameter in known.params for name in parameter.opts}
    assert set(re.findall(r"--[\w-]+", arguments)) <= options


def test_commands_are_found_in_the_readme():
    assert {command for command, _ in COMMANDS} >= {"bench", "verify"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
