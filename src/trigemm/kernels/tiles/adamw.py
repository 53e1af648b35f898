"""One AdamW step as a single pass over parameters, gradients and moments, which writes new ones."""

from functools import lru_cache
from math import log

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import ELEMENTS, Form, Launch, form, index_type
from trigemm.kernels.tiles.plan import PLANS
from trigemm.triangle import ceil_div


@triton.jit
def one_minus_exp(y):
    """1 - eʸ for y <= 0, by a series near 0, where the difference would lose digits."""
    series = 1.0 + y / 6 * (1.0 + y / 7 * (1.0 + y / 8))
    series = 1.0 + y / 2 * (1.0 + y / 3 * (1.0 + y / 4 * (1.0 + y / 5 * series)))
    return tl.where(y > -0.5, -y * series, 1.0 - tl.exp(y))


@triton.jit
def adamw_block(
    param_ptr, grad_ptr, m_ptr, v_ptr, new_ptr, new_m_ptr, new_v_ptr, place, in_out,
    beta1, beta2, keep1, keep2, correction1, correction2, lr, eps, decay,
):  # fmt: skip
    grad = tl.load(grad_ptr + place, in_out).to(tl.float32)
    m = tl.load(m_ptr + place, in_out).to(tl.float32) * beta1 + grad * keep1
    v = tl.load(v_ptr + place, in_out).to(tl.float32) * beta2 + grad * grad * keep2
    update = (m / correction1) / (tl.sqrt_rn(v / correction2) + eps)
    new = tl.load(param_ptr + place, in_out).to(tl.float32) * (1.0 - lr * decay) - lr * update
    tl.store(new_ptr + place, new.to(new_ptr.dtype.element_ty), in_out)
    tl.store(new_m_ptr + place, m.to(new_m_ptr.dtype.element_ty), in_out)
    tl.store(new_v_ptr + place, v.to(new_v_ptr.dtype.element_ty), in_out)


@triton.jit(do_not_specialize=["n", "step", "lr"])
def adamw_kernel(
    param_ptr, grad_ptr, m_ptr, v_ptr, new_ptr, new_m_ptr, new_v_ptr, step, lr,
    beta1, beta2, keep1, keep2, log_beta1, log_beta2, eps, decay, n,
    STEP_IN_MEMORY: tl.constexpr, LR_IN_MEMORY: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`step` and `lr` are numbers, or lie IN_MEMORY, where a replayed graph finds new ones."""
    if STEP_IN_MEMORY:
        step = tl.load(step)
    if LR_IN_MEMORY:
        lr = tl.load(lr).to(tl.float32)
    correction1 = one_minus_exp(step.to(tl.float32) * log_beta1)
    correction2 = one_minus_exp(step.to(tl.float32) * log_beta2)
    place = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) < n // BLOCK:
        adamw_block(
            param_ptr, grad_ptr, m_ptr, v_ptr, new_ptr, new_m_ptr, new_v_ptr, place, None,
            beta1, beta2, keep1, keep2, correction1, correction2, lr, eps, decay,
        )  # fmt: skip
    else:
        adamw_block(
            param_ptr, grad_ptr, m_ptr, v_ptr, new_ptr, new_m_ptr, new_v_ptr, place, place < n,
            beta1, beta2, keep1, keep2, correction1, correction2, lr, eps, decay,
        )  # fmt: skip


@lru_cache(PLANS)
def _launch(forms: tuple[Form, ...], in_memory: tuple[torch.dtype | None, ...], device: torch.device) -> Launch:
    n = forms[0][0].numel()
    flags = (dtype is not None for dtype in in_memory)
    return Launch(adamw_kernel, ceil_div(n, ELEMENTS), n, *flags, index_type(n), ELEMENTS)


def adamw(
    old: tuple[Tensor, Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], *,
    step: int | Tensor, lr: float | Tensor, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """(param, grad, m, v) -> (param, m, v), after step number `step`, from 1 on."""
    in_memory = tuple(x.dtype if isinstance(x, Tensor) else None for x in (step, lr))
    logarithms = (log(beta) if beta else float("-inf") for beta in (beta1, beta2))
    numbers = beta1, beta2, 1 - beta1, 1 - beta2, *logarithms, eps, weight_decay
    rate = lr if isinstance(lr, Tensor) else float(lr)
    _launch(tuple(map(form, (*old, *new))), in_memory, old[0].device)(*old, *new, step, rate, *map(float, numbers))
