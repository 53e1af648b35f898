"""What each rung asks of memory, a bar a counter."""

from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import INK, Chart, Spec, chart_spec, legend, logarithmic

COUNTERS = ("load requests", "load sectors", "store requests", "store sectors", "shared loads", "shared stores")


def traffic(counted: Sequence[Record], measured: Sequence[Record], title: str, caption: str) -> Chart:
    """Bars are what was counted; where a GPU's counters were read, a stroke stands at what they say."""
    bars, strokes = _rows(counted), _rows(measured)
    counts = [row["count"] for row in bars + strokes]
    start = min(counts) / 2
    shown = [name for name in COUNTERS if any(row["counter"] == name for row in bars + strokes)]
    x = logarithmic("count", (start, 1.05 * max(counts)), format="~s")
    y = {"field": "kernel", "type": "ordinal", "sort": None, "title": None, "axis": {"labelFontWeight": 600}}
    shared: Spec = {
        "y": y,
        "yOffset": {"field": "counter", "sort": shown, "scale": {"paddingOuter": 0.1}},
        "tooltip": [{"field": "kernel"}, {"field": "counter"}, {"field": "count", "format": ","}],
    }
    layers: list[Spec] = [
        {
            "data": {"values": bars},
            "mark": {"type": "bar", "cornerRadiusEnd": 2},
            "encoding": {
                **shared,
                "x": {**x, "title": "a launch, on a logarithmic scale: shorter is less"},
                "x2": {"datum": start},
                "color": legend("counter", shown, columns=2),
            },
        },
        {
            "data": {"values": strokes},
            "mark": {"type": "tick", "thickness": 2, "color": INK},
            "encoding": {**shared, "x": x},
        },
    ]
    alt = "; ".join(f"{row['kernel']}, {row['counter']}: {row['count']:,}" for row in bars)
    rungs = len({row["kernel"] for row in bars})
    return Chart(title, alt, caption, chart_spec(14 * len(shown) * rungs, layers if strokes else layers[:1]))


def _rows(kernels: Sequence[Record]) -> list[Spec]:
    """A row a kernel and counter; what is zero has no place on a logarithmic axis."""
    return [
        {"kernel": row["kernel"], "counter": name, "count": row[name]} for row in kernels for name in COUNTERS if row.get(name)
    ]
