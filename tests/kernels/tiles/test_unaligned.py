"""Products whose result's rows begin anywhere: in Triton's interpreter on the CPU, compiled on a GPU."""

import math

import pytest
import torch

from trigemm.kernels.tiles import unaligned
from trigemm.kernels.tiles.gemmt import gemmt, scores
from trigemm.kernels.tiles.operand import form_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# M, N, K: narrower than a vector, than a narrow tile, than a tile; more rows than a program has, vectors that are left over
SHAPES = [(33, 7, 32), (1, 9, 16), (129, 127, 64), (257, 523, 33), (530, 149, 8)]


def served(monkeypatch, run):
    """Whether the kernel for unaligned rows did it."""
    plans = []
    monkeypatch.setattr(unaligned, "plan", lambda *key, made=unaligned.plan: plans.append(key) or made(*key))
    run()
    return len(plans) == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fill", [None, -1.0])
@pytest.mark.parametrize("diagonal", [0, -3, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_triangle_is_written_and_nothing_outside_the_matrix(monkeypatch, shape, diagonal, fill, device):
    m, n, k = shape
    dtype = torch.float16 if device == "cpu" else torch.bfloat16
    a, b = (torch.randn(2, rows, -(-k // 8) * 8, device=device).to(dtype)[..., :k] for rows in (m, n))
    frame = torch.full((2, m + 3, (n | 1) + 2), math.nan, device=device).to(dtype)
    out = frame[:, :m, :n]
    assert served(
        monkeypatch,
        lambda: gemmt(a, b.mT, out, alpha=0.5, diagonal=diagonal, fill=fill, precision="highest", keep=False),
    )
    below = torch.ones(m, n, dtype=torch.bool, device=device).tril(diagonal)
    wanted = 0.5 * a.double() @ b.double().mT
    torch.testing.assert_close(out.double()[:, below], wanted[:, below], rtol=2e-2, atol=5e-2)
    if fill is not None:
        assert (out[:, ~below] == fill).all()
    out.fill_(math.nan)
    assert frame.isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_packed_operands_of_an_odd_length(monkeypatch, device):
    qkv = torch.randn(2, 147, 3, 3, 64, device=device).to(torch.float16)
    out = torch.full((2, 3, 147, 147), math.nan, device=device).to(torch.float16)
    assert served(monkeypatch, lambda: scores(qkv, out, scale=0.125, fill=-math.inf, precision="highest"))
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    above = ~torch.ones(147, 147, dtype=torch.bool, device=device).tril()
    wanted = (0.125 * q.double() @ k.double().mT).masked_fill(above, -math.inf)
    torch.testing.assert_close(out.double(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_operands_that_are_stretched_over_a_batch_dimension(monkeypatch, device):
    a = torch.randn(2, 3, 70, 32, device=device).to(torch.float16)
    b = torch.randn(2, 1, 51, 32, device=device).to(torch.float16).expand(2, 3, 51, 32)
    out = torch.full((2, 3, 70, 51), math.nan, device=device).to(torch.float16)
    assert served(monkeypatch, lambda: gemmt(a, b.mT, out, alpha=1.0, diagonal=0, fill=0.0, precision="highest", keep=False))
    torch.testing.assert_close(out.double(), (a.double() @ b.double().mT).tril(), rtol=2e-3, atol=2e-2)


def test_what_it_serves(monkeypatch):
    def run(dtype=torch.float16, out=None, **options):
        a = torch.randn(40, 16).to(dtype)
        out = torch.zeros(40, 41, dtype=dtype) if out is None else out
        b = torch.randn(out.shape[-1], 16).to(dtype)
        return lambda: gemmt(a, b.mT, out, alpha=1.0, diagonal=0, precision="highest", **{"fill": None, "keep": False, **options})

    assert served(monkeypatch, run())
    assert not served(monkeypatch, run(keep=True))
    assert not served(monkeypatch, run(torch.float32))
    assert not served(monkeypatch, run(out=torch.zeros(40, 40, dtype=torch.float16)))
    assert not served(monkeypatch, run(out=torch.zeros(40 * 41 + 1, dtype=torch.float16)[1:].view(40, 41)))
    assert not unaligned.takes(form_of(torch.zeros(3, 3)), "any")
