"""The collector: which layers and heads, what is recorded, and that the model is left as it was."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(scope="module")
def attention_weights():
    from trigemm.integrations.transformers import attention_weights

    return attention_weights


def all_weights(models, family="llama"):
    with torch.no_grad():
        return models.make(family, "eager")(models.tokens(), output_attentions=True).attentions


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"layers": [2, 0], "heads": [3, 1]}, {0: [3, 1], 2: [3, 1]}),
        ({"layers": [1]}, {1: [0, 1, 2, 3]}),
        ({"heads": [2]}, {0: [2], 1: [2], 2: [2]}),
        ({"heads": {2: [0], 1: None}}, {1: [0, 1, 2, 3], 2: [0]}),
        ({"layers": range(1, 3), "heads": (0, 1)}, {1: [0, 1], 2: [0, 1]}),
        ({"layers": np.array([2]), "heads": torch.tensor([3, 0])}, {2: [3, 0]}),
    ],
)
def test_chosen_layers_and_heads(models, attention_weights, choice, wanted, monkeypatch):
    expected = all_weights(models)
    model = models.make("llama")
    by_sdpa = []
    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: by_sdpa.append(1) or sdpa(*a, **k))
    with torch.no_grad(), attention_weights(model, **choice) as records:
        model(models.tokens())
        model(models.tokens()[:, :4])
    assert len(by_sdpa) == 2 * (3 - len(wanted))  # the other layers, in both calls
    assert [list(record) for record in records] == [list(wanted)] * 2
    for layer, heads in wanted.items():
        assert torch.allclose(records[0][layer], expected[layer][:, heads], atol=1e-5)
        assert torch.allclose(records[1][layer], expected[layer][:, heads, :4, :4], atol=1e-5)


@pytest.mark.parametrize("heads", [None, [3, 0]])
def test_sums_of_columns(models, attention_weights, heads):
    expected = all_weights(models, "gemma2")
    model = models.make("gemma2")
    with torch.no_grad(), attention_weights(model, heads=heads, columns=True) as records:
        model(models.tokens())
    for layer, sums in records[0].items():
        assert torch.allclose(sums, expected[layer].sum(2)[:, heads or slice(None)], atol=1e-4)


def test_reduced_weights(models, attention_weights):
    expected = all_weights(models)
    model = models.make("llama")
    with torch.no_grad(), attention_weights(model, [0, 1], reduce=lambda layer, weights: (layer, weights[0, 0, -1])) as records:
        model(models.tokens())
    for layer in (0, 1):
        assert records[0][layer][0] == layer
        assert torch.allclose(records[0][layer][1], expected[layer][0, 0, -1], atol=1e-5)


def test_weights_in_another_dtype(models, attention_weights):
    model = models.make("llama", dtype=torch.bfloat16)
    with torch.no_grad(), attention_weights(model, weights_dtype=torch.float32) as records:
        model(models.tokens())
    assert {weights.dtype for weights in records[0].values()} == {torch.float32}
    assert (records[0][0].sum(-1) - 1).abs().max() < 1e-5  # not rounded to bfloat16 in between


def test_a_loss_on_weights_has_eager_gradients(models, attention_weights):
    tokens, gradients = models.tokens(), []
    for implementation in ("eager", "sdpa"):
        model = models.make("qwen3", implementation)
        model.zero_grad()
        if implementation == "eager":
            output = model(tokens, output_attentions=True)
            weights = output.attentions[1]
        else:
            with attention_weights(model, layers=[1]) as records:
                output = model(tokens)
            weights = records[0][1]
        (weights[:, :, :, 0].square().sum() + output.logits.square().mean()).backward()
        gradients.append({name: x.grad.clone() for name, x in model.named_parameters()})
    for name, wanted in gradients[0].items():
        assert torch.allclose(gradients[1][name], wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max()), name
    assert gradients[0]["model.layers.1.self_attn.q_proj.weight"].abs().max() > 0


def snapshot(model):
    """Everything that a block might change: attributes, configs and hooks of every module."""
    return [(name, dict(vars(module)), id(getattr(module, "config", None))) for name, module in model.named_modules()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "trigemm"])
def test_the_model_is_left_as_it_was(models, attention_weights, implementation):
    model, tokens = models.make("llama", implementation), models.tokens()
    config = copy.deepcopy(model.config.to_dict())
    with torch.no_grad():
        before, state = model(tokens).logits, snapshot(model)
        with attention_weights(model) as records:
            model(tokens)
        with pytest.raises(IndexError), attention_weights(model, [1]):
            model(tokens + 1000)
        with pytest.raises(ValueError, match="not causal"), attention_weights(model, [1]):
            model(tokens, attention_mask=torch.ones(3, 1, 17, 17).bool())
        after = model(tokens).logits
    assert len(records) == 1
    assert torch.equal(before, after)
    assert config == model.config.to_dict()
    for (name, attributes, config_id), (_, now, config_now) in zip(state, snapshot(model), strict=True):
        assert config_now == config_id, name
        assert attributes.keys() == now.keys(), name
        assert all(attributes[key] is now[key] for key in attributes), name


def test_blocks_nest_for_different_layers(models, attention_weights):
    expected, model = all_weights(models), models.make("llama")
    with torch.no_grad(), attention_weights(model, [0]) as outer:
        with attention_weights(model, [1]) as inner:
            model(models.tokens())
            with pytest.raises(ValueError, match=r"layer 0.*being collected already"), attention_weights(model, [2, 0]):
                pytest.fail("the block began")
        model(models.tokens())
    assert len(outer) == 2
    assert len(inner) == 1
    assert torch.allclose(outer[1][0], expected[0], atol=1e-5)
    assert torch.allclose(inner[0][1], expected[1], atol=1e-5)


def test_a_compiled_layer(models, attention_weights):
    expected, model = all_weights(models), copy.deepcopy(models.make("llama"))
    with torch.no_grad():
        model.model.layers[1].compile(backend="eager")
        before = model(models.tokens()).logits
        with attention_weights(model, [1], [2]) as records:
            model(models.tokens())
        after = model(models.tokens()).logits
    torch.compiler.reset()
    assert torch.equal(before, after)
    assert torch.allclose(records[0][1], expected[1][:, [2]], atol=1e-5)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"layers": [3]}, "no attention layer 3; its layers are 0 to 2"),
        ({"layers": [-1]}, "no attention layer -1"),
        ({"layers": []}, "no layer is chosen"),
        ({"heads": [4]}, "layer 0 .*has heads 0 to 3, .*got .4"),
        ({"heads": [1, 1]}, "named once"),
        ({"heads": [0, -1]}, "heads 0 to 3"),
        ({"heads": []}, "heads 0 to 3"),
        ({"heads": {7: [0]}}, "no attention layer 7"),
        ({"layers": [0], "heads": {0: [0]}}, "names the layers"),
        ({"layers": 1}, "layers must be a list of ints, got 1"),
        ({"layers": "01"}, "layers must be a list of ints, got '01'"),
        ({"heads": 2}, "heads must be a list of ints, got 2"),
        ({"heads": {0: 2}}, "heads must be a list of ints, got 2"),
        ({"heads": [True, False, True, True]}, "heads must be a list of ints"),
    ],
)
def test_layers_and_heads_that_do_not_exist(models, attention_weights, choice, words):
    with pytest.raises((TypeError, ValueError), match=words), attention_weights(models.make("llama"), **choice):
        pytest.fail("the block began")


def encoder():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(vocab_size=9, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32))


def encoder_decoder():
    from transformers import BartConfig, BartModel

    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    return BartModel(BartConfig(vocab_size=9, encoder_attention_heads=2, decoder_attention_heads=2, **sizes))


def sinks():
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    return GptOssForCausalLM(GptOssConfig(vocab_size=9, intermediate_size=16, num_local_experts=2, pad_token_id=0, **sizes))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (encoder, "BertModel has no causal attention layer"),
        (encoder_decoder, "has an encoder"),
        (sinks, "attention sinks"),
        (lambda: torch.nn.Linear(2, 2), "no causal attention layer"),
        (lambda: "gpt2", "must be a module"),
    ],
    ids=["encoder", "encoder-decoder", "sinks", "no transformer", "no module"],
)
def test_models_that_are_not_supported(attention_weights, build, words):
    with pytest.raises((TypeError, ValueError), match=words), attention_weights(build()):
        pytest.fail("the block began")


def test_training_with_dropout_or_checkpointing_is_refused(models, attention_weights):
    model = models.make("gpt2")
    model.train()
    with pytest.raises(ValueError, match=r"probability 0.1.*model.eval"), attention_weights(model):
        pytest.fail("the block began")
    model = models.make("llama")
    model.train()
    model.model.gradient_checkpointing = True
    with pytest.raises(ValueError, match="gradient checkpointing"), attention_weights(model):
        pytest.fail("the block began")
    model.model.gradient_checkpointing = False
    with attention_weights(model, [0]) as records:  # no dropout here
        model(models.tokens())
    assert records[0][0].requires_grad
