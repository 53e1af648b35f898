"""How the tile that `trigemm.tiling.plan` picks does among all that were timed."""

from collections.abc import Sequence

from trigemm.lab.records import Record
from trigemm.lab.report.charts.vega import Chart, Spec, chart_spec, dashed_line, logarithmic, words
from trigemm.lab.report.schemes import device_of
from trigemm.tiling import plan


def tiles(searches: Sequence[Record], title: str) -> Chart:
    """A line for each product, a point for each tile: its time over that of the best."""
    rows: list[Spec] = []
    names: list[Spec] = []
    for search in searches:
        product = f"{search['m']} x {search['n']} x {search['k']}, {search['dtype']}"
        pick = plan(search["m"], search["n"], search["k"], search["dtype"], device_of(search)).pick.block
        timed = [tile for tile in search["tiles"] if tile.get("median_ms") is not None]
        best = min(tile["median_ms"] for tile in timed)
        shares = {tuple(tile["block"]): tile["median_ms"] / best for tile in timed}
        reached = f"{shares[pick]:.2f}" if pick in shares else "not timed"
        names.append({"product": product, "name": product, "reached": reached})
        rows += [
            {
                "product": product,
                "tile": "x".join(map(str, tile["block"])),
                "ratio": tile["median_ms"] / best,
                "us": 1e3 * tile["median_ms"],
                "what": "picked" if tuple(tile["block"]) == pick else "other tiles",
            }
            for tile in sorted(timed, key=lambda tile: tuple(tile["block"]) == pick)
        ]
    x = logarithmic("ratio", (0.97, 1.1 * max(row["ratio"] for row in rows)))
    layers: list[Spec] = [
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.75, "yOffset": 6},
            "encoding": {
                "x": {**x, "title": "time over that of the fastest tile, logarithmic"},
                "color": {
                    "field": "what",
                    "scale": {"domain": ["picked", "other tiles"], "range": ["var(--accent)", "var(--quiet)"]},
                    "legend": {"orient": "top", "title": None},
                },
                "tooltip": [
                    {"field": "product"},
                    {"field": "tile"},
                    {"field": "us", "title": "median, µs", "format": ".4~r"},
                    {"field": "ratio", "title": "over the best", "format": ".3~r"},
                ],
            },
        },
        dashed_line(1, x),
        words({"text": {"field": "name"}, "x": {"value": 0}}, {"values": names}, align="left", dy=-11),
        words({"text": {"field": "reached"}, "x": {"value": "width"}}, {"values": names}, align="right", dy=-11),
    ]
    return Chart(
        title,
        "; ".join(f"{name['product']}: the picked tile takes {name['reached']} times as long as the best" for name in names),
        "On the right: the picked tile's time over that of the fastest. Every tile was checked before it was "
        "timed; the pick is that of `trigemm tiles`.",
        chart_spec(
            36 * len(searches),
            layers,
            encoding={"y": {"field": "product", "type": "ordinal", "sort": None, "axis": None}},
        ),
    )
