"""Where there is no GPU, kernels run on the CPU: Triton's in its interpreter, numba-cuda's in its simulator."""

import os

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()

if not HAS_CUDA:  # before any kernel is defined
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_CUDA:
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


@pytest.fixture
def device() -> str:
    """Where tile kernels run: the GPU if there is one, else the CPU by way of the interpreter."""
    return "cuda" if HAS_CUDA else "cpu"
