"""Tensors for a small language model: one contract of about thirty primitives, filled by every backend.

`trigemm.tensor.backend` lists the primitives; `CpuBackend` (NumPy) defines their meaning.
"""

from trigemm.tensor.autograd import gradients, numerical_gradient
from trigemm.tensor.backend import Backend
from trigemm.tensor.cpu import CpuBackend
from trigemm.tensor.functions import (
    adamw,
    causal_attention,
    cross_entropy,
    gather,
    gemmt,
    layer_norm,
    matmul,
    scatter_add,
    syrk,
    trmm,
)
from trigemm.tensor.tensor import Tensor

__all__ = [
    "Backend",
    "CpuBackend",
    "Tensor",
    "adamw",
    "causal_attention",
    "cross_entropy",
    "gather",
    "gemmt",
    "gradients",
    "layer_norm",
    "matmul",
    "numerical_gradient",
    "scatter_add",
    "syrk",
    "trmm",
]
