"""Reading Nsight Compute's output, and comparing with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trigemm.lab.traffic import nsight

METRICS = [counter.metric for counter in nsight.COUNTERS.values()]
HEADER = ",".join(f'"{name}"' for name in ["ID", "Process ID", "Kernel Name", "Block Size", *METRICS])
UNITS = ",".join('""' for _ in range(4 + len(METRICS)))
NAME = "__main__::transpose[abi:v1,cw51cXTLSUwv1sCUt9Uw1VEw0NRRQPKzLTg4gaGKFsG2oMQ](Array<float, 2, C>)"
ROW = f'"0","41","{NAME}","(32, 8, 1)","2,048","8,192","2,048","65,536","0","0"'
OUTPUT = f"==PROF== Connected to process 41\n{HEADER}\n{UNITS}\n{ROW}\n"
RECORD = {
    "kernel": "transpose",
    "global": {"load": {"requests": 2048, "sectors": 8192}, "store": {"requests": 2048, "sectors": 65536}},
}


def test_the_counters_of_each_launch_are_read():
    (measured,) = nsight.parse(OUTPUT)
    assert measured.kernel == "transpose"
    assert measured.counts["load_sectors"] == 8192
    assert measured.counts["store_sectors"] == 65536
    assert nsight.compare(RECORD, measured)["equal"] is True


def test_output_without_launches():
    assert nsight.parse("==PROF== Disconnected\n") == []


@pytest.mark.parametrize(
    ("name", "measured", "note"),
    [
        ("load_requests", 512, "load requests: the compiler merged or hoisted 1,536 of 2,048 accesses"),
        ("store_requests", 2049, "store requests: the compiler made 1 more than the source has"),
        ("load_sectors", 9216, "load sectors: 8,192 counted, 9,216 measured (+12.50%)"),
    ],
)
def test_a_difference_is_explained(name, measured, note):
    (launch,) = nsight.parse(OUTPUT)
    launch.counts[name] = measured
    comparison = nsight.compare(RECORD, launch)
    assert comparison["equal"] is False
    assert [found for found in comparison["notes"] if found.startswith(note)]


@pytest.mark.parametrize(
    ("name", "counted", "measured", "equal"),
    [
        ("shared_load_wavefronts", 1000, 1020, True),
        ("shared_load_wavefronts", 1000, 1021, False),
        ("shared_load_wavefronts", 0, 0, True),
        ("load_sectors", 1000, 1001, False),
    ],
)
def test_wavefronts_may_differ_by_two_percent_and_sectors_not_at_all(name, counted, measured, equal):
    assert nsight.agrees(name, counted, measured) is equal


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'", "the driver lets only administrators do so"),
        ("echo 'ModuleNotFoundError: No module named numba' >&2", "measured nothing: ModuleNotFoundError"),
        ("true", "no such kernel was launched"),
    ],
)
def test_when_ncu_measures_nothing_the_reason_is_given(tmp_path, monkeypatch, program, message):
    fake = tmp_path / "ncu"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(nsight.NsightError, match=message):
        nsight.measure(["python", "script.py"])


def test_ncu_is_run_without_the_simulator(tmp_path, monkeypatch):
    fake = tmp_path / "ncu"
    log = OUTPUT.replace("'", "")
    fake.write_text(
        "#!/bin/sh\n"
        'test -z "$NUMBA_ENABLE_CUDASIM" || exit 1\n'
        'while [ "$1" != --log-file ]; do shift; done\n'
        f"cat > \"$2\" <<'END'\n{log}END\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert [launch.kernel for launch in nsight.measure(["python"])] == ["transpose"]
    assert [launch.kernel for launch in nsight.measure(["python"], {"transpose"})] == ["transpose"]
    with pytest.raises(nsight.NsightError, match="no such kernel"):
        nsight.measure(["python"], {"other"})


def test_without_ncu_the_error_says_where_it_comes_from(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(nsight.NsightError, match="it comes with the CUDA toolkit"):
        nsight.measure(["python"])


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs Nsight Compute")
def test_counted_equals_measured():
    code = "from trigemm.cli.main import app; app()"
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code, "traffic", "--nsight", "--json", "--kernel", "registers", "--kernel", "shared"],
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["equal"] for line in done.stdout.splitlines()] == [True, True]
