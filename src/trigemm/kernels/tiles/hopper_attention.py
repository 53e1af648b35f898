"""Which calls of attention `hopper_kernel` serves, how it is configured there, and its launch."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trigemm.kernels.tiles.attention_calls import Call, accelerated
from trigemm.kernels.tiles.descriptors import describer
from trigemm.kernels.tiles.operand import Form
from trigemm.kernels.tiles.plan import PLANS, Launch, Plan
from trigemm.triangle import ceil_div


class HopperConfig(NamedTuple):
    """How the kernel is cut and compiled (see there).

    together         heads whose programs go from the longest rows to the shortest side by side, before those of the next
    short            how many blocks of rows, the shortest of all heads, come after them
    slots            tiles of keys or values that are in shared memory at a time
    limit            registers that a thread begins with
    registers        of a thread that multiplies
    load_registers   of one that does not
    ahead            whether products run while powers are raised
    """

    together: int
    short: int
    slots: int
    limit: int
    registers: int
    load_registers: int
    ahead: bool


ALL = 2**20  # blocks: more than there are

# Head size -> configuration.
TABLE = {64: HopperConfig(24, 2, 6, 80, 104, 24, False), 128: HopperConfig(1, ALL, 6, 168, 232, 40, True)}
LEAST_QUERIES = 128  # with fewer, one of two warpgroups has nothing to do


def is_hopper(device: torch.device) -> bool:
    """Whether a device has products of warpgroups: those before and after Hopper have others."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@lru_cache(PLANS)
def hopper_config(operands: tuple[Form, ...], weights: Form, call: Call) -> HopperConfig | None:
    """The configuration for q, k, v, output and weights, with zeros or anything above the diagonal; None: it does not serve."""
    q = operands[0]
    plain = call.scores == "raw" and call.lengths is None and not call.mask and call.window is None
    half = q.dtype in (torch.float16, torch.bfloat16) and all(x.dtype == q.dtype for x in (*operands, weights))
    many = q.shape[-2] >= LEAST_QUERIES
    whole = weights.shape[-1] % weights.vector == 0  # TMA may write beyond the end of other rows
    if (
        plain
        and half
        and many
        and whole
        and is_hopper(call.device)
        and all(accelerated(x, call.device) for x in (*operands, weights))
    ):
        return TABLE.get(q.shape[-1])
    return None


@lru_cache(PLANS)
def hopper_plan(
    q: Form,
    k: Form,
    v: Form,
    output: Form,
    weights: Form,
    heads: int,
    listed: bool,
    fill: bool,
    call: Call,
    config: HopperConfig,
) -> Plan:
    """The launch for the heads with weights. The kernel is imported when it is first needed."""
    from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float16
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from trigemm.kernels.tiles.hopper_kernel import hopper_kernel
    from trigemm.kernels.tiles.hopper_loads import BM, BN, ROWS

    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    dtype = {torch.float16: float16, torch.bfloat16: bfloat16}[q.dtype]
    rows = ROWS.value, BN.value, BN.value, ROWS.value, ROWS.value
    columns = size, size, size, size, BN.value
    describers = [
        describer(form, block, TensorDescriptor, layout=NVMMASharedLayout.get_default_for([1, 1, *block], dtype))
        for form, *block in zip((q, k, v, output, weights), rows, columns, strict=True)
    ]

    def describe(q: Tensor, k: Tensor, v: Tensor, output: Tensor, weights: Tensor, *rest: Tensor) -> tuple[Any, ...]:
        described = (describe(x) for describe, x in zip(describers, (q, k, v, output, weights), strict=True))
        return *described, *rest[:2]

    arguments = (
        queries, keys, all_heads, heads, batch, all_heads // kv_heads, config.together, config.short,
        listed, fill, config.slots, config.ahead, config.registers, config.load_registers, size,
    )  # fmt: skip
    programs = ceil_div(queries, BM.value) * batch * heads

    def launch(*_: Any) -> Launch:
        return Launch(hopper_kernel, programs, arguments, offsets=(), describe=describe, num_warps=4, maxnreg=config.limit)

    return Plan([None], launch, "tf32")  # type: ignore[list-item]
