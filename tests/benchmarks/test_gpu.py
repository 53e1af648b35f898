"""The steps that need a GPU: every script and test that they name exists, and a step that ends badly is told apart."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trigemm.cli.main import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("gpu")
        sys.modules.pop("gpu")


def test_every_file_that_a_step_names_exists(script):
    words = [word for step in script.STEPS for word in step.command if word.startswith(("tests", "benchmarks"))]
    assert words
    assert all((ROOT / word).exists() for word in words)
    assert all((ROOT / step.records).parent.parent.exists() for step in script.STEPS if step.records)
    assert len({step.name for step in script.STEPS}) == len(script.STEPS)


@pytest.mark.parametrize("kind", ["check", "measure"])
def test_steps_end_in_their_own_ways_and_keep_what_they_printed(script, kind, tmp_path, monkeypatch, capsys):
    def python(name, code, limit=60):
        return script.Step(name, kind, limit, (sys.executable, "-c", code, "OUT", "JOBS"))

    late = "import time\nprint('begun', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('kept')"
    steps = (
        python("good", "import sys; open(sys.argv[1], 'w').write('{}'); print(sys.argv[2])"),
        python("bad", "raise SystemExit(3)"),
        python("late", late, limit=1),
        script.Step("absent", kind, 60, ("no-such-program",)),
        script.Step("other", "several", 60, ("no-such-program",)),
    )
    monkeypatch.setattr(script, "STEPS", steps)
    assert script.main([kind, "--out", str(tmp_path / "out"), "--jobs", "7"]) == 1
    logs = {path.stem: path.read_text() for path in (tmp_path / "out").glob("*.log")}
    assert logs["good"] == "7\n"
    assert logs["late"] == "begun\nkept\n"
    assert set(logs) == {"good", "bad", "late", "absent"}
    assert json.loads((tmp_path / "out/good.jsonl").read_text()) == {}
    printed = capsys.readouterr().out
    for line in ("good: passed", "bad: failed (3)", "late: out of time", "absent: not installed"):
        assert line in printed
    assert script.main([kind, "--out", str(tmp_path / "out"), "--only", "good"]) == 0


def test_no_step_begins_that_may_not_end_in_time(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "STEPS", (script.Step("long", "measure", 60, (sys.executable, "-c", "")),))
    assert script.main(["measure", "--out", str(tmp_path), "--seconds", "59"]) == 1
    assert "not begun" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.log"))


def test_the_steps_are_listed_and_a_missing_choice_is_a_sentence(script, capsys):
    assert script.main(["--list"]) == 0
    assert "benchmarks/results/h200.jsonl" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        script.main(["check"])
    assert end.value.code == 2
    assert "where logs and records go: --out DIR" in capsys.readouterr().err


def test_the_command_line_takes_every_case_of_the_benchmark(script):
    """Each is refused for its device alone: there is no such GPU here, and everything else about it is right."""
    for case in script.BENCHES:
        result = CliRunner().invoke(app, ["bench", *case.split(), "--device", "cuda:99"])
        assert result.exit_code == 2
        assert "cuda" in result.output
