"""Evict keys from a key-value cache by the attention they have received, and show what that does to the logits.

    python examples/cache_eviction.py                                  # with a small model, which is trained in seconds
    python examples/cache_eviction.py --model FOLDER --text FILE --prompt 512 --budgets 32 64 128

The prompt's keys are ranked, in each layer and for each key-value head, by their weights summed over all queries ("heavy
hitters", Zhang et al. 2023). `attention_weights(columns=True)` gives these sums without storing a square of weights. The same
number of keys is kept in another cache by another rule: the most recent ones. Further tokens then attend to what is left.
"""

import argparse
import copy
import inspect
import json
from typing import Any

import recall
import torch
from torch import Tensor

from trigemm.integrations.transformers import attention_weights

Kept = dict[int, Tensor]


def prefill(model: Any, tokens: Tensor) -> tuple[Any, dict[int, Tensor]]:
    """The prompt's cache, and each layer's sums of weights (B,NH,S)."""
    with torch.no_grad(), attention_weights(model, columns=True) as records:
        output = model(tokens, use_cache=True)
    return output[cache_name(model)], records[0]


def cache_name(model: Any) -> str:
    """What the release of transformers calls a cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def heaviest(sums: dict[int, Tensor], cache: Any, budget: int) -> Kept:
    """The keys with the largest sums over the query heads that share them, (B,NH_kv,budget) a layer, in their order."""
    kept = {}
    for layer, of_heads in sums.items():
        of_keys = of_heads.unflatten(1, (cache.layers[layer].keys.shape[1], -1)).sum(2)
        kept[layer] = of_keys.topk(budget).indices.sort().values
    return kept


def most_recent(sums: dict[int, Tensor], cache: Any, budget: int) -> Kept:
    """The last keys, (B,NH_kv,budget) a layer."""
    kept = {}
    for layer in sums:
        batch, heads, filled, _ = cache.layers[layer].keys.shape
        kept[layer] = torch.arange(filled - budget, filled, device=cache.layers[layer].keys.device).expand(batch, heads, -1)
    return kept


def evict(cache: Any, kept: Kept) -> Any:
    """A copy of the cache with the kept keys and values only. Their positions are in them already."""
    cache = copy.deepcopy(cache)
    for layer, indices in kept.items():
        states = cache.layers[layer]
        rows = indices[..., None].expand(-1, -1, -1, states.keys.shape[-1])
        states.keys, states.values = states.keys.gather(2, rows), states.values.gather(2, rows)
    return cache


def go_on(model: Any, cache: Any, tokens: Tensor, position: int) -> Tensor:
    """Logits (B,T,V) of the tokens behind the prompt, which the cache takes up; `position` is that of the first."""
    positions = torch.arange(position, position + tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
    with torch.no_grad():
        return model(tokens, position_ids=positions, **{cache_name(model): cache}).logits.float()


def compare(model: Any, prompt: Tensor, further: Tensor, budgets: list[int], answers: Tensor | None) -> list[dict[str, Any]]:
    """For each budget and rule: how far the logits of the further tokens are from those with the whole cache.

    With `answers` (B,n), at every second token from the first on, also the share of answers that are right.
    """
    cache, sums = prefill(model, prompt)
    filled = prompt.shape[1]
    if any(layer.keys.shape[2] != filled for layer in cache.layers):
        raise ValueError("a layer with a sliding window evicts keys by itself; a model without one is needed")
    whole = go_on(model, copy.deepcopy(cache), further, filled)

    def row(rule: str, budget: int, logits: Tensor) -> dict[str, Any]:
        divergence = (whole.softmax(-1) * (whole.log_softmax(-1) - logits.log_softmax(-1))).sum(-1).mean().item()
        error = ((logits - whole).norm() / whole.norm()).item()
        right = None if answers is None else (logits[:, ::2].argmax(-1) == answers).float().mean().item()
        return {"rule": rule, "keys": budget, "error": error, "divergence": divergence, "right": right}

    rows = [row("all", filled, whole)]
    for budget in budgets:
        for name, rule in (("heaviest", heaviest), ("most recent", most_recent)):
            rows.append(row(name, budget, go_on(model, evict(cache, rule(sums, cache, budget)), further, filled)))
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    recall.add_options(parser)
    parser.add_argument("--prompt", type=int, default=96, help="tokens of the prompt")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32, 64], help="keys to keep, of each head")
    parser.add_argument("--further", type=int, default=32, help="tokens behind the prompt, with --model")
    parser.add_argument("--sequences", type=int, default=64, help="prompts of the small model")
    options = parser.parse_args(arguments)
    if min(options.steps, options.further, options.sequences, *options.budgets) < 1 or options.prompt < 24:
        parser.error("counts must be at least 1, and --prompt at least 24")
    if max(options.budgets) > options.prompt:
        parser.error(f"--budgets: no more keys can be kept than the prompt has ({options.prompt})")
    try:
        run(options)
    except ValueError as error:
        parser.error(str(error))


def run(options: argparse.Namespace) -> None:
    """Compare and print. ValueError for a model or a text that cannot serve."""
    if options.model is None:
        if options.text is not None:
            raise ValueError("--text needs --model: the small model knows no text")
        model = recall.train(options.steps, options.seed, options.device, options.prompt)
        data = recall.draw(options.sequences, options.prompt, torch.Generator().manual_seed(options.seed + 1))
        prompt, further, answers = data.tokens, data.questions(), recall.FIRST_VALUE + data.values
    else:
        length = options.prompt + options.further
        model = recall.load(options.model, options.device, length)
        tokens = recall.read_tokens(model, options.model, options.text, length, options.seed)
        prompt, further, answers = tokens[:, : options.prompt], tokens[:, options.prompt :], None
    if answers is not None:
        answers = answers.to(options.device)
    rows = compare(model, prompt.to(options.device), further.to(options.device), options.budgets, answers)

    if options.json:
        print(json.dumps(rows))
        return
    print("keys kept      rule         logits' error   divergence   right answers")
    for row in rows:
        right = "" if row["right"] is None else f"{row['right']:.0%}"
        print(f"{row['keys']:9}      {row['rule']:11} {row['error']:14.4f} {row['divergence']:12.5f} {right:>15}")


if __name__ == "__main__":
    main()
