"""Weights and logits of real architectures against eager attention: padded batches, caches, generation, dtypes."""

import pytest
import torch

FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3", "mistral"]
CLOSE = 1e-5  # of two ways to compute the same in float32


def error(result, wanted):
    """Relative, in the Frobenius norm."""
    return ((result.double().cpu() - wanted).norm() / wanted.norm()).item()


def real_rows(weights, mask):
    """Weights with the rows of padding set to zero: eager attention has numbers there that mean nothing."""
    return weights.cpu() * mask[:, None, -weights.shape[2] :, None]


def collect(model, tokens, mask):
    from trigemm.integrations.transformers import attention_weights

    with torch.no_grad(), attention_weights(model) as records:
        logits = model(tokens.to(model.device), attention_mask=mask.to(model.device)).logits
    assert len(records) == 1
    assert list(records[0]) == [0, 1, 2]
    return logits, list(records[0].values())


def eager(models, family, tokens, mask, **where):
    model = models.make(family, "eager", **where)
    with torch.no_grad():
        output = model(tokens.to(model.device), attention_mask=mask.to(model.device), output_attentions=True)
    return output.logits, output.attentions


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_logits_are_those_of_eager(models, family, side):
    tokens, mask = models.tokens(), models.padding(side)
    logits, weights = eager(models, family, tokens, mask)
    for implementation in ("sdpa", "eager", "trigemm"):
        ours, collected = collect(models.make(family, implementation), tokens, mask)
        assert error(ours[mask.bool()], logits[mask.bool()]) < CLOSE
        for mine, theirs in zip(collected, weights, strict=True):
            assert error(real_rows(mine, mask), real_rows(theirs, mask)) < CLOSE
            seen = mask[:, None, None, :].bool() & torch.ones(17, 17, dtype=torch.bool).tril()
            assert not mine.masked_fill(seen, 0).any()  # zero above the diagonal and on padding
    model = models.make(family, "trigemm")
    with torch.no_grad():
        plain = model(tokens, attention_mask=mask).logits
    assert error(plain[mask.bool()], logits[mask.bool()]) < CLOSE


def within_budget(models, family, dtype, device):
    """At most twice the error of eager attention in the same dtype, both against eager attention in float64.

    Padded at the right: rows that see no key are NaN in eager attention in float64.
    """
    tokens, mask = models.tokens(), models.padding("right")
    logits, weights = eager(models, family, tokens, mask, dtype=torch.float64)
    logits, weights = logits[mask.bool()], [real_rows(x, mask) for x in weights]
    theirs, their_weights = eager(models, family, tokens, mask, dtype=dtype, device=device)
    for implementation in ("sdpa", "trigemm"):
        model = models.make(family, implementation, dtype, device)
        ours, collected = collect(model, tokens, mask)
        assert ours.dtype == dtype
        assert error(ours.cpu()[mask.bool()], logits) <= 2 * error(theirs.cpu()[mask.bool()], logits) + CLOSE / 10
        for mine, other, wanted in zip(collected, their_weights, weights, strict=True):
            assert mine.dtype == dtype
            assert error(real_rows(mine, mask), wanted) <= 2 * error(real_rows(other, mask), wanted) + CLOSE / 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_errors_are_within_the_budget_of_the_dtype(models, family, dtype):
    within_budget(models, family, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_errors_are_within_the_budget_of_the_dtype_on_a_gpu(models, family, dtype):
    within_budget(models, family, dtype, "cuda")


def generate(model, tokens, mask, cache, **options):
    return model.generate(
        tokens.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        cache_implementation=cache,
        **options,
    )


def generation_agrees(models, family, cache, device="cpu", disable_compile=True):
    """Tokens, logits and the weights of each step are those of eager attention, and tokens and logits with nothing collected."""
    from trigemm.integrations.transformers import attention_weights

    tokens, mask = models.tokens(), models.padding("left")
    model = models.make(family, "eager", device=device)
    wanted = generate(model, tokens, mask, cache, output_attentions=True, disable_compile=True)
    for implementation in ("sdpa", "trigemm"):
        model = models.make(family, implementation, device=device)
        with attention_weights(model) as records:
            ours = generate(model, tokens, mask, cache, disable_compile=disable_compile)
        for result in (ours, generate(model, tokens, mask, cache, disable_compile=disable_compile)):
            assert torch.equal(result.sequences, wanted.sequences)
            for mine, theirs in zip(result.logits, wanted.logits, strict=True):
                assert error(mine, theirs.double().cpu()) < CLOSE
        assert [record[0].shape[2] for record in records] == [17, 1, 1, 1, 1, 1]
        widest = [max(weights.shape[3] for weights in record.values()) for record in records]
        assert widest == ([17, 6, 6, 6, 6, 6] if family == "mistral" else [17, 18, 19, 20, 21, 22])  # its window, or all keys
        for record, theirs in zip(records, wanted.attentions, strict=True):
            for layer, weights in record.items():
                filled, prompt = weights.shape[-1], weights.shape[2] > 1
                mine, expected = (real_rows(x, mask) if prompt else x.cpu() for x in (weights, theirs[layer]))
                assert not expected[..., filled:].any()  # what is cut off of a static cache
                assert error(mine, expected[..., :filled].double()) < CLOSE


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_generation(models, family, cache, device):
    generation_agrees(models, family, cache, device)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # Inductor's, of a part of a step without kernels
def test_generation_in_cuda_graphs(models):
    """With a static cache the library compiles the steps by itself; collected weights must not lie in a graph's memory."""
    generation_agrees(models, "llama", "static", "cuda", disable_compile=False)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("side", ["none", "left"])
def test_a_prompt_in_pieces(models, family, side, static):
    """Several queries behind a cache: T > 1 and S > T."""
    from transformers import DynamicCache, StaticCache, __version__

    from trigemm.integrations.transformers import attention_weights

    if static and family == "gemma3" and __version__.startswith("4.56"):
        pytest.skip("a full sliding cache takes one token at a time in this release")
    tokens, mask = models.tokens(), models.padding(side)
    _, weights = eager(models, family, tokens, mask)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = models.make(family, "eager")(tokens, attention_mask=mask, position_ids=positions).logits
    for implementation in ("sdpa", "trigemm"):
        model = models.make(family, implementation)
        cache = StaticCache(config=model.config, max_cache_len=24) if static else DynamicCache(config=model.config)
        with torch.no_grad(), attention_weights(model, layers=[1]) as records:
            for start, end in ((0, 7), (7, 12), (12, 17)):
                past = {models.cache_argument(model): cache}
                piece = model(tokens[:, start:end], attention_mask=mask[:, :end], position_ids=positions[:, start:end], **past)
                real = mask[:, start:end].bool()
                assert error(piece.logits[real], logits[:, start:end][real]) < CLOSE
        assert [record[1].shape[2:] for record in records] == [(7, 7), (5, 12), (5, 17)]
        if side == "none":
            assert error(records[2][1], weights[1][:, :, 12:]) < CLOSE
