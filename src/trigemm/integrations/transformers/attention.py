"""The attention implementation "trigemm" of transformers: `trigemm.causal_attention` behind the library's interface."""

from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import AttentionInterface, AttentionMaskInterface

from trigemm.integrations.transformers.masks import Keys, padding_mask, visible_keys
from trigemm.ops.attention import causal_attention

NAME = "trigemm"

# What some layers hand to their attention function, and causal attention has no place for.
UNSUPPORTED = {
    "block_indices": "sparse attention",
    "head_mask": "a head mask",
    "indices": "sparse attention",
    "position_bias": "a position bias",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
}


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer, as the library's `AttentionInterface` calls it.

    Args:
        module: the layer. query: (B,NH,T,HS). key, value: (B,NH_kv,S,HS), cached ones first.
        attention_mask: what `padding_mask` made, or any mask that is causal up to padding and the layer's window.
        options: the layer's scaling, softcap, sliding_window and dropout. With output_attentions the weights come too.

    Returns:
        Output (B,T,NH,HS) and weights (B,NH,T,L) or None, L being the number of filled keys; in a graph of torch.compile, a step
        of one query has the whole of a static cache. A query that sees no key has zeros in both.

    Raises:
        TypeError, ValueError: the layer needs what causal attention does not have.
    """
    watch = getattr(module.config, "trigemm_watch", None)
    if watch is not None:
        return watch(module, query, key, value, attention_mask, options), None
    refuse_unsupported(module, options)
    wanted = bool(options.get("output_attentions"))
    keys = visible_keys(
        attention_mask,
        query.shape[2],
        key.shape[2],
        options.get("sliding_window"),
        bottom_right=False,
        cut=wanted and not is_compiling(),
    )
    result = attend(query, key, value, keys, options, return_weights=wanted)
    output, weights = result if wanted else (result, None)
    return output.transpose(1, 2).contiguous(), weights


def attend(query: Tensor, key: Tensor, value: Tensor, keys: Keys, options: dict[str, Any], **wanted: Any) -> Any:
    """`causal_attention` on the filled keys, with the layer's options; `wanted` says which weights to return."""
    mask = keys.mask
    if mask is not None and (len(mask) < len(query) or mask.device != query.device):
        mask = mask.to(query.device).expand(len(query), -1)
    return causal_attention(
        query,
        key[:, :, : keys.filled],
        value[:, :, : keys.filled],
        scale=options.get("scaling"),
        key_mask=mask,
        softcap=options.get("softcap"),
        window=keys.window,
        **wanted,
    )


def refuse_unsupported(module: nn.Module, options: dict[str, Any]) -> None:
    """Raise ValueError where a layer's attention is not causal, or does more than causal attention."""
    name = type(module).__name__
    if not is_causal(module):
        raise ValueError(
            f"trigemm attention: {name} is bidirectional or cross attention, and only causal self-attention is supported; "
            'model.set_attn_implementation("sdpa") would work'
        )
    if options.get("dropout"):
        raise ValueError(
            f"trigemm attention: {name} drops weights with probability {options['dropout']}; dropout is not supported: "
            "call model.eval(), or set the dropout of attention to 0 in the model's config"
        )
    for option, what in UNSUPPORTED.items():
        if options.get(option) is not None:
            raise ValueError(f"trigemm attention: {name} needs {what}, which is not supported ({option})")
    # Releases before 5 leave this scale to the attention function, and only the eager one applies it.
    if options.get("scaling") is None and (
        getattr(module, "scale_attn_by_inverse_layer_idx", False) or not getattr(module, "scale_attn_weights", True)
    ):
        raise ValueError(f"trigemm attention: {name} scales its scores in the eager implementation only, in this release")


def is_causal(module: nn.Module) -> bool:
    """Whether a layer is causal self-attention, as far as it says."""
    return bool(getattr(module, "is_causal", True)) and not getattr(module, "is_cross_attention", False)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, padding_mask)
