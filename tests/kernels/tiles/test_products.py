"""The tile kernels by themselves, against the referee: in the interpreter where there is no GPU."""

import dataclasses
import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.tiles import rows
from trigemm.kernels.tiles.gemmt import gemmt, scores
from trigemm.kernels.tiles.operand import form_of
from trigemm.kernels.tiles.syrk import syrk
from trigemm.kernels.tiles.trmm import trmm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow):RuntimeWarning")  # NumPy's, in the interpreter
NAN = math.nan
HAS_CUDA = torch.cuda.is_available()
SIZES = [(1, 1, 1), (7, 33, 5), (33, 130, 1), (128, 128, 64), (130, 257, 70)]
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if HAS_CUDA else [])]  # the interpreter's bfloat16 products are wrong
ROUNDING = {torch.float32: 3e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def random(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, device=device).to(dtype)


def by_rows(a, b, out):
    """Whether gemmt serves these operands by rows of tiles."""
    return rows.takes(form_of(a), form_of(b), form_of(out), out.device)


def guarded(*shape, dtype, device):
    """A NaN output between guard bands that are NaN too: (output, whole buffer)."""
    buffer = torch.full((*shape[:-2], shape[-2] + 2, shape[-1] + 8), NAN, dtype=dtype, device=device)
    return buffer[..., 1:-1, 4:-4], buffer


def assert_close(out, expected, magnitude, dtype):
    """Entries within the rounding of |a| @ |b|; where the referee has NaN, untouched NaN."""
    assert torch.equal(out.isnan(), expected.isnan())
    error = (out.double() - expected).abs().nan_to_num(0.0, 0.0)
    underflow = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    assert (error <= 2 * ROUNDING[dtype] * magnitude + underflow).all(), (error / magnitude).nan_to_num().max()


def assert_guards_untouched(buffer):
    assert buffer[..., 0, :].isnan().all()
    assert buffer[..., -1, :].isnan().all()
    assert buffer[..., :4].isnan().all()
    assert buffer[..., -4:].isnan().all()


def cases(m, n):
    """(diagonal, fill): each diagonal and each way to treat the rest, few where matrices are large."""
    few = [(0, None), (-20, 0.5)]
    return few if m >= 100 and not HAS_CUDA else [*few, (3, -math.inf), (-20, None), (n, 0.5), (n, None), (-m, None), (-m, 0.5)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_gemmt(m, n, k, dtype, device):
    for diagonal, fill in cases(m, n):
        a, b = random(m, k, dtype=dtype, device=device), random(k, n, dtype=dtype, device=device)
        out, buffer = guarded(m, n, dtype=dtype, device=device)
        gemmt(a, b, out, alpha=0.5, diagonal=diagonal, fill=fill, precision="highest")
        expected = reference.gemmt(a, b, alpha=0.5, diagonal=diagonal, fill=NAN if fill is None else fill)
        assert_close(out, expected, 0.5 * (a.double().abs() @ b.double().abs()), dtype)
        assert_guards_untouched(buffer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (7, 40, 16), (70, 136, 72), (129, 64, 128), (66, 131, 64)])
def test_gemmt_by_rows(m, n, k, dtype, device):
    for diagonal, fill in cases(m, n):
        a, b = random(2, m, 1, k, dtype=dtype, device=device).transpose(1, 2), random(n, k, dtype=dtype, device=device).mT
        b = b.expand(2, 3, k, n)
        a = a.expand(2, 3, m, k)
        before = random(2, 3, m, n, dtype=dtype, device=device)
        out = before.clone()
        assert by_rows(a, b, out)
        gemmt(a, b, out, alpha=0.5, diagonal=diagonal, fill=fill, precision="highest")
        inside = reference.triangle_mask(m, n, "lower", diagonal).to(device)
        expected = torch.where(inside, reference.gemmt(a, b, alpha=0.5, diagonal=diagonal), before if fill is None else fill)
        assert_close(out, expected, 0.5 * (a.double().abs() @ b.double().abs()), dtype)
        assert fill is not None or torch.equal(out[..., ~inside], before[..., ~inside])


@pytest.mark.parametrize("fill", [None, 0.5])
@pytest.mark.parametrize(("by_tma", "parts"), [(True, False), (False, False), (False, True)])
def test_rows_are_stored_by_tma_or_by_threads_and_columns_split_before_or_on_the_way(fill, by_tma, parts, device, monkeypatch):
    config = dataclasses.replace(rows.row_config(torch.float32, "highest", 70, 16), stores_by_tma=by_tma, parts=parts, group=2)
    monkeypatch.setattr(rows, "row_config", lambda *_: config)
    rows.plan.cache_clear()
    for n in (72, 75):  # rows of 75 do not end at a multiple of 16 bytes
        a, b = random(5, 70, 16, device=device), random(5, n, 16, device=device).mT
        out = torch.full((5, 70, 80), NAN, device=device)[..., :n]
        gemmt(a, b, out, alpha=0.5, diagonal=1, fill=fill, precision="highest")
        expected = reference.gemmt(a, b, alpha=0.5, diagonal=1, fill=NAN if fill is None else fill)
        assert_close(out, expected, 0.5 * (a.double().abs() @ b.double().abs()), torch.float32)
    rows.plan.cache_clear()


@pytest.mark.parametrize("k", [16, 200])
def test_gemmt_that_need_not_keep_the_rest(k, device):
    a, b = random(2, 150, k, device=device), random(2, 136, k, device=device).mT
    out, buffer = guarded(150, 136, dtype=torch.float32, device=device)
    gemmt(a[0], b[0], out, alpha=0.5, diagonal=-3, fill=None, precision="highest", keep=False)
    inside = reference.triangle_mask(150, 136, "lower", -3).to(device)
    expected = reference.gemmt(a[0], b[0], alpha=0.5, diagonal=-3, fill=NAN)
    assert_close(torch.where(inside, out, NAN), expected, 0.5 * (a[0].double().abs() @ b[0].double().abs()), torch.float32)
    assert_guards_untouched(buffer)


def test_rows_are_for_what_tma_can_address(device):
    a, b, out = random(8, 64, device=device), random(64, 8, device=device), random(8, 8, device=device)
    assert by_rows(a, b.mT.contiguous().mT, out)
    assert not by_rows(a, b, out)
    assert not by_rows(a[:1].expand(8, 64), b.mT.contiguous().mT, out)
    assert by_rows(a, b.mT.contiguous().mT, random(8, 9, device=device)[:, 1:])  # stored by the threads
    assert not by_rows(a, b.mT.contiguous().mT, out.mT)
    assert not by_rows(a[:, 1:61], b.mT.contiguous().mT[1:61], out)
    assert not by_rows(random(8, 256, device=device), random(8, 256, device=device).mT, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_trmm(m, n, k, uplo, dtype, device):
    for diagonal in (0, 3, -20, k, -m) if m < 100 or HAS_CUDA else (0, -20):
        a, b = random(m, k, dtype=dtype, device=device), random(k, n, dtype=dtype, device=device)
        inside = reference.triangle_mask(m, k, uplo, diagonal).to(device)
        out, buffer = guarded(m, n, dtype=dtype, device=device)
        trmm(torch.where(inside, a, NAN), b, out, alpha=0.5, uplo=uplo, diagonal=diagonal, precision="highest")
        expected = reference.trmm(a, b, alpha=0.5, uplo=uplo, diagonal=diagonal)
        assert_close(out, expected, reference.trmm(a.abs(), b.abs(), uplo=uplo, diagonal=diagonal), dtype)
        assert_guards_untouched(buffer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["lower", "full"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 5), (33, 64), (129, 33), (257, 40)])
def test_syrk(n, k, uplo, dtype, device):
    a, c = random(n, k, dtype=dtype, device=device), random(n, n, dtype=dtype, device=device)
    out, buffer = guarded(n, n, dtype=dtype, device=device)
    syrk(a, None, out, alpha=0.5, beta=0.0, uplo=uplo, precision="highest")
    magnitude = reference.syrk(a.abs())
    assert_close(out, reference.syrk(a, alpha=0.5, uplo=uplo), magnitude, dtype)
    assert_guards_untouched(buffer)
    assert uplo == "lower" or torch.equal(out, out.mT)

    out, buffer = guarded(n, n, dtype=dtype, device=device)
    unread = c if uplo == "full" else torch.where(reference.triangle_mask(n, n).to(device), c, NAN)
    syrk(a, unread, out, alpha=0.5, beta=-2.0, uplo=uplo, precision="highest")
    assert_close(out, reference.syrk(a, alpha=0.5, beta=-2.0, c=c, uplo=uplo), magnitude + 2 * c.double().abs(), dtype)
    assert_guards_untouched(buffer)


def test_operands_of_any_strides_and_batches(device):
    a = random(2, 2, 1, 20, 2, 37, device=device).permute(0, 2, 1, 4, 5, 3)  # (2,1,2,2,37,20)
    b = random(3, 1, 1, 9, 40, device=device)[..., ::2].mT.expand(3, 2, 2, 20, 9)[..., 1:]
    a, b = a.expand(2, 3, 2, 2, 37, 20), b.expand(2, 3, 2, 2, 20, 8)
    out = torch.full((2, 2, 3, 2, 8, 37), NAN, device=device).permute(1, 2, 0, 3, 5, 4)
    gemmt(a, b, out, alpha=1.0, diagonal=2, fill=7.0, precision="highest")
    assert_close(out, reference.gemmt(a, b, diagonal=2, fill=7.0), a.double().abs() @ b.double().abs(), torch.float32)
    trmm(a, b, out, alpha=1.0, uplo="upper", diagonal=2, precision="highest")
    magnitude = reference.trmm(a.abs(), b.abs(), uplo="upper", diagonal=2)
    assert_close(out, reference.trmm(a, b, uplo="upper", diagonal=2), magnitude, torch.float32)
    square = torch.full((2, 2, 37, 37), NAN, device=device).mT
    syrk(a[:, 0, 1], None, square, alpha=1.0, beta=0.0, uplo="full", precision="highest")
    assert_close(square, reference.syrk(a[:, 0, 1]), reference.syrk(a[:, 0, 1].abs()), torch.float32)


def test_packed_scores_read_no_values(device):
    qkv = random(2, 130, 3, 2, 16, device=device)
    qkv[:, :, 2] = NAN
    out = torch.full((2, 2, 130, 130), NAN, device=device)
    scores(qkv, out, scale=0.25, fill=None, precision="highest")
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    expected = reference.causal_scores(q, k, scale=0.25, fill=NAN)
    assert_close(out, expected, 0.25 * (q.double().abs() @ k.double().abs().mT), torch.float32)


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1.0, 1e30, 3e36])
def test_float32_accuracy_does_not_depend_on_magnitude(scale, device):
    a, b = random(40, 70, device=device) * scale, random(70, 32, device=device) / scale
    everything = torch.full((40, 32), NAN, device=device)
    gemmt(a, b, everything, alpha=1.0, diagonal=32, fill=None, precision="highest")
    magnitude = a.double().abs() @ b.double().abs()
    assert_close(everything, a.double() @ b.double(), magnitude, torch.float32)
    short_a, short_b = a[:, :64].contiguous(), b[:64].mT.contiguous().mT
    assert by_rows(short_a, short_b, everything)
    gemmt(short_a, short_b, everything, alpha=1.0, diagonal=32, fill=None, precision="highest")
    assert_close(everything, a[:, :64].double() @ b[:64].double(), magnitude, torch.float32)
    trmm(a, b, everything, alpha=1.0, uplo="lower", diagonal=70, precision="highest")
    assert_close(everything, a.double() @ b.double(), magnitude, torch.float32)
    square = torch.full((40, 40), NAN, device=device)
    a /= scale**0.5
    syrk(a, None, square, alpha=1.0, beta=0.0, uplo="full", precision="highest")
    assert_close(square, reference.syrk(a), reference.syrk(a.abs()), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nans_go_where_arithmetic_takes_them(dtype, device):
    a, b = random(40, 64, dtype=dtype, device=device), random(32, 64, dtype=dtype, device=device).mT
    a[3, 5], a[7, 9], b[5, 11], b[20, 4] = math.inf, NAN, -math.inf, 0.0
    a[9, 20] = math.inf
    expected = (a.double() @ b.double()).to(dtype)
    for operand in (b, b.contiguous()):
        out = torch.full((40, 32), 7.0, dtype=dtype, device=device)
        gemmt(a, operand, out, alpha=1.0, diagonal=32, fill=None, precision="highest")
        finite = expected.isfinite()
        assert torch.equal(out.isfinite(), finite)
        torch.testing.assert_close(out[~finite], expected[~finite], equal_nan=True)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_lower_precisions_are_as_accurate_as_they_say(precision, device):
    if precision == "medium" and not HAS_CUDA:
        pytest.skip("the interpreter's bfloat16 products are wrong")
    a, b = random(70, 50, device=device), random(50, 90, device=device)
    out = torch.full((70, 90), NAN, device=device)
    gemmt(a, b, out, alpha=1.0, diagonal=0, fill=0.0, precision=precision)
    error = (out.double() - reference.gemmt(a, b)).abs()
    assert (error <= {"high": 2.0**-10, "medium": 2.0**-7}[precision] * (a.double().abs() @ b.double().abs())).all()


def test_results_are_the_same_bit_for_bit(device):
    a, b = random(3, 150, 70, device=device), random(3, 70, 140, device=device)
    first, second = torch.zeros(3, 150, 140, device=device), torch.ones(3, 150, 140, device=device)
    for out in (first, second):
        gemmt(a, b, out, alpha=1.0, diagonal=0, fill=0.0, precision="highest")
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["row", "column"])
def test_more_than_2_to_the_31_elements(order):
    """An offset inside one matrix beyond 31 bits, in the operand and in the result."""
    n, k = 49_000, 16
    a = random(n, k, dtype=torch.float16, device="cuda")
    out = torch.full((n, n), NAN, dtype=torch.float16, device="cuda")
    view = out if order == "row" else out.mT
    gemmt(a, a.mT, view, alpha=1.0, diagonal=0, fill=None, precision="highest")
    for part in (slice(0, 300), slice(n - 300, n)):
        expected = reference.gemmt(a[part], a.mT, diagonal=part.start, fill=NAN)
        assert_close(view[part], expected, a[part].double().abs() @ a.double().abs().mT, torch.float16)
    b = random(n, 8, dtype=torch.float16, device="cuda")
    result = torch.full((n, 8), NAN, dtype=torch.float16, device="cuda")
    trmm(view, b, result, alpha=1.0, uplo="lower", diagonal=0, precision="highest")
    part = torch.where(reference.triangle_mask(300, n, "lower", n - 300).cuda(), view[-300:], 0).double()
    assert_close(result[-300:], part @ b.double(), part.abs() @ b.double().abs(), torch.float16)
