"""Device arrays without contents: what the host copies back must have been written."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda

from trigemm.lab.traffic.recorder import record


@cuda.jit
def fill(out):
    i = cuda.grid(1)
    out[i] = i


def findings(use):
    with record() as launches:
        use()
    return [finding for traffic in launches for finding in traffic.findings]


def whole():
    out = cuda.device_array(64, np.float32)
    fill[2, 32](out)
    out.copy_to_host()


def too_few_blocks():
    out = cuda.device_array(64, np.float32)
    fill[1, 32](out)
    out.copy_to_host()


def two_launches_share_it():
    out = cuda.device_array_like(np.zeros((2, 32)))
    fill[1, 32](out[0])
    fill[1, 32](out[1])
    out.copy_to_host()


def only_the_written_part():
    out = cuda.device_array(64, np.int16)
    fill[1, 32](out)
    out[:32].copy_to_host()


def rest_from_the_host():
    out = cuda.device_array(64, np.float32)
    out[32:] = 0
    fill[1, 32](out)
    out.copy_to_host()


def copied_to_before():
    out = cuda.device_array(64, np.float32)
    out.copy_to_device(np.zeros(64, np.float32))
    fill[1, 32](out)
    out.copy_to_host()


def made_from_host_data():
    out = cuda.to_device(np.zeros(64, np.float32))
    fill[1, 32](out)
    out.copy_to_host()


@pytest.mark.parametrize(
    "use", [whole, two_launches_share_it, only_the_written_part, rest_from_the_host, copied_to_before, made_from_host_data]
)
def test_what_was_written_may_be_copied_back(use):
    assert findings(use) == []


def test_elements_that_nothing_wrote_are_reported_once():
    (finding,) = findings(too_few_blocks)
    assert (finding.kind, finding.kernel, finding.array, finding.index) == ("unwritten-output", "fill", "out", "32")
    assert "32 of 64 elements" in finding.explanation


def test_afterwards_device_arrays_are_as_before():
    plain = cuda.device_array
    findings(whole)
    assert cuda.device_array is plain
