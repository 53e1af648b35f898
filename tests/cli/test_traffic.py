"""`trigemm traffic` on small cases."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba.cuda.core import config

from trigemm.cli.main import app
from trigemm.lab.traffic import nsight

pytestmark = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="needs numba-cuda's simulator (NUMBA_ENABLE_CUDASIM=1)")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/traffic"
SMALL = ["--seq", "128", "--head-dim", "32"]


def call(*args):
    return CliRunner().invoke(app, ["traffic", *map(str, args)])


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_table_has_each_rung_with_counts_that_equal_their_predictions():
    done = call(*SMALL)
    assert done.exit_code == 0, done.output
    for name in ("1 naive", "2 registers", "3 vectorized", "4 shared", "6 tiles"):
        assert name in done.output
    assert "= 32,768" in done.output  # naive's load requests: 2 * 64 * 32 a warp, 8 warps
    assert "load requests ÷ 8" in done.output
    assert "≠" not in done.output


def test_the_readme_shows_the_counts_of_the_default_case():
    from trigemm.lab.traffic import ladder

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for spec in ladder.rungs():
        counts = ladder.predicted(spec, {"B": 1, "T": 256, "NH": 1, "HS": 64})
        if counts is not None:
            cells = " | ".join(f"{count:,}" for count in counts.values())
            assert f"| {spec.number} {spec.name} | {cells} | {spec.idea} |" in readme


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_disk_that_is_full_is_named():
    done = call("--kernel", "registers", *SMALL, "--save", "/dev/full")
    assert done.exit_code == 1
    assert done.stderr == "error: cannot write /dev/full: No space left on device\n"


def test_json_lines_saved_records_and_a_plot(tmp_path):
    saved, picture = tmp_path / "records.jsonl", tmp_path / "ladder.png"
    done = call("--kernel", "registers", "--kernel", "4", *SMALL, "--json", "--save", saved, "--plot", picture)
    assert done.exit_code == 0, done.output
    found = records(done.stdout)
    assert [record["kernel"] for record in found] == ["registers", "shared"]
    for record in found:
        loads = record["global"]["load"]
        assert loads["requests"] == record["predicted"]["load_requests"]
        assert loads["sectors"] == record["predicted"]["load_sectors"]
        assert record["as_predicted"] is True
        assert record["shape"] == {"B": 1, "T": 128, "NH": 1, "HS": 32}
    assert records(saved.read_text()) == found
    assert picture.stat().st_size > 1000


def test_the_annotated_source_marks_the_worst_line():
    done = call("--kernel", "shared", *SMALL, "--lines")
    assert done.exit_code == 0, done.output
    (worst,) = [line for line in done.output.splitlines() if "◀ worst" in line]
    assert "store4" in worst or "q_slice" in worst


def test_a_count_that_differs_from_its_prediction_is_an_error(monkeypatch):
    from trigemm.kernels.spec import KernelSpec

    wrong = {"load_requests": 1, "load_sectors": 2, "store_requests": 3, "store_sectors": 4}
    monkeypatch.setattr(KernelSpec, "predicted_traffic", property(lambda spec: lambda **shape: wrong))
    done = call("--kernel", "registers", *SMALL)
    assert done.exit_code == 1
    assert "≠ 1" in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--kernel", "fastest"], "no kernel 'fastest' whose traffic can be counted; there are 1 naive"),
        (["--kernel", "naive", "--seq", "100"], "need T to be a multiple of 128, got T=100"),
        (["--seq", "0"], "--seq must be at least 1, got 0"),
        (["--save", "/no/such/folder/file"], "cannot write records to /no/such/folder/file"),
        (["--plot", "/no/such/folder/file.png"], "cannot plot to /no/such/folder/file.png"),
        (["run", "no_such_script.py"], "there is no script no_such_script.py"),
        (["run", "--limit", "0", str(EXAMPLES / "differences.py")], "--limit must be at least 1, got 0"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(args, message):
    done = call(*args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_rungs_that_do_not_take_the_sizes_are_left_out_with_a_reason():
    done = call("--seq", "60", "--head-dim", "16", "--json")
    assert done.exit_code == 0, done.output
    assert [record["kernel"] for record in records(done.stdout)] == ["tiles"]
    assert "naive is left out: the thread-level kernels need T to be a multiple of 128" in done.stderr


def test_without_numba_cuda_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("trigemm.cli.traffic.find_spec", lambda name: None)
    done = call()
    assert done.exit_code == 2
    assert "pip install 'trigemm[lab]'" in done.stderr


GALLERY = {
    "transpose_uncoalesced": (0, "stored", {"store": 8.0}),
    "transpose_tiled": (0, "stored", {"store": 1.0}),
    "transpose_padded": (0, "stored", {"store": 1.0}),
    "differences_race": (1, "0 of them wrong", {}),
    "differences": (0, "0 of them wrong", {}),
}


def test_the_gallery_is_complete():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(GALLERY)


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    exit_code, _, waste = GALLERY[name]
    done = call("run", "--json", EXAMPLES / f"{name}.py")
    assert done.exit_code == exit_code, done.output
    (record,) = records(done.stdout)
    stores = record["global"]["store"]
    assert stores["sectors"] / stores["ideal_sectors"] == pytest.approx(waste.get("store", 1.0))
    tile = record.get("shared", {}).get("load")
    if name.startswith("transpose") and tile:
        assert (tile["wavefronts"] == 32 * tile["requests"]) == (name == "transpose_tiled")
        assert (tile["wavefronts"] == tile["requests"]) == (name == "transpose_padded")
    assert [finding["kind"] for finding in record["findings"]] == ["shared-race"] * exit_code


def test_a_race_that_shows_no_wrong_value_is_reported_all_the_same():
    done = call("run", "--lines", EXAMPLES / "differences_race.py")
    assert done.exit_code == 1
    assert "0 of them wrong" in done.output
    assert "shared-race of tile[0]" in done.output
    assert "1 launch, 1 finding" in done.output


SCRIPT = """
import sys
import numpy as np
from numba import cuda

@cuda.jit(lineinfo=True, max_registers=64)
def twice(x):
    x[cuda.threadIdx.x] *= 2

@cuda.jit
def broken(x):
    x[cuda.threadIdx.x] = cuda.no_such_feature()

x = cuda.to_device(np.ones(32, np.float32))
twice[1, 32](x)
print("arguments", sys.argv[1:])
if "raise" in sys.argv:
    raise KeyError("nothing")
if "broken" in sys.argv:
    broken[1, 32](x)
if "interrupt" in sys.argv:
    raise KeyboardInterrupt
if "exit" in sys.argv:
    sys.exit(3)
if "forget" in sys.argv:
    out = cuda.device_array(40, np.float32)
    twice[1, 32](out)
    out.copy_to_host()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_gets_its_arguments(script):
    done = call("run", script, "--flag", "value")
    assert done.exit_code == 0, done.output
    assert "arguments ['--flag', 'value']" in done.output


@pytest.mark.parametrize(
    ("argument", "message", "launches"),
    [
        ("raise", "script.py, line 18, failed: KeyError: 'nothing'", 1),
        ("broken", "kernel broken failed in line 12 (thread 0): AttributeError: cuda.no_such_feature is not part of", 2),
        ("exit", "script.py ended with exit code 3", 1),
        ("interrupt", "script.py was interrupted", 1),
    ],
)
def test_a_script_that_fails_is_explained_and_what_was_counted_is_kept(script, argument, message, launches):
    done = call("run", "--json", script, argument)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "Traceback" not in done.output
    found = records(done.stdout)
    assert len(found) == launches
    assert found[0]["global"]["load"]["requests"] == 1


def test_an_output_that_is_copied_back_with_holes_is_reported(script):
    done = call("run", "--json", script, "forget")
    assert done.exit_code == 1
    (finding,) = records(done.stdout)[1]["findings"]
    assert (finding["kind"], finding["array"], finding["index"]) == ("unwritten-output", "x", "32")


def test_a_kernel_that_never_ends_is_stopped(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(
        "import numpy as np\nfrom numba import cuda\n\n@cuda.jit\ndef wait(x):\n    while x[0] == 0:\n        pass\n\n"
        "wait[1, 32](np.zeros(1))\n"
    )
    done = call("run", "--limit", 5000, path)
    assert done.exit_code == 1
    assert "kernel wait was stopped after" in done.stderr
    assert "more than the limit of 5,000 (each load, store and atomic operation of each thread counts" in done.stderr


UNLAUNCHABLE = """
import sys
import numpy as np
from numba import cuda, float32

rows = int(sys.argv[2])

@cuda.jit
def kernel(x):
    tile = cuda.shared.array((rows, 128), float32)
    i = cuda.grid(1)
    tile[i % rows, i // rows] = x[i]
    x[i] = tile[i % rows, i // rows]

threads = int(sys.argv[1])
kernel[2048 // threads, threads](np.ones(2048, np.float32))
"""


@pytest.mark.parametrize(
    ("threads", "rows", "message"),
    [
        (2048, 64, "kernel kernel cannot be launched: a block has at most 1,024 threads, got 2048 x 1 x 1"),
        (1024, 128, "a block has at most 49,152 bytes of shared memory, got 65,536"),
        (1024, 64, ""),
    ],
)
def test_a_launch_that_no_gpu_takes_fails(tmp_path, threads, rows, message):
    path = tmp_path / "unlaunchable.py"
    path.write_text(UNLAUNCHABLE)
    done = call("run", path, threads, rows)
    assert done.exit_code == (1 if message else 0), done.output
    assert message in done.stderr


@pytest.mark.parametrize("name", ["p.xyz", "p", "folder.png"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_counted(tmp_path, monkeypatch, name):
    from trigemm.lab.traffic import ladder

    monkeypatch.setattr(ladder, "trace_rung", lambda *args: pytest.fail("counted"))
    (tmp_path / "folder.png").mkdir()
    done = call("--plot", tmp_path / name)
    assert done.exit_code == 2, done.output
    assert f"cannot plot to {tmp_path / name}: " in done.stderr
    assert "Traceback" not in done.output


def test_the_command_turns_the_simulator_on_for_its_own_process(script):
    code = "import sys; import numba; from trigemm.cli.main import app; sys.argv = ['trigemm', *sys.argv[1:]]; app()"
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-c", code, "traffic", "run", script],
        env=env | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "1 launch, 0 findings" in done.stdout


def test_nsight_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = call("--nsight", "--kernel", "registers", *SMALL)
    assert done.exit_code == 2
    assert "--nsight compares with a GPU" in done.stderr


@pytest.mark.parametrize(("change", "exit_code"), [(0, 0), (1, 1)])
def test_nsight_prints_counted_beside_measured(monkeypatch, change, exit_code):
    def measure(command, kernels):
        assert kernels is None
        assert command[1:3] == ["-m", "trigemm.lab.traffic.launches"]
        assert json.loads(command[3])["kernels"] == ["registers"]
        counts = {"load_requests": 128 * 32 - change, "load_sectors": 704 * 32, "store_requests": 512, "store_sectors": 8256}
        return [nsight.Measured("kernel", counts)]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("trigemm.lab.environment.device_name", lambda device: "a GPU")
    monkeypatch.setattr("trigemm.lab.environment.versions", lambda device: {})
    monkeypatch.setattr(nsight, "measure", measure)
    done = call("--nsight", "--kernel", "registers", *SMALL)
    assert done.exit_code == exit_code, done.output
    assert "4,096" in done.output
    assert ("merged or hoisted 1 of 4,096" in done.output) == bool(change)
