"""Useful TFLOP/s over useful flops a byte, under what the device reached in the same runs."""

import math
from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import Chart, Spec, chart_spec, legend, logarithmic, words
from trigemm.lab.report.rows import arithmetic, digits, distinct, label, percent, sizes


def roofline(records: Sequence[Record], device: str) -> Chart | None:
    """The kernels of one device; None where no record has its ceilings."""
    known = [r for r in records if r.get("ceilings") and r.get("useful_bytes") and r.get("useful_tflops")]
    if not known:
        return None
    points = [
        {
            "kernel": label(record),
            "problem": f"{record['operation']}, {sizes(record)}",
            "arithmetic": arithmetic(record),
            "intensity": record["useful_flops"] / record["useful_bytes"],
            "rate": record["useful_tflops"],
            "of the floor": percent(record["floor_share"]),
            "is_kernel": bool(record.get("number")),
        }
        for record in known
    ]
    # Arithmetic -> bandwidth in TB/s and peak in TFLOP/s, of its last run.
    roofs = {
        arithmetic(r): (max(r["ceilings"][f"{what}_gbps"] for what in _RATES) / 1e3, r["ceilings"]["gemm_tflops"]) for r in known
    }
    ridges = [peak / bandwidth for bandwidth, peak in roofs.values()]
    intensities = [point["intensity"] for point in points] + ridges
    left, right = min(intensities) / 4, max(intensities) * 4
    lines = [
        {"arithmetic": kind, "intensity": intensity, "rate": min(peak, bandwidth * intensity)}
        for kind, (bandwidth, peak) in roofs.items()
        for intensity in (left, peak / bandwidth, right)
    ]
    rates = [row["rate"] for row in points + lines]
    # The fastest kernel of each problem has its name beside its point, unless that of a faster one is there.
    named = {(p["problem"], p["arithmetic"]): p for p in sorted(points, key=lambda p: p["rate"]) if p["is_kernel"]}
    bottom, top = min(rates) / 1.5, max(rates) * 1.5
    shown: list[Spec] = []
    for point in sorted(named.values(), key=lambda p: -p["rate"]):
        across = [abs(math.log(point["intensity"] / other["intensity"], right / left)) for other in shown]
        down = [abs(math.log(point["rate"] / other["rate"], top / bottom)) for other in shown]
        if all(a > _LABEL[0] or d > _LABEL[1] for a, d in zip(across, down, strict=True)):
            shown.append(point)
    x = logarithmic("intensity", (left, right), format="~s", grid=False)
    y = logarithmic("rate", (bottom, top), format="~g", grid=False)
    color = legend("arithmetic", distinct(roofs), columns=3)
    layers: list[Spec] = [
        {
            "data": {"values": lines},
            "mark": {"type": "line", "strokeWidth": 2, "tooltip": None},
            "encoding": {
                "x": {**x, "title": "useful flops a byte that must move"},
                "y": {**y, "title": "useful TFLOP/s"},
                "color": color,
            },
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.9, "stroke": "var(--paper)", "strokeWidth": 0.5},
            "encoding": {
                "x": x,
                "y": y,
                "color": color,
                "tooltip": [
                    {"field": "kernel"},
                    {"field": "problem"},
                    {"field": "arithmetic"},
                    {"field": "rate", "title": "useful TFLOP/s", "format": ".3~r"},
                    {"field": "intensity", "title": "flops a byte", "format": ".3~r"},
                    {"field": "of the floor"},
                ],
            },
        },
        words({"x": x, "y": y, "text": {"field": "kernel"}}, {"values": shown}, align="left", dx=8, dy=-5),
    ]
    rates_in_words = (
        f"{p['kernel']} ({p['problem']}, {p['arithmetic']}): {digits(p['rate'])} TFLOP/s, {p['of the floor']} of the floor"
        for p in named.values()
    )
    return Chart(
        device,
        "; ".join(rates_in_words),
        "Lines: the bandwidth, and the rate of a square matrix product, that plain PyTorch calls reached in the same runs.",
        chart_spec(340, layers),
    )


# The share of the chart's width and height that a name takes.
_LABEL = (0.12, 0.06)
_RATES = ("copy", "fill", "read")
