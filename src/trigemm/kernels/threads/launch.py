"""The launcher that all rungs share: out[b, h, t, s] = scale * q[b, t, h] . k[b, s, h] for s <= t.

qkv (B, T, 3, NH, HS) and out (B, NH, T, T) are contiguous float32. A block of 16 x 16 threads owns a 128 x 128 tile of one
head's scores: x counts along keys (columns), y along queries (rows), and a thread owns 64 of its entries. The grid is (T /
128, T / 128, B * NH); a block above the diagonal returns at once, and no rung writes an entry above the diagonal. The index
of batch and head selects the tile's base addresses inside the packed tensor, so nothing is ever permuted.

A rung is a function `make_patch(row_stride, HS)` that returns a device function

    patch(qkv, out, q, k, o, on_diagonal, T, scale)

in which qkv and out are flat and q, k and o are offsets: of the first element of the tile's first query row, of its first key
row (rows are `row_stride` = 3 * NH * HS elements apart, both being constants of the compiled kernel), and of the tile's first
entry in out. Hot loops are written with `while`: the countdown inside numba's `range` hides the induction variable from the
compiler, and the addresses would cost more than the product.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning
from torch import Tensor

from trigemm.kernels.threads.limits import TILE, refuse
from trigemm.kernels.threads.vector import SIMULATED

BLOCK = (16, 16)
# At least two blocks on a multiprocessor: at most 128 registers a thread. The simulator knows no such option.
OPTIONS = {} if SIMULATED else {"launch_bounds": (BLOCK[0] * BLOCK[1], 2)}

MakePatch = Callable[[int, int], Any]


@cache
def make_kernel(make_patch: MakePatch, NH: int, HS: int) -> Any:
    """The kernel (qkv, out, T, scale) of a rung for NH heads of size HS."""
    row_stride = 3 * NH * HS
    patch = make_patch(row_stride, HS)

    @cuda.jit(**OPTIONS)
    def kernel(qkv, out, T, scale):
        key_tile = cuda.blockIdx.x
        query_tile = cuda.blockIdx.y
        if key_tile > query_tile:
            return
        batch = cuda.blockIdx.z // NH
        head = cuda.blockIdx.z % NH
        q = (batch * T + query_tile * TILE) * row_stride + head * HS
        k = (batch * T + key_tile * TILE) * row_stride + (NH + head) * HS
        o = (cuda.blockIdx.z * T + query_tile * TILE) * T + key_tile * TILE
        patch(qkv, out, q, k, o, key_tile == query_tile, T, scale)

    return kernel


def launch(make_patch: MakePatch, qkv: Tensor, out: Tensor, *, scale: float, fill: float | None) -> None:
    """Run a rung on the current stream of qkv's device, or in numba-cuda's simulator on CPU tensors."""
    B, T, _, NH, HS = qkv.shape
    reason = refuse({"B": B, "T": T, "NH": NH, "HS": HS, "fill": fill}) or _refuse_tensors(qkv, out)
    if reason is not None:
        raise ValueError(f"causal_scores_qkvpacked of {tuple(qkv.shape)}, {qkv.dtype}: {reason}")
    if out.numel() == 0:
        return
    kernel = make_kernel(make_patch, NH, HS)
    grid = (T // TILE, T // TILE, B * NH)
    arrays = [tensor.detach().view(-1) for tensor in (qkv, out)]
    if SIMULATED:
        kernel[grid, BLOCK](*(array.numpy() for array in arrays), T, np.float32(scale))
        return
    with torch.cuda.device(qkv.device), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # numba's advice on small grids
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        kernel[grid, BLOCK, stream](*(cuda.as_cuda_array(array) for array in arrays), T, np.float32(scale))


def _refuse_tensors(qkv: Tensor, out: Tensor) -> str | None:
    """Why the rungs cannot take these tensors, whatever their sizes; None if they can."""
    if qkv.dtype != torch.float32 or out.dtype != torch.float32:
        return f'the thread-level kernels compute in float32 only, got out of {out.dtype}; the kernel "tiles" takes other dtypes'
    if not (qkv.is_contiguous() and out.is_contiguous()):
        return "the thread-level kernels need contiguous qkv and out; call .contiguous() first"
    if qkv.data_ptr() % 16 or out.data_ptr() % 16:
        return "the thread-level kernels need qkv and out to begin at a multiple of 16 bytes; call .clone() first"
    if qkv.is_cuda == SIMULATED:
        return (
            "the thread-level kernels run on CUDA tensors, or on CPU tensors in numba-cuda's simulator "
            f"(NUMBA_ENABLE_CUDASIM=1, set before numba is imported), got a tensor on {qkv.device} with the simulator "
            f"{'on' if SIMULATED else 'off'}"
        )
    return None
