"""A picture of the choice of a tile: what is loaded against how many tiles can be computed side by side."""

from math import inf, isclose, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from trigemm.tiling.plan import Candidate, Plan
from trigemm.tiling.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICK = "#c2410c"


def draw_trade_off(found: Plan, axes: "Axes") -> None:
    """A point for each BM x BN, at its best BK: its tiles to the right, what they load upward, the predicted time as colour."""
    from matplotlib.ticker import MaxNLocator

    near: list[list[Candidate]] = []  # those that would hide one another are one point, at the fastest's place
    for candidate in found.candidates:
        group = next((group for group in near if _is_near(candidate.traffic, group[0].traffic)), None)
        if group is None:
            near.append([candidate])
        else:
            group.append(candidate)
    groups = [(group[0].traffic.tiles, group[0].traffic.loads, 1e3 * group[0].predicted_ms) for group in near]
    held = [group for group in groups if isfinite(group[2])]
    if held:
        tiles, loads, times = zip(*held, strict=True)
        points = axes.scatter(tiles, loads, c=times, s=80, cmap="viridis_r", norm="log", zorder=3)
        bar = axes.figure.colorbar(points, ax=axes, label="predicted time, µs", ticks=MaxNLocator(6), format="%.3g")
        bar.minorticks_off()
        axes.scatter(tiles[0], loads[0], s=260, facecolors="none", edgecolors=PICK, linewidths=2, zorder=4)
    for (tile_count, loaded, time), candidates in zip(groups, near, strict=True):
        if time == inf:
            axes.scatter(tile_count, loaded, marker="x", color="0.4")
        label = ", ".join(dict.fromkeys("{} x {}".format(*candidate.block) for candidate in candidates))
        label += " (does not fit)" if time == inf else ""
        axes.annotate(label, (tile_count, loaded), xytext=(7, 7), textcoords="offset points", fontsize="small")
    axes.axvline(found.device.sms, color="0.6", linestyle="--", linewidth=1, zorder=1)
    axes.annotate(
        f"{found.device.sms} multiprocessors", (found.device.sms, 1), xycoords=("data", "axes fraction"), xytext=(4, -12),
        textcoords="offset points", fontsize="small", color="0.4",
    )  # fmt: skip
    part = "" if found.diagonal is None else "lower triangle of "
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tiles that can be computed side by side",
        ylabel="elements loaded",
        title=f"{part}{found.m} x {found.n} x {found.k}, {found.dtype}, {found.device.name}; circled: the pick",
    )
    axes.margins(x=0.15, y=0.12)


def plot_trade_off(found: Plan, path: Path) -> None:
    """Write the picture to a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    draw_trade_off(found, axes)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _is_near(a: Traffic, b: Traffic) -> bool:
    return isclose(a.tiles, b.tiles, rel_tol=0.08) and isclose(a.loads, b.loads, rel_tol=0.08)
