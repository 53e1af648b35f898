"""When a call may go to its kernel without PyTorch's dispatcher, which takes longer than many a kernel."""

import torch
from torch import Tensor


def needs_no_dispatch(*tensors: Tensor | None) -> bool:
    """Whether the dispatcher would do nothing for these operands but call the kernel.

    It is needed where something watches the call (torch.compile, tracing, a mode, a profiler), for gradients and the transforms
    of torch.func, and for tensors that are more than memory on a CPU or a GPU.

    >>> needs_no_dispatch(torch.ones(2, 2)), needs_no_dispatch(torch.ones(2, 2, requires_grad=True))
    (True, False)
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    ):
        return False
    differentiable = torch.is_grad_enabled()
    return all(
        x is None
        or (
            type(x) is Tensor
            and (x.is_cuda or x.is_cpu)
            and not (differentiable and x.requires_grad)
            and not x.is_neg()
            and not x._is_zerotensor()
            and not torch._C._functorch.is_legacy_batchedtensor(x)
        )
        for x in tensors
    )
