"""A picture of the ladder: what each rung asks of memory."""

from collections.abc import Sequence
from pathlib import Path

from trigemm.lab.traffic import ladder
from trigemm.lab.traffic.result import Traffic


def plot_ladder(runs: Sequence[Traffic], path: Path) -> None:
    """Bars of global load and store requests and sectors, and of shared wavefronts, one group a rung, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series = {name: [ladder.counted(traffic)[name] for traffic in runs] for name in ladder.counted(runs[0])}
    series["shared_wavefronts"] = [traffic.total("shared").wavefronts for traffic in runs]
    figure, axes = plt.subplots(figsize=(1.6 * len(runs) + 3, 4), layout="constrained")
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        at = [rung + (i - (len(series) - 1) / 2) * width for rung in range(len(runs))]
        axes.bar(at, values, width, label=name.replace("_", " "))
    axes.set_yscale("log")
    axes.set_xticks(range(len(runs)), [traffic.kernel for traffic in runs])
    axes.set_ylabel("a launch")
    axes.set_title("What each rung asks of memory")
    axes.legend(fontsize="small")
    figure.savefig(path)
    plt.close(figure)
