"""The page says what the records say, stands alone, and is safe from what is in them."""

import json
import re
import sys
from dataclasses import asdict, replace
from html import escape
from html.parser import HTMLParser
from itertools import combinations
from math import log

import pytest

from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.lab.records import Broken
from trigemm.lab.report import charts, page
from trigemm.lab.report.load import Loaded
from trigemm.lab.report.rows import is_reference, problem
from trigemm.lab.report.source import annotated
from trigemm.tiling import known, plan

pytestmark = pytest.mark.xdist_group("page")  # it is made once


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def specs(html):
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', html)]


def rows(spec):
    """All rows of a specification."""
    return [row for part in (spec, *spec["layer"]) for row in part.get("data", {}).get("values", [])]


def test_nothing_is_loaded_from_elsewhere(html):
    for tag, attributes in Elements(html).found:
        assert "src" not in attributes, tag
        if tag == "link":
            assert attributes["href"].startswith("data:")
        elif "href" in attributes:
            assert attributes["href"].startswith("#"), attributes
    style = html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_ids_are_unique_and_links_lead_to_them(html):
    elements = Elements(html).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements:
        for name in ("for", "aria-labelledby"):
            assert attributes.get(name, ids[0]) in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_each_time_of_the_ladder_is_a_bar(html, loaded):
    bars = {(row["kernel"].partition(",")[0], row["median"]) for spec in specs(html) for row in rows(spec) if "p20" in row}
    ladder = [r for r in loaded.benchmarks if r["operation"] == LADDER and r["device"] == "cuda" and r.get("number")]
    assert ladder
    for record in ladder:
        assert (f"{record['number']} {record['kernel']}", 1e3 * record["median_ms"]) in bars


def test_ratios_of_a_ladder_are_those_that_its_caption_names(loaded):
    rungs = [r for r in loaded.benchmarks if is_reference(r) and r["dtype"] == "float32" and r["device"] == "cuda"]
    groups = {key: [r for r in rungs if problem(r) == key] for key in map(problem, rungs)}
    assert {r["precision"] for r in rungs if r["kernel"] == "tiles"} == {"highest", "high"}
    assert len(groups) == 2
    for group in groups.values():
        chart = charts.ladder(group)
        alone = next(r["median_ms"] for r in group if r["kernel"] == "baseline_alone")
        assert f"full product alone ({1e3 * alone:.0f} µs, dashed)" in chart.caption
        assert f"float32 {group[-1]['precision']}, on" in chart.title
        bars = [row for row in rows(chart.spec) if "p20" in row]
        assert len(bars) == len(group)
        for row in bars:
            assert f" · {1e3 * alone / row['median']:.2f}x" in row["text"]


def test_cards_are_of_the_reference_case_and_of_the_largest_gain_of_each_operation(loaded):
    def largest(**fields):
        found = [r for r in loaded.benchmarks if r.get("number") and fields.items() <= r.items()]
        return max(found, key=lambda record: record["speedup_blas"])

    reference = next(r for r in loaded.benchmarks if is_reference(r) and r["kernel"] == "tiles" and r["dtype"] == "float32")
    assert reference["precision"] == "highest"
    shown = page(Loaded(loaded.benchmarks)).replace("<wbr>", "")
    cards = re.findall(r'class="what">(.*?)</span><span class="figure">(.*?)</span><span class="text">(.*?)</span>', shown)
    assert len(cards) == len({(what, text.rpartition(", on ")[2]) for what, _, text in cards})
    for operation in ("gemmt", "syrk"):
        best = largest(operation=operation, device="cuda", dtype="bfloat16")
        assert (f"{operation}, bfloat16", f"{best['speedup_blas']:.2f}x") in [card[:2] for card in cards]
    card = next(card for card in cards if card[0] == f"{LADDER}, float32 highest" and "H200" in card[2])
    assert card[1] == f"{reference['speedup_blas']:.2f}x"
    assert "96 x 1024 x 64" in card[2]


def test_a_peer_beyond_the_budget_is_not_said_to_have_passed(html, loaded):
    beyond = [r for r in loaded.benchmarks if (r["error_over_budget"] or 0) > 1]
    assert beyond
    assert html.count("<td>beyond the budget</td>") == len(beyond)
    assert "The errors of other libraries are\n  shown and not required" in html
    assert "Each kernel" not in html


def test_all_ladders_but_the_reference_case_are_folded(html):
    plain, *parts = html.partition('<section id="operations"')[0].split("<details>")
    assert len(parts) == 1
    titles = re.compile(r"<h3>(causal_scores_qkvpacked.*?)</h3>")
    assert all(", 96 x 1024 x 64, " in title and ", fill" not in title for title in titles.findall(plain))
    assert len(titles.findall(plain)) == 5
    assert len(titles.findall(parts[0])) > 5


def test_names_on_a_roofline_do_not_cover_one_another(loaded):
    on_gpu = [record for record in loaded.benchmarks if record["device"] == "cuda"]
    spec = charts.roofline(on_gpu, "H200").spec
    *_, points, names = spec["layer"]
    x, y = (points["encoding"][axis]["scale"]["domain"] for axis in "xy")
    shown = names["data"]["values"]
    assert max(row["rate"] for row in points["data"]["values"] if row["is_kernel"]) == shown[0]["rate"]
    assert len(shown) > 3
    for one, other in combinations(shown, 2):
        across = abs(log(one["intensity"] / other["intensity"])) / log(x[1] / x[0])
        assert across > 0.1 or abs(log(one["rate"] / other["rate"])) / log(y[1] / y[0]) > 0.05


def test_each_count_and_each_measured_count_is_in_the_chart_of_its_shape(html, loaded):
    shown = {(row["kernel"], row["counter"], row["count"]) for spec in specs(html) for row in rows(spec) if "counter" in row}
    for record in loaded.measured:
        for counts in (record["counted"], record["measured"]):
            for name, value in counts.items():
                counter = name.replace("_wavefronts", "s").replace("_", " ")
                assert ((record["kernel"], counter, value) in shown) == (value > 0)
    shared = next(record for record in loaded.counted if record["kernel"] == "shared")
    assert ("shared", "shared loads", shared["shared"]["load"]["wavefronts"]) in shown


def test_charts_are_told_in_words(html):
    told = [attributes for _, attributes in Elements(html).found if "data-chart" in attributes]
    assert len(told) == len(specs(html)) > 5
    for attributes in told:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 40


def test_counts_of_the_thread_level_rungs_are_their_closed_forms(loaded):
    known = {spec.name: spec for spec in CATALOGUE if spec.operation == LADDER and spec.predicted_traffic}
    counted = {record["kernel"]: record for record in loaded.counted}
    assert known.keys() <= counted.keys()
    for name, spec in known.items():
        assert counted[name]["predicted"] == spec.predicted_traffic(**counted[name]["shape"])
        assert counted[name]["as_predicted"]


def test_lines_of_source_carry_their_counts(loaded):
    record = next(record for record in loaded.counted if record["kernel"] == "naive")
    functions = list(annotated(record))
    lines = [row for function in functions for row in function.rows]
    assert sum(int(row.cells[1].replace(",", "") or 0) for row in lines) == sum(line["sectors"] for line in record["lines"])
    assert sum(row.heat for row in lines) == pytest.approx(1)
    (worst,) = [row for row in lines if row.worst]
    assert "dot" in worst.code
    plain = re.sub(r"<.*?>", "", "\n".join(row.code for row in functions[0].rows))
    assert plain == escape(record["source"][0]["text"].rstrip("\n"), quote=False).replace('"', "&quot;").replace("'", "&#39;")


def test_skipped_lines_are_listed(tmp_path, loaded):
    skipped = [Broken(tmp_path / "a.jsonl", 7, "not JSON")]
    text = page(replace(loaded, skipped=skipped))
    assert f"<code>{tmp_path / 'a.jsonl'}:7</code> not JSON" in text
    assert "1 line skipped" in text


def test_what_stands_in_a_record_is_text_and_never_code(loaded):
    evil = "</script><script>alert(1)</script><b>"
    record = {**loaded.benchmarks[0], "idea": evil, "kernel": evil, "device_name": evil, "commit": evil}
    counted = {**loaded.counted[0], "source": [{**loaded.counted[0]["source"][0], "text": f"x = '{evil}'\n", "function": evil}]}
    text = page(Loaded([record, {**record, "kernel": "other"}], [counted], []))
    assert evil not in text
    assert "<b>" not in text
    assert text.count("<script") == page(Loaded()).count("<script") + len(specs(text))


def test_sections_without_records_are_left_out():
    text = page(Loaded())
    assert 'id="tiles"' in text
    for section in ("ladder", "operations", "roofline", "traffic", "errors", "records"):
        assert f'id="{section}"' not in text
        assert f'href="#{section}"' not in text


def test_a_kernel_that_failed_is_in_the_table_and_the_errors_but_has_no_bar(loaded):
    good = next(record for record in loaded.benchmarks if record["kernel"] == "tiles")
    timeless = dict.fromkeys(("median_ms", "p20_ms", "p80_ms", "speedup", "speedup_blas", "floor_share", "useful_tflops", "gbps"))
    bad = {**good, **timeless, "kernel": "wrong", "verdict": "fail", "error_over_budget": 7.5}
    text = page(Loaded([good, {**good, "kernel": "other"}, bad]))
    assert "<td>fail</td>" in text
    assert "750%" in text
    assert not any(row.get("kernel") == "wrong" for spec in specs(text)[:1] for row in rows(spec))


def test_an_infinite_error_has_no_place_on_an_axis(loaded):
    record = loaded.benchmarks[0]
    chart = charts.errors([{**record, "error_over_budget": "inf"}, record])
    assert len(chart.spec["data"]["values"]) == 1
    assert json.dumps(chart.spec, allow_nan=False)


def test_a_ladder_without_ceilings_has_no_floor(loaded):
    bare = {"floor_ms": None, "floor_share": None, "ceilings": None, "blas_ms": None, "speedup_blas": None}
    records = [{**record, **bare} for record in loaded.benchmarks if record["kernel"] in ("naive", "shared")]
    chart = charts.ladder(records)
    assert "floor" not in json.dumps(chart.spec)
    assert charts.roofline(records, "H200") is None


def test_a_problem_with_one_kernel_is_a_bar_of_its_speedup(loaded):
    others = [record for record in loaded.benchmarks if not record["operation"].startswith("tensor.")]
    rung = next(record for record in others if record["kernel"] == "naive")
    alone = {**rung, "operation": "tensor.softmax", "shape": {"elements": 1000, "axis0": 10}, "speedup": 1.5}
    slower = {**alone, "operation": "tensor.sum", "speedup": 0.5}
    text = page(Loaded([alone, slower, *others]))
    assert f">tensor: {alone['device_name']}</h3>" in text
    bars = {row["problem"]: row for spec in specs(text) for row in rows(spec) if "faster" in row}
    assert bars["tensor.softmax, elements=1000 axis0=10, float32 highest"]["text"] == "1.50x"
    assert not bars["tensor.sum, elements=1000 axis0=10, float32 highest"]["faster"]
    assert len(bars) == 2


def test_the_picked_tile_stands_among_all_that_were_timed():
    device = known("h200")
    ordered = plan(1024, 1024, 1024, "bfloat16", device).candidates
    times = {candidate.block: 0.1 + 0.01 * i for i, candidate in enumerate(ordered)}
    tiles = [{"block": list(block), "median_ms": ms} for block, ms in reversed(times.items())]
    search = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16", "device": asdict(device), "device_name": device.name}
    chart = charts.tiles([{**search, "tiles": [*tiles, {"block": [512, 512, 512], "refused": "registers"}]}], "H200")
    points = [row for row in rows(chart.spec) if "tile" in row]
    assert len(points) == len(ordered)
    (picked,) = [row for row in points if row["what"] == "picked"]
    assert picked["ratio"] == 1
    assert "takes 1.00 times as long" in chart.alt


def test_a_library_that_is_missing_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"the HTML report needs jinja2 \(pip install 'trigemm\[report\]'\)"):
        page(Loaded())
