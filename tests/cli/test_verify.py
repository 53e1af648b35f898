import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import trigemm
from trigemm.cli.main import app
from trigemm.lab.sweep import Sweep
from trigemm.lab.workloads import listing

FIELDS = {
    "operation", "kernel", "device", "device_name", "dtypes", "seed", "cases", "passed", "failed", "worst_error_over_budget",
    "worst", "failure", "reason", "seconds", "versions", "commit", "when",
}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, ["verify", "--device", "cpu", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def broken_syrk(monkeypatch):
    def syrk(a, *, out=None, **options):
        result = right(a, out=out, **options)
        if result.numel():
            result[..., -1, 0] += 1
        return result

    right = trigemm.syrk
    monkeypatch.setattr(trigemm, "syrk", syrk)


def test_two_hundred_cases_pass(tmp_path):
    path = tmp_path / "verified.jsonl"
    result = run("--cases", "200", "--json", "--save", str(path))
    assert result.exit_code == 0, result.stderr
    summaries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [summary["operation"] for summary in summaries] == list(Sweep().operations)
    for summary in summaries:
        assert summary.keys() == FIELDS
        assert summary["passed"] == summary["cases"] >= 200 // len(summaries)
        assert (summary["failed"], summary["failure"]) == (0, None)
        assert 0 < summary["worst_error_over_budget"] <= 1
    assert path.read_text() == result.stdout
    assert run("--cases", "1", "--save", str(path)).exit_code == 0
    assert len(path.read_text().splitlines()) == len(summaries) + 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_disk_that_is_full_costs_no_result():
    result = run("--cases", "2", "--operation", "gemmt", "--json", "--save", "/dev/full")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["cases"] == 2
    assert result.stderr == "error: cannot write /dev/full: No space left on device\n"


def test_jobs_must_be_positive():
    result = run("--jobs", "0")
    assert result.exit_code == 2
    assert "--jobs must be at least 1, got 0" in result.stderr


def test_a_table_is_printed():
    result = run("--cases", "3", "--operation", "trmm", "--operation", "gemmt", "--dtype", "float16", "--seed", "5")
    assert result.exit_code == 0
    assert "worst error/budget" in result.stdout
    assert "trmm" in result.stdout
    assert "gemmt" in result.stdout
    assert "syrk" not in result.stdout


def test_a_failure_prints_the_smallest_case(broken_syrk):
    result = run("--cases", "15", "--operation", "syrk", "--dtype", "float32", "--json")
    assert result.exit_code == 1
    (summary,) = map(json.loads, result.stdout.splitlines())
    assert 0 < summary["failed"] <= 15
    assert summary["worst_error_over_budget"] == "inf" or summary["worst_error_over_budget"] > 1
    assert summary["failure"] in result.stderr
    assert summary["reason"] in result.stderr
    assert "Case('syrk', {'N': 1, 'K': " in summary["failure"]
    assert "Traceback" not in result.stderr
    printed = []
    exec(summary["failure"], {"print": printed.append})
    assert str(printed[0]) == f"FAIL: {summary['reason']}"


def test_an_interrupted_sweep_keeps_what_it_has(monkeypatch):
    original = Sweep.check
    checked = []

    def check(self, case):
        checked.append(case)
        if len(checked) == 4:
            raise KeyboardInterrupt
        return original(self, case)

    monkeypatch.setattr(Sweep, "check", check)
    result = run("--cases", "50", "--json", "--operation", "syrk")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["cases"] == 3
    assert "interrupted" in result.stderr


def test_an_error_of_the_device_is_no_traceback(monkeypatch):
    def check(self, case):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Sweep, "check", check)
    result = run("--cases", "5")
    assert result.exit_code == 1
    for words in ("illegal memory access", "This case met it: from trigemm.lab.verify import", "CUDA_LAUNCH_BLOCKING=1"):
        assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_kernel_of_the_catalogue():
    result = run("--kernel", "strips", "--cases", "12", "--operation", "trmm", "--operation", "syrk", "--json")
    assert result.exit_code == 0, result.stderr
    summaries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(summary["operation"], summary["kernel"]) for summary in summaries] == [("trmm", "strips"), ("syrk", "strips")]


@pytest.mark.parametrize(
    ("key", "operation", "kernel"),
    [
        ("trigemm", "causal_scores", None), ("1", "causal_scores", None), ("1", "gemmt", None), ("3", "gemmt", "strips"),
        ("trigemm", "causal_scores_qkvpacked", None), ("7", "causal_scores_qkvpacked", "strips"),
    ],
)  # fmt: skip
def test_kernels_have_the_numbers_and_names_of_the_benchmark(key, operation, kernel):
    result = run("--kernel", key, "--operation", operation, "--cases", "2", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["kernel"] == kernel
    assert key in {x for row in listing(operation) for x in (str(row["number"]), row["kernel"])} | {"trigemm"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--kernel", "0", "--operation", "gemmt"],
            "there is no kernel '0'; there are 2 tiles (gemmt), 3 strips (gemmt), 1 trigemm",
        ),
        (["--kernel", "strips", "--operation", "causal_attention"], "there is no kernel 'strips'; there are 1 trigemm"),
        (["--operation", "gemm"], "unknown operation 'gemm'; known are gemmt,"),
        (["--dtype", "int8"], "unknown dtype 'int8'; known are float64,"),
        (["--precision", "low"], "unknown precision 'low'; known are highest,"),
        (["--device", "tpu"], "unknown device 'tpu'; known are cpu, cuda"),
        (["--cases", "0"], "--cases must be at least 1, got 0"),
        (["--kernel", "fast"], "there is no kernel 'fast'; there are 1 naive"),
        (["--kernel", "tiles", "--dtype", "float64"], "takes float32, float16, bfloat16, not float64"),
        (["--save", "/nowhere/at/all.jsonl"], "cannot write records to /nowhere/at/all.jsonl"),
        (["--cases", "many"], "Invalid value for '--cases'"),
    ],
)
def test_bad_usage_is_one_sentence(arguments, sentence, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_cuda_kernel_on_the_cpu_needs_a_simulator(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    result = run("--kernel", "tiles", "--operation", "gemmt")
    assert result.exit_code == 2
    assert "kernel tiles runs on cuda, not on cpu; TRITON_INTERPRET=1" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of sums that overflow
def test_what_the_interpreter_computes_wrong_is_left_out_or_refused():
    result = run("--kernel", "tiles", "--operation", "gemmt", "--cases", "8", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["dtypes"] == ["float64", "float32", "float16"]
    assert (
        result.stderr == 'bfloat16 and precision "medium" are left out: Triton\'s interpreter computes bfloat16 products wrong\n'
    )
    for asked in (["--dtype", "bfloat16"], ["--precision", "medium"]):
        result = run("--kernel", "tiles", *asked)
        assert result.exit_code == 2
        assert f"{asked[1]} cannot be verified here: Triton's interpreter computes bfloat16" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_device_that_is_not_there():
    result = run("--device", "cuda")
    assert result.exit_code == 2
    assert "torch finds no CUDA device; --device cpu works here" in result.stderr


@pytest.mark.gpu
def test_a_gpu_sweep():
    result = CliRunner().invoke(app, ["verify", "--cases", "30", "--json"])
    assert result.exit_code == 0, result.stderr
    assert {json.loads(line)["device"] for line in result.stdout.splitlines()} == {"cuda"}


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout == f"trigemm {trigemm.__version__}\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_are_stopped_end_and_what_they_did_is_kept(tmp_path, sent):
    saved = tmp_path / "verified.jsonl"
    code = (
        "from trigemm.cli.main import app\n"
        "from trigemm.lab.sweep import Tally\n"
        "def add(self, *result, add=Tally.add):\n    add(self, *result)\n    print('one', flush=True)\n"
        "Tally.add = add\n"
        "if __name__ == '__main__':\n    app()\n"
    )
    (script := tmp_path / "script.py").write_text(code)
    arguments = ["verify", "--device", "cpu", "--jobs", "2", "--cases", "100000", "--save", saved]
    with subprocess.Popen(
        [sys.executable, script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(trigemm.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            assert process.stdout.readline() == "one\n"
            # As `timeout` does: to the command, and then to all of its group.
            process.send_signal(sent)
            os.killpg(process.pid, sent)
            # Nobody else holds the streams open: the processes that verified are gone too.
            _, errors = process.communicate(timeout=20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, errors
    assert errors.endswith("interrupted: not all cases were tried\n")
    assert "Traceback" not in errors
    assert sum(json.loads(line)["cases"] for line in saved.read_text().splitlines()) >= 1


def test_a_terminated_sweep_keeps_what_it_has(monkeypatch):
    original = Sweep.check
    checked = []

    def check(self, case):
        checked.append(case)
        if len(checked) == 4:
            signal.raise_signal(signal.SIGTERM)
        return original(self, case)

    monkeypatch.setattr(Sweep, "check", check)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    result = run("--cases", "50", "--json", "--operation", "syrk")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["cases"] == 3
    assert result.stderr == "interrupted: not all cases were tried\n"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_failure_that_was_being_simplified_is_told_as_it_is(broken_syrk, monkeypatch):
    def smallest(self, failure):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Sweep, "smallest", smallest)
    result = run("--cases", "15", "--operation", "syrk", "--dtype", "float32", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failure"] in result.stderr
