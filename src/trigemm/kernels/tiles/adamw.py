"""One AdamW step as a single pass over parameters, gradients and moments, which writes new ones."""

import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import launch, own_tile, tile_shape


@triton.jit
def adamw_kernel(
    param_ptr, grad_ptr, m_ptr, v_ptr, new_ptr, new_m_ptr, new_v_ptr,
    beta1, beta2, keep1, keep2, correction1, correction2, lr, eps, shrink,
    rows, columns, INDEX: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    row, place, in_out = own_tile(rows, columns, INDEX, BM, BN)
    place += row * columns
    grad = tl.load(grad_ptr + place, in_out, other=0.0).to(tl.float32)
    m = tl.load(m_ptr + place, in_out, other=0.0).to(tl.float32) * beta1 + grad * keep1
    v = tl.load(v_ptr + place, in_out, other=0.0).to(tl.float32) * beta2 + grad * grad * keep2
    update = (m / correction1) / (tl.sqrt_rn(v / correction2) + eps)
    new = tl.load(param_ptr + place, in_out, other=0.0).to(tl.float32) * shrink - lr * update
    tl.store(new_ptr + place, new.to(new_ptr.dtype.element_ty), in_out)
    tl.store(new_m_ptr + place, m.to(new_m_ptr.dtype.element_ty), in_out)
    tl.store(new_v_ptr + place, v.to(new_v_ptr.dtype.element_ty), in_out)


def adamw(
    old: tuple[Tensor, Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], *,
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """(param, grad, m, v) -> (param, m, v), after step number `step`, from 1 on."""
    n = old[0].numel()
    corrections = 1 - beta1**step, 1 - beta2**step
    numbers = (beta1, beta2, 1 - beta1, 1 - beta2, *corrections, lr, eps, 1 - lr * weight_decay)
    launch(adamw_kernel, 1, n, tile_shape(1, n), *old, *new, *map(float, numbers))
