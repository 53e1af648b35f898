"""What the rungs refuse, and how they say so."""

import pytest
import torch
from torch import Tensor

from trigemm.kernels.catalogue import CATALOGUE, LADDER
from trigemm.kernels.threads import limits
from trigemm.kernels.threads.naive import scores

GOOD = {"B": 2, "T": 256, "NH": 3, "HS": 64, "fill": None}


def test_takes_what_it_can() -> None:
    assert limits.refuse(GOOD) is None
    assert limits.refuse({}) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"T": 200}, "T to be a multiple of 128, got T=200"),
        ({"HS": 48}, "HS to be a positive multiple of 32, got HS=48"),
        ({"HS": 0}, "HS to be a positive multiple of 32, got HS=0"),
        ({"fill": float("-inf")}, "fill=None only, got fill=-inf"),
        ({"fill": 0.0}, "fill=None only, got fill=0.0"),
        ({"B": 65536}, "at most 65535"),
    ],
)
def test_refuses(change: dict[str, float], words: str) -> None:
    sentence = limits.refuse(GOOD | change)
    assert sentence is not None
    assert words in sentence


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "find_spec", lambda name: None)
    assert "numba-cuda" in str(limits.refuse(GOOD))


def test_every_rung_has_the_limits() -> None:
    rungs = [spec for spec in CATALOGUE if spec.operation == LADDER and 1 <= spec.number <= 5]
    assert len(rungs) == 5
    assert all(spec.refuse is limits.refuse and spec.dtypes == ("float32",) for spec in rungs)


def run(qkv: Tensor, out: Tensor, fill: float | None = None) -> None:
    scores(qkv, out, scale=1.0, fill=fill, precision="highest")


def test_refusal_names_the_operation_and_the_shape(device: str) -> None:
    with pytest.raises(ValueError, match=r"causal_scores_qkvpacked of \(1, 64, 3, 1, 32\).*multiple of 128, got T=64"):
        run(torch.zeros(1, 64, 3, 1, 32, device=device), torch.zeros(1, 1, 64, 64, device=device))


def test_refuses_a_fill(device: str) -> None:
    with pytest.raises(ValueError, match="fill=None only"):
        run(torch.zeros(1, 128, 3, 1, 32, device=device), torch.zeros(1, 1, 128, 128, device=device), fill=0.0)


def test_refuses_other_dtypes(device: str) -> None:
    qkv = torch.zeros(1, 128, 3, 1, 32, device=device, dtype=torch.float16)
    with pytest.raises(ValueError, match="float32 only"):
        run(qkv, torch.zeros(1, 1, 128, 128, device=device, dtype=torch.float16))


def test_refuses_strides(device: str) -> None:
    qkv = torch.zeros(1, 128, 3, 32, 1, device=device).mT
    with pytest.raises(ValueError, match="contiguous"):
        run(torch.zeros(1, 256, 3, 1, 32, device=device)[:, ::2], torch.zeros(1, 1, 128, 128, device=device))
    run_out = torch.zeros(1, 1, 128, 256, device=device)[..., :128]
    with pytest.raises(ValueError, match="contiguous"):
        run(qkv.contiguous(), run_out)


def test_refuses_a_misaligned_tensor(device: str) -> None:
    shape = (1, 128, 3, 1, 32)
    qkv = torch.zeros(128 * 96 + 1, device=device)[1:].view(shape)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        run(qkv, torch.zeros(1, 1, 128, 128, device=device))


def test_refuses_the_wrong_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    from trigemm.kernels.threads import launch

    monkeypatch.setattr(launch, "SIMULATED", not launch.SIMULATED)
    with pytest.raises(ValueError, match=r"NUMBA_ENABLE_CUDASIM=1"):
        run(torch.zeros(1, 128, 3, 1, 32, device=device), torch.zeros(1, 1, 128, 128, device=device))
