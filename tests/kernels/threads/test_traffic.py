"""The closed forms of the rungs' traffic."""

from importlib import import_module

import pytest

from trigemm.kernels.catalogue import CATALOGUE, LADDER

NAMES = ("naive", "registers", "vectorized", "shared", "transposed")


def predicted(name: str, *sizes: int) -> dict[str, int]:
    result: dict[str, int] = import_module(f"trigemm.kernels.threads.{name}").predicted_traffic(*sizes)
    return result


# What Nsight Compute counted on an H200 for T=256, HS=64, one head.
@pytest.mark.parametrize(
    ("name", "requests", "sectors"), [("naive", 196608, 1310720), ("registers", 24576, 163840), ("shared", 1536, 6144)]
)
def test_loads_measured_on_a_gpu(name: str, requests: int, sectors: int) -> None:
    traffic = predicted(name, 1, 256, 1, 64)
    assert (traffic["load_requests"], traffic["load_sectors"]) == (requests, sectors)


@pytest.mark.parametrize("name", NAMES)
def test_heads_and_batches_multiply(name: str) -> None:
    assert predicted(name, 3, 384, 5, 64) == {key: 15 * value for key, value in predicted(name, 1, 384, 1, 64).items()}


def test_each_rung_asks_for_less() -> None:
    ladder = [predicted(name, 8, 1024, 12, 64) for name in NAMES]
    loads = [traffic["load_requests"] for traffic in ladder]
    assert loads == sorted(loads, reverse=True)
    assert len(set(loads)) == len(loads)
    assert ladder[-1]["store_sectors"] < ladder[-2]["store_sectors"] < ladder[0]["store_sectors"]


def test_no_fewer_sectors_than_bytes() -> None:
    """Every tile reads its q and k rows and writes its entries at least once."""
    tiles, T, HS = 36, 1024, 64
    traffic = predicted("transposed", 1, T, 1, HS)
    assert traffic["load_sectors"] == tiles * 2 * 128 * HS * 4 // 32
    assert traffic["store_sectors"] >= T * (T + 1) // 2 * 4 // 32


def test_the_catalogue_leads_here() -> None:
    for spec in CATALOGUE:
        if spec.operation == LADDER and spec.name in NAMES:
            assert spec.predicted_traffic is not None
            assert spec.predicted_traffic(1, 256, 1, 64) == predicted(spec.name, 1, 256, 1, 64)
