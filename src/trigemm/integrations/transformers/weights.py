"""Exact attention weights of chosen layers and heads, the rest of the model being left as it is."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trigemm.integrations.transformers.attention import NAME, attend, is_causal, refuse_unsupported
from trigemm.integrations.transformers.masks import Keys, visible_keys
from trigemm.ops.attention import numbers

OPERATION = "attention_weights"

Heads = Sequence[int] | None
Record = dict[int, Any]


@contextmanager
def attention_weights(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Mapping[int, Heads] | None = None,
    *,
    columns: bool = False,
    reduce: Callable[[int, Tensor], Any] | None = None,
    weights_dtype: torch.dtype | None = None,
) -> Iterator[list[Record]]:
    """Collect the exact attention weights of chosen layers and heads of a decoder of transformers.

    Inside the block the chosen layers compute their attention by `trigemm.causal_attention`; the square of weights is stored
    for the chosen heads alone. All other layers keep the model's implementation (SDPA, eager, flash attention, ...). When the
    block ends, with an exception or without, the model is what it was; the records stay.

    Each forward call appends one record, a dict from layer to weights: `generate` appends one for the prompt and one with T=1 for
    each further token. Memory grows with them unless `columns` or `reduce` makes less of the weights.

    Args:
        model: a decoder of transformers, or a module that holds one. layers: their indices; None means all.
        heads: indices of query heads, for all chosen layers; None means all; or a dict from layer to such indices, which then
            names the layers as well.
        columns: collect each key's weight summed over the queries, (B,heads,S), in place of (B,heads,T,S). No square is stored.
        reduce: a function of (layer, weights), called as each layer computes its own; what it returns is recorded in their place.
        weights_dtype: dtype of the weights; by default the dtype of the queries.

    Weights are zero above the diagonal, on padding, and for queries that see no key. S counts the filled keys: weights end with
    the last query's own, in a static cache too, and a sliding one holds the last keys only. With gradients enabled, the weights
    carry them: a loss may use them. The chosen layers run outside of graphs of torch.compile.

    Raises:
        TypeError, ValueError: on entry, for layers or heads that do not exist, layers that are not causal or do not dispatch
            through transformers' AttentionInterface, dropout, gradient checkpointing; in a layer, for what else causal attention
            does not have (see the package).

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> config = GPT2Config(vocab_size=10, n_positions=8, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> model = GPT2LMHeadModel(config).eval()
    >>> with attention_weights(model, layers=[0, 2], heads=[3, 1]) as records:
    ...     logits = model(torch.tensor([[5, 6, 7]])).logits
    >>> {layer: weights.shape for layer, weights in records[0].items()}
    {0: torch.Size([1, 2, 3, 3]), 2: torch.Size([1, 2, 3, 3])}
    """
    collector = Collector(columns, reduce, weights_dtype)
    chosen = _choose(model, layers, heads)
    replaced = [(module, module.config) for module, _ in chosen.values()]
    try:
        for layer, (module, wanted) in chosen.items():
            config: Any = copy.copy(module.config)
            config.trigemm_watch = Watch(collector, layer, wanted, str(config._attn_implementation))
            config._attn_implementation_internal = NAME
            module.config = config
        yield collector.records
    finally:
        for module, config in replaced:
            module.config = config
        collector.mask = None


@dataclass
class Collector:
    """The records of one block, and how they are made."""

    columns: bool
    reduce: Callable[[int, Tensor], Any] | None
    weights_dtype: torch.dtype | None
    records: list[Record] = field(default_factory=list)
    mask: tuple[Any, tuple[Any, ...], Keys] | None = None

    def add(self, layer: int, weights: Tensor) -> None:
        """Record a layer's weights. A layer that comes again begins another forward call."""
        if not self.records or layer in self.records[-1]:
            self.records.append({})
        self.records[-1][layer] = self.reduce(layer, weights) if self.reduce else weights

    def visible(self, mask: Any, *shape: Any, bottom_right: bool) -> Keys:
        """`visible_keys`, once for the layers that share a mask."""
        if self.mask is None or self.mask[0] is not mask or self.mask[1] != shape:
            self.mask = mask, shape, visible_keys(mask, *shape, bottom_right=bottom_right, cut=True)
        return self.mask[2]


@dataclass
class Watch:
    """The attention of one chosen layer. The layer's config holds it while the block lasts."""

    collector: Collector
    layer: int
    heads: Heads
    implementation: str  # the model's, which made the mask

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        refuse_unsupported(module, options)
        keys = self.collector.visible(
            mask,
            query.shape[2],
            key.shape[2],
            options.get("sliding_window"),
            bottom_right=self.implementation.startswith("flash"),
        )
        wanted = "columns" if self.collector.columns else True if self.heads is None else list(self.heads)
        output, weights = attend(
            query, key, value, keys, options, return_weights=wanted, weights_dtype=self.collector.weights_dtype
        )
        if self.collector.columns and self.heads is not None:
            weights = weights[:, list(self.heads)]
        self.collector.add(self.layer, weights)
        attended: Tensor = output.transpose(1, 2).contiguous()
        return attended


def _choose(
    model: nn.Module, layers: Sequence[int] | None, heads: Sequence[int] | Mapping[int, Heads] | None
) -> dict[int, tuple[nn.Module, Heads]]:
    """The chosen layers' modules, and their heads; ValueError for what cannot be collected."""
    found = _attention_layers(model)
    if isinstance(heads, Mapping):
        if layers is not None:
            raise ValueError("attention_weights: a dict of heads names the layers; give it without layers")
        wanted = dict(heads)
    else:
        wanted = dict.fromkeys(found if layers is None else numbers(OPERATION, "layers", layers), heads)
    chosen: dict[int, tuple[nn.Module, Heads]] = {}
    for layer, of_layer in wanted.items():
        if layer not in found:
            raise ValueError(
                f"attention_weights: {type(model).__name__} has no attention layer {layer!r}; its layers are {_span(found)}"
            )
        _check_layer(layer, found[layer])
        chosen[layer] = found[layer], _checked_heads(layer, found[layer], of_layer)
    if not chosen:
        raise ValueError("attention_weights: no layer is chosen; layers=None chooses all")
    return dict(sorted(chosen.items()))


def _attention_layers(model: nn.Module) -> dict[int, nn.Module]:
    """The causal attention layers of a decoder by their index."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"attention_weights: model must be a module of transformers, got {type(model).__name__}")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(f"attention_weights: {type(model).__name__} has an encoder; only decoder-only models are supported")
    if any(module.training and getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            "attention_weights: gradient checkpointing runs layers twice, and is not supported; call model.eval() or disable it"
        )
    modules = [module for module in model.modules() if _dispatches(module)]
    causal = [module for module in modules if is_causal(module)]
    if not causal:
        raise ValueError(
            f"attention_weights: {type(model).__name__} has no causal attention layer that dispatches through transformers' "
            f"AttentionInterface{'; its attention is bidirectional' if modules else ''}"
        )
    found: dict[Any, nn.Module] = {module.layer_idx: module for module in causal}
    if len(found) < len(causal):
        raise ValueError(f"attention_weights: {type(model).__name__} holds several decoders; give one of them")
    return dict(sorted(found.items()))


def _dispatches(module: nn.Module) -> bool:
    """Whether a module is an attention layer that looks its attention function up by its config."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return isinstance(getattr(module, "layer_idx", None), int) and "ALL_ATTENTION_FUNCTIONS" in getattr(code, "co_names", ())


def _check_layer(layer: int, module: nn.Module) -> None:
    name = _name(layer, module)
    if hasattr(module.config, "trigemm_watch"):
        raise ValueError(f"{name} is being collected already; blocks may be nested for different layers")
    if hasattr(module, "sinks"):
        raise ValueError(f"{name} has attention sinks, which are not supported")
    dropout = getattr(module, "attention_dropout", getattr(getattr(module, "attn_dropout", None), "p", 0.0))
    refuse_unsupported(module, {"dropout": dropout if module.training else 0.0, "scaling": 1.0})


def _checked_heads(layer: int, module: nn.Module, heads: Heads) -> Heads:
    """The heads as a list, or None for all; ValueError where the layer has not all of them, or one is named twice."""
    if heads is None:
        return None
    heads = numbers(OPERATION, "heads", heads)
    config: Any = module.config
    count = getattr(module, "num_heads", config.num_attention_heads)
    if not heads or any(not 0 <= head < count for head in heads) or len(set(heads)) < len(heads):
        raise ValueError(f"{_name(layer, module)} has heads 0 to {count - 1}, each to be named once; got {heads}")
    return heads


def _name(layer: int, module: nn.Module) -> str:
    return f"{OPERATION}: layer {layer} ({type(module).__name__})"


def _span(layers: Mapping[int, nn.Module]) -> str:
    first, last = min(layers), max(layers)
    return f"{first} to {last}" if len(layers) == last - first + 1 else ", ".join(map(str, layers))
