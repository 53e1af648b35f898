"""The 16-byte accesses: what they do, and what the compiler makes of them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

# numba-cuda compiles for a GPU that is not there, given NVIDIA's compiler libraries. A process of its own, out of the simulator.
COMPILE = """
import json, re, sys, types
from importlib import import_module
import numba.cuda.dispatcher
from numba import cuda, float32, int64
from trigemm.kernels.threads.launch import make_kernel

numba.cuda.dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))
signature = (float32[::1], float32[::1], int64, float32)
counts = {}
for name in sys.argv[1:]:
    kernel = make_kernel(import_module(f"trigemm.kernels.threads.{name}").make_patch, 2, 64).py_func
    ptx, _ = cuda.compile(kernel, signature, device=False, abi="numba", cc=(9, 0), launch_bounds=(256, 2))
    accesses = re.findall(r"\\b((?:ld|st)\\.(?:global|shared|local)(?:\\.v4)?)\\.", ptx)
    counts[name] = {access: accesses.count(access) for access in accesses}
print(json.dumps(counts))
"""


def compiled(*names: str) -> dict[str, dict[str, int]]:
    """How often each kind of access occurs in the PTX of each rung, for sm_90."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", COMPILE, *names]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode and ("DynamicLibNotFoundError" in result.stderr or "NvvmSupportError" in result.stderr):
        pytest.skip("NVIDIA's compiler libraries are not installed")
    assert result.returncode == 0, result.stderr
    counts: dict[str, dict[str, int]] = json.loads(result.stdout)
    return counts


def test_compiled_accesses() -> None:
    counts = compiled("registers", "vectorized", "transposed")
    assert not [name for name, accesses in counts.items() if any("local" in access for access in accesses)], "sums left registers"
    assert counts["registers"]["ld.global"] == 16
    assert not [access for access in counts["registers"] if access.endswith(".v4")]
    # 8 + 8 vectors a depth step of 4; 16 vectors a patch, and 36 elements a patch on the diagonal.
    assert counts["vectorized"] == {"ld.global.v4": 16, "st.global.v4": 16, "st.global": 36}
    assert counts["transposed"]["ld.shared.v4"] == 4
    assert counts["transposed"]["ld.global.v4"] == 8
    assert "ld.global" not in counts["transposed"]


def test_simulated_access_is_one_slice() -> None:
    """The contract with arrays that log their accesses."""
    from trigemm.kernels.threads import vector

    if not vector.SIMULATED:
        pytest.skip("the simulator is off")

    class Recorded:
        def __init__(self) -> None:
            self.data = np.arange(12, dtype=np.float32)
            self.indices: list[slice] = []

        def __getitem__(self, index: slice) -> np.ndarray:
            self.indices.append(index)
            return self.data[index]

        def __setitem__(self, index: slice, value: object) -> None:
            self.indices.append(index)
            self.data[index] = value

    array = Recorded()
    value = vector.load4(array, vector.offset(4))
    assert (value.x, value.y, value.z, value.w) == (4, 5, 6, 7)
    vector.store4(array, vector.offset(8), value)
    assert array.data.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
    assert array.indices == [slice(4, 8), slice(8, 12)]
