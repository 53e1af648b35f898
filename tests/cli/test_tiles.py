"""`trigemm tiles` from sizes to a table, JSON and a picture."""

import json

import pytest
import torch
from typer.testing import CliRunner

from trigemm.cli.main import app
from trigemm.tiling import names, plan


def tiles(*arguments):
    return CliRunner().invoke(app, ["tiles", *map(str, arguments)])


def test_the_tutorial_case():
    done = tiles(15, 9, 12, "--block", "5,3,6", "--dtype", "float32")
    assert done.exit_code == 0
    row = next(line for line in done.stdout.splitlines() if "5 x 3 x 6" in line)
    assert [cell.strip() for cell in row.split("│")][1:8] == ["5 x 3 x 6", "864", "135", "0", "1.9", "0.8", "9"]


def test_the_pick_comes_first_with_its_reason():
    done = tiles(2048, 2048, 2048)
    found = plan(2048, 2048, 2048)
    rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert " x ".join(map(str, found.pick.block)) in rows[0]
    assert f"{len(found.candidates) - 12} slower tiles are not shown" in done.stdout
    assert found.reason in " ".join(done.stdout.split())
    assert "NVIDIA H200: 132 SMs" in done.stdout


def test_json_has_every_candidate_and_nothing_else():
    done = tiles(1000, 700, 300, "--triangle", "--json", "--device", "a100", "--dtype", "float16")
    found = plan(1000, 700, 300, "float16", "a100", diagonal=0)
    record = json.loads(done.stdout)
    assert record["pick"] == list(found.pick.block)
    assert record["reason"] == found.reason
    assert record["diagonal"] == 0
    assert [row["loads"] for row in record["candidates"]] == [candidate.traffic.loads for candidate in found.candidates]
    assert record["candidates"][0]["traffic"]["a"]["elements"] == found.pick.traffic.a.elements


def test_a_tile_that_does_not_fit_is_valid_json_too():
    (row,) = json.loads(tiles(64, 64, 64, "--block", "512,512,64", "--json").stdout)["candidates"]
    assert row["predicted_ms"] == "inf"


def test_a_triangle_loads_about_half():
    arguments = (4096, 4096, 64, "--block", "128,128,64", "--json")
    whole, half = (json.loads(tiles(*arguments, *more).stdout)["candidates"][0] for more in ((), ("--triangle",)))
    assert half["loads"] / whole["loads"] == (32 * 33 / 2) / 32**2


@pytest.mark.parametrize(
    ("blocks", "labels"), [((), ["256 x 64"]), (("--block", "512,512,64", "--block", "64,64,64"), ["512 x 512 (does not fit)"])]
)
def test_the_picture_names_its_tiles(tmp_path, blocks, labels):
    path = tmp_path / "trade-off.svg"
    done = tiles(2048, 2000, 512, "--plot", path, *blocks)
    assert done.exit_code == 0
    for label in [*labels, "132 multiprocessors", "elements loaded"]:
        assert label in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((4, 0, 6), "error: plan: sizes must be positive; got M, N, K = 4, 0, 6\n"),
        ((-1, 2, 3), "sizes must be positive; got -1"),
        ((4, 5, 6, "--block", "1,2"), "error: --block takes three integers BM,BN,BK such as 128,256,64; got '1,2'\n"),
        ((4, 5, 6, "--block", "0,2,3"), "blocks must be positive"),
        ((4, 5, 6, "--block", "64,128,64", "--triangle"), "must be a positive multiple of block_columns, got 64 and 128\n"),
        ((4, 5, 6, "--device", "h300"), f"error: no device 'h300'; known are {', '.join(names())}, and auto"),
        ((4, 5, 6, "--dtype", "float64"), "error: plan: dtype must be one of float16, bfloat16, float32; got float64\n"),
        ((4, 5, 6, "--plot", "nowhere/x.png"), "error: cannot plot to nowhere/x.png"),
        ((4, 5), "Missing argument 'K'"),
    ],
)
def test_what_cannot_work_is_a_sentence(arguments, said):
    done = tiles(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_auto_needs_a_gpu():
    done = tiles(4, 5, 6, "--device", "auto")
    assert done.exit_code == 2
    assert "there is no CUDA device here" in done.stderr


@pytest.mark.gpu
def test_auto_takes_the_gpu_of_this_machine():
    done = tiles(1024, 1024, 1024, "--device", "auto", "--json")
    assert json.loads(done.stdout)["device"]["name"] == torch.cuda.get_device_name()
