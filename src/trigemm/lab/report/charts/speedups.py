"""Many problems at a glance: how many times faster than its baseline each was."""

from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import Chart, Spec, chart_spec, dashed_line, logarithmic, words
from trigemm.lab.report.rows import arithmetic, caption, digits, percent, sizes, times


def speedups(records: Sequence[Record], title: str) -> Chart:
    """Records that have a speedup, a bar each: to the right of the line it is faster than the baseline, to the left slower."""
    rows: list[Spec] = [
        {
            "problem": f"{record['operation']}, {sizes(record)}, {arithmetic(record)}",
            "speedup": record["speedup"],
            "from": 1,
            "text": times(record["speedup"]),
            "ms": record["median_ms"],
            "of the floor": percent(record["floor_share"]),
            "faster": record["speedup"] >= 1,
        }
        for record in records
    ]
    values = [row["speedup"] for row in rows]
    x = logarithmic("speedup", (min([0.8, *values]) / 1.05, 1.25 * max([1.25, *values])))
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 9, "yOffset": 6, "cornerRadiusEnd": 2},
            "encoding": {
                "x": {**x, "title": "times as fast as the baseline, logarithmic"},
                "x2": {"field": "from"},
                "color": {
                    "field": "faster",
                    "scale": {"domain": [True, False], "range": ["var(--series-1)", "var(--quiet)"]},
                    "legend": None,
                },
                "tooltip": [
                    {"field": "problem"},
                    {"field": "text", "title": "speedup"},
                    {"field": "ms", "title": "median, ms", "format": ".4~r"},
                    {"field": "of the floor"},
                ],
            },
        },
        dashed_line(1, x),
        words({"text": {"field": "problem"}, "x": {"value": 0}}, align="left", dy=-11),
        words({"text": {"field": "text"}, "x": {"value": "width"}}, align="right", dy=6, fontWeight=600),
    ]
    return Chart(
        title,
        "; ".join(f"{row['problem']}: {row['text']}, {digits(row['ms'])} ms" for row in rows),
        f"The dashed line is the baseline. {caption(records)}",
        chart_spec(
            36 * len(rows),
            layers,
            data={"values": rows},
            encoding={"y": {"field": "problem", "type": "ordinal", "sort": None, "axis": None}},
        ),
    )
