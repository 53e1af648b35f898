"""`trigemm bench` as it is typed: what it prints where, what it saves, and how it ends."""

import json
import re
import signal

import pytest
from typer.testing import CliRunner

from trigemm.cli.main import app
from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.spec import ALL_DTYPES, KernelSpec
from trigemm.lab import environment, records, timing, workloads

SMALL = ["--batch", "2", "--seq", "40", "--heads", "2", "--head-dim", "8", "--repeats", "2", "--device", "cpu"]
LAST_LINE = re.compile(rf"^time \d+\.\d+ ms vs \d+\.\d+ ms for {environment.blas_name('cpu')}$")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A small cache to flush, and ceilings that are known."""
    monkeypatch.setattr(timing, "_last_level_cache", lambda: 2**20)
    monkeypatch.setattr("trigemm.lab.bench.ceilings", lambda *_: timing.Ceilings(10.0, 10.0, 10.0, 0.1))


def bench(*arguments):
    done = CliRunner().invoke(app, ["bench", *arguments])
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done


@pytest.fixture
def broken_kernel(monkeypatch):
    """A ninth kernel that forgets the last row."""

    def forgetful(qkv, out, *, scale, fill, precision):
        CATALOGUE[0].run(qkv, whole := out.clone(), scale=scale, fill=fill, precision=precision)
        out[..., :-1, :] = whole.tril()[..., :-1, :] + out.triu(1).nan_to_num(0.0)[..., :-1, :]

    spec = KernelSpec(9, "forgetful", LADDER, "leaves out the last row", "any", ALL_DTYPES, "nowhere:nothing")
    object.__setattr__(spec, "run", forgetful)
    monkeypatch.setattr(workloads, "CATALOGUE", (*CATALOGUE, spec))
    return spec


def test_a_table_and_the_last_line_go_to_standard_output():
    done = bench(*SMALL)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert LAST_LINE.match(lines[-1])
    assert any("7 strips" in line and "pass" in line for line in lines)
    assert "tiles skipped: it runs on cuda, not on cpu" in lines
    assert any(line.startswith("2 repeats on ") for line in lines)


def test_json_is_all_there_is_on_standard_output():
    done = bench(*SMALL, "--json")
    assert done.exit_code == 0, done.output
    read = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["kernel"] for record in read] == ["baseline", "baseline_alone", "baseline_numpy", "strips"]
    assert all(records.complaint(record) is None for record in read)
    assert read[3]["shape"] == {"B": 2, "T": 40, "NH": 2, "HS": 8}
    assert read[3]["baseline_ms"] == read[0]["median_ms"]
    assert LAST_LINE.match(done.stderr.splitlines()[-1])


def test_save_appends_the_same_records(tmp_path):
    path = tmp_path / "records.jsonl"
    first = bench(*SMALL, "--save", str(path), "--kernel", "0", "--json")
    second = bench(*SMALL, "--save", str(path), "--kernel", "strips", "--json")
    read, broken = records.read([path])
    assert broken == []
    assert read == [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]


@pytest.mark.parametrize("key", ["0", "baseline"])
def test_kernel_0_is_the_baseline_against_itself(key):
    done = bench(*SMALL, "--kernel", key)
    assert done.exit_code == 0
    time_ms, baseline_ms = re.findall(r"[\d.]+ ms", done.stdout.splitlines()[-1])
    assert time_ms == baseline_ms


def test_a_broken_kernel_gets_no_time_and_the_exit_code_says_so(broken_kernel, tmp_path):
    path = tmp_path / "records.jsonl"
    done = bench(*SMALL, "--kernel", "forgetful", "--json", "--save", str(path))
    assert done.exit_code == 1
    failed = {record["kernel"]: record for record in map(json.loads, done.stdout.splitlines())}["forgetful"]
    assert (failed["verdict"], failed["median_ms"], failed["speedup"]) == ("fail", None, None)
    assert records.read([path])[0][0] == failed
    assert "forgetful failed verification and got no time" in done.stderr
    assert done.stderr.splitlines()[-1] == "no kernel was timed"


def test_beside_a_broken_kernel_the_others_are_timed(broken_kernel):
    done = bench(*SMALL)
    assert done.exit_code == 1
    assert "FAIL" in done.stdout
    assert LAST_LINE.match(done.stdout.splitlines()[-1])


def test_the_list_has_every_kernel_of_the_ladder():
    listed = [json.loads(line) for line in bench("--list", "--json").stdout.splitlines()]
    ladder = [(s.number, s.name) for s in CATALOGUE if s.operation == LADDER]
    second = [(None, name) for name in ("baseline_alone", "baseline_tf32", "baseline_numpy")]
    assert [(row["number"], row["kernel"]) for row in listed] == [ladder[0], *second, *ladder[1:]]
    shown = bench("--list").stdout
    assert all(spec.name in shown and spec.idea in shown for spec in CATALOGUE if spec.operation == LADDER)


def test_the_list_may_be_of_some_kernels_and_names_those_that_are_not_there():
    listed = [
        json.loads(line) for line in bench("--list", "--json", "--kernel", "6", "--kernel", "baseline_alone").stdout.splitlines()
    ]
    assert [row["kernel"] for row in listed] == ["baseline_alone", "tiles"]
    done = bench("--list", "--operation", "gemmt", "--kernel", "nope")
    assert done.exit_code == 2
    sentence = "there is no kernel 'nope'; there are 0 baseline, baseline_tf32, baseline_numpy, 1 trigemm, 2 tiles, 3 strips"
    assert sentence in " ".join(done.stderr.split())


@pytest.mark.parametrize("operation", ["gemmt", "trmm", "syrk"])
def test_a_kernel_of_an_operation_is_timed_where_it_is_asked_for(operation):
    done = bench(*SMALL, "--operation", operation, "--kernel", "strips", "--kernel", "1", "--json")
    assert done.exit_code == 0, done.output
    read = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["number"], r["kernel"], r["verdict"]) for r in read if r["number"]] == [
        (1, "trigemm", "pass"),
        (3, "strips", "pass"),
    ]


@pytest.mark.parametrize("operation", ["gemmt", "trmm", "syrk", "causal_scores"])
def test_the_operations_are_benchmarked_by_name(operation):
    done = bench(*SMALL, "--operation", operation, "--dtype", "float64")
    assert done.exit_code == 0, done.output
    assert "1 trigemm" in done.stdout
    title = done.stdout.splitlines()[0].strip()
    assert title == f"{operation}  B=2 T=40 NH=2 HS=8  float64" + ("" if operation in ("trmm", "syrk") else "  fill=None")
    assert LAST_LINE.match(done.stdout.splitlines()[-1])


def test_a_fill_beyond_the_range_is_refused_in_a_sentence():
    done = bench(*SMALL, "--fill", "1e60")
    assert done.exit_code == 2
    assert "beyond the range of torch.float32" in " ".join(done.output.split())


@pytest.mark.parametrize("fill", ["-inf", "0", "nan", "none"])
def test_any_fill_can_be_given(fill):
    done = bench(*SMALL, "--kernel", "strips", "--fill", fill, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["fill"] == {"-inf": "-inf", "0": 0.0, "nan": "nan", "none": None}[fill]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--repeats", "-1"], "--repeats must be at least 1, got -1"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--kernel", "42"], "there is no kernel '42'; there are 0 baseline,"),
        (["--kernel", "cublas"], "there is no kernel 'cublas'; there are 0 baseline,"),
        (["--kernel", "tiles"], "kernel tiles cannot take this problem: it runs on cuda, not on cpu"),
        (["--dtype", "int8"], "unknown dtype 'int8'; known are float64, float32, float16, bfloat16"),
        (["--precision", "low"], "unknown precision 'low'; known are highest, high, medium"),
        (["--operation", "gemm"], "unknown operation 'gemm'; known are"),
        (["--device", "tpu"], "unknown device 'tpu'; known are cpu, cuda"),
        (["--fill", "zero"], "--fill is a number, inf, -inf, nan or \"none\", got 'zero'"),
        (["--operation", "syrk", "--fill", "0"], "syrk has no fill"),
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--seq", "0"], "--seq must be at least 1, got 0"),
        (["--heads", "-2"], "--heads must be at least 1, got -2"),
        (["--head-dim", "0"], "--head-dim must be at least 1, got 0"),
        (["--seq", "10000000"], "needs about"),
        (["--save", "/no/such/folder/x.jsonl"], "cannot write records to /no/such/folder/x.jsonl: No such file or directory"),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(arguments, sentence):
    done = bench(*SMALL, *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


@pytest.mark.parametrize("arguments", [["--repeats", "many"], ["--no-such-option"], ["--seq", "1.5"]])
def test_options_that_cannot_be_read_are_no_traceback_and_named(arguments):
    done = bench(*SMALL, *arguments)
    assert done.exit_code == 2
    assert arguments[-1] in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch, sent):
    path = tmp_path / "records.jsonl"
    flushes = iter(range(1000))

    def flush(self):
        if next(flushes) == 3 * 4 + 2:  # after three rounds of four calls
            signal.raise_signal(sent)

    monkeypatch.setattr(timing.CpuStopwatch, "flush", flush)
    done = bench(*SMALL, "--repeats", "1000", "--save", str(path))
    assert done.exit_code == 130
    read, broken = records.read([path])
    assert broken == []
    # Round 4 begins with the last call; two of its calls were timed.
    assert {r["kernel"]: r["repeats"] for r in read} == {"baseline": 4, "baseline_alone": 3, "baseline_numpy": 3, "strips": 4}
    lines = done.stdout.splitlines()
    assert LAST_LINE.match(lines[-1])
    assert any("repeats (interrupted)" in line for line in lines)


def test_a_disk_that_fills_up_is_no_traceback(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    path = tmp_path / "records.jsonl"
    done = bench(*SMALL, "--save", str(path))
    assert done.exit_code == 1
    assert done.stderr == f"error: cannot write {path}: No space left on device\n"


def test_a_save_without_a_name_is_refused_as_the_folder_that_it_is():
    done = bench(*SMALL, "--save", "")
    assert done.exit_code == 2
    assert done.stderr == "error: cannot write records to '.', which is a folder; give the name of a file\n"


def test_a_device_that_fails_is_no_traceback(monkeypatch):
    def lost(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("trigemm.lab.bench.verify_into", lost)
    done = bench(*SMALL)
    assert done.exit_code == 1
    assert done.stderr == "error: the device failed: CUDA error: an illegal memory access was encountered\n"


def test_an_interruption_before_anything_is_timed_is_no_traceback(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("trigemm.lab.bench.ceilings", interrupted)
    done = bench(*SMALL)
    assert done.exit_code == 130
    assert done.stdout == ""
    assert done.stderr == "interrupted before anything was timed\n"
