"""The attention kernels of tiles by themselves, against the referee: in the interpreter where there is no GPU."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles.attention import causal_attention, causal_attention_backward
from trigemm.kernels.tiles.attention_calls import accelerated, on_device
from trigemm.kernels.tiles.attention_config import TABLE, Config, attention_config
from trigemm.kernels.tiles.descriptors import addressable
from trigemm.kernels.tiles.operand import form_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid|overflow|divide by zero|All-NaN):RuntimeWarning"
)  # NumPy's, in the interpreter
NAN = math.nan
HAS_CUDA = torch.cuda.is_available()
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if HAS_CUDA else [])]  # the interpreter's bfloat16 products are wrong
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Problem:
    """Operands of a call, outputs that begin as NaN, and the referee's answer."""

    def __init__(self, device, shape, dtype=torch.float32, heads=(), *, packed=False, precision="highest", fill=0.0, **form):
        B, NH, KV, T, S, HS = shape
        self.heads, self.fill, self.device = heads, fill, device
        if packed:  # one projection holds queries, keys and values
            qkv = torch.randn(B, S, NH + 2 * KV, HS, device=device).to(dtype)
            self.q, self.k, self.v = qkv[:, S - T :].transpose(1, 2)[:, :NH], *qkv.transpose(1, 2)[:, NH:].chunk(2, 1)
        else:
            self.q, self.k, self.v = (torch.randn(B, n, s, HS, device=device).to(dtype) for n, s in ((NH, T), (KV, S), (KV, S)))
        self.form = {"key_lengths": None, "key_mask": None, "softcap": None, "window": None, "scale": HS**-0.5, **form}
        self.form["precision"] = precision
        self.above = ~reference.triangle_mask(T, S, "lower", S - T).to(device)
        self.output = torch.full((B, NH, T, HS), NAN, dtype=dtype, device=device)
        self.weights = torch.full((B, len(heads), T, S), NAN, dtype=dtype, device=device)
        self.columns = torch.full((B, NH, S), NAN, device=device)
        self.stats = torch.full((2, B, NH, T), NAN, device=device)
        mask, lengths = self.form["key_mask"], self.form["key_lengths"]
        self.mask = mask if lengths is None else torch.arange(S, device=device) < lengths[:, None]

    def exact(self, q, k, v):
        """Output, listed weights and column sums in float64."""
        options = {name: self.form[name] for name in ("scale", "softcap", "window")}
        output, weights = reference.causal_attention(q, k, v, key_mask=self.mask, **options)
        return output, weights[:, list(self.heads)], weights.sum(-2)

    def forward(self):
        causal_attention(
            self.q, self.k, self.v, self.output, self.weights, self.columns, self.stats,
            heads=self.heads, fill=self.fill, **self.form,
        )  # fmt: skip
        return self

    def check_forward(self, error=None):
        error = error or ERROR[self.output.dtype]
        output, weights, columns = self.exact(self.q, self.k, self.v)
        stored = self.weights.masked_fill(self.above, NAN) if self.fill is None else self.weights  # anything may stand there
        weights = weights.masked_fill(self.above, NAN if self.fill is None else self.fill)
        for found, expected in ((self.output, output), (stored, weights), (self.columns, columns)):
            torch.testing.assert_close(found.double(), expected, atol=error, rtol=error, equal_nan=True)

    def check_backward(self, d_output=True, d_weights=True, d_columns=True, error=None):
        """Gradients of a loss on what is asked for, whose upstream is NaN where the weights are not an answer."""
        dtype, error = self.output.dtype, error or 4 * ERROR[self.output.dtype]
        upstream = [
            torch.randn_like(x) if wanted and x.numel() else None
            for x, wanted in ((self.output, d_output), (self.weights, d_weights), (self.columns, d_columns))
        ]
        leaves = [x.double().requires_grad_() for x in (self.q, self.k, self.v)]
        losses = [(x * g.double()).sum() for x, g in zip(self.exact(*leaves), upstream, strict=True) if g is not None]
        expected = torch.autograd.grad(sum(losses), leaves, allow_unused=True)
        if upstream[1] is not None:
            upstream[1].masked_fill_(self.above, NAN)
        found = [torch.full(x.shape, NAN, dtype=dtype, device=self.device) for x in leaves]
        causal_attention_backward(
            self.q, self.k, self.v, self.output, self.stats, *upstream, *found, heads=self.heads, **self.form
        )
        for x, y in zip(found, expected, strict=True):
            y = torch.zeros_like(x, dtype=torch.float64) if y is None else y
            torch.testing.assert_close(x.double(), y, atol=error * max(1.0, float(y.abs().max())), rtol=error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_weights_of_awkward_sizes(dtype, device):
    for shape in [(1, 1, 1, 1, 1, 16), (2, 2, 1, 7, 9, 24), (1, 2, 2, 129, 136, 16)]:
        heads = tuple(range(shape[1]))
        problem = Problem(device, shape, dtype, heads).forward()
        problem.check_forward()
        problem.check_backward()
        sums = problem.weights.double().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=ERROR[dtype], rtol=0)


@pytest.mark.parametrize("fill", [None, -2.5])
def test_some_heads_of_a_packed_projection(fill, device):
    problem = Problem(device, (2, 4, 2, 33, 40, 16), heads=(2, 0), packed=True, fill=fill).forward()
    problem.check_forward()
    problem.check_backward(d_columns=False)


@pytest.mark.parametrize(("shape", "tall", "wide"), [((2, 2, 1, 33, 40, 16), 41, 48), ((2, 2, 1, 20, 27, 16), 24, 35)])
def test_weights_that_are_a_part_of_a_larger_tensor(shape, tall, wide, device):
    problem = Problem(device, shape, heads=(1, 0), fill=-2.5)
    larger = torch.full((2, 3, tall, wide), NAN, device=device)
    place = (slice(None), slice(1, 3), slice(4, 4 + shape[3]), slice(shape[4]))
    problem.weights = larger[place]
    problem.forward().check_forward()
    larger[place] = NAN
    assert larger.isnan().all()


FORMS = {
    "lengths": {"key_lengths": torch.tensor([0, 40])},
    "mask": {"key_mask": torch.arange(80).view(2, 40) % 5 > 2},
    "window and cap": {"window": 11, "softcap": 1.5},
    "negative scale": {"scale": -0.3},
    "zero scale": {"scale": 0.0},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_masks_caps_and_scales(form, device):
    moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in form.items()}
    problem = Problem(device, (2, 2, 2, 35, 40, 16), heads=(1,), fill=0.5, **moved)
    if problem.mask is not None:  # keys that do not count are not used
        for x in (problem.k, problem.v):
            x.masked_fill_(~problem.mask[:, None, :, None], NAN)
        problem.forward()
        for x in (problem.k, problem.v):
            x.nan_to_num_(0.0)
    else:
        problem.forward()
    problem.check_forward()
    problem.check_backward()


@pytest.mark.parametrize(
    ("shape", "dtype", "fill"),
    [((2, 2, 1, 70, 70, 16), torch.float32, -2.5), ((2, 2, 1, 40, 88, 16), torch.float16, None)],
    ids=["square", "cached"],
)
@pytest.mark.parametrize(
    "form",
    [{}, {"key_lengths": torch.tensor([37, 0])}, {"window": 20}, {"window": 20, "key_mask": torch.arange(88) % 5 > 2}],
    ids=["plain", "lengths", "window", "window and mask"],
)
def test_many_rows_of_tiles(form, shape, dtype, fill, device, monkeypatch):
    """Each row of tiles stores the weights of another that no key needs, whichever of the two has more of them."""
    monkeypatch.setitem(TABLE["weights"][8 * dtype.itemsize], 64, Config(16, 16, 4, 2, together=3))
    batch, keys = shape[0], shape[4]
    form = dict(form)
    if "key_lengths" in form:
        form["key_lengths"] = form["key_lengths"][:batch].to(device)
    if "key_mask" in form:
        form["key_mask"] = form["key_mask"][:keys].expand(batch, keys).to(device)
    Problem(device, shape, dtype, heads=(1, 0), fill=fill, **form).forward().check_forward()


def test_losses_on_a_part_of_the_results(device):
    problem = Problem(device, (1, 2, 1, 20, 20, 16), heads=(0,)).forward()
    for only in ("d_output", "d_weights", "d_columns"):
        problem.check_backward(**{name: name == only for name in ("d_output", "d_weights", "d_columns")})


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_lower_precisions(precision, device):
    if precision == "medium" and not HAS_CUDA:
        pytest.skip("the interpreter's bfloat16 products are wrong")
    problem = Problem(device, (1, 1, 1, 70, 70, 32), heads=(0,), precision=precision).forward()
    error = {"high": 2e-4, "medium": 4e-2}[precision]
    problem.check_forward(error)
    problem.check_backward(error=error)


@pytest.mark.parametrize("size", [128, 256])
def test_large_heads(size, device):
    problem = Problem(device, (1, 1, 1, 17, 18, size), torch.float16, heads=(0,)).forward()
    problem.check_forward()
    problem.check_backward()


def test_saturated_rows_keep_their_digits(device):
    """Scores near 4096 ln 2: one number a row, the maximum with the logarithm of the sum added, would be off by 2e-4."""
    problem = Problem(device, (1, 1, 1, 40, 40, 16), heads=(0,), scale=math.log(2))
    problem.q.zero_()[..., 0] = 64.0
    problem.k[..., 0] = 64.0 - torch.arange(40, device=device) % 7 / 64
    problem.forward().check_forward()
    sums = problem.weights.double().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_does_not_depend_on_magnitude(scale, device):
    problem = Problem(device, (1, 1, 1, 40, 40, 16), heads=(0,))
    problem.q *= scale
    problem.k /= scale
    problem.v[..., :20, :] *= 1e-12  # too small beside the others to be split with them
    problem.forward()
    output, weights, _ = problem.exact(problem.q, problem.k, problem.v)
    torch.testing.assert_close(problem.weights.double(), weights, atol=2e-6, rtol=2e-6)
    assert ((problem.output - output).abs() <= 2e-6 * (weights @ problem.v.double().abs())).all()


@pytest.mark.parametrize("wide", [False, True], ids=["split", "repaired"])
def test_float32_heads_too_long_for_registers(wide, device):
    problem = Problem(device, (1, 2, 1, 17, 40, 250), heads=(1,), fill=-1.0)
    if wide:  # one component of a row is too small beside another to be split with it
        for x in (problem.q, problem.k, problem.v):
            x[..., 3] *= 1e-12
    problem.forward().check_forward()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize("size", [64, 80, 128, 256])
def test_float32_that_tma_does_not_load(size, layout, device):
    problem = Problem(device, (2, 2, 1, 7, 41, size), heads=(0, 1))
    odd = {"columns": lambda x: x.mT.contiguous().mT, "rows": lambda x: torch.cat([x, x[..., :1]], -1)[..., :-1]}[layout]
    problem.q, problem.k, problem.v = odd(problem.q), odd(problem.k), odd(problem.v)
    problem.forward().check_forward()


def test_infinite_scores(device):
    problem = Problem(device, (1, 1, 1, 6, 6, 16), heads=(0,))
    problem.q.abs_()
    problem.k[..., 2, :] = -math.inf
    problem.k[..., 0, :] = -math.inf  # the first query sees nothing else
    problem.forward().check_forward()
    assert (problem.weights[0, 0, 0] == 0).all()


def test_plans_are_told_apart_by_the_dtypes_of_results_and_lengths(device):
    for dtype, integers in ((torch.float32, torch.int64), (torch.float64, torch.int32), (torch.float16, torch.int64)):
        lengths = torch.tensor([5, 9], dtype=integers, device=device)
        problem = Problem(device, (2, 1, 1, 9, 16, 16), heads=(0,), key_lengths=lengths)
        problem.weights, problem.columns = problem.weights.to(dtype), problem.columns.to(dtype)
        problem.forward().check_forward(1e-3)


def test_results_are_the_same_bit_for_bit(device):
    first, second = (Problem(device, (1, 2, 1, 70, 70, 16), heads=(1,)) for _ in range(2))
    second.q, second.k, second.v = first.q, first.k, first.v
    for x, y in zip(vars(first.forward()).values(), vars(second.forward()).values(), strict=True):
        assert not isinstance(x, torch.Tensor) or torch.equal(x, y)


def test_what_tma_can_address():
    x = torch.zeros(2, 8, 3, 16)
    assert accelerated(form_of(x), x.device)
    assert accelerated(form_of(x.transpose(1, 2)), x.device)
    assert not accelerated(form_of(x[..., ::2]), x.device)
    assert not accelerated(form_of(x[..., 1:]), x.device)
    assert not accelerated(form_of(x[:1].expand(2, 8, 3, 16)), x.device)
    one_row = x.as_strided((2, 8, 1, 16), (384, 48, 5, 1))  # the stride of a single row is not used
    assert accelerated(form_of(one_row), x.device)
    assert addressable(form_of(x[:1].expand(2, 8, 3, 16)))  # as a single batch
    assert not addressable(form_of(x.as_strided((40, 16), (8, 1))))  # rows that overlap


def test_every_kernel_has_a_configuration_for_every_head_size():
    for kernel in TABLE:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for size in (16, 64, 65, 256):
                assert attention_config(kernel, dtype, size).bm >= 16


def test_lists_of_heads_stay_on_the_device():
    assert on_device((1, 3), torch.device("cpu")) is on_device((1, 3), torch.device("cpu"))
