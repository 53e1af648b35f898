"""Every rung against the referee: in the simulator on small problems, on a GPU on the reference case; one test body for both."""

import math

import pytest
import torch
from torch import Tensor

from trigemm import reference
from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.spec import KernelSpec

RUNGS = {spec.name: spec for spec in CATALOGUE if spec.operation == LADDER and 1 <= spec.number <= 5}
UNTOUCHED = 12345.0
GUARD = 64  # elements before and after, a multiple of 16 bytes


def guarded(shape: tuple[int, ...], value: float, device: str) -> tuple[Tensor, Tensor]:
    """A buffer full of `value`, and a contiguous tensor inside it with a band of GUARD elements on each side."""
    buffer = torch.full((math.prod(shape) + 2 * GUARD,), value, device=device)
    return buffer, buffer[GUARD:-GUARD].view(shape)


def check(rung: KernelSpec, B: int, T: int, NH: int, HS: int, device: str) -> None:
    generator = torch.Generator().manual_seed(T + HS)
    _, qkv = guarded((B, T, 3, NH, HS), math.nan, device)
    qkv[:, :, :2] = torch.randn(B, T, 2, NH, HS, generator=generator).to(device)  # the values stay NaN
    buffer, out = guarded((B, NH, T, T), UNTOUCHED, device)
    scale = 0.37

    rung.run(qkv, out, scale=scale, fill=None, precision="highest")

    lower = reference.triangle_mask(T, T).to(device)
    expected = reference.causal_scores_qkvpacked(qkv, scale=scale)
    torch.testing.assert_close(out[..., lower].double(), expected[..., lower], rtol=0, atol=1e-4)
    assert bool((out[..., ~lower] == UNTOUCHED).all()), "wrote above the diagonal"
    assert bool((buffer[:GUARD] == UNTOUCHED).all() and (buffer[-GUARD:] == UNTOUCHED).all()), "wrote outside of out"


def test_the_five_rungs_are_there() -> None:
    assert list(RUNGS) == ["naive", "registers", "vectorized", "shared", "transposed"]


# Tiles on and below the diagonal; several batches and heads.
@pytest.mark.parametrize("sizes", [(1, 256, 1, 32), (2, 128, 2, 32)], ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_small(name: str, sizes: tuple[int, int, int, int], device: str) -> None:
    check(RUNGS[name], *sizes, device)


@pytest.mark.parametrize("name", ["shared", "transposed"])
def test_several_slices(name: str, device: str) -> None:
    check(RUNGS[name], 1, 128, 1, 96, device)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(8, 1024, 12, 64), (3, 384, 5, 96)], ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_gpu(name: str, sizes: tuple[int, int, int, int]) -> None:
    check(RUNGS[name], *sizes, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_gpu_runs_on_the_current_stream(name: str) -> None:
    qkv = torch.zeros(1, 256, 3, 2, 64, device="cuda")
    out = torch.empty(1, 2, 256, 256, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        qkv.fill_(1.0)
        RUNGS[name].run(qkv, out, scale=1.0, fill=None, precision="highest")
        total = out.tril().sum()
    stream.synchronize()
    assert total.item() == 64 * 2 * 256 * 257 / 2


@pytest.mark.parametrize("name", RUNGS)
def test_nothing_to_do(name: str, device: str) -> None:
    qkv = torch.empty(0, 128, 3, 2, 32, device=device)
    RUNGS[name].run(qkv, torch.empty(0, 2, 128, 128, device=device), scale=1.0, fill=None, precision="highest")
