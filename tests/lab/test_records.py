"""Records survive: appended one by one, read back as they were, and a broken line costs only itself."""

import json
import math
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trigemm.lab import records

GOOD = {
    "operation": "gemmt",
    "kernel": "tiles",
    "device": "cuda",
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
    "versions": {"torch": "2"},
    "commit": None,
}
UNTIMED = {
    **GOOD,
    "verdict": "fail",
    "error_over_budget": "inf",
    "median_ms": None,
    "p20_ms": None,
    "p80_ms": None,
    "speedup": None,
}


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "records.jsonl"
    for record in (GOOD, UNTIMED, {**GOOD, "more": [1, {"x": "µ"}]}):
        records.append(path, record)
    assert records.read([path]) == ([GOOD, UNTIMED, {**GOOD, "more": [1, {"x": "µ"}]}], [])
    assert len(path.read_text().splitlines()) == 3


def test_numbers_that_json_lacks_are_written_as_words():
    line = records.encode({"a": math.inf, "b": -math.inf, "c": math.nan, "d": [1.5, math.inf]})
    assert json.loads(line, parse_constant=pytest.fail) == {"a": "inf", "b": "-inf", "c": "nan", "d": [1.5, "inf"]}


@given(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.text() | st.none() | st.integers()))
def test_a_record_is_one_line_of_json_whatever_is_in_it(record):
    line = records.encode(record)
    assert "\n" not in line
    decoded = json.loads(line, parse_constant=pytest.fail)
    assert {k: float(v) if isinstance(record[k], float) else v for k, v in decoded.items()} == record


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"operation": "gem')
    records.append(path, GOOD)
    read, broken = records.read([path])
    assert read == [GOOD]
    assert [(line.path, line.line) for line in broken] == [(path, 1)]


def test_broken_lines_are_named_by_file_and_line_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "records.jsonl"
    incomplete = {name: value for name, value in GOOD.items() if name != "speedup"}
    path.write_bytes(
        b"\n".join([json.dumps(GOOD).encode(), b"not json", b"", b"\xff\xfe", json.dumps(incomplete).encode(), b"[1]"])
    )
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(UNTIMED) + "\n")
    read, broken = records.read([path, other])
    assert read == [GOOD, UNTIMED]
    assert [line.line for line in broken] == [2, 4, 5, 6]
    assert str(broken[2]) == f'{path}:5: field "speedup" is missing'
    assert str(broken[3]) == f"{path}:6: not a JSON object but list"


@pytest.mark.parametrize("field", sorted(records.REQUIRED))
def test_every_required_field_is_missed(field):
    record = {name: value for name, value in GOOD.items() if name != field}
    assert records.complaint(record) == f'field "{field}" is missing'


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation", 3),
        ("shape", "8x1024"),
        ("median_ms", "fast"),
        ("median_ms", True),
        ("fill", "none"),
        ("error_over_budget", "large"),
        ("verdict", "passed"),
        ("commit", 12),
        ("versions", None),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(field, value):
    complaint = records.complaint({**GOOD, field: value})
    assert complaint is not None
    assert f'"{field}"' in complaint
    assert repr(value) in complaint


def test_a_kernel_that_failed_has_no_time():
    assert records.complaint(UNTIMED) is None
    assert records.complaint({**UNTIMED, "median_ms": 1.0}) == "a kernel that fails verification has no time"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"shape": {"B": 0, "T": 2}}, 'size "B" cannot be 0'),
        ({"shape": {"B": 1.5}}, 'size "B" cannot be 1.5'),
        ({"median_ms": 2.5}, '"median_ms" 2.5 does not lie between "p20_ms" 0.5 and "p80_ms" 2.0'),
        ({"p80_ms": math.inf}, '"median_ms" 1.0 does not lie between "p20_ms" 0.5 and "p80_ms" inf'),
        ({"p20_ms": None}, '"median_ms" 1.0 does not lie between "p20_ms" None and "p80_ms" 2.0'),
        ({"baseline_ms": 4.0}, '"speedup" 3.0 is not "baseline_ms" 4.0 / "median_ms" 1.0'),
        ({"floor_share": 0.5}, '"floor_share" 0.5 is not "floor_ms" 0.25 / "median_ms" 1.0'),
    ],
)
def test_fields_that_contradict_one_another_are_named(fields, sentence):
    assert records.complaint({**GOOD, **fields}) == sentence


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read records from .*missing\.jsonl: No such file"):
        records.read([tmp_path / "missing.jsonl"])


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path):
    with pytest.raises(ValueError, match=r"cannot write records to .*no/x\.jsonl: No such file"):
        records.check_writable(tmp_path / "no/x.jsonl")
    with pytest.raises(ValueError, match="which is a folder; give the name of a file"):
        records.check_writable(tmp_path)


def test_checking_leaves_what_is_there(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("kept\n")
    records.check_writable(path)
    assert path.read_text() == "kept\n"
    assert path.stat().st_mode & stat.S_IRUSR


def test_records_of_other_commands_are_called_that():
    verified = {"operation": "gemmt", "kernel": None, "device": "cpu", "cases": 10, "passed": 10}
    assert records.complaint(verified) == 'not a benchmark record: it has neither "verdict" nor "median_ms"'
