"""Draw the attention maps of a model's layers and heads, and measure their cost beside eager attention.

    python examples/attention_maps.py                                  # of a small model, which is trained in seconds
    python examples/attention_maps.py --model FOLDER --text FILE --layers 0 5 --heads 1 2 3

The maps come from `attention_weights`: the chosen layers compute exact weights of the chosen heads; the rest of the model keeps
its fused attention. Eager attention, the library's own way to such maps, computes and keeps them all.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # before torch is loaded: its profiler reports on its own work

import recall
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from trigemm.integrations.transformers import attention_weights
from trigemm.lab.report import check_plot

Maps = dict[int, Tensor]


def collect(model: Any, tokens: Tensor, layers: list[int] | None, heads: list[int] | None) -> Maps:
    """Weights (1,heads,T,T) of each chosen layer."""
    with torch.no_grad(), attention_weights(model, layers, heads) as records:
        model(tokens, use_cache=False)
    return records[0]


def largest_difference(maps: Maps, model: Any, tokens: Tensor, heads: list[int] | None) -> float:
    """Between the maps and those of eager attention."""
    with torch.no_grad():
        attentions = model(tokens, use_cache=False, output_attentions=True).attentions
    eager = {layer: attentions[layer] if heads is None else attentions[layer][:, heads] for layer in maps}
    return max((weights.float() - eager[layer].float()).abs().max().item() for layer, weights in maps.items())


def milliseconds(run: Callable[[], object], device: str, repeats: int) -> float:
    """Median time of a call, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def peak_mb(run: Callable[[], object], device: str) -> float:
    """Largest number of bytes that a call holds at once, in MB, beyond what was there before it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    held = peak = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 1e6


def costs(model: Any, implementation: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time and memory of one forward call with the maps and without, and of eager attention."""
    generator = torch.Generator().manual_seed(options.seed)
    size = model.config.get_text_config().vocab_size
    tokens = torch.randint(size, (1, options.length), generator=generator).to(options.device)
    runs = {
        "no maps": (implementation, lambda: model(tokens, use_cache=False)),
        "trigemm": (implementation, lambda: collect(model, tokens, options.layers, options.heads)),
        "eager": ("eager", lambda: model(tokens, use_cache=False, output_attentions=True)),
    }
    measured = {}
    for name, (needed, run) in runs.items():
        model.set_attn_implementation(needed)
        with torch.no_grad():
            measured[name] = {"ms": milliseconds(run, options.device, options.repeats), "mb": peak_mb(run, options.device)}
    return measured


def draw(maps: Maps, heads: list[int] | None, path: Path) -> None:
    """A row a layer, a picture a head: the darker, the larger the square root of the weight."""
    from matplotlib.figure import Figure

    columns = next(iter(maps.values())).shape[1]
    figure = Figure(figsize=(2 * columns + 0.6, 2 * len(maps) + 0.6), layout="constrained")
    grid = figure.subplots(len(maps), columns, squeeze=False, sharex=True, sharey=True)
    for row, (layer, weights) in zip(grid, maps.items(), strict=True):
        for i, axes in enumerate(row):
            axes.imshow(weights[0, i].float().sqrt().cpu().numpy(), cmap="Greys", vmin=0, vmax=1)
            axes.set_title(f"layer {layer}, head {i if heads is None else heads[i]}", fontsize=8)
    figure.supxlabel("key")
    figure.supylabel("query")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    recall.add_options(parser)
    parser.add_argument("--layers", type=int, nargs="+", help="by default all")
    parser.add_argument("--heads", type=int, nargs="+", help="by default all")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of the maps in the picture")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the calls that are measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("attention_maps.png"))
    options = parser.parse_args(arguments)
    if min(options.steps, options.length, options.repeats) < 1 or options.tokens < 24:
        parser.error("counts must be at least 1, and --tokens at least 24")
    try:
        run(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def run(options: argparse.Namespace) -> None:
    """Draw, measure and print. ValueError or OSError for a model, a text or a picture that cannot be had."""
    check_plot(options.output)
    if options.model is None:
        if options.text is not None:
            raise ValueError("--text needs --model: the small model knows no text")
        model = recall.train(options.steps, options.seed, options.device)
        tokens = recall.draw(1, options.tokens, torch.Generator().manual_seed(options.seed + 1)).tokens
    else:
        model = recall.load(options.model, options.device, max(options.tokens, options.length))
        tokens = recall.read_tokens(model, options.model, options.text, options.tokens, options.seed)
    tokens = tokens.to(options.device)
    implementation = model.config._attn_implementation
    maps = collect(model, tokens, options.layers, options.heads)
    draw(maps, options.heads, options.output)
    measured = costs(model, implementation, options)
    model.set_attn_implementation("eager")
    difference = largest_difference(maps, model, tokens, options.heads)

    if options.json:
        print(json.dumps({"picture": str(options.output), "difference": difference, "length": options.length, **measured}))
        return
    print(f"{options.output}: {len(maps)} layers; largest difference from eager attention {difference:.1e}")
    print(f"one call of {options.length} tokens on {options.device}:")
    for name, cost in measured.items():
        print(f"  {name:8} {cost['ms']:8.1f} ms {cost['mb']:8.1f} MB")


if __name__ == "__main__":
    main()
