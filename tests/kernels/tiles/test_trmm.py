"""trmm by TMA, transposed, in one rounding of float32 to the 11 bits of tensor cores."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles import trmm as module
from trigemm.kernels.tiles.config import TrmmConfig, trmm_config
from trigemm.kernels.tiles.trmm import trmm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow):RuntimeWarning")  # NumPy's, in the interpreter
NAN = math.nan


@pytest.fixture
def use(monkeypatch):
    """Makes trmm take a configuration, whatever the operands."""

    def take(config):
        module._plan.cache_clear()
        monkeypatch.setattr(module, "trmm_config", lambda *_: config)

    yield take
    module._plan.cache_clear()


def random(*shape, columns_first=False, device="cpu", dtype=torch.float32):
    """Matrices whose rows (or columns) start at multiples of 16 bytes, so that TMA can address them."""
    rows, columns = reversed(shape[-2:]) if columns_first else shape[-2:]
    x = torch.randn(*shape[:-2], rows, columns + -columns % 8, device=device).to(dtype)[..., :columns]
    return x.mT if columns_first else x


def check(a, b, uplo, diagonal, error, alpha=0.5):
    """What trmm makes of `a` with NaN in its other half, inside a frame; `error` is relative to |a| @ |b|."""
    shape = (*a.shape[:-1], b.shape[-1])
    frame = torch.full((*shape[:-2], shape[-2] + 2, shape[-1] + 16), NAN, device=a.device, dtype=a.dtype)
    out = frame[..., 1:-1, 8:-8]
    inside = reference.triangle_mask(*a.shape[-2:], uplo, diagonal).to(a.device)
    expected = reference.trmm(a, b, alpha=alpha, uplo=uplo, diagonal=diagonal)
    size = abs(alpha) * reference.trmm(a.abs(), b.abs(), uplo=uplo, diagonal=diagonal)
    a.masked_fill_(~inside, NAN)
    trmm(a, b, out, alpha=alpha, uplo=uplo, diagonal=diagonal, precision="high")
    assert ((out.double() - expected).abs() <= error * size + 1e-30).all()
    assert frame.isnan().sum() == frame.numel() - out.numel()


@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize("orders", [(False, False), (True, True)], ids=["rows", "columns"])
def test_by_tma(uplo, orders, use, device):
    use(TrmmConfig("tf32", (32, 32, 16), num_warps=4, num_stages=2, by_tma=True, crossed_stages=1, group=2))
    for m, n, k, diagonal, dtype in [
        (1, 1, 1, 0, torch.float32),
        (33, 7, 56, 5, torch.float32),
        (72, 33, 20, -17, torch.float32),
        (40, 16, 40, 0, torch.float16),
        (24, 8, 16, 24, torch.float32),
        (24, 8, 16, -24, torch.float32),
    ]:
        matrices = 3 if m == 40 else 1
        a = random(matrices, m, k, columns_first=orders[0], device=device, dtype=dtype)
        b = random(k, n, columns_first=orders[1], device=device, dtype=dtype).expand(matrices, k, n)
        check(a, b, uplo, diagonal, 2.0**-10)


def test_high_is_served_by_it(device):
    assert trmm_config(torch.float32, "high", 130, addressable=True).precision == "tf32"
    check(random(130, 130, device=device), random(130, 20, device=device), "lower", 0, 2.0**-10)
    check(random(33, 65, device=device)[:, 1:], random(64, 20, device=device), "lower", 0, 2.0**-10)


def test_operands_are_rounded_to_the_nearest(device):
    """Cut off instead, entries of one sign would all be too small."""
    a, b = torch.rand(64, 512, device=device) + 1, torch.rand(512, 16, device=device) + 1
    out = torch.empty(64, 16, device=device)
    trmm(a, b, out, alpha=1.0, uplo="lower", diagonal=512, precision="high")
    exact = a.double() @ b.double()
    assert ((out.double() - exact).abs() <= 2.0**-13 * exact).all()


def test_values_beyond_the_largest_stay(device):
    a, b = torch.ones(16, 16, device=device), torch.ones(16, 16, device=device)
    a[3, 1], a[5, 2], a[7, 4], a[9, 0] = math.inf, NAN, torch.finfo(torch.float32).max, -math.inf
    a.view(torch.int32)[11, 5] = 0x7FFFFFFF  # the NaN that a GPU makes
    out = torch.empty(16, 16, device=device)
    trmm(a, b, out, alpha=0.5, uplo="lower", diagonal=0, precision="high")
    assert out[3].eq(math.inf).all()
    assert out[9].eq(-math.inf).all()
    assert out[[5, 11]].isnan().all()
    assert out[7].isfinite().all()
    assert out.isfinite().all(1).sum() == 12


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_programs_side_by_side_give_the_same_bits_each_time(dtype):
    """Products that still run while their operands are overwritten would show here, now and then."""
    a, b = random(96, 1024, 1024, device="cuda", dtype=dtype), random(96, 1024, 128, device="cuda", dtype=dtype)
    exact, size = reference.trmm(a, b), reference.trmm(a.abs(), b.abs())
    results = []
    for _ in range(20):
        out = torch.full_like(b, NAN)
        trmm(a, b, out, alpha=1.0, uplo="lower", diagonal=0, precision="high")
        results.append(out)
    assert ((results[0].double() - exact).abs() <= (2.0**-10 if dtype == torch.float32 else 2.0**-7) * size).all()
    assert all(torch.equal(out, results[0]) for out in results)
