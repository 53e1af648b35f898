"""Kernels of tiles compile for a GPU, on a machine that has none: what the interpreter lets pass, a compiler may not."""

import os
import subprocess
import sys

import pytest

# A driver that names a GPU and launches nothing; each launch is compiled to machine code and dropped.
CHILD = """
import sys, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Driver:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    is_active = staticmethod(lambda: True)


driver.set_active(Driver())
from trigemm.kernels.tiles import elementwise, embedding, gemmt, index, layer_norm, permute, plan, reduce, rowwise, syrk, trmm
from trigemm.layout import Layout

compiled = set()


def compile_only(kernel, arguments, **options):
    kernel.warmup(*arguments, grid=(1,), **options)
    compiled.add(kernel.__name__)


index.Launch._compile_and_launch = lambda self, operands: compile_only(
    self.kernel, (*operands, *self.arguments), num_warps=self.num_warps
)
plan.Launch.__call__ = lambda self, tensors, flags, scalars: compile_only(
    self.kernel, (*(self.describe(*tensors) if self.describe else tensors), flags, *scalars, *self.arguments), **self.options
)
new = torch.empty
dtype = getattr(torch, sys.argv[1])
for rows, columns in ((33, 21), (300, 20000)):
    x, y = new(rows, columns, dtype=dtype), new(rows, columns, dtype=dtype)
    weight, row, targets = new(columns, dtype=dtype), new(rows, dtype=dtype), new(rows, dtype=torch.int64)
    mean, rstd = new(rows), new(rows)
    rowwise.softmax(x, y, log=True)
    rowwise.cross_entropy(x, targets, row)
    rowwise.cross_entropy_backward(row, x, targets, y)
    layer_norm.layer_norm(x, weight, weight, 1e-5, y, mean, rstd)
    layer_norm.layer_norm_backward(y, x, weight, mean, rstd, x, new(2, columns, dtype=dtype))
    reduce.reduce(x, 1, rows, columns, weight)
    reduce.reduce(x, rows, columns, 1, row, maximum=True)
    permute.permute(x, Layout.contiguous(x.shape).permute((1, 0)), new(columns, rows, dtype=dtype))
    permute.pad(x, 3 * columns, new(rows + 5, columns, dtype=dtype))
    elementwise.unary("gelu", x, y)
    for a, b in ((x, y), (x, weight), (2.0, x), (x, -0.0)):
        elementwise.binary("add", a, b, y, 0.0)
embedding.gather(new(50, 16, dtype=dtype), new(7, dtype=torch.int64), new(7, 16, dtype=dtype))
embedding.scatter_add(new(7, 16, dtype=dtype), new(7, dtype=torch.int64), new(50, 16, dtype=dtype))
options = {"alpha": 0.5, "precision": "highest"}
products = dtype == torch.float16  # those of float32 take long
for n, depth in ((200, 64), (201, 64), (192, 256)) if products else ():  # by rows, at any address, by tiles
    a, b, out = new(2, n, depth, dtype=dtype), new(2, n, depth, dtype=dtype), new(2, n, n, dtype=dtype)
    gemmt.gemmt(a, b.mT, out, diagonal=0, fill=None, keep=False, **options)
    gemmt.gemmt(a, b.mT, out, diagonal=0, fill=0.0, **options)
    trmm.trmm(out, a, b, uplo="lower", diagonal=0, **options)
    syrk.syrk(a, None, out, beta=0.0, uplo="full", **options)
print(*sorted(compiled))
"""


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_kernels_compile(tmp_path, dtype):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    child = subprocess.run([sys.executable, "-c", CHILD, dtype], capture_output=True, text=True, env=environment)
    assert child.returncode == 0, child.stderr[-3000:]
    names = {"layer_norm_kernel", "reduce_kernel", "softmax_kernel"}
    products = {"gemmt_kernel", "rows_kernel", "unaligned_kernel", "trmm_kernel", "syrk_kernel"} if dtype == "float16" else set()
    assert names | products <= set(child.stdout.split())
