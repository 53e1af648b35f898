"""Recording: what a launch may be given, and how one that fails is reported."""

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("numba.cuda", reason="needs numba-cuda")
from numba import cuda, float32
from numba.cuda.simulator.kernel import FakeCUDAKernel

from trigemm.lab.traffic.recorder import KernelError, record, trace

ROOT = Path(__file__).parents[3]


@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


def test_each_launch_in_the_context_is_recorded():
    x = np.arange(64, dtype=np.float32)
    device_x, device_out = cuda.to_device(x), cuda.device_array(64, np.float32)
    with record() as launches:
        double[2, 32](device_x, device_out)
        double[1, 16](device_out, device_x)
    np.testing.assert_array_equal(device_out.copy_to_host(), 2 * x)
    np.testing.assert_array_equal(device_x.copy_to_host()[:16], 4 * x[:16])
    assert [(traffic.kernel, traffic.grid, traffic.block) for traffic in launches] == [
        ("double", (2, 1, 1), (32, 1, 1)),
        ("double", (1, 1, 1), (16, 1, 1)),
    ]
    assert launches[0].total("global", "load").sectors == 8


def test_after_the_context_kernels_run_as_before():
    plain = FakeCUDAKernel.__call__
    with record():
        assert FakeCUDAKernel.__call__ is not plain
    assert FakeCUDAKernel.__call__ is plain
    out = np.zeros(4, np.float32)
    double[1, 4](np.ones(4, np.float32), out)
    np.testing.assert_array_equal(out, 2)


def test_tensors_tuples_and_argument_hints():
    @cuda.jit
    def add(pair, scale, out):
        i = cuda.threadIdx.x
        out[i] = scale * (pair[0][i] + pair[1][i])

    x, out = torch.arange(8.0), torch.zeros(2, 8)
    given = np.ones(8, np.float32)
    traffic = trace(add, 1, 8, (x, cuda.In(given)), 3, out[1])
    assert out[1].tolist() == [3 * (value + 1) for value in range(8)]
    assert {access.array for access in traffic.rows} == {"pair[0]", "pair[1]", "out"}


def test_forall_covers_its_tasks():
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    with record() as launches:
        double.forall(1000)(x, out)
        double.forall(0)(x, out)
    assert [traffic.total("global", "load").requests for traffic in launches] == [math.ceil(1000 / 32)]
    np.testing.assert_array_equal(out, 2)


@cuda.jit
def through_dynamic_memory(x):
    tile = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    x[i] = tile[i]


def test_dynamic_shared_memory_is_that_of_the_launch():
    x = np.ones(32, np.float32)
    with record() as launches:
        enough = through_dynamic_memory[1, 32, 0, 128]
        short = through_dynamic_memory[1, 32, 0, 16]
        none = through_dynamic_memory[1, 32]
        for launch in (enough, none, short, through_dynamic_memory[1, 32, 0], enough):
            launch(x)
    assert [{(f.kind, f.array, f.index, f.explanation) for f in traffic.findings} for traffic in launches] == [
        set(),
        {("out-of-range", "tile", "0", "the array has shape (0,)")},
        {("out-of-range", "tile", "4", "the array has shape (4,)")},
        {("out-of-range", "tile", "0", "the array has shape (0,)")},
        set(),
    ]


def test_a_kernel_without_the_sizes_of_a_launch_is_refused():
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = 1

    with record() as launches:
        kernel[1, 32](np.ones(32))
        with pytest.raises(ValueError, match="launch configuration"):
            kernel(np.ones(32))
    assert len(launches) == 1


@cuda.jit(device=True)
def reversed_element(x, tile):
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    return tile[cuda.blockDim.x - 1 - i]


@cuda.jit
def through_device_function(x, out):
    tile = cuda.shared.array(64, float32)
    out[cuda.threadIdx.x] = reversed_element(x, tile)


def test_device_functions_are_counted_at_their_own_lines():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    traffic = trace(through_device_function, 1, 64, x, out)
    np.testing.assert_array_equal(out, x[::-1])
    assert {access.line.function for access in traffic.rows if access.array == "x"} == {"reversed_element"}
    assert traffic.barriers.total() == 1


def test_the_module_may_be_a_variable_of_the_enclosing_function():
    from numba import cuda as here

    @here.jit
    def kernel(out):
        out[here.threadIdx.x] = 1

    out = np.zeros(8)
    trace(kernel, 1, 8, out)
    np.testing.assert_array_equal(out, 1)
    assert here is cuda


@cuda.jit
def never_ends(out):
    while out[0] == 0:
        pass


@cuda.jit
def spins_on_nothing(out):
    while True:
        pass


def test_a_kernel_that_never_ends_is_stopped():
    with pytest.raises(KernelError, match=r"never_ends was stopped after .* more than the limit of 10,000") as caught:
        trace(never_ends, 1, 32, np.zeros(1), limit=10_000)
    made = caught.value.traffic.total("global", "load").elements
    assert made > 10_000
    assert f"stopped after {made:,} accesses to memory" in str(caught.value)
    assert "seconds: " not in str(caught.value)


def test_a_kernel_that_makes_no_access_is_stopped(monkeypatch):
    monkeypatch.setattr("trigemm.lab.traffic.machine.PATIENCE", 0.3)
    with pytest.raises(KernelError, match=r"spins_on_nothing was stopped because it made no access to memory for 0\.3 sec"):
        trace(spins_on_nothing, 1, 32, np.zeros(1))


def test_an_interrupt_ends_the_launch():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        trace(never_ends, 1, 32, np.zeros(1))
    out = np.zeros(4, np.float32)
    trace(double, 1, 4, np.ones(4, np.float32), out)
    np.testing.assert_array_equal(out, 2)


@cuda.jit
def lacking(out):
    out[cuda.threadIdx.x] = 1
    cuda.syncthreads()
    cuda.nanosleep(100)


def test_a_feature_that_the_simulator_lacks_is_named_and_the_counts_until_then_are_kept():
    with pytest.raises(KernelError, match=r"kernel lacking failed in line \d+ .*cuda.nanosleep is not part of") as caught:
        trace(lacking, 1, 32, np.zeros(32))
    assert caught.value.traffic.total("global", "store").elements == 32
    assert caught.value.traffic.error is not None


@cuda.jit
def divides(x, out):
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1 // x[0]


def test_after_a_failure_the_next_launch_runs():
    with pytest.raises(KernelError, match="line"), record() as launches:
        through_device_function[1, 64](np.zeros(8), np.zeros((64, 2, 2), np.float32)[0, 0, 0])
    assert len(launches) == 1
    out = np.zeros(4, np.float32)
    assert trace(double, 1, 4, np.ones(4, np.float32), out).error is None
    np.testing.assert_array_equal(out, 2)


def test_a_grid_barrier_needs_a_grid_of_one_block():
    @cuda.jit
    def kernel(out):
        out[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()

    trace(kernel, 1, 32, np.zeros(64))
    with pytest.raises(KernelError, match="a grid-wide barrier needs a grid of one block"):
        trace(kernel, 2, 32, np.zeros(64))


def test_an_output_that_is_no_parameter_is_refused():
    with pytest.raises(ValueError, match=r"no array 'y', only \['x', 'out'\]"):
        trace(double, 1, 4, np.ones(4), np.ones(4), outputs=["y"])


def test_the_mask_of_an_output_says_what_must_be_written():
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    mask = np.arange(8) < 4
    assert trace(double, 1, 4, x, out, outputs={"out": mask}).findings == []
    (finding,) = trace(double, 1, 4, x, out, outputs={"out": ~mask}).findings
    assert (finding.kind, finding.array, finding.index) == ("unwritten-output", "out", "4")
    assert "4 of 4 elements" in finding.explanation


def test_without_the_simulator_the_error_says_how_to_turn_it_on():
    code = "from trigemm.lab.traffic.recorder import trace; trace(None, 1, 1)"
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert "set NUMBA_ENABLE_CUDASIM=1 in the environment before numba is imported" in done.stderr
