"""gemmt and syrk in each form of their tiles: square, wide with half tiles, counted by squares; loaded by TMA or by pointers."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles import gemmt as gemmt_module
from trigemm.kernels.tiles import syrk as syrk_module
from trigemm.kernels.tiles.config import TriangleConfig, triangle_config
from trigemm.kernels.tiles.gemmt import gemmt
from trigemm.kernels.tiles.operand import form_of
from trigemm.kernels.tiles.syrk import syrk

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow):RuntimeWarning")  # NumPy's, in the interpreter
NAN = math.nan
# On a GPU products of float32 are not made by "tf32"; half precision takes the same way.
DEVICE, DTYPE, ERROR = ("cuda", torch.float16, 2e-3) if torch.cuda.is_available() else ("cpu", torch.float32, 1e-6)
FORMS = {
    "square": TriangleConfig("tf32", (16, 16, 16), 4, 2),
    "square by TMA, in groups": TriangleConfig("tf32", (16, 16, 16), 4, 2, by_tma=True, side=64),
    "tall": TriangleConfig("tf32", (32, 16, 16), 4, 2),
    "wide": TriangleConfig("tf32", (16, 32, 16), 4, 2),
    "wide by TMA": TriangleConfig("tf32", (16, 32, 16), 4, 2, by_tma=True),
    "wide, in groups": TriangleConfig("tf32", (16, 32, 16), 4, 2, side=64),
}
PARTS = TriangleConfig("bf16x6", (16, 32, 16), 4, 2)


@pytest.fixture
def use(monkeypatch):
    """Makes both operations take a configuration."""

    def take(config):
        for module in (gemmt_module, syrk_module):
            module._plan.cache_clear()
            monkeypatch.setattr(module, "triangle_config", lambda *_: config)

    yield take
    for module in (gemmt_module, syrk_module):
        module._plan.cache_clear()


def framed(*shape, columns_first=False):
    """A NaN result inside a NaN frame, and the frame."""
    frame = torch.full((*shape[:-2], shape[-2] + 8, shape[-1] + 16), NAN, dtype=DTYPE, device=DEVICE)
    frame = frame.mT.contiguous().mT if columns_first else frame
    return frame[..., 4:-4, 8:-8], frame


def check(out, frame, expected, size):
    error = (out.double() - expected).abs()
    assert torch.equal(out.isnan(), expected.isnan())
    assert (error.nan_to_num(0.0) <= ERROR * size + 1e-30).all(), error.nan_to_num().max()
    assert frame.isnan().sum() - out.isnan().sum() == frame.numel() - out.numel()


def random(*shape, columns_first=False, aligned=True):
    """Random matrices; `aligned`, their rows (or columns) start at multiples of 16 bytes, so that TMA can address them."""
    rows, columns = reversed(shape[-2:]) if columns_first else shape[-2:]
    x = torch.randn(*shape[:-2], rows, columns + (-columns % 8 if aligned else 0), device=DEVICE).to(DTYPE)[..., :columns]
    return x.mT if columns_first else x


@pytest.mark.parametrize("form", FORMS)
def test_gemmt(form, use):
    use(FORMS[form])
    for m, n, k, diagonal, fill in [
        (7, 33, 20, 5, 0.5),
        (40, 25, 8, -16, None),
        (33, 70, 17, 16, -math.inf),
        (20, 40, 16, 40, 2.0),
        (20, 17, 16, -20, 2.0),
    ]:
        transposed = m == 40
        a = random(m, k, columns_first=transposed).expand(2, m, k)
        b = random(2, k, n, columns_first=n == 40, aligned=n != 33)
        out, frame = framed(2, m, n, columns_first=transposed)
        gemmt(a, b, out, alpha=0.5, diagonal=diagonal, fill=fill, precision="highest")
        expected = reference.gemmt(a, b, alpha=0.5, diagonal=diagonal, fill=NAN if fill is None else fill)
        check(out, frame, expected, a.double().abs() @ b.double().abs())


@pytest.mark.parametrize("form", ["tall", "wide by TMA", "wide, in groups"])
def test_gemmt_that_need_not_keep_the_rest(form, use):
    use(FORMS[form])
    a, b = random(50, 20), random(20, 70)
    out, frame = framed(50, 70)
    gemmt(a, b, out, alpha=1.0, diagonal=3, fill=None, precision="highest", keep=False)
    inside = reference.triangle_mask(50, 70, "lower", 3).to(DEVICE)
    out[~inside] = NAN
    check(out, frame, reference.gemmt(a, b, diagonal=3, fill=NAN), a.double().abs() @ b.double().abs())


@pytest.mark.parametrize("form", [name for name in FORMS if name != "tall"])
def test_syrk(form, use):
    use(FORMS[form])
    for batch, n, k, uplo, beta in [(2, 33, 20, "lower", 0.0), (1, 70, 17, "full", -2.0), (1, 40, 8, "lower", 0.5)]:
        a, c = random(batch, n, k, columns_first=n == 40), random(n, n, aligned=n != 70).expand(batch, n, n)
        c = c if uplo == "full" else torch.where(reference.triangle_mask(n, n).to(DEVICE), c, NAN)
        out, frame = framed(batch, n, n, columns_first=n == 33)
        syrk(a, c if beta else None, out, alpha=0.5, beta=beta, uplo=uplo, precision="highest")
        expected = reference.syrk(a, alpha=0.5, uplo=uplo, **({"beta": beta, "c": c} if beta else {}))
        check(out, frame, expected, reference.syrk(a.abs()) + abs(beta) * c.double().abs().nan_to_num())
        assert uplo == "lower" or torch.equal(out, out.mT) or beta


@pytest.mark.parametrize("operation", ["gemmt", "syrk"])
def test_more_entries_take_larger_tiles(operation):
    sizes = [256, 512, 1024, 2048, 4096, 8192]
    blocks = [triangle_config(operation, torch.float16, "highest", n * (n + 1) // 2, by_tma=True).blocks for n in sizes]
    areas = [bm * bn for bm, bn, _ in blocks]
    assert areas == sorted(areas)
    assert areas[0] < areas[-1]
    assert not triangle_config(operation, torch.float16, "highest", 1, by_tma=False).by_tma


def test_each_program_of_either_width_has_a_flag_of_its_own(use):
    """What cannot be split in a row of `a` flags the programs of that row of tiles: two whole tiles and a half one."""
    use(PARTS)
    a, b, out = (torch.ones(*shape, device=DEVICE) for shape in ((80, 16), (16, 80), (80, 80)))
    a[66, 3] = 1e-38
    plan = gemmt_module._plan(*map(form_of, (a, b, out)), out.device, 0, "fill", "highest")
    flags = torch.full((plan.flags,), -1, dtype=torch.int32, device=DEVICE)
    plan.launches[0]((a, b, out), flags, (1.0, 0.0))
    assert (flags >= 0).all()
    assert flags.sum() == 3
