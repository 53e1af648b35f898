"""What the charts share. Colours are names of the page's style, which has a light and a dark one."""

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

INK = "var(--ink)"
SERIES = [f"var(--series-{i})" for i in range(1, 7)]


@dataclass(frozen=True)
class Chart:
    """A chart, its heading, what it shows in words for those who do not see it, and a line beneath it."""

    title: str
    alt: str
    caption: str
    spec: Spec


def chart_spec(height: int, layers: list[Spec], **shared: Any) -> Spec:
    """Layers over one another, as wide as the page lets them."""
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        "padding": {"left": 2, "right": 8, "top": 8, "bottom": 2},
        "config": {
            "font": "system-ui, sans-serif",
            "text": {"fontSize": 12.5},
            "view": {"stroke": None},
            "axis": {
                "labelColor": INK,
                "titleColor": "var(--faint)",
                "titleFontWeight": 400,
                "titleFontSize": 12.5,
                "labelFontSize": 12,
                "gridColor": "var(--rule)",
                "domainColor": "var(--rule)",
                "tickColor": "var(--rule)",
                "labelOverlap": True,
            },
            "legend": {"labelColor": INK, "labelFontSize": 12.5, "labelLimit": 240, "symbolOpacity": 1},
        },
        **shared,
        "layer": layers,
    }


def legend(field: str, shown: list[str], columns: int) -> Spec:
    """A colour for each value of a field, named above the chart."""
    return {
        "field": field,
        "sort": shown,
        "scale": {"domain": shown, "range": SERIES},
        "legend": {"orient": "top", "title": None, "columns": columns},
    }


def logarithmic(field: str, domain: tuple[float, float], **axis: Any) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"type": "log", "domain": list(domain), "nice": False},
        "axis": {"tickCount": 5, **axis},
    }


def dashed_line(at: float, channel: Spec) -> Spec:
    """From top to bottom, where the axis of `channel` is at `at`."""
    return {
        "data": {"values": [{channel["field"]: at}]},
        "mark": {"type": "rule", "strokeDash": [3, 3], "color": INK, "tooltip": None},
        "encoding": {"x": channel, "y": {"value": 0}, "y2": {"value": "height"}},
    }


def words(encoding: Spec, data: Spec | None = None, **mark: Any) -> Spec:
    """Text; the page's style puts it on a ground of its own, so that no line crosses it."""
    text = {"type": "text", "color": INK, "tooltip": None, **mark}
    return {"mark": text, "encoding": encoding} if data is None else {"data": data, "mark": text, "encoding": encoding}
