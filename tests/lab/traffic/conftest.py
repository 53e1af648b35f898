"""Counting needs numba-cuda's simulator, which is on where there is no GPU."""

import pytest


@pytest.fixture(autouse=True)
def _simulator(request):
    config = pytest.importorskip("numba.cuda.core.config", reason="needs numba-cuda")
    if not config.ENABLE_CUDASIM and "gpu" not in request.keywords:
        pytest.skip("needs numba-cuda's simulator (NUMBA_ENABLE_CUDASIM=1)")
