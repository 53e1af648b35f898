"""The reference case as a bar chart in a file of its own."""

from collections.abc import Iterable
from pathlib import Path

from trigemm.lab.records import Record
from trigemm.lab.report.rows import arithmetic, caption, is_reference, label, latest, order


def check_plot(path: Path) -> None:
    """Raises ValueError where no chart could be written to `path`; to be called before work is done."""
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"cannot plot to {path}: its name must end in one of {', '.join(f'.{name}' for name in formats)}")
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise ValueError(f"cannot plot to {path}: give a file in an existing folder")


def plot(records: Iterable[Record], path: Path) -> None:
    """A bar chart of the GPU ladder at the reference case, or of the CPU's where no GPU was measured: times with their spread."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    passed = latest(record for record in records if record["verdict"] == "pass")
    at_reference = [record for record in passed if is_reference(record)]
    chosen = [record for record in at_reference if record["device"] == "cuda"] or at_reference
    if not chosen:
        raise ValueError("there is no record of the reference case to plot")
    chosen.sort(key=order)
    labels = [f"{label(record)}\n{arithmetic(record)}" for record in chosen]
    medians = [record["median_ms"] for record in chosen]
    spread = [
        [record["median_ms"] - record["p20_ms"] for record in chosen],
        [record["p80_ms"] - record["median_ms"] for record in chosen],
    ]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(chosen) + 1.5), layout="constrained")
    axes.barh(labels, medians, xerr=spread)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("ms, median with 20th and 80th percentile")
    axes.set_title(caption(chosen), fontsize="x-small", wrap=True)
    figure.savefig(path)
    plt.close(figure)
