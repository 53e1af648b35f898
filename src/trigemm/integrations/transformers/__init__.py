"""Causal attention with exact weights in Hugging Face transformers 4.56 to 5.24: `pip install trigemm[transformers]`.

Importing this module registers the attention implementation "trigemm" through the library's own interfaces of attention
functions and masks, so that all of these work:

    AutoModelForCausalLM.from_pretrained(path, attn_implementation="trigemm")
    model.set_attn_implementation("trigemm")

A model set to it computes all its attention with `trigemm.causal_attention`, without weights, unless a call asks for them with
`output_attentions=True` and the model passes that on (most do, GPT-2 does not). `attention_weights` collects the weights of
chosen layers and heads of any decoder, whatever its implementation, and leaves its other layers alone.

Supported: decoder-only models whose attention layers dispatch through the library's `AttentionInterface` (GPT-2, Llama, Qwen 2
and 3, Gemma 2 and 3, Mistral and most others): grouped heads, rotary positions, soft-capping, sliding windows; left- and
right-padded batches; dynamic, static and sliding key-value caches. Refused in a sentence: bidirectional and cross attention,
encoder-decoder models, attention dropout, attention sinks, position biases, sparse attention, head masks, packed sequences and
other masks that are not causal up to padding and a window, block masks of flex_attention.
"""

from trigemm.integrations.transformers.attention import NAME, attention_forward
from trigemm.integrations.transformers.masks import padding_mask
from trigemm.integrations.transformers.weights import attention_weights

__all__ = ["NAME", "attention_forward", "attention_weights", "padding_mask"]
