"""`trigemm report` from files to tables."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trigemm.cli.main import app

RECORD = {
    "operation": "gemmt",
    "kernel": "trigemm",
    "number": 1,
    "device": "cpu",
    "dtype": "float32",
    "precision": "highest",
    "fill": None,
    "shape": {"B": 1, "T": 64, "NH": 2, "HS": 8},
    "verdict": "pass",
    "error_over_budget": 0.5,
    "median_ms": 1.0,
    "p20_ms": 0.5,
    "p80_ms": 2.0,
    "baseline_ms": 3.0,
    "speedup": 3.0,
    "floor_ms": 0.5,
    "floor_share": 0.5,
    "versions": {"torch": "2.13"},
    "commit": "abc123",
}


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(RECORD) + "\nbroken\n")
    return path


def test_markdown_goes_to_standard_output_and_broken_lines_to_standard_error(results):
    done = report(results, "--markdown")
    assert done.exit_code == 0
    assert "| gemmt | 2 x 64 x 8 | float32 | trigemm | 3 |" in done.stdout
    assert "broken" not in done.stdout
    assert f"skipped {results}:2: not JSON" in done.stderr


def test_without_options_the_tables_are_drawn(results):
    done = report(results)
    assert done.exit_code == 0
    assert "gemmt" in done.stdout
    assert "|---" not in done.stdout.replace(" ", "")


def test_the_default_is_every_file_of_the_results_folder(tmp_path, monkeypatch, results):
    monkeypatch.chdir(tmp_path)
    assert report().exit_code == 2
    assert "no records: benchmarks/results has no .jsonl file" in report().stderr
    folder = Path("benchmarks/results")
    folder.mkdir(parents=True)
    results.rename(folder / "a.jsonl")
    assert "| gemmt |" in report("--markdown").stdout


def test_update_rewrites_a_file_in_place(tmp_path, results):
    page = tmp_path / "README.md"
    page.write_text("µ\n<!-- table:cpu -->\n<!-- /table -->\n", encoding="utf-8")
    done = report(results, "--update", page)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "| gemmt |" in page.read_text(encoding="utf-8")


def test_plot_needs_a_record_of_the_reference_case(tmp_path, results):
    done = report(results, "--plot", tmp_path / "x.png")
    assert done.exit_code == 2
    assert done.stderr.endswith("error: there is no record of the reference case to plot\n")


@pytest.mark.parametrize("arguments", [("missing.jsonl",), ("--update", "missing.md")])
def test_a_file_that_is_not_there_is_one_sentence(results, arguments):
    done = report(*([] if arguments[0] == "missing.jsonl" else [results]), *arguments)
    assert done.exit_code == 2
    assert "No such file" in done.stderr
    assert "Traceback" not in done.output
