"""Records are told apart by what is in them; what is broken or cannot be compared is named by file and line."""

import json

import pytest

from trigemm.lab.report import load

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
    "device": {},
    "tiles": [{"block": [1], "median_ms": 1.0}],
}


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
        ({**SEARCH, "tiles": [{"block": [1], "refused": "shared memory"}]}, 'no entry of "tiles" has a time'),
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
    ("line", "field"),
    [
        ({**COUNTED, "lines": [{"file": "a.py"}]}, "lines"),
        ({**COUNTED, "source": [{"function": "f"}]}, "source"),
        ({**SEARCH, "tiles": [{"median_ms": 1.0}]}, "block"),
    ],
)
def test_counts_without_their_places_are_named(file, line, field):
    (skipped,) = load([file(line)]).skipped
    assert f'"{field}"' in skipped.reason


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
