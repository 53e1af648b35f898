"""What a GPU runs for strips, here on the CPU."""

import math

import pytest
import torch

from trigemm import reference
from trigemm.kernels.strips import halves
from trigemm.kernels.strips.halves import fill_by_halves, gemmt_by_halves, mirror_by_halves, runs, trmm_by_halves
from trigemm.triangle import Triangle

NAN = math.nan
SIZES = [(1, 1, 3), (16, 16, 5), (64, 64, 7), (70, 50, 0), (50, 70, 9), (64, 130, 4)]  # rows, columns, the other size
DIAGONALS = [0, 5, -18, 200, -200]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch):
    monkeypatch.setattr(halves, "LEAF", 16)
    runs.cache_clear()
    yield
    runs.cache_clear()


def inside(triangle):
    return reference.triangle_mask(triangle.rows, triangle.columns, triangle.uplo, triangle.diagonal)


def laid_out(operands, batch, rows, columns, dtype):
    """Batch dimensions that do not merge, in rows that are apart; for some batches stretched."""
    if len(batch) == 2:
        return operands.laid_out(*batch, rows, columns, dtype=dtype, layout="strided").transpose(0, 1)
    return operands.laid_out(*batch, rows, columns, dtype=dtype, layout="stretched" if batch == (3,) else "transposed")


@pytest.mark.parametrize("uplo", ["lower", "upper"])
@pytest.mark.parametrize("diagonal", DIAGONALS)
def test_runs_cover_the_triangle_once(uplo, diagonal):
    for rows, columns, _ in SIZES:
        triangle = Triangle(rows, columns, uplo, diagonal)
        times = torch.zeros(1, rows, columns)
        for run in runs(triangle):
            view = run.cut(times, run.rows, run.columns)
            view += 1 if run.inside is None else inside(run.inside)
        assert torch.equal(times[0], inside(triangle).float())


def test_squares_of_one_size_are_one_run():
    assert len(runs(Triangle(256, 256))) == 5
    assert sum(run.count for run in runs(Triangle(256, 256))) == 16 + 8 + 4 + 2 + 1


@pytest.mark.parametrize("batch", [(), (3,), (7,), (3, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_products(operands, over_budget, batch, dtype, uplo):
    for (rows, columns, size), diagonal in zip(SIZES, [0, 0, -3, 7, -60, 20], strict=True):
        triangle = Triangle(rows, columns, uplo, diagonal)
        belongs = inside(triangle)
        a, b = laid_out(operands, batch, rows, size, dtype), laid_out(operands, batch, size, columns, dtype)
        exact = torch.where(belongs, 0.3 * (a.double() @ b.double()), NAN)
        for keep in (True, False):
            out = torch.full(exact.shape, NAN, dtype=dtype)
            gemmt_by_halves(a, b, out, 0.3, triangle, keep)
            assert over_budget(out.nan_to_num(), exact, a, b, factor=0.3) <= 1
            assert not keep or torch.equal(out.isnan(), exact.isnan())
        fill_by_halves(out, triangle, -2.5)
        assert (out[..., ~belongs] == -2.5).all()
        assert over_budget(out, exact, a, b, factor=0.3) <= 1

        x, y = laid_out(operands, batch, rows, columns, dtype), laid_out(operands, batch, columns, size, dtype)
        half = x.where(belongs, 0.0)
        out = torch.full((*x.shape[:-1], size), NAN, dtype=dtype)
        trmm_by_halves(x.where(belongs, NAN), y, out, 0.3, triangle)
        assert over_budget(out, 0.3 * (half.double() @ y.double()), half, y, factor=0.3) <= 1


@pytest.mark.parametrize("batch", [(), (7,), (3, 2)])
@pytest.mark.parametrize("n", [1, 16, 64, 70])
def test_mirror(operands, batch, n):
    x = operands.plain(*batch, n, n, dtype=torch.float64)
    expected = x.tril() + x.tril(-1).mT
    mirror_by_halves(x, Triangle(n, n))
    assert torch.equal(x, expected)
