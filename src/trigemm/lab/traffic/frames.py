"""Whose access it is: the frame of the kernel's code that makes it."""

from types import CodeType, FrameType
from typing import Any

# Functions that read or write several adjacent elements in one instruction: in the simulator they index with a slice. A load
# takes `array[begin:end].copy()`, a store assigns to `array[begin:end]`; the access belongs to the line that calls the function.
VECTOR_FUNCTIONS: set[CodeType] = set()


def caller(frame: FrameType) -> FrameType:
    """The frame to which an access belongs: the caller's, in a vector function."""
    while frame.f_code in VECTOR_FUNCTIONS and frame.f_back is not None:
        frame = frame.f_back
    return frame


def shown(part: Any) -> str:
    if isinstance(part, slice):
        return ":".join("" if bound is None else str(bound) for bound in (part.start, part.stop))
    return str(part)
