"""Attention's kernels for Hopper against the referee on a GPU; which calls it serves, anywhere."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles import hopper_attention
from trigemm.kernels.tiles.attention import causal_attention, causal_attention_backward
from trigemm.kernels.tiles.attention_calls import call_of
from trigemm.kernels.tiles.hopper_attention import TABLE, hopper_config, hopper_plan, is_hopper
from trigemm.kernels.tiles.operand import form_of

NAN = math.nan
HOPPER = torch.cuda.is_available() and is_hopper(torch.device("cuda", torch.cuda.current_device()))
ERROR = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
PLAIN = {"key_lengths": None, "key_mask": None, "softcap": None, "window": None, "precision": "highest"}
# B, NH, NH_kv, T, S, HS
SHAPES = {
    "square": (2, 2, 2, 256, 256, 64),
    "cached": (2, 4, 2, 200, 328, 64),
    "uneven": (1, 2, 1, 333, 480, 64),
    "long": (1, 3, 3, 321, 328, 128),
    "odd": (1, 1, 1, 129, 136, 64),
    "many heads": (3, 11, 11, 192, 192, 64),
}
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def form(request, monkeypatch):
    for size, config in list(TABLE[16].items()):
        monkeypatch.setitem(TABLE[16], size, config._replace(ahead=request.param))
    hopper_config.cache_clear()
    yield
    hopper_config.cache_clear()


class Problem:
    """Operands whose memory goes on with NaN, results that begin as NaN, and statistics."""

    def __init__(self, shape, dtype=torch.bfloat16, heads=None, fill=0.0, spread=1):
        B, NH, KV, T, S, HS = shape
        self.heads, self.fill, self.scale = tuple(range(NH)) if heads is None else heads, fill, HS**-0.5
        shapes = (NH, T, spread), (KV, S, spread), (KV, S, 1)
        self.q, self.k, self.v = (self.framed((x * torch.randn(B, n, t, HS, device="cuda")).to(dtype)) for n, t, x in shapes)
        self.frame = torch.full((B, len(self.heads) + 2, T + 9, -(-S // 8) * 8 + 16), NAN, dtype=dtype, device="cuda")
        self.place = (slice(None), slice(1, -1), slice(4, 4 + T), slice(8, 8 + S))
        self.output = torch.full((B, NH, T, HS), NAN, dtype=dtype, device="cuda")
        self.stats = torch.full((2, B, NH, T), NAN, device="cuda")
        self.above = ~reference.triangle_mask(T, S, "lower", S - T).to("cuda")

    @staticmethod
    def framed(x):
        """x in a larger tensor, NaN around."""
        frame = x.new_full((x.shape[0], x.shape[1] + 1, x.shape[2] + 70, x.shape[3]), NAN)
        frame[:, :-1, :-70] = x
        return frame[:, :-1, :-70]

    @property
    def weights(self):
        return self.frame[self.place]

    def run(self):
        columns = self.stats.new_empty(self.q.shape[0], 0, self.k.shape[2])
        causal_attention(
            self.q, self.k, self.v, self.output, self.weights, columns, self.stats,
            heads=self.heads, fill=self.fill, scale=self.scale, **PLAIN,
        )  # fmt: skip
        return self

    def served(self):
        """Run; fail unless the kernel for Hopper did it."""
        before = sum(hopper_plan.cache_info()[:2])
        self.run()
        assert sum(hopper_plan.cache_info()[:2]) == before + 1
        return self

    def check(self):
        error = ERROR[self.output.dtype]
        output, weights = reference.causal_attention(self.q, self.k, self.v, scale=self.scale)
        weights = weights[:, list(self.heads)].masked_fill(self.above, NAN if self.fill is None else self.fill)
        found = self.weights.masked_fill(self.above, NAN) if self.fill is None else self.weights
        listed = list(self.heads)
        torch.testing.assert_close(found.double(), weights, atol=error, rtol=error, equal_nan=True)
        torch.testing.assert_close(self.output.double(), output, atol=2 * error, rtol=2 * error)
        scores = self.scale * self.q.double() @ self.k.double().repeat_interleave(self.q.shape[1] // self.k.shape[1], 1).mT
        exact = scores.masked_fill(self.above, -math.inf).logsumexp(-1) * math.log2(math.e)
        sums = self.stats.double().sum(0)
        torch.testing.assert_close(sums[:, listed], exact[:, listed], atol=1e-4, rtol=1e-5)
        self.frame[self.place] = NAN
        assert self.frame.isnan().all()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("dtype", "fill"), [(torch.bfloat16, 0.0), (torch.float16, None)], ids=["zeros", "unwritten"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_weights_and_output(shape, dtype, fill, form):
    Problem(shape, dtype, fill=fill).served().check()


@pytest.mark.gpu
@on_hopper
def test_listed_heads_and_a_wide_range_of_scores(form):
    Problem((2, 4, 2, 200, 328, 64), heads=(3, 0, 2)).served().check()
    Problem((1, 2, 2, 256, 256, 64), torch.float16, heads=(1,), spread=5).served().check()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("fill", [0.0, None], ids=["zeros", "unwritten"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES.values() if shape[-1] == 64])
def test_float32(shape, fill):
    Problem(shape, torch.float32, fill=fill).served().check()


@pytest.mark.gpu
@on_hopper
def test_float32_of_listed_heads_and_what_cannot_be_split():
    Problem((2, 4, 2, 200, 328, 64), torch.float32, heads=(3, 0, 2)).served().check()
    Problem((1, 2, 2, 256, 256, 64), torch.float32, heads=(1,), spread=5).served().check()
    for name, place in (("q", (0, 1, 70, 3)), ("k", (0, 0, 130, 5)), ("v", (0, 1, 10, 0)), ("k", (0, 1, 255, 63))):
        problem = Problem((1, 2, 2, 256, 256, 64), torch.float32)
        getattr(problem, name)[place] = 1e-30
        problem.served().check()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_are_the_same_bit_for_bit_and_in_a_graph(form, dtype):
    problem = Problem((8, 12, 12, 512, 512, 64), dtype).served()
    first = [x.clone() for x in (problem.output, problem.weights, problem.stats)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.run()
    for again in (*[problem.run] * 5, graph.replay):
        for x in (problem.output, problem.frame, problem.stats):
            x.fill_(NAN)
        again()
        for x, y in zip((problem.output, problem.weights, problem.stats), first, strict=True):
            assert torch.equal(x, y)


@pytest.mark.gpu
@on_hopper
def test_backward_after_it_is_that_after_the_portable_kernel(monkeypatch):
    """The statistics of both are alike."""
    problem = Problem((2, 4, 2, 200, 328, 64), heads=(2, 1)).served()
    d_output, d_weights = torch.randn_like(problem.output), torch.randn_like(problem.weights).masked_fill(problem.above, NAN)
    gradients, statistics = [], []
    for portable in (False, True):
        if portable:
            monkeypatch.setattr(hopper_attention, "TABLE", {16: {}, 32: {}})
            hopper_config.cache_clear()
            problem.run()
        found = [torch.full(x.shape, NAN, dtype=x.dtype, device="cuda") for x in (problem.q, problem.k, problem.v)]
        causal_attention_backward(
            problem.q, problem.k, problem.v, problem.output, problem.stats, d_output, d_weights, None, *found,
            heads=problem.heads, scale=problem.scale, **PLAIN,
        )  # fmt: skip
        gradients.append(found)
        statistics.append(problem.stats.clone())
    hopper_config.cache_clear()
    torch.testing.assert_close(*statistics, atol=1e-5, rtol=1e-5)
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, atol=2e-2, rtol=2e-2)


def test_which_calls_it_serves(monkeypatch):
    monkeypatch.setattr(hopper_attention, "is_hopper", lambda device: True)
    hopper_config.cache_clear()

    def config(HS=64, T=128, dtype=torch.bfloat16, weights=None, **form):
        q, k = torch.empty(1, 2, T, HS, dtype=dtype), torch.empty(1, 2, 136, HS, dtype=dtype)
        weights = torch.empty(1, 2, T, 136, dtype=dtype) if weights is None else weights
        call, *_ = call_of(q, torch.empty(0), **{**PLAIN, "scale": 1.0, **form})
        return hopper_config(tuple(form_of(x) for x in (q, k, k, q)), form_of(weights), call)

    single = {"dtype": torch.float32, "weights": torch.empty(1, 2, 128, 136)}
    assert [config(HS) for HS in (64, 128)] == [TABLE[16][64], TABLE[16][128]]
    assert config(weights=torch.empty(1, 2, 128, 144, dtype=torch.bfloat16)[..., :136]) is TABLE[16][64]
    assert config(**single) is TABLE[32][64]
    refused = [
        {"HS": 96}, {"T": 127}, {**single, "HS": 128}, {**single, "precision": "high"}, {"scale": -1.0}, {"softcap": 2.0},
        {"window": 5}, {"key_mask": torch.ones(1, 136, dtype=torch.bool)}, {"key_lengths": torch.ones(1, dtype=torch.int32)},
        {"weights": torch.empty(1, 2, 128, 136)}, {"weights": torch.empty(1, 2, 128, 133, dtype=torch.bfloat16)},
        {"weights": torch.empty(1, 2, 128, 144, dtype=torch.bfloat16)[..., :133]},
    ]  # fmt: skip
    assert [config(**options) for options in refused] == [None] * len(refused)
    hopper_config.cache_clear()
