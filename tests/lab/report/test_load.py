"""Records are told apart by what is in them; what is broken or cannot be compared is named by file and line."""

import json
from dataclasses import asdict

import pytest

from trigemm.lab.report import load, markdown, page
from trigemm.lab.traffic.count import Counts
from trigemm.tiling import known

BENCHMARK = {
    "operation": "gemmt",
    "kernel": "trigemm",
    "device": "cuda",
    "device_name": "H200",
    "dtype": "float32",
    "precision": "highest",
    "fill": None,
    "shape": {"B": 1, "T": 2, "NH": 3, "HS": 4},
    "verdict": "pass",
    "error_over_budget": 0.25,
    "median_ms": 1.0,
    "p20_ms": 0.5,
    "p80_ms": 2.0,
    "baseline_ms": 3.0,
    "speedup": 3.0,
    "floor_ms": 0.25,
    "floor_share": 0.25,
    "versions": {"torch": "2.11", "trigemm": "0.1"},
    "commit": None,
    "when": "2026-01-02",
}
COUNTED = {"kernel": "naive", "grid": [1, 1, 1], "block": [1, 1, 1], "lines": [], "source": []}
MEASURED = {"kernel": "naive", "shape": {"T": 1}, "counted": {}, "measured": {}, "device_name": "H200"}
SEARCH = {
    "m": 1,
    "n": 2,
    "k": 3,
    "dtype": "float16",
    "device_name": "H200",
    "device": asdict(known("h200")),
    "tiles": [{"block": [16, 16, 16], "median_ms": 1.0, "error_over_budget": 0.5}],
}
ENTRY = {"file": "a.py", "line": 3, "space": "global", **dict.fromkeys(Counts.__slots__, 1)}
TEXT = {"file": "a.py", "function": "f", "first": 1, "text": "pass\n"}
PEER = {**BENCHMARK, "operation": "peers.gemmt", "gives": None, "skipped": {}}
ATTENTION = {**BENCHMARK, "operation": "causal_attention", "case": "reference", "mode": "weights", "heads": 3}


def tile(**fields):
    return {**SEARCH, "tiles": [*SEARCH["tiles"], {**SEARCH["tiles"][0], **fields}]}


@pytest.fixture
def file(tmp_path):
    def write(*values, name="some.jsonl"):
        path = tmp_path / name
        path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
        return path

    return write


def test_kinds_may_stand_in_one_file_and_keep_their_order(file):
    loaded = load([file(MEASURED, BENCHMARK, COUNTED, SEARCH, {**COUNTED, "kernel": "shared"})])
    assert loaded.benchmarks == [BENCHMARK]
    assert [record["kernel"] for record in loaded.counted] == ["naive", "shared"]
    assert loaded.measured == [MEASURED]
    assert loaded.searches == [SEARCH]
    assert loaded.skipped == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ([1], "not a JSON object but list"),
        ({"cases": 3}, 'not a benchmark record: it has neither "verdict" nor "median_ms"'),
        ({**BENCHMARK, "speedup": 2.0}, '"speedup" 2.0 is not "baseline_ms" 3.0 / "median_ms" 1.0'),
        ({name: value for name, value in COUNTED.items() if name != "source"}, 'field "source" is missing'),
        ({**COUNTED, "grid": 3}, 'field "grid" cannot be 3'),
        ({**SEARCH, "m": "1"}, "field \"m\" cannot be '1'"),
        ({**SEARCH, "tiles": [{"block": [16, 16, 16], "refused": "shared memory"}]}, 'no entry of "tiles" has a time'),
        ({**MEASURED, "counted": None}, 'field "counted" cannot be None'),
    ],
)
def test_what_is_no_record_is_named_by_file_and_line(file, line, reason):
    path = file(BENCHMARK, "", line)
    loaded = load([path])
    assert loaded.benchmarks == [BENCHMARK]
    (skipped,) = loaded.skipped
    assert str(skipped).startswith(f"{path}:3: {reason}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({**COUNTED, "lines": [{"file": "a.py"}]}, 'field "lines[0].line" is missing'),
        ({**COUNTED, "lines": [{**ENTRY, "sectors": "4"}]}, "field \"lines[0].sectors\" cannot be '4'"),
        ({**COUNTED, "source": [TEXT, {**TEXT, "first": None}]}, 'field "source[1].first" cannot be None'),
        ({**COUNTED, "source": [{**TEXT, "text": 3}]}, 'field "source[0].text" cannot be 3'),
        ({**COUNTED, "shape": {"T": 0}}, 'field "shape.T" cannot be 0'),
        ({**COUNTED, "global": [1]}, 'field "global" cannot be [1]'),
        ({**COUNTED, "shared": {"load": {"wavefronts": None}}}, 'field "shared.load.wavefronts" cannot be None'),
        ({**MEASURED, "measured": {"load_sectors": "7"}}, "field \"measured.load_sectors\" cannot be '7'"),
        ({**MEASURED, "counted": {"load_sectors": True}}, 'field "counted.load_sectors" cannot be True'),
        ({**MEASURED, "shape": {"T": 1.5}}, 'field "shape.T" cannot be 1.5'),
        ({**SEARCH, "device": {}}, 'field "device.name" is missing'),
        ({**SEARCH, "device": {**SEARCH["device"], "sms": 0}}, 'field "device.sms" cannot be 0'),
        ({**SEARCH, "device": {**SEARCH["device"], "shared_per_block": 1}}, "plan: n"),
        ({**SEARCH, "dtype": "float64"}, "field \"dtype\" cannot be 'float64'"),
        ({**SEARCH, "k": -3}, 'field "k" cannot be -3'),
        (tile(median_ms=-1.0), 'field "tiles[1].median_ms" cannot be -1.0'),
        (tile(median_ms=float("nan")), 'field "tiles[1].median_ms" cannot be nan'),
        (tile(block=[16, 16]), 'field "tiles[1].block" cannot be [16, 16]'),
        (tile(block=None), 'field "tiles[1].block" cannot be None'),
        (tile(error_over_budget=1.5), "the tile [16, 16, 16] has a time, and an error of 1.5 times the budget"),
        ({**BENCHMARK, "useful_flops": "many"}, "field \"useful_flops\" cannot be 'many'"),
        ({**BENCHMARK, "ceilings": {"copy_gbps": 1.0}}, 'field "ceilings.fill_gbps" is missing'),
        ({**BENCHMARK, "ceilings": 3}, 'field "ceilings" cannot be 3'),
        ({**BENCHMARK, "cold_l2": "yes"}, "field \"cold_l2\" cannot be 'yes'"),
        ({**BENCHMARK, "number": "6"}, "field \"number\" cannot be '6'"),
        ({**BENCHMARK, "gbps": [1]}, 'field "gbps" cannot be [1]'),
        ({**BENCHMARK, "median_ms": 10**400}, 'field "median_ms" cannot be 1000'),
        ({**BENCHMARK, "heads": [1]}, 'field "heads" cannot be [1]'),
        ({**BENCHMARK, "versions": {"torch": 2}}, 'field "versions.torch" cannot be 2'),
        ({**BENCHMARK, "blas_ms": 2.0, "speedup_blas": 3.0}, '"speedup_blas" 3.0 does not follow from "blas_ms" 2.0'),
        ({**BENCHMARK, "useful_flops": 2e9, "useful_tflops": 3.0}, '"useful_tflops" 3.0 does not follow from "useful_flops"'),
        ({**BENCHMARK, "useful_bytes": 2e6, "gbps": 3.0}, '"gbps" 3.0 does not follow from "useful_bytes"'),
        ({**BENCHMARK, "error_over_budget": 1.01}, '"verdict" is "pass", and the error is 1.01 times the budget'),
        ({**BENCHMARK, "error_over_budget": "nan"}, '"verdict" is "pass", and the error is nan times the budget'),
        ({**BENCHMARK, "error_over_budget": -0.1}, 'field "error_over_budget" cannot be -0.1'),
        ({**BENCHMARK, **dict.fromkeys(("median_ms", "speedup", "floor_share"))}, "a kernel that passed has no time"),
        ({**PEER, "error_over_budget": 1.01}, '"verdict" is "pass", and the error is 1.01 times the budget'),
        ({**PEER, "skipped": None}, 'field "skipped" cannot be None'),
        ({**ATTENTION, "shape": {"T": 3}}, 'field "shape.B" is missing'),
    ],
)
def test_fields_of_wrong_types_or_ranges_and_contradictions_are_named(file, line, reason):
    path = file(line)
    loaded = load([path])
    assert [str(skipped).partition(": ")[2][: len(reason)] for skipped in loaded.skipped] == [reason]
    assert loaded.benchmarks == loaded.counted == loaded.measured == loaded.searches == []


def test_what_is_kept_is_drawn(file):
    """The least that each kind may have, with fields that no one knows."""
    peer = {**PEER, "kernel": "scipy", "error_over_budget": "inf"}
    least = [BENCHMARK, PEER, peer, ATTENTION, COUNTED, MEASURED, {**SEARCH, "device": {**SEARCH["device"], "color": "green"}}]
    counted = {**COUNTED, "kernel": "two", "lines": [ENTRY], "source": [TEXT], "global": {"load": {}}, "shape": None}
    loaded = load([file(*({**line, "unknown": [None]} for line in [*least, counted]))])
    assert loaded.skipped == []
    assert "<strong>two</strong>" in page(loaded)
    assert "error infx the budget" in markdown(loaded.benchmarks)


def test_times_of_other_versions_than_the_latest_are_named_and_left_out(file):
    old = {**BENCHMARK, "kernel": "baseline", "versions": {"torch": "2.10", "trigemm": "0.1"}, "when": "2026-01-01"}
    elsewhere = {**old, "device_name": "A100"}
    path = file(old, BENCHMARK, elsewhere)
    loaded = load([path])
    assert loaded.benchmarks == [BENCHMARK, elsewhere]
    assert [str(line) for line in loaded.skipped] == [
        f"{path}:1: measured with torch 2.10; the latest record of this device and problem has torch 2.11"
    ]


def test_another_release_of_the_package_itself_may_be_compared(file):
    old = {**BENCHMARK, "versions": {"torch": "2.11", "trigemm": "0.0"}, "when": "2026-01-01"}
    assert load([file(old, BENCHMARK)]).benchmarks == [old, BENCHMARK]
