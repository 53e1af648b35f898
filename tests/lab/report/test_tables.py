"""Tables are a function of the records."""

import pytest

from trigemm.kernels.catalogue import LADDER
from trigemm.lab import report

VERSIONS = {"torch": "2.11", "cuda": "13.0", "triton": "3.6", "numpy": "2.4", "blas": "cuBLAS"}


def record(kernel="tiles", median=0.1, **fields):
    """A record of the reference case on a GPU."""
    baseline = fields.get("baseline_ms", 0.5)
    return {
        "operation": LADDER,
        "kernel": kernel,
        "number": {"baseline": 0, "naive": 1, "tiles": 6, "strips": 7, "trigemm": 1}.get(kernel),
        "idea": "an idea",
        "device": "cuda",
        "device_name": "H200",
        "dtype": "float32",
        "precision": "highest",
        "fill": None,
        "shape": {"B": 8, "T": 1024, "NH": 12, "HS": 64},
        "verdict": "pass",
        "error_over_budget": 0.5,
        "median_ms": median,
        "p20_ms": median * 0.9,
        "p80_ms": median * 1.1,
        "baseline_ms": baseline,
        "speedup": baseline / median,
        "alone_ms": 0.4,
        "speedup_blas": 0.4 / median,
        "floor_ms": 0.06,
        "floor_share": 0.06 / median,
        "useful_tflops": 64.5,
        "versions": VERSIONS,
        "commit": "abc123",
        "cold_l2": True,
        "when": "2026-01-01T00:00:00+00:00",
        **fields,
    }


def cells(table):
    """The rows of a table in Markdown, without its heading."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_ladder_goes_up_and_float32_comes_first():
    rows = [
        record("tiles", 0.05, dtype="bfloat16", baseline_ms=0.2),
        record("tiles", 0.125),
        record("naive", 7.6),
        record("baseline_tf32", 0.2, precision="high"),
        record("baseline", 0.5),
        record("baseline", 0.2, dtype="bfloat16", baseline_ms=0.2),
    ]
    table = cells(report.table("cuda", rows))
    assert [row[:2] for row in table] == [
        ["0 baseline", "float32 highest"],
        ["baseline_tf32", "float32 high"],
        ["1 naive", "float32 highest"],
        ["6 tiles", "float32 highest"],
        ["0 baseline", "bfloat16"],
        ["6 tiles", "bfloat16"],
    ]
    assert table[3][2:] == ["125 [112-138]", "4.00x", "48%", "64.5", "an idea"]
    assert table[2][2] == "7600 [6840-8360]"


def test_all_of_a_dtype_stand_against_one_baseline_and_the_one_in_tf32_is_shown_once():
    rows = [
        record("baseline", 0.5),
        record("tiles", 0.125),
        record("baseline_tf32", 0.21, precision="high"),
        record("baseline", 0.2, precision="high", baseline_ms=0.2),
        record("tiles", 0.1, precision="high", baseline_ms=0.2),
    ]
    table = report.table("cuda", rows)
    assert "| vs the dtype's baseline |" in table
    assert [(row[0], row[1], row[3]) for row in cells(table)] == [
        ("0 baseline", "float32 highest", "1.00x"),
        ("0 baseline", "float32 high", "2.50x"),
        ("6 tiles", "float32 highest", "4.00x"),
        ("6 tiles", "float32 high", "5.00x"),
    ]


def test_the_caption_has_the_circumstances_of_all_rows():
    rows = [record("naive"), record("tiles", commit="def456", versions={**VERSIONS, "triton": "3.7"})]
    assert report.table("cuda", rows).splitlines()[-1] == (
        "H200; caches flushed between calls; "
        "torch 2.11, cuda 13.0, triton 3.6 and 3.7, numpy 2.4, blas cuBLAS; commit abc123, def456."
    )


def test_the_latest_record_of_a_kernel_counts():
    old, new = record(median=0.3, when="2026-01-01T00:00:00+00:00"), record(median=0.1, when="2026-02-01T00:00:00+00:00")
    for order in ([old, new], [new, old]):
        (row,) = cells(report.table("cuda", order))
        assert row[2].startswith("100 ")


def test_what_failed_or_is_another_case_is_left_out():
    others = [
        record(verdict="fail"),
        record(fill=0.0),
        record(shape={"B": 8, "T": 512, "NH": 12, "HS": 64}),
        record(device="cpu"),
        record(operation="gemmt"),
    ]
    assert report.table("cuda", others) == "No records.\n"


def test_the_cpu_table_sets_torch_and_numpy_beside_each_kernel():
    shape = {"B": 1, "T": 4096, "NH": 1, "HS": 4096}
    cpu = {"device": "cpu", "device_name": "EPYC", "shape": shape, "operation": "gemmt", "baseline_ms": 600.0, "alone_ms": None}
    rows = [
        record("baseline", 600.0, **cpu),
        record("baseline_numpy", 500.0, **cpu),
        record("trigemm", 300.0, **{**cpu, "speedup_blas": 5 / 3}),
        record("trigemm", 0.1),
    ]
    assert cells(report.table("cpu", rows)) == [
        ["gemmt", "1 x 4096 x 4096", "float32", "trigemm", "600", "", "500", "300 [270-330]", "2.00x", "1.67x"]
    ]


def test_the_operations_are_set_against_matmul():
    shape = {"B": 1, "T": 4096, "NH": 2, "HS": 128}
    rows = [
        record("trigemm", 0.05, operation="trmm", shape=shape, dtype="bfloat16", baseline_ms=0.1),
        record("baseline", 0.1, operation="trmm", shape=shape, dtype="bfloat16"),
        record("tiles", 0.1),
    ]
    assert cells(report.table("operations", rows)) == [
        ["trmm", "2 x 4096 x 128", "bfloat16", "100", "50 [45-55]", "2.00x", "120%"]
    ]


def test_peers_have_a_column_each_and_what_gives_less_is_not_compared():
    def peer(kernel, median, **fields):
        more = {"operation": "peers.causal_attention", "mode": "weights", "gives": None, "number": None, "skipped": {}}
        return record(kernel, median, **{**more, **fields})

    rows = [
        peer("trigemm", 0.1, skipped={"jax": "not installed"}),
        peer("eager", 0.3),
        peer("compiled", 0.2, error_over_budget=3.6),
        peer("sdpa", 0.05, gives="no weights"),
        record("trigemm", 0.1, operation="causal_attention", mode="weights", case="reference"),
    ]
    table = report.table("peers", rows)
    assert "| trigemm, µs [p20-p80] | PyTorch | torch.compile | SDPA | JAX | vs the fastest |" in table
    assert cells(table) == [
        ["causal_attention, weights", "96 x 1024 x 64", "float32 highest", "100 [90-110]", "300",
         "200 (error 3.6x the budget)", "50 (no weights)", "not installed", "2.00x"],
    ]  # fmt: skip
    on_cpu = [{**row, "device": "cpu", "device_name": "EPYC"} for row in rows[:2]]
    both = report.table("peers", [*rows, *on_cpu])
    assert both.endswith(table)
    assert "trigemm, ms [p20-p80]" in both
    assert report.table("peers", rows[4:]) == "No records.\n"


def test_primitives_stand_beside_torch_and_the_library_of_arrays_of_their_device():
    more = {"operation": "tensor.add", "shape": {"elements": 6, "axis0": 2, "axis1": 3}, "torch_ms": 0.5}
    rows = [
        record("trigemm.tensor", 0.1, cupy_ms=0.7, **more),
        record("trigemm.tensor", 0.2, device="cpu", **{**more, "cold_l2": False}),
        record("trigemm.tensor", 0.2, operation="tensor.chain", shape={"operations": 9, "elements": 6}),
        record("trigemm", 0.2),
    ]
    assert cells(report.table("tensor-cuda", rows)) == [["add", "2 x 3", "100 [90-110]", "500", "700", "5.00x", "60%"]]
    assert cells(report.table("tensor-cpu", rows)) == [["add", "2 x 3", "200 [180-220]", "500", "", "2.50x", ""]]


def test_markdown_has_every_table_that_there_are_records_for_under_its_name():
    text = report.markdown([record(), record("trigemm", operation="gemmt")])
    assert [line for line in text.splitlines() if line.startswith("### ")] == ["### cuda", "### operations"]


def test_update_rewrites_only_between_markers_and_is_idempotent():
    before = "# a\n<!-- table:cuda -->\nstale\n<!-- /table -->\nb | c\n\n<!-- table:cpu -->\nkept\n<!-- /table -->\nend\n"
    after, left = report.update(before, [record()])
    assert left == ["cpu"]
    assert after.startswith("# a\n<!-- table:cuda -->\n| kernel |")
    assert "<!-- /table -->\nb | c\n\n<!-- table:cpu -->\nkept\n<!-- /table -->\nend\n" in after
    assert "stale" not in after
    assert report.update(after, [record()]) == (after, left)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no markers", "no <!-- table:NAME --> found; the names are cuda, cpu, operations"),
        ("<!-- table:cuda -->\n", "closed by <!-- /table -->"),
        ("<!-- table:cuda -->\n<!-- table:cpu -->\n<!-- /table -->\n", "closed by <!-- /table -->"),
        ("<!-- table:cuda -->\n<!-- /table -->\n<!-- /table -->", "closed by <!-- /table -->"),
        ("<!-- table:gpu -->\n<!-- /table -->\n", "there is no table 'gpu'; there are cuda, cpu, operations"),
    ],
)
def test_markers_that_do_not_fit_are_an_error(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        report.update(text, [])


def test_the_plot_is_a_picture_of_the_reference_case(tmp_path):
    path = tmp_path / "ladder.svg"
    report.plot([record("baseline", 0.5), record("naive", 7.6), record(operation="gemmt")], path)
    text = path.read_text()
    assert "<svg" in text
    assert text.count("naive") >= 1


def test_a_plot_of_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no record of the reference case"):
        report.plot([record(fill=0.0)], tmp_path / "x.png")
