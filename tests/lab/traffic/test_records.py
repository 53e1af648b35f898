"""The committed comparison with Nsight Compute, and the table in the documentation that is made of it."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
GLOBAL = ("load_requests", "load_sectors", "store_requests", "store_sectors")
SHARED = ("shared_load_wavefronts", "shared_store_wavefronts")


def records():
    return [json.loads(line) for line in (ROOT / "benchmarks/traffic/h200.jsonl").read_text().splitlines()]


def row(record):
    counted, measured = record["counted"], record["measured"]
    numbers = [*(measured[name] for name in GLOBAL), counted["shared_load_wavefronts"], measured["shared_load_wavefronts"]]
    return f"| {record['kernel']} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


def test_the_hardware_measured_what_was_counted():
    assert {(record["kernel"], record["shape"]["T"]) for record in records()} >= {
        (kernel, length) for kernel in ("naive", "registers", "vectorized", "shared", "transposed") for length in (256, 1024)
    }
    for record in records():
        counted, measured = record["counted"], record["measured"]
        assert record["commit"]
        assert [measured[name] for name in GLOBAL] == [counted[name] for name in GLOBAL]
        for name in SHARED:
            assert abs(measured[name] - counted[name]) <= 0.01 * counted[name]


def test_the_table_in_the_documentation_is_that_of_the_records():
    text = (ROOT / "docs/traffic.md").read_text()
    table = text.split("<!-- records:nsight -->\n")[1].split("<!-- /records -->")[0]
    assert table.splitlines()[2:] == [row(record) for record in records() if record["shape"]["T"] == 1024]
