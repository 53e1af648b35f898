"""Small decoders of several families with random weights, and what eager attention makes of them."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

VOCABULARY = 61
SHARED = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 128,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOWED = SHARED | {"head_dim": 16, "sliding_window": 6}
ALTERNATING = WINDOWED | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


def _configs() -> dict[str, Callable[[], Any]]:
    import transformers as t

    gpt2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "bos_token_id": 1}
    return {
        "gpt2": lambda: t.GPT2Config(**gpt2, eos_token_id=2),
        "llama": lambda: t.LlamaConfig(**SHARED),
        "qwen2": lambda: t.Qwen2Config(**SHARED, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        "qwen3": lambda: t.Qwen3Config(**SHARED, head_dim=32),
        "gemma2": lambda: t.Gemma2Config(**ALTERNATING, attn_logit_softcapping=2.0, query_pre_attn_scalar=32),
        "gemma3": lambda: t.Gemma3TextConfig(**ALTERNATING, query_pre_attn_scalar=32),
        "mistral": lambda: t.MistralConfig(**WINDOWED),
    }


class Models:
    """Models with 3 layers of 4 heads, the same random weights each time, and inputs for them."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def make(self, family: str, implementation: str = "sdpa", dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
        """A model in evaluation mode. One model a family is made, and converted to what each test asks for."""
        from transformers import AutoModelForCausalLM

        import trigemm.integrations.transformers  # noqa: F401

        if family not in self.made:
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(_configs()[family]())
            for parameter in model.parameters():
                if parameter.dim() > 1:  # large enough that attention is far from uniform
                    torch.nn.init.normal_(parameter, std=0.2)
            self.made[family] = {name: x.double() for name, x in model.state_dict().items()}, model
        state, model = self.made[family]
        model.to(device, dtype).eval().load_state_dict(state)
        if implementation == "sdpa" and family == "gemma2":  # recent releases have no SDPA that caps scores
            implementation = "eager"
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation == implementation
        return model

    @staticmethod
    def tokens(batch: int = 3, length: int = 17) -> Tensor:
        return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(batch * length))

    @staticmethod
    def padding(side: str, batch: int = 3, length: int = 17) -> Tensor:
        """(B,T), 1 where there is a token. Sequence 0 is whole; the others lack 3, 5, ... tokens on a side."""
        mask = torch.ones(batch, length, dtype=torch.long)
        for row in range(1, batch):
            if side == "left":
                mask[row, : 2 * row + 1] = 0
            elif side == "right":
                mask[row, -2 * row - 1 :] = 0
        return mask

    @staticmethod
    def cache_argument(model: Any) -> str:
        """What this release calls a key-value cache, as an argument and as a field of the output."""
        return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@pytest.fixture(scope="session")
def models() -> Models:
    return Models()
