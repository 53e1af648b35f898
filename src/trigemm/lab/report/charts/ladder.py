"""Kernels of one problem, a bar each: from the floor to the measured time."""

from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import INK, Chart, Spec, chart_spec, dashed_line, logarithmic, words
from trigemm.lab.report.rows import arithmetic, caption, device_name, digits, fastest_blas, label, percent, sizes, times, title

COLORS = {"fastest": "var(--accent)", "kernel": "var(--series-1)", "baseline": "var(--quiet)"}


def ladder(records: Sequence[Record]) -> Chart:
    unit, factor = ("µs", 1e3) if records[0]["device"] == "cuda" else ("ms", 1.0)
    blas = fastest_blas(records)
    floor = min((factor * record["floor_ms"] for record in records if record["floor_ms"]), default=None)
    rows = [_row(record, records, blas, unit, factor) for record in records]
    lowest, highest = min(row["p20"] for row in rows), max(row["p80"] for row in rows)
    start = min(lowest, floor) if floor else lowest / 2
    from_floor = f", from the floor of {digits(floor)} {unit}" if floor else ""
    x = logarithmic("median", (start, max(highest, 1.1 * start)))
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 9, "yOffset": 6, "cornerRadiusEnd": 2, "clip": True},
            "encoding": {
                "x": {**x, "title": f"{unit}, logarithmic{from_floor}"},
                "x2": {"datum": start},
                "color": {"field": "kind", "scale": {"domain": list(COLORS), "range": list(COLORS.values())}, "legend": None},
                "tooltip": [
                    {"field": "kernel"},
                    {"field": "idea"},
                    *({"field": field, "title": f"{field}, {unit}", "format": ".4~r"} for field in ("median", "p20", "p80")),
                    {"field": "vs baseline"},
                ],
            },
        },
        {
            "mark": {"type": "rule", "yOffset": 6, "color": INK, "tooltip": None},
            "encoding": {"x": {**x, "field": "p20"}, "x2": {"field": "p80"}},
        },
    ]
    beneath = f"Median, speedup over the baseline, share of the floor. {caption(records)}"
    if blas is not None:
        name, ms = blas
        layers.append(dashed_line(factor * ms, x))
        beneath = (
            f"Median, speedup over {name}'s full product alone ({digits(factor * ms)} {unit}, dashed), share of the floor. "
            f"{caption(records)}"
        )
    layers.append(words({"text": {"field": "kernel"}, "x": {"value": 0}}, align="left", dy=-13, fontWeight=600))
    layers.append(words({"text": {"field": "text"}, "x": {"value": "width"}}, align="right", dy=-13))
    fill = "" if records[0]["fill"] is None else f", fill {records[0]['fill']}"
    peers = " and its peers" if records[0]["operation"].startswith("peers.") else ""
    return Chart(
        f"{title(records[0])}{peers}, {sizes(records[0])}, {arithmetic(records[0])}{fill}, on {device_name(records[0])}",
        "; ".join(f"{row['kernel']}: {row['text']}" for row in rows),
        beneath,
        chart_spec(
            38 * len(rows),
            layers,
            data={"values": rows},
            encoding={"y": {"field": "kernel", "type": "ordinal", "sort": None, "axis": None}},
        ),
    )


def _row(record: Record, beside: Sequence[Record], blas: tuple[str, float] | None, unit: str, factor: float) -> Spec:
    median, p20, p80 = (factor * record[name] for name in ("median_ms", "p20_ms", "p80_ms"))
    against = [f"{digits(median)} {unit}"]
    ratio = record["speedup"] if blas is None else blas[1] / record["median_ms"]
    if ratio:
        against.append(times(ratio))
    if record["floor_share"]:
        against.append(percent(record["floor_share"]))
    fastest = record["median_ms"] == min(other["median_ms"] for other in beside)
    return {
        "kernel": label(record),
        "text": " · ".join(against),
        "median": median,
        "p20": p20,
        "p80": p80,
        "idea": record.get("idea") or "",
        "vs baseline": times(record["speedup"]),
        "kind": "fastest" if fastest else "kernel" if record.get("number") else "baseline",
    }
