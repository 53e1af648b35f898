"""Which calls of attention `hopper_kernel` serves, how it is configured there, and its launch."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trigemm.kernels.tiles.attention_calls import Call, accelerated, split_keys
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
    ahead            whether products run while powers are raised; always in float32
    """

    together: int
    short: int
    slots: int
    limit: int
    registers: int
    load_registers: int
    ahead: bool


ALL = 2**20  # blocks: more than there are

# Bits of the dtype -> head size -> configuration.
TABLE = {
    16: {64: HopperConfig(24, 2, 6, 80, 104, 24, False), 128: HopperConfig(1, ALL, 6, 168, 232, 40, True)},
    32: {64: HopperConfig(12, 1, 6, 168, 232, 40, True)},
}
LEAST_QUERIES = 128  # with fewer, one of two warpgroups has nothing to do


def is_hopper(device: torch.device) -> bool:
    """Whether a device has products of warpgroups: those before and after Hopper have others."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@lru_cache(PLANS)
def hopper_config(operands: tuple[Form, ...], weights: Form, call: Call) -> HopperConfig | None:
    """The configuration for q, k, v, output and weights, with zeros or anything above the diagonal; None: it does not serve."""
    q = operands[0]
    plain = call.scores == "raw" and call.lengths is None and not call.mask and call.window is None
    alike = all(x.dtype == q.dtype for x in (*operands, weights))
    exact = q.dtype in (torch.float16, torch.bfloat16) or (q.dtype == torch.float32 and call.precision == "highest")
    many = q.shape[-2] >= LEAST_QUERIES
    whole = weights.shape[-1] % weights.vector == 0  # TMA may write beyond the end of other rows
    if (
        plain
        and alike
        and exact
        and many
        and whole
        and is_hopper(call.device)
        and all(accelerated(x, call.device) for x in (*operands, weights))
    ):
        return TABLE[8 * q.dtype.itemsize].get(q.shape[-1])
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
    config: HopperConfig,
    portable: Plan,
) -> Plan:
    """The launch for the heads with weights, in place of a portable one, whose repairs in float32 are those of this one, too.

    The kernel is imported when it is first needed.
    """
    from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float16, float32
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from trigemm.kernels.tiles.hopper_kernel import hopper_kernel
    from trigemm.kernels.tiles.hopper_loads import BM, BN, ROWS
    from trigemm.kernels.tiles.hopper_parts import hopper_parts_kernel

    batch, all_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    dtypes = {torch.float16: float16, torch.bfloat16: bfloat16, torch.float32: float32}
    split = q.dtype == torch.float32

    def described(form: Form, rows: int, columns: int) -> Callable[[Tensor], Any]:
        layout = NVMMASharedLayout.get_default_for([1, 1, rows, columns], dtypes[form.dtype])
        return describer(form, (rows, columns), TensorDescriptor, layout=layout)

    describe_q, describe_o = (described(form, ROWS.value, size) for form in (q, output))
    describe_w = described(weights, ROWS.value, BN.value)
    if split:
        splits = split_keys(k, v, size)
        shape = batch, kv_heads, keys, size
        strides = kv_heads * keys * size, keys * size, size, 1
        describe_part = described(Form(shape, strides, torch.float16, True), BN.value, size)
    else:
        describe_k, describe_v = (described(form, BN.value, size) for form in (k, v))

    def describe(q: Tensor, k: Tensor, v: Tensor, output: Tensor, weights: Tensor, *rest: Tensor) -> tuple[Any, ...]:
        if not split:
            return describe_q(q), describe_k(k), describe_v(v), describe_o(output), describe_w(weights), *rest[:2]
        (k_high, k_low, *k_scales), (v_high, v_low, *v_scales) = splits(k, v)
        parts = (describe_part(x) for x in (k_high, k_low, v_high, v_low))
        return describe_q(q), *parts, describe_o(output), describe_w(weights), *rest[:2], *k_scales, *v_scales

    arguments = (
        queries, keys, all_heads, heads, batch, all_heads // kv_heads, config.together, config.short, listed, fill,
        config.slots, *(() if split else (config.ahead,)), config.registers, config.load_registers, size,
    )  # fmt: skip
    kernel = hopper_parts_kernel if split else hopper_kernel
    programs = ceil_div(queries, BM.value) * batch * heads

    def launch(_: None, precision: str) -> Any:
        if precision == "ieee":
            return portable.launches[1]
        return Launch(kernel, programs, arguments, offsets=(), describe=describe, num_warps=4, maxnreg=config.limit)

    return Plan([None], launch, "float16x2" if split else "tf32")  # type: ignore[list-item, arg-type]
