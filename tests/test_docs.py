"""The documentation builds without a warning, its examples give what it says, and it leaves nothing out."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import trigemm
from trigemm.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
COMMANDS = typer.main.get_command(app).commands

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


def text(site, page):
    return (site / page).read_text(encoding="utf-8")


class Loaded(HTMLParser):
    """Addresses from which a page loads something."""

    def __init__(self, html):
        super().__init__()
        self.addresses = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.addresses += [found["src"]] if "src" in found else []
        if tag == "link" and found.get("rel") != "canonical":
            self.addresses.append(found["href"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_give_what_the_page_says(page):
    code = "\n".join(re.findall(r"```(?:python|pycon)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    example = doctest.DocTestParser().get_doctest(code, {}, page.stem, page.name, 0)
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=printed.append)
    assert result.failed == 0, "".join(printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page):
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    for name, arguments in re.findall(r"^trigemm (\w+)([^#\n]*)", shell, re.MULTILINE):
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", arguments)) <= options


def test_every_operation_is_described_from_its_docstring(site):
    described = text(site, "operations.html") + text(site, "attention.html")
    for name in trigemm.__all__:
        assert f'id="trigemm.{name}"' in described
    assert "(…,M,K)" in described
    assert "&gt;&gt;&gt;" in described


def test_every_command_is_described_with_its_options(site):
    page = text(site, "commands.html")
    for name, command in COMMANDS.items():
        assert f">trigemm {name}" in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f"<code>{', '.join(parameter.opts + parameter.secondary_opts)}</code>" in page


def test_tables_are_made_from_records(site):
    assert "NVIDIA H200" in text(site, "ladder.html")
    assert text(site, "measuring.html").count("<table>") >= 2
    for page in site.glob("*.html"):
        assert "<!-- table:" not in page.read_text(encoding="utf-8")
        assert "No records." not in page.read_text(encoding="utf-8")


def test_notebooks_are_pages_with_their_outputs_and_formulas(site):
    for notebook in (ROOT / "tutorial").glob("*.ipynb"):
        page = text(site, f"tutorial/{notebook.stem}.html")
        for picture in re.findall(r'<img [^>]*src="([^"]+)"', page):
            assert (site / "tutorial" / picture).stat().st_size > 0
        assert "arithmatex" not in page


def test_the_report_stands_beside_the_pages(site):
    report = text(site, "report.html")
    assert 'id="explorer"' in report
    assert str(ROOT) not in report
    assert "Skipped records" not in report


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        for address in Loaded(page.read_text(encoding="utf-8")).addresses:
            assert not re.match(r"(https?:)?//", address), (page.name, address)


def test_docstrings_become_markdown():
    source = importlib.util.spec_from_file_location("docstrings", ROOT / "docs/docstrings.py")
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    assert doctest.testmod(module).failed == 0
    text = "Two.\n\n>>> f(1)\n1\n>>> f(2)\n2\n\nThen more.\n\n>>> for i in ():\n...     f(i)"
    fenced = "Two.\n\n```pycon\n>>> f(1)\n1\n>>> f(2)\n2\n```\n\nThen more.\n\n```pycon\n>>> for i in ():\n...     f(i)\n```"
    assert module.as_markdown(text) == fenced
