"""`trigemm report` from files to tables."""

import errno
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
    assert "no records: no .jsonl file in results, traffic, attention, peers, tiles, tensor of the folder" in report().stderr
    folder = Path("benchmarks/results")
    folder.mkdir(parents=True)
    results.rename(folder / "a.jsonl")
    assert "| gemmt |" in report("--markdown").stdout


def test_the_default_shows_every_kind_and_passes_over_folders_that_it_cannot_show(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    done = report("-o", tmp_path / "report.html")
    assert done.exit_code == 0
    assert done.stderr == ""
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for shown in ("tensor.softmax", "the picked tile takes", "causal_attention", "peers.gemmt", "Traffic"):
        assert shown in page
    assert "skipped" not in page.rpartition("<footer>")[2].partition("</footer>")[0]
    assert str(Path.cwd()) not in page


def test_update_rewrites_a_file_in_place(tmp_path, results):
    page = tmp_path / "README.md"
    page.write_text("µ\n<!-- table:cpu -->\n<!-- /table -->\n<!-- table:cuda -->\nold\n<!-- /table -->\n", encoding="utf-8")
    done = report(results, "--update", page)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr.endswith("left as they are, for want of records: cuda\n")
    assert "| gemmt |" in page.read_text(encoding="utf-8")
    assert "<!-- table:cuda -->\nold\n<!-- /table -->\n" in page.read_text(encoding="utf-8")


def test_output_is_one_page_and_broken_lines_are_named_there_too(tmp_path, results):
    page = tmp_path / "report.html"
    done = report(results, "-o", page)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert f"skipped {results}:2: not JSON" in done.stderr
    assert f"<code>{results}:2</code> not JSON" in page.read_text(encoding="utf-8")


def test_a_page_may_be_made_of_traffic_alone(tmp_path):
    path, page = tmp_path / "traffic.jsonl", tmp_path / "report.html"
    path.write_text(json.dumps({"kernel": "mine", "grid": [1, 1, 1], "block": [32, 1, 1], "lines": [], "source": []}) + "\n")
    assert report(path, "-o", page).exit_code == 0
    assert "<strong>mine</strong>" in page.read_text(encoding="utf-8")
    assert report(path, "--markdown").exit_code == 1


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


@pytest.mark.parametrize("content", ["", "broken\n", '{"operation": "gemmt", "kernel": null, "cases": 3}\n'])
def test_files_without_a_benchmark_record_are_an_error_and_change_nothing(tmp_path, content):
    path, page = tmp_path / "some.jsonl", tmp_path / "README.md"
    path.write_text(content)
    page.write_text("<!-- table:cpu -->\nold\n<!-- /table -->\n")
    done = report(path, "--update", page)
    assert done.exit_code == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: there is no benchmark record in {path}; tables are made of what `bench --save` writes,")
    assert "old" in page.read_text()


def test_figures_are_not_cut_off_where_there_is_no_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shape = {"B": 8, "T": 1024, "NH": 12, "HS": 64}
    row = {**RECORD, "operation": "causal_scores_qkvpacked", "shape": shape, "number": 7, "kernel": "strips", "alone_ms": 12.75}
    (path := tmp_path / "some.jsonl").write_text(json.dumps({**row, "speedup_blas": 1234.5}) + "\n")
    done = report(path)
    assert "…" not in done.stdout
    for figure in ("causal_scores_qkvpacked", "96 x 1024 x 64", "1 [0.5-2]", "12.8", "1234.50x"):
        assert figure in done.stdout


@pytest.mark.parametrize(
    ("option", "name", "sentence"),
    [
        (
            "--update",
            "no/page.md",
            "error: cannot update {}: No such file or directory; give a file with <!-- table:NAME --> in it\n",
        ),
        ("-o", "no/page.html", "error: cannot write {}: No such file or directory\n"),
        ("-o", "/dev/full", "error: cannot write {}: No space left on device\n"),
        ("--plot", "p.xyz", "error: cannot plot to {}: its name must end in one of .eps, "),
        ("--plot", "p", "error: cannot plot to {}: its name must end in one of .eps, "),
        ("--plot", "no/p.png", "error: cannot plot to {}: give a file in an existing folder\n"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, results, option, name, sentence):
    if option == "--plot":
        monkeypatch.setattr("trigemm.lab.report.load", lambda paths: pytest.fail("the place is checked first"))
    done = report(results, option, tmp_path / name)
    assert done.exit_code == 2
    assert sentence.format(tmp_path / name) in done.stderr
    assert "Errno" not in done.stderr


def test_a_file_that_cannot_be_rewritten_stays(tmp_path, results, monkeypatch):
    target = tmp_path / "page.md"
    target.write_text("<!-- table:cpu -->\nold\n<!-- /table -->\n")
    before = target.read_bytes()

    def full(self, text, encoding):
        self.write_bytes(text.encode()[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    found = CliRunner().invoke(app, ["report", str(results), "--update", str(target)])
    assert (found.exit_code, found.stderr.splitlines()[-1]) == (2, f"error: cannot write {target}: No space left on device")
    assert target.read_bytes() == before
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.parametrize(("content", "reason"), [(b"\xff\xfe", "it is not text in UTF-8"), (None, "it is no file")])
def test_what_cannot_be_updated_is_named(tmp_path, results, content, reason):
    target = tmp_path / "page.md"
    if content:
        target.write_bytes(content)
    else:
        target.mkdir()
    found = CliRunner().invoke(app, ["report", str(results), "--update", str(target)])
    assert (found.exit_code, found.stderr.splitlines()[-1]) == (
        2, f"error: cannot update {target}: {reason}; give a file with <!-- table:NAME --> in it",
    )  # fmt: skip
