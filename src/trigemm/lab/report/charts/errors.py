"""The worst error of each kernel, as a share of what it is allowed."""

from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import Chart, Spec, chart_spec, dashed_line, legend, words
from trigemm.lab.report.rows import arithmetic, device_name, distinct, label, percent, sizes


def errors(records: Sequence[Record]) -> Chart:
    """A line for each kernel of each operation, a point for each problem."""
    rows: list[Spec] = [
        {
            "kernel": f"{record['operation']} · {label(record)}",
            "problem": f"{sizes(record)} on {device_name(record)}",
            "arithmetic": arithmetic(record),
            "share": float(record["error_over_budget"]),
        }
        for record in records
        if record["error_over_budget"] not in (None, "inf", "nan")
    ]
    right = max([1.05, *(row["share"] for row in rows)])
    x: Spec = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, right]},
        "axis": {"format": "%", "tickCount": 5},
    }
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "color": "var(--rule)", "yOffset": 6, "tooltip": None},
            "encoding": {"x": {"value": 0}, "x2": {"value": "width"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "yOffset": 6, "opacity": 0.9},
            "encoding": {
                "x": {**x, "title": "worst error, as a share of the budget"},
                "color": legend("arithmetic", distinct(row["arithmetic"] for row in rows), columns=3),
                "tooltip": [
                    *({"field": field} for field in ("kernel", "problem", "arithmetic")),
                    {"field": "share", "title": "of the budget", "format": ".1%"},
                ],
            },
        },
        dashed_line(1, x),
        words(
            {"text": {"field": "kernel"}, "x": {"value": 0}},
            {"values": [{"kernel": name} for name in distinct(row["kernel"] for row in rows)]},
            align="left",
            dy=-9,
        ),
    ]
    return Chart(
        "Error against budget",
        "; ".join(f"{r['kernel']} ({r['arithmetic']}, {r['problem']}): {percent(r['share'])} of its budget" for r in rows),
        "The dashed line is the budget: twice the error of PyTorch's own product in the same arithmetic, both against float64. "
        "A kernel beyond it is not timed.",
        chart_spec(
            34 * len({row["kernel"] for row in rows}),
            layers,
            data={"values": rows},
            encoding={"y": {"field": "kernel", "type": "ordinal", "sort": None, "axis": None}},
        ),
    )
