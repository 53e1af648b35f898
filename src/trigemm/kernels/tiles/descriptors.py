"""Descriptors for the tensor memory accelerator (TMA), which brings whole blocks of a matrix and leaves the threads alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from trigemm.kernels.tiles.operand import Form


def has_tma(device: torch.device) -> bool:
    """Whether a device has it: GPUs do from Hopper on, and the interpreter plays one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def addressable(x: Form) -> bool:
    """Whether TMA can address the rows of an operand: contiguous, apart, and each at a multiple of 16 bytes."""
    multiples = not any(stride % x.vector for stride, size in zip(x.stride[:-1], x.shape[:-1], strict=True) if size > 1)
    apart = x.shape[-2] <= 1 or x.stride[-2] >= x.shape[-1]
    return x.stride[-1] == 1 and apart and x.aligned and multiples and max(x.shape) < 2**31


def describer(x: Form, block: Sequence[int], kind: type = TensorDescriptor, **attributes: Any) -> Callable[[Tensor], Any]:
    """Makes the descriptor of a tensor of that form, for blocks of its last two dimensions: one of a kind, with its attributes.

    A batch dimension that the operand is stretched over becomes single. A single one's stride is not used but must be valid.
    """
    shape = [*(1 if stride == 0 else size for size, stride in zip(x.shape[:-2], x.stride[:-2], strict=True)), *x.shape[-2:]]
    strides = [*(stride if size > 1 else x.vector for size, stride in zip(shape[:-1], x.stride[:-1], strict=True)), 1]
    whole_block = [*[1] * (len(shape) - 2), *block]
    fixed = {"shape": shape, "strides": strides, "block_shape": whole_block, **attributes}

    def describe(tensor: Tensor) -> Any:
        made: Any = object.__new__(kind)  # its own checks take longer than all else, and the form has passed them
        made.__dict__.update(fixed, base=tensor)
        return made

    return describe
