"""What the operations accept. Each refusal names the operation, what was given, and what would work.

The checks read metadata only, so they also hold for fake tensors and while torch.compile traces; `refuse_overlap` reads
addresses and runs where the real tensors are.
"""

import math
from collections.abc import Sequence
from numbers import Integral, Rational, Real
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trigemm.errors import choice, describe

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = ("highest", "high", "medium")


def check_operands(
    operation: str, *, min_dim: int = 2, optional: Sequence[str] = (), autocast: bool = True, **operands: Tensor | None
) -> tuple[Any, ...]:
    """The operands, under autocast in its dtype, once they are known to be acceptable.

    They must be dense floating tensors of one dtype on one device, with `min_dim` dimensions or more. An `optional` one may be
    None, and stays None, or have fewer. Without `autocast` their dtype stays: as PyTorch's own do that write into an `out`.
    """
    given: dict[str, Any] = {name: x for name, x in operands.items() if x is not None or name not in optional}
    if _as_expected(min_dim, *given.values()):
        return tuple(operands.values())
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{operation}: {name} must be a torch.Tensor, got {type(x).__name__}")
        if x.is_nested:
            raise TypeError(f"{operation}: {name} is a nested tensor; a padded one would work (torch.nested.to_padded_tensor)")
        if x.layout != torch.strided:
            raise TypeError(f"{operation}: {name} has layout {x.layout}; a strided tensor would work (x.to_dense())")
        if x.dtype not in DTYPES:
            raise TypeError(
                f"{operation}: dtypes are float64, float32, float16 and bfloat16; got {describe(**given)}; "
                "convert with .to(dtype)"
            )
        if x.dim() < min_dim and name not in optional:
            raise ValueError(f"{operation}: {name} must have at least {min_dim} dimensions; got {describe(**given)}")
    if autocast:
        given = {name: _autocast(x) for name, x in given.items()}
    if len({x.dtype for x in given.values()}) > 1:
        raise TypeError(f"{operation}: operands must have one dtype; got {describe(**given)}; convert with .to(dtype)")
    if len({x.device for x in given.values()}) > 1:
        devices = ", ".join(f"{name} on {x.device}" for name, x in given.items())
        raise ValueError(f"{operation}: operands must be on one device; got {devices}; move them with .to(device)")
    device = next(iter(given.values())).device.type
    if device not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{operation}: devices are cpu and cuda; got {device}")
    return tuple(given.get(name) for name in operands)


def _as_expected(min_dim: int, first: Any, *others: Any) -> bool:
    """Whether the operands need neither words nor a change: as most calls', whose time this saves."""
    if type(first) is not Tensor or first.dtype not in DTYPES or first.device.type not in ("cpu", "cuda"):
        return False
    return not torch.is_autocast_enabled(first.device.type) and all(
        type(x) is Tensor
        and x.dtype == first.dtype
        and x.device == first.device
        and x.layout is torch.strided
        and x.dim() >= min_dim
        and not x.is_nested
        for x in (first, *others)
    )


def _autocast(x: Tensor) -> Tensor:
    """What autocast makes of an operand of a matrix product; as for PyTorch's own, float64 stays as it is."""
    device = x.device.type
    if x.dtype == torch.float64 or device == "meta" or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def check_words(operation: str, *, uplo: str, uplos: Sequence[str], precision: str | None) -> None:
    """`uplo` and `precision` are known words."""
    if uplo not in uplos:
        raise choice(operation, "uplo", uplo, uplos)
    if precision is not None and precision not in PRECISIONS:
        raise choice(operation, "precision", precision, (None, *PRECISIONS))


def check_scalars(operation: str, dtype: torch.dtype, /, **scalars: object) -> None:
    """The scalars are real numbers in the range in which products of a dtype are summed, or infinite, or NaN."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    for name, value in scalars.items():
        if not isinstance(value, Real) or (isinstance(value, Rational) and not isinstance(value, Integral)):
            raise TypeError(f"{operation}: {name} must be a real number, got {type(value).__name__}; give a float")
        try:
            size = abs(float(value))
        except OverflowError:
            raise ValueError(f"{operation}: {name} is beyond the range of a float") from None
        if torch.finfo(sums).max < size < math.inf:
            raise ValueError(
                f"{operation}: {name} {value} is beyond the range of {sums}, in which products of {dtype} are summed"
            )


def check_fill(operation: str, fill: float | None, dtype: torch.dtype) -> None:
    """`fill` is None, infinite, NaN, or within the range of the result's dtype."""
    if fill is None:
        return
    check_scalars(operation, torch.float64, fill=fill)
    largest = torch.finfo(dtype).max
    if largest < abs(fill) < math.inf:
        raise ValueError(f"{operation}: fill {fill} is beyond the range of {dtype} ({largest:g}); -inf and inf work")


def checked_diagonal(operation: str, diagonal: Any) -> Any:
    """The diagonal as an int (or a symbolic one), brought within 64 bits: one that far out is as good as any."""
    if isinstance(diagonal, torch.SymInt):
        return diagonal
    try:
        return max(-(2**62), min(2**62, index(diagonal)))
    except TypeError:
        raise TypeError(f"{operation}: diagonal must be an int, got {type(diagonal).__name__}") from None


def product_shape(
    operation: str,
    left: Tensor,
    right: Tensor,
    *,
    transposed: bool = False,
    fitting: str = "(…,M,K) and (…,K,N)",
    **given: Tensor,
) -> tuple[int, ...]:
    """Shape (…,M,N) of op(left) @ right with batch dimensions broadcast; op transposes if `transposed`.

    `given` and the shapes that are `fitting` are for errors.
    """
    rows, depth = (left.shape[-1], left.shape[-2]) if transposed else (left.shape[-2], left.shape[-1])
    if depth != right.shape[-2]:
        raise ValueError(
            f"{operation}: inner sizes differ, {depth} and {right.shape[-2]}; got {describe(**given)}; "
            f"shapes that fit are {fitting}"
        )
    batch = left.shape[:-2]
    if batch == right.shape[:-2]:
        return (*batch, rows, right.shape[-1])
    try:
        batch = torch.broadcast_shapes(batch, right.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"{operation}: batch dimensions {tuple(left.shape[:-2])} and {tuple(right.shape[:-2])} do not broadcast; "
            f"got {describe(**given)}"
        ) from None
    return (*batch, rows, right.shape[-1])


def check_out(operation: str, out: Tensor, shape: Sequence[int], like: Tensor, *others: Tensor | None) -> None:
    """`out` has `shape`, and dtype and device of the operand `like`; no operand needs a gradient, and no transform is active."""
    if not isinstance(out, Tensor):
        raise TypeError(f"{operation}: out must be a torch.Tensor, got {type(out).__name__}")
    if out.is_nested:
        raise ValueError(f"{operation}: out must be a strided tensor of shape {tuple(shape)}; got a nested one")
    if tuple(out.shape) != tuple(shape) or out.dtype != like.dtype or out.device != like.device or out.layout != torch.strided:
        raise ValueError(
            f"{operation}: out must be a strided tensor of shape {tuple(shape)}, {like.dtype}, on {like.device}; "
            f"got {tuple(out.shape)}, {out.dtype}, on {out.device}, {out.layout}"
        )
    if not torch.compiler.is_compiling():
        if out.is_neg():
            raise ValueError(f"{operation}: out is a view that negates lazily; out.resolve_neg() would work")
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{operation}: out was made in inference mode, and changes only there; out.clone() would work")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (like, *others, out)):
        raise ValueError(f"{operation}: out= does not support gradients; leave out= away, or work under torch.no_grad()")
    if torch._C._are_functorch_transforms_active():
        raise ValueError(f"{operation}: out= does not work inside a transform of torch.func or vmap; leave out= away")


def refuse_overlap(operation: str, out: Tensor, **inputs: Tensor | None) -> None:
    """Refuse an `out` whose elements may lie on one another or on an input's. Only addresses are compared; no memory is read."""
    if not out.numel():
        return
    extent = 1
    for stride, size in sorted((stride, size) for stride, size in zip(out.stride(), out.shape, strict=True) if size > 1):
        if stride < extent:
            raise ValueError(f"{operation}: out overlaps itself (strides {out.stride()}); out.contiguous() would work")
        extent += stride * (size - 1)
    for name, x in inputs.items():
        if x is not None and x.numel() and _share_memory(x, out):
            raise ValueError(f"{operation}: out overlaps {name} in memory; give a separate out, or leave it away")


class _Addresses:
    """The addresses of a tensor's elements, as NumPy understands them."""

    def __init__(self, x: Tensor):
        size = x.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (x.data_ptr(), True),
            "shape": tuple(x.shape),
            "strides": tuple(stride * size for stride in x.stride()),
        }


def _span(x: Tensor) -> tuple[int, int]:
    """The first address of a tensor that has elements, and the one after its last."""
    begin, last = x.data_ptr(), sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return begin, begin + (last + 1) * x.element_size()


def _share_memory(x: Tensor, y: Tensor) -> bool:
    (x_begin, x_end), (y_begin, y_end) = _span(x), _span(y)
    if x_end <= y_begin or y_end <= x_begin:  # as nearly always, and seen in less time than NumPy takes
        return False
    try:
        return np.shares_memory(np.asarray(_Addresses(x)), np.asarray(_Addresses(y)), max_work=10**6)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
