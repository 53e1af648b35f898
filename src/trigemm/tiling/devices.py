"""What a plan must know of a GPU: its multiprocessors, what each of them holds, and the rates that it reaches."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Its ceilings are what it reaches, not what its datasheet says.

    sms               multiprocessors
    shared_per_sm     bytes of shared memory of a multiprocessor
    shared_per_block  bytes of it that one block may have
    registers_per_sm  32-bit registers
    warps_per_sm      warps that can be resident
    memory_gbps       GB/s, read and written
    tensor_tflops     TFLOP/s of products of 16-bit floats
    measured          whether the two ceilings were measured; if not, they are the datasheet's times the H200's shares of its own
    """

    name: str
    sms: int
    shared_per_sm: int
    shared_per_block: int
    registers_per_sm: int
    warps_per_sm: int
    memory_gbps: float
    tensor_tflops: float
    measured: bool


def names() -> list[str]:
    """The devices that `known` knows.

    >>> "h200" in names()
    True
    """
    return list(_data())


def known(name: str) -> Device:
    """A device of the data file. Raises ValueError for one that is not there.

    >>> known("h200").sms
    132
    """
    data = _data()
    if name not in data:
        raise ValueError(f"no device {name!r}; known are {', '.join(data)}, and auto on the command line")
    entry, reference = data[name], data["h200"]

    def ceiling(key: str) -> float:
        reached: float = entry.get("measured", {}).get(key, entry[key] * reference["measured"][key] / reference[key])
        return reached

    return Device(
        name=entry["name"],
        sms=entry["sms"],
        shared_per_sm=entry["shared_per_sm"],
        shared_per_block=entry["shared_per_block"],
        registers_per_sm=entry["registers_per_sm"],
        warps_per_sm=entry["warps_per_sm"],
        memory_gbps=ceiling("memory_gbps"),
        tensor_tflops=ceiling("tensor_tflops"),
        measured="measured" in entry,
    )


def here(measure: Callable[[], tuple[float, float]]) -> Device:
    """The GPU of this machine. `measure` gives its ceilings, GB/s and TFLOP/s, where the data file has not measured its kind.

    Raises ValueError where there is none.
    """
    if not torch.cuda.is_available():
        raise ValueError(f"there is no CUDA device here; name one of {', '.join(names())}")
    found: Any = torch.cuda.get_device_properties()  # not all of its fields have types
    same = (
        device
        for device in map(known, names())
        if device.measured and (device.name, device.sms) == (found.name, found.multi_processor_count)
    )
    kind = next(same, None)
    memory_gbps, tensor_tflops = (kind.memory_gbps, kind.tensor_tflops) if kind else measure()
    return Device(
        name=found.name,
        sms=found.multi_processor_count,
        shared_per_sm=found.shared_memory_per_multiprocessor,
        shared_per_block=found.shared_memory_per_block_optin,
        registers_per_sm=found.regs_per_multiprocessor,
        warps_per_sm=found.max_threads_per_multi_processor // found.warp_size,
        memory_gbps=memory_gbps,
        tensor_tflops=tensor_tflops,
        measured=True,
    )


@cache
def _data() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("trigemm.tiling").joinpath("devices.toml").read_text(encoding="utf-8"))
