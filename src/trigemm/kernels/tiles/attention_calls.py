"""What the launches of attention share: their call, its scalars, operands as kernels take them, plans, what stays on the GPU."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import e, log2
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from trigemm.kernels.tiles.attention_config import Config, product_precision
from trigemm.kernels.tiles.descriptors import addressable, describer, has_tma
from trigemm.kernels.tiles.operand import Form, cut_batches, form_of
from trigemm.kernels.tiles.parts import Parts, Split
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan

LOG2_E = log2(e)
SHORT = 16
"""Tiles streamed by the launch that repairs what cannot be split (see `multiply`): it is rare, and small tiles compile fast."""

LONG = 128
PIECE = 64
"""Of float32 rows with more than LONG components, so many are in registers at a time."""


class Call(NamedTuple):
    """What a launch depends on beside the forms of its operands."""

    device: torch.device
    lengths: torch.dtype | None
    mask: bool
    window: int | None
    scores: str
    precision: str


class Masks(NamedTuple):
    """Key lengths and key mask as kernels take them; any tensor where there is none."""

    lengths: Tensor
    mask: Tensor


def call_of(
    q: Tensor,
    stats: Tensor,
    *,
    key_lengths: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
    precision: str,
) -> tuple[Call, Masks, tuple[float, float]]:
    """The call, its masks, and the scalars (factor, inner) of its scores (see `attention_parts`)."""
    if softcap is not None:
        scores, factor, inner = "capped", softcap * LOG2_E, scale / softcap
    else:
        scores, factor, inner = ("raw", scale * LOG2_E, 1.0) if scale > 0 else ("scaled", LOG2_E, scale)
    lengths = stats if key_lengths is None else key_lengths.contiguous()
    mask = stats if key_mask is None else key_mask.contiguous().view(torch.uint8)
    call = Call(q.device, None if key_lengths is None else key_lengths.dtype, key_mask is not None, window, scores, precision)
    return call, Masks(lengths, mask), (factor, inner)


def accelerated(x: Form, device: torch.device) -> bool:
    """Whether an operand is loaded by TMA: where it is stretched over a dimension, its batches and heads have no descriptor."""
    stretched = any(stride == 0 and size > 1 for stride, size in zip(x.stride, x.shape, strict=True))
    return has_tma(device) and addressable(x) and not stretched


def held_at_once(dtype: torch.dtype, bk: int, precision: str) -> int:
    """How many of the bk components of a row of queries, or of keys, a program holds in registers at a time."""
    if precision == "ieee":
        return SHORT
    return PIECE if dtype == torch.float32 and bk > LONG else bk


def loadable(x: Tensor) -> Tensor:
    """x, or a copy of it where its rows are long, in float32, and could be loaded by pointers alone: registers would not do."""
    if x.dtype != torch.float32 or x.shape[-1] <= LONG or not has_tma(x.device) or accelerated(form_of(x), x.device):
        return x
    padded = x.new_empty((*x.shape[:-1], triton.cdiv(x.shape[-1], 4) * 4))
    return padded[..., : x.shape[-1]].copy_(x)


class Operands:
    """Operands (B,NH,…,…) of a launch: those with a block as descriptors where TMA can serve, the others as pointers."""

    def __init__(self, forms: Sequence[Form], blocks: Sequence[Sequence[int] | None], device: torch.device):
        self.describe = [
            describer(form, block) if block and accelerated(form, device) else None
            for form, block in zip(forms, blocks, strict=True)
        ]
        self.orders: list[Any] = []
        self.strides: list[int] = []
        for form, describe in zip(forms, self.describe, strict=True):
            self.orders += ("tma", 1) if describe else (form.order, form.align)
            self.strides += [stride // form.align for stride in form.stride]

    def __call__(self, *tensors: Tensor) -> list[Any]:
        return [describe(x) if describe else x for x, describe in zip(tensors, self.describe, strict=True)]


def split_keys(k: Form, v: Form, depth: int) -> Callable[[Tensor, Tensor], list[Parts]]:
    """Splits keys and values once, for all programs of a float32 forward: parts take as much memory as they do."""
    splits = [
        Split(x, next(cut_batches(x)), 0, depth, operands=operands, blocks=True)
        for x, operands in ([(k, 2)] if k == v else [(k, 1), (v, 1)])
    ]
    if len(splits) == 1:
        return splits[0]
    return lambda k, v: [*splits[0](k), *splits[1](v)]


Made = tuple[int, tuple[Any, ...], Callable[..., Any]]


def plan_of(kernel: Any, kind: str, q: Form, call: Call, config: Config, make: Callable[[Config, int, str], Made]) -> Plan:
    """A plan of one launch, and forward of one that repairs it; `make` gives programs, arguments and description of operands.

    Gradients are not repaired: bfloat16 parts hold all numbers but the smallest, from 2^-110 on.
    """
    bk = max(16, triton.next_power_of_2(q.shape[-1]))

    def launch(_: None, precision: str) -> Launch:
        cut = config
        if precision == "ieee":
            cut = config._replace(registers=0)
            cut = cut._replace(bm=SHORT) if kind == "columns" else cut._replace(bn=SHORT)
        programs, arguments, describe = make(cut, bk, split if precision == "gradient" else precision)
        return Launch(kernel, programs, arguments, offsets=(), describe=describe, **cut.options)

    split = product_precision(kind, q.dtype, call.precision)
    return Plan([None], launch, "gradient" if kind in ("row_sums", "queries", "keys") else split)  # type: ignore[list-item, arg-type]


@lru_cache(PLANS)
def on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """A list of heads on the device, kept: a call that a CUDA graph records may not copy it there."""
    return torch.tensor(numbers, dtype=torch.int32, device=device)


@lru_cache(PLANS)
def stream_beside(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """Another stream, as urgent, kept: a CUDA graph that records one records both, and no other caller may use it then."""
    return torch.cuda.Stream(stream.device, priority=stream.priority)
