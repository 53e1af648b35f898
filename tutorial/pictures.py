"""How the notebooks draw: one palette, figures with alternative texts, matrices cut into tiles."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, which people with colour-blindness can tell apart.
BLUE, ORANGE, GREEN, RED, SKY, GREY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#56b4e9",
    "#8a8a8a",
)

plt.rcParams.update(
    {
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, RED, SKY]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": "medium",
        "figure.constrained_layout.use": True,
        "figure.dpi": 110,
        "figure.facecolor": "white",
        "grid.color": "0.9",
        "legend.frameon": False,
        "lines.markersize": 5,
    }
)


def show(figure: Figure, alt: str) -> None:
    """Display a figure with its alternative text."""
    display(figure, metadata={"image/png": {"alt": alt}})
    plt.close(figure)


def draw_tiles(
    axes: Axes,
    shape: tuple[int, int],
    block: tuple[int, int],
    colour: str,
    *,
    lit: Iterable[tuple[int, int]] = (),
    pale: Iterable[tuple[int, int]] = (),
    title: str = "",
) -> None:
    """A matrix cut into tiles, some lit, some pale. What lies beyond its border is hatched."""
    (rows, columns), (block_rows, block_columns) = shape, block
    for tiles, alpha in ((pale, 0.2), (lit, 0.75)):
        for i, j in tiles:
            corner = (j * block_columns, i * block_rows)
            axes.add_patch(
                Rectangle(
                    corner,
                    block_columns,
                    block_rows,
                    facecolor="0.92",
                    edgecolor="0.6",
                    hatch="////",
                    linewidth=0,
                )
            )
            inside = min(block_columns, columns - corner[0]), min(block_rows, rows - corner[1])
            axes.add_patch(Rectangle(corner, *inside, facecolor="white"))
            axes.add_patch(Rectangle(corner, *inside, facecolor=colour, alpha=alpha))
    whole = -(-rows // block_rows) * block_rows, -(-columns // block_columns) * block_columns
    for edge in range(0, whole[0] + 1, block_rows):
        axes.plot([0, whole[1]], [edge, edge], color="0.75", linewidth=0.8)
    for edge in range(0, whole[1] + 1, block_columns):
        axes.plot([edge, edge], [0, whole[0]], color="0.75", linewidth=0.8)
    axes.add_patch(Rectangle((0, 0), columns, rows, fill=False, edgecolor="black", linewidth=1.5))
    axes.set(aspect="equal", xlim=(-0.5, whole[1] + 0.5), ylim=(whole[0] + 0.5, -0.5), title=title)
    axes.axis("off")


def draw_entries(
    axes: Axes, matrix, *, title: str, xlabel: str = "", ylabel: str = "", **options
) -> None:
    """A matrix as coloured entries; NaN is left grey."""
    colours = plt.get_cmap(options.pop("cmap", "viridis")).with_extremes(bad="0.85")
    axes.imshow(matrix, cmap=colours, **options)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(False)
