"""Whole products go to torch, as views: no operand is copied, and nothing beside the result is written."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import trigemm
from trigemm.kernels.tiles import dense
from trigemm.kernels.tiles.operand import form_of

M, N, K = 48, 40, 264
CUDA = torch.device("cuda")


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float16)


def nan(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=torch.float16)


def cases() -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Operands, and where in NaN the result goes."""
    yield "a part of rows", noise(M, K), noise(N, K).mT, nan(64, 96)[7 : 7 + M, 5 : 5 + N]
    yield "columns", noise(K, M).mT, noise(K, N), nan(64, 96)[:N, 3 : 3 + M].mT
    yield "one operand for a batch", noise(3, M, K), noise(K, N).expand(3, K, N), nan(3, 64, 96)[:, :M, 1 : 1 + N]
    yield "two dimensions that are one", noise(3, 2, M, K), noise(3, 2, K, N), nan(6, M, N).view(3, 2, M, N)


CASES = {name: (a, b, out) for name, a, b, out in cases()}


def key(a: Tensor, b: Tensor, out: Tensor) -> tuple[object, ...]:
    return *map(form_of, (a, b, out)), CUDA


@pytest.mark.parametrize("name", CASES)
def test_writes_the_product_where_it_belongs_and_nothing_else(name: str) -> None:
    a, b, out = CASES[name]
    assert dense.takes(*key(a, b, out), N + M, "fill", 0.5)
    dense.plan(*key(a, b, out), N + M, "fill", "highest").run((a, b, out), 0.5, 0.0)
    torch.testing.assert_close(out.double(), 0.5 * a.double() @ b.double(), rtol=2e-3, atol=2e-2)
    assert out._base.isfinite().sum() == out.numel()


def test_takes_what_is_whole_and_lies_as_a_blas_wants_it() -> None:
    a, b, out = noise(M, K), noise(K, N), noise(M, N)
    assert dense.takes(*key(a, b, out), N - 1, "fill", 1.0)
    assert not dense.takes(*key(a, b, out), N - 2, "fill", 1.0)  # one entry is missing
    assert not dense.takes(*key(a, b, out), N - 1, "fill", 0.0)
    assert not dense.takes(*key(a.float(), b.float(), out.float()), N - 1, "fill", 1.0)
    assert not dense.takes(*map(form_of, (a, b, out)), torch.device("cpu"), N - 1, "fill", 1.0)
    assert not dense.takes(*key(noise(M, 2 * K)[:, ::2], b, out), N - 1, "fill", 1.0)
    assert not dense.takes(*key(a, b, noise(1, N).expand(M, N)), N - 1, "fill", 1.0)
    grouped = noise(3, 1, M, K).expand(3, 2, M, K), noise(3, 2, K, N), noise(3, 2, M, N)
    assert not dense.takes(*key(*grouped), N - 1, "fill", 1.0)  # no single batch
    torch.use_deterministic_algorithms(True)
    try:
        assert not dense.takes(*key(a, b, out), N - 1, "fill", 1.0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_takes_small_products_whose_rest_may_hold_anything() -> None:
    a, b, out = noise(M, K), noise(K, N), noise(M, N)
    assert [dense.takes(*key(a, b, out), 0, rest, 1.0) for rest in ("any", "keep", "fill")] == [True, False, False]
    rows = dense.SMALL // N
    for m in (rows, rows + 1):
        operands = noise(m, K), b, noise(m, N)
        assert dense.takes(*key(*operands), 0, "any", 1.0) == (m == rows)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    a, b, like = (x.to("cuda", dtype) for x in CASES[name])
    memory = torch.full((*like.shape[:-2], like.shape[-2] + 9, like.shape[-1] + 24), torch.nan, dtype=dtype, device="cuda")
    for out in (memory[..., 4 : 4 + M, 8 : 8 + N], memory.mT.contiguous().mT[..., 4 : 4 + M, 8 : 8 + N]):
        trigemm.gemmt(a, b, alpha=0.5, diagonal=N, out=out)
        wanted = 0.5 * a.double() @ b.double()
        torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=0.1)
        again = trigemm.gemmt(a, b, alpha=0.5, diagonal=N)
        torch.testing.assert_close(again, out, rtol=1e-2, atol=0.1)
    assert memory.isnan().sum() == memory.numel() - like.numel()
    with_nan = trigemm.gemmt(a * torch.nan, b, alpha=0.0, diagonal=N)
    assert with_nan.isnan().all()
