"""nn.CausalSelfAttention against the same module in plain PyTorch with the same weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trigemm.nn import CausalSelfAttention, KeyValueCache

C, NH, B, T = 48, 6, 2, 11


class Plain(nn.Module):
    """The same attention in PyTorch's own operations; the whole square is computed."""

    def __init__(self, heads=NH, kv_heads=NH, size=C // NH, bias=True, scale=None, softcap=None, window=None):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, size
        self.scale, self.softcap, self.window = scale or 1 / math.sqrt(size), softcap, window
        self.qkv = nn.Linear(C, (heads + 2 * kv_heads) * size, bias)
        self.out = nn.Linear(heads * size, C, bias)

    def forward(self, x, unpadded=None):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split([n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)], 2)
        q, k, v = (y.view(batch, length, -1, self.size).transpose(1, 2) for y in (q, k, v))
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        scores = self.scale * q @ k.mT
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        seen = seen.triu(1 - self.window) if self.window else seen
        seen = seen if unpadded is None else seen & unpadded[:, None, None]
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1)), weights


def pair(dtype=torch.float64, *, num_kv_heads=None, head_dim=None, bias=True, **options):
    """Our module and the plain one, with the same random weights."""
    torch.manual_seed(1)
    plain = Plain(NH, num_kv_heads or NH, head_dim or C // NH, bias, **options).to(dtype)
    ours = CausalSelfAttention(C, NH, num_kv_heads, head_dim=head_dim, bias=bias, dtype=dtype, **options)
    ours.load_state_dict(plain.state_dict())
    return ours, plain


def inputs(dtype=torch.float64, batch=B, length=T):
    return torch.randn(batch, length, C, dtype=dtype, generator=torch.Generator().manual_seed(2))


OPTIONS = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1, "bias": False},
    "wide heads": {"head_dim": 16, "scale": 0.3},
    "capped": {"softcap": 0.5, "window": 4},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_weights_and_gradients(name):
    ours, plain = pair(**OPTIONS[name])
    results = []
    for module, arguments in ((ours, {"return_weights": True}), (plain, {})):
        x = inputs().requires_grad_()
        y, weights = module(x, **arguments)
        (y.square().sum() + (weights[..., 0] ** 3).sum()).backward()
        results.append([y, weights, x.grad, *(parameter.grad for parameter in module.parameters())])
    for mine, wanted in zip(*results, strict=True):
        assert torch.allclose(mine, wanted, atol=1e-10)
    assert torch.allclose(ours(inputs()), results[1][0], atol=1e-10)


def test_what_is_returned():
    ours, plain = pair()
    y, weights = plain(inputs())
    for wanted, expected in (([4, 1], weights[:, [4, 1]]), ("columns", weights.sum(2))):
        mine, returned = ours(inputs(), return_weights=wanted)
        assert torch.allclose(mine, y, atol=1e-10)
        assert torch.allclose(returned, expected, atol=1e-10)


def test_padding():
    ours, plain = pair()
    lengths = torch.tensor([T, 4])
    unpadded = torch.arange(T) < lengths[:, None]
    for arguments in ({"key_lengths": lengths}, {"key_mask": unpadded}):
        mine, weights = ours(inputs(), return_weights=True, **arguments)
        wanted, wanted_weights = plain(inputs(), unpadded)
        assert torch.allclose(mine, wanted, atol=1e-10)
        assert torch.allclose(weights, wanted_weights, atol=1e-10)


def rotary(x, start):
    """Rotary positions, after Su et al. 2021."""
    half = x.shape[-1] // 2
    angles = (start + torch.arange(x.shape[2], dtype=x.dtype))[:, None] / 100 ** (torch.arange(half) / half)
    a, b = x.split(half, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "rotate": rotary}, {"window": 3, "rotate": rotary}])
def test_a_cache_goes_on_where_it_stopped(options):
    torch.manual_seed(1)
    module = CausalSelfAttention(C, NH, dtype=torch.float64, **options)
    x, cache = inputs(), module.new_cache(B, T + 2)
    with torch.no_grad():
        wanted, wanted_weights = module(x, return_weights=True)
        begin = 0
        for end in (5, 6, T):
            y, weights = module(x[:, begin:end], return_weights=True, cache=cache)
            assert torch.allclose(y, wanted[:, begin:end], atol=1e-10)
            assert torch.allclose(weights, wanted_weights[:, :, begin:end, :end], atol=1e-10)
            begin = end
    assert cache.length == T


def test_rotary_positions_are_relative():
    module = CausalSelfAttention(C, NH, rotate=rotary, dtype=torch.float64)
    shifted = CausalSelfAttention(C, NH, rotate=lambda x, start: rotary(x, start + 7), dtype=torch.float64)
    shifted.load_state_dict(module.state_dict())
    assert torch.allclose(module(inputs()), shifted(inputs()), atol=1e-10)
    shifted.rotate = None
    assert not torch.allclose(module(inputs()), shifted(inputs()), atol=1e-3)


def test_a_cache_that_does_not_fit_is_refused():
    module = CausalSelfAttention(C, NH)
    x = inputs(torch.float32)
    with torch.no_grad(), pytest.raises(ValueError, match="0 of 10 positions are filled"):
        module(x, cache=module.new_cache(B, 10))
    with torch.no_grad(), pytest.raises(ValueError, match="does not fit"):
        module(x, cache=module.new_cache(B + 1, T))
    with pytest.raises(ValueError, match="no gradients"):
        module(x, cache=module.new_cache(B, T))
    assert KeyValueCache(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8)).length == 0


def test_nothing_is_copied_in_or_out(monkeypatch):
    """Queries, keys and values are views of the projection; the output projection reads what attention wrote."""
    import trigemm.nn as ours

    seen = {}

    def attention(q, k, v, **options):
        seen.update(q=q, k=k, v=v, output=original(q, k, v, **options))
        return seen["output"]

    original = ours.causal_attention
    monkeypatch.setattr(ours, "causal_attention", attention)
    module = CausalSelfAttention(C, NH, 2)
    module.qkv.register_forward_hook(lambda *call: seen.update(packed=call[2]))
    module.out.register_forward_pre_hook(lambda _, arguments: seen.update(read=arguments[0]))
    module(inputs(torch.float32))
    storages = {seen[name].untyped_storage().data_ptr() for name in ("packed", "q", "k", "v")}
    assert len(storages) == 1
    assert seen["read"].data_ptr() == seen["output"].data_ptr()


def test_compiles_whole():
    module = CausalSelfAttention(C, NH, 3)
    x = inputs(torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    y, weights = compiled(x, return_weights=[1])
    wanted, wanted_weights = module(x, return_weights=[1])
    torch.compiler.reset()
    assert torch.allclose(y, wanted, atol=1e-5)
    assert torch.allclose(weights, wanted_weights, atol=1e-5)


def test_parameters():
    with torch.device("meta"):
        module = CausalSelfAttention(C, NH, 2)
    assert {name: tuple(x.shape) for name, x in module.state_dict().items()} == {
        "qkv.weight": (80, C), "qkv.bias": (80,), "out.weight": (C, C), "out.bias": (C,),
    }  # fmt: skip
    assert module.qkv.weight.is_meta
    assert module(torch.zeros(2, 3, C, device="meta")).shape == (2, 3, C)
    module = CausalSelfAttention(C, NH, bias=False, device="meta", dtype=torch.bfloat16)
    assert {(x.device.type, x.dtype) for x in module.parameters()} == {("meta", torch.bfloat16)}
    assert len(list(module.parameters())) == 2
    assert "num_kv_heads=6" in repr(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dtypes(dtype, device):
    """Errors of at most twice the plain module's, both against the plain module in float64. Head size 16: the least on CUDA."""
    ours, plain = pair(dtype, head_dim=16, num_kv_heads=3)
    x = inputs(dtype)
    theirs, their_weights = plain(x)
    truth, true_weights = plain.double()(x.double())
    mine, weights = ours.to(device)(x.to(device), return_weights=True)
    assert (mine.cpu() - truth).norm() <= 2 * (theirs - truth).norm() + 1e-6
    assert (weights.cpu() - true_weights).norm() <= 2 * (their_weights - true_weights).norm() + 1e-6


@pytest.mark.gpu
def test_autocast_on_a_gpu():
    module = CausalSelfAttention(C, 3, device="cuda")
    x = inputs(torch.float32).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        y, weights = module(x, return_weights=True)
    assert y.dtype == weights.dtype == torch.bfloat16
    assert F.cosine_similarity(y.float().flatten(), module(x).flatten(), 0) > 0.999


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((48, 5), "embed_dim must be a multiple of num_heads"),
        ((48, 6, 4), "multiple of num_kv_heads"),
        ((48, 0), "at least 1"),
    ],
)
def test_sizes_that_do_not_fit(arguments, words):
    with pytest.raises(ValueError, match=words):
        CausalSelfAttention(*arguments)


def test_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"x must be \(B,T,48\); got x \(2, 3\)"):
        CausalSelfAttention(C, NH)(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="heads must be"):
        CausalSelfAttention(C, NH)(inputs(torch.float32), return_weights=[6])
