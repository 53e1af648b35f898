"""The comparison with other libraries: what is wrong has no time, what is missing is named, and bad arguments are a sentence."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from trigemm.lab import records, report

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CIRCUMSTANCES = {"device_name": "a CPU", "versions": {"torch": torch.__version__}, "commit": None, "threads": 1}


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("peers")
        for name in ("peers", "peer_calls"):
            sys.modules.pop(name)


@pytest.fixture
def calls(script):
    return sys.modules["peer_calls"]


@pytest.fixture
def few(script, calls, monkeypatch):
    """All peers but torch.compile, which takes seconds; JAX is missing."""
    monkeypatch.setitem(sys.modules, "jax", None)

    def without_compiled(case, device):
        return [peer for peer in calls.peers(case, device) if peer.name != "compiled"]

    monkeypatch.setattr(script, "peers", without_compiled)
    monkeypatch.setattr(script, "keep_freed_memory", lambda: None)


def run(script, *arguments):
    app = typer.Typer()
    app.command()(script.main)
    return CliRunner().invoke(app, [*arguments])


def small(script, operation, mode=None):
    (case,) = [case for case in script.cases("cpu", tiny=True) if (case.operation, case.mode) == (operation, mode)]
    return case


def test_a_run_times_every_library_and_names_what_is_missing(script, few, tmp_path):
    path = tmp_path / "peers.jsonl"
    result = run(script, "--tiny", "--device", "cpu", "--repeats", "2", "--save", str(path))
    assert result.exit_code == 0, result.output
    found, broken = records.read([path])
    assert broken == []
    kernels = {}
    for record in found:
        assert record["verdict"] == "pass"
        assert record["repeats"] == 2
        kernels.setdefault(report.rows.title(record), set()).add(record["kernel"])
    assert kernels.keys() >= {"causal_scores_qkvpacked", "gemmt", "syrk, mirrored", "syrk, triangle", "trmm", "causal_softmax"}
    assert all({"trigemm", "eager"} <= names for names in kernels.values())
    assert kernels["causal_attention, weights"] == {"trigemm", "eager", "sdpa"}
    assert "skipped: not installed" in result.output
    assert "sdpa (no weights)" in result.output
    table = report.table("peers", found)
    assert "| not installed |" in table
    assert "(no weights)" in table


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_on_a_gpu(script, few, tmp_path, dtype):
    path = tmp_path / "peers.jsonl"
    result = run(script, "--tiny", "--device", "cuda", "--dtype", dtype, "--repeats", "2", "--save", str(path))
    assert result.exit_code == 0, result.output
    found, _ = records.read([path])
    assert {record["verdict"] for record in found} == {"pass"}
    assert {"trigemm", "eager", "sdpa"} <= {record["kernel"] for record in found}
    assert any(record["kernel"] == "cupy" or "cupy" in record["skipped"] for record in found)


@pytest.mark.parametrize(("operation", "mode"), [("gemmt", None), ("syrk", "triangle"), ("trmm", None)])
def test_a_wrong_peer_has_no_time(script, calls, operation, mode):
    case = small(script, operation, mode)

    def off_by_a_little(case, *operands):
        def call():
            result = calls.eager(case, *operands)().clone()
            result[0, 5, 5] += 0.01
            return result

        return call

    contenders = [calls.Peer("trigemm", calls.ours), calls.Peer("eager", calls.eager), calls.Peer("wrong", off_by_a_little)]
    found, interrupted = script.measure(case, contenders, "float32", "cpu", CIRCUMSTANCES, repeats=1)
    assert not interrupted
    assert [(record["kernel"], record["verdict"]) for record in found] == [
        ("trigemm", "pass"), ("eager", "pass"), ("wrong", "fail"),
    ]  # fmt: skip
    assert found[2]["median_ms"] is None
    assert "(0, 5, 5)" in found[2]["reason"]
    assert found[0]["skipped"] == {"wrong": "wrong"}


def test_a_peer_may_be_a_little_more_wrong_than_trigemm(script, calls):
    case = small(script, "syrk", "mirrored")

    def less_accurate(case, a):
        return lambda: a @ a.mT * (1 + 2e-6)

    for name, verdict in (("other", "pass"), ("trigemm", "fail")):
        (record,), _ = script.measure(case, [calls.Peer(name, less_accurate)], "float32", "cpu", CIRCUMSTANCES, repeats=1)
        assert record["verdict"] == verdict
        assert 1 < record["error_over_budget"] < script.PEERS_BUDGET


def test_a_peer_that_raises_is_skipped_in_its_own_words(script, calls):
    def fails(case, *operands):
        raise NotImplementedError("no such layout\nsecond line")

    contenders = [calls.Peer("trigemm", calls.ours), calls.Peer("other", fails)]
    (record,), _ = script.measure(small(script, "gemmt"), contenders, "float32", "cpu", CIRCUMSTANCES, repeats=1)
    assert record["skipped"] == {"other": "raised NotImplementedError: no such layout"}


def test_an_interrupted_run_keeps_what_it_has(script, few, monkeypatch, tmp_path):
    measure, path = script.measure, tmp_path / "peers.jsonl"

    def interrupted_at_the_second(case, *rest, **more):
        if case.mode == "triangle":
            raise KeyboardInterrupt
        return measure(case, *rest, **more)

    monkeypatch.setattr(script, "measure", interrupted_at_the_second)
    result = run(script, "--tiny", "--device", "cpu", "--repeats", "1", "--operation", "syrk", "--save", str(path))
    assert result.exit_code == 130
    assert {record["mode"] for record in records.read([path])[0]} == {"mirrored"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--operation", "symm"], "unknown operation 'symm'; known are causal_scores_qkvpacked, gemmt, syrk"),
        (["--dtype", "int8"], "unknown dtype 'int8'; known are float64"),
        (["--device", "tpu"], "unknown device 'tpu'; known are cpu, cuda"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--save", "/nowhere/x"], "cannot write records to /nowhere/x"),
    ],
)
def test_bad_arguments_are_one_sentence(script, arguments, sentence):
    result = run(script, "--device", "cpu", *arguments)
    assert result.exit_code == 2
    assert result.output.startswith(f"error: {sentence}")
    assert result.output.count("\n") == 1
