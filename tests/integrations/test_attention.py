"""The registered attention function and its masks: causal whatever it is handed, and refusals."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

T, S = 5, 9


@pytest.fixture(scope="module")
def forward():
    from trigemm.integrations.transformers import attention_forward

    return attention_forward


@pytest.fixture
def layer():
    module = nn.Module()
    module.config = SimpleNamespace(_attn_implementation="trigemm")
    module.is_causal = True
    return module


def operands(queries=T, keys=S, batch=2):
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(batch, 4, queries, 16, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(batch, 2, keys, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    return q, k, v


def dense(q, k, v, seen, scale=0.25):
    """Output (B,T,NH,HS) and weights of what `seen` (B,T,S) lets through; zeros for rows that see nothing."""
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = (scale * q @ k.mT).masked_fill(~seen[:, None], -math.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    return (weights @ v).transpose(1, 2), weights


def causal(diagonal, window=None, keys=S):
    seen = torch.ones(2, T, keys, dtype=torch.bool).tril(diagonal)
    return seen if window is None else seen.triu(diagonal - window + 1)


UNPADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 0]]).bool()

MASKS = {
    "none, the rest of the cache is unfilled": (None, causal(0), None),
    "the filled keys": (UNPADDED[:, None, None, :7], causal(2) & UNPADDED[:, None], None),
    "the filled keys, flat": (UNPADDED[:, :7], causal(2) & UNPADDED[:, None], None),
    "square": (causal(2)[:, None], causal(2), None),
    "shared by the batch": (causal(2)[:1, None], causal(2), None),
    "square, padded": ((causal(3) & UNPADDED[:, None])[:, None], causal(3) & UNPADDED[:, None], None),
    "square, windowed": ((causal(4, 3) & UNPADDED[:, None])[:, None], causal(4, 3) & UNPADDED[:, None], 3),
    "window alone": (torch.ones(2, 1, 1, S).bool(), causal(4, 3), 3),
    "wider than the keys": (causal(2, keys=S + 4)[:, None], causal(2), None),
    "nothing seen": (torch.zeros(2, 1, T, S).bool(), torch.zeros(2, T, S).bool(), None),
}


@pytest.mark.parametrize("additive", [False, True], ids=["bool", "additive"])
@pytest.mark.parametrize("name", MASKS)
def test_what_a_mask_lets_through(forward, layer, name, additive):
    """Keys that no query may see are NaN: they must not be read into the result."""
    mask, seen, window = MASKS[name]
    if additive and mask is not None:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    q, k, v = operands()
    unseen = ~seen.any(1)[:, None, :, None]
    poisoned = (x.masked_fill(unseen, math.nan) for x in (k, v))
    output, weights = forward(layer, q, *poisoned, mask, scaling=0.25, sliding_window=window, output_attentions=True)
    wanted, wanted_weights = dense(q, k, v, seen)
    filled = weights.shape[-1]
    assert not wanted_weights[..., filled:].any()
    assert torch.allclose(weights, wanted_weights[..., :filled], atol=1e-12)
    assert torch.allclose(output, wanted, atol=1e-12)
    assert output.is_contiguous()
    plain, nothing = forward(layer, q, k, v, mask, scaling=0.25, sliding_window=window)
    assert nothing is None
    assert torch.allclose(plain, wanted, atol=1e-12)


def test_one_query_sees_what_its_mask_says(forward, layer):
    q, k, v = operands(queries=1)
    unfilled = torch.arange(S) < 7
    for mask, filled in ((None, S), (UNPADDED[:, None, None], S), (UNPADDED[:, None, None] & unfilled, 7)):
        seen = torch.ones(2, 1, S).bool() if mask is None else mask[:, 0]
        output, weights = forward(layer, q, k, v, mask, scaling=0.25, sliding_window=3, output_attentions=True)
        wanted, wanted_weights = dense(q, k, v, seen)
        assert torch.allclose(output, wanted, atol=1e-12)
        assert torch.allclose(weights, wanted_weights[..., :filled], atol=1e-12)
        assert weights.shape[3] == filled


def test_a_missing_mask_of_flash_attention_means_a_full_cache():
    from trigemm.integrations.transformers.masks import visible_keys

    assert visible_keys(None, T, S, None, bottom_right=True).filled == S
    assert visible_keys(None, T, S, None, bottom_right=False).filled == T


ALL = torch.ones(2, 1, T, S).bool()
REFUSED = {
    "bidirectional": (ALL, "not causal"),
    "prefix": (causal(4)[:, None].index_fill(3, torch.arange(7), True), "not causal"),
    "packed": ((causal(4) & ((torch.arange(S) < 3) == (torch.arange(T) < 1)[:, None]))[:, None], "not causal"),
    "a window that the layer does not name": (causal(4, 3)[:, None], "not causal"),
    "biases": (torch.randn(2, 1, T, S), "zeros and -inf only"),
    "by head": (ALL.expand(2, 4, T, S), "same for all heads"),
    "wrong size": (ALL[:, :, :3], "same for all heads"),
    "no tensor": ("block mask", "must be a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_are_not_causal_are_refused(forward, layer, name):
    mask, words = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=words):
        forward(layer, *operands(), mask)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 0.1}, "probability 0.1.*model.eval"),
        ({"s_aux": torch.zeros(4)}, "attention sinks"),
        ({"position_bias": torch.zeros(1)}, "position bias"),
        ({"head_mask": torch.zeros(4)}, "head mask"),
        ({"indices": torch.zeros(4)}, "sparse attention"),
    ],
)
def test_what_causal_attention_does_not_have_is_refused(forward, layer, options, words):
    with pytest.raises(ValueError, match=words):
        forward(layer, *operands(), None, **options)


@pytest.mark.parametrize("attribute", [{"is_causal": False}, {"is_cross_attention": True}])
def test_other_attention_is_refused(forward, layer, attribute):
    layer.__dict__.update(attribute)
    with pytest.raises(ValueError, match="bidirectional or cross attention"):
        forward(layer, *operands(), None)


def test_a_scale_that_the_library_leaves_out_is_refused(forward, layer):
    """As GPT-2's scale by layer in releases before 5."""
    layer.scale_attn_by_inverse_layer_idx = True
    with pytest.raises(ValueError, match="eager implementation only"):
        forward(layer, *operands(), None)
    forward(layer, *operands(), None, scaling=0.1)


def test_a_model_compiles_whole(models):
    tokens, mask = models.tokens(), models.padding("left")
    model = models.make("gemma2", "trigemm")
    with torch.no_grad():
        wanted = model(tokens, attention_mask=mask, use_cache=False).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")(tokens, attention_mask=mask, use_cache=False).logits
    torch.compiler.reset()
    assert torch.allclose(compiled[mask.bool()], wanted[mask.bool()], atol=1e-4)


def test_output_attentions(models):
    tokens = models.tokens()
    with torch.no_grad():
        wanted = models.make("llama", "eager")(tokens, output_attentions=True).attentions
        ours = models.make("llama", "trigemm")(tokens, output_attentions=True).attentions
    assert len(ours) == 3
    for mine, theirs in zip(ours, wanted, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_packed_sequences_are_refused(models):
    """Positions that begin again mean several sequences in a row."""
    positions = torch.cat([torch.arange(9), torch.arange(8)]).expand(3, -1)
    model = models.make("llama", "trigemm")
    with pytest.raises(ValueError, match="packed sequences"):
        model(models.tokens(), position_ids=positions, use_cache=False)
