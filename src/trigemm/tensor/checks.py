"""What the operations accept. Each refusal names the operation, what was given, and what would work."""

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from trigemm.layout import RANK, broadcast_shape
from trigemm.tensor.backend import DTYPES, FLOATS, Array, Backend


def is_integer(x: object) -> bool:
    """Whether it is one of Python's integers or NumPy's; True and False are none."""
    return type(x) is int or isinstance(x, np.integer)


def check_integer(operation: str, name: str, value: Any, least: int | None = None) -> int:
    """An integer, of Python or NumPy, that is not below `least`."""
    if not is_integer(value):
        raise TypeError(f"{operation}: {name} must be an integer; got {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{operation}: {name} must be at least {least}; got {value}")
    return int(value)


def check_number(operation: str, name: str, value: Any, least: float | None = None) -> float:
    """A real number, of Python or NumPy, that is not below `least`, where NaN is; True and False are none."""
    if least is not None:
        if not (number := check_number(operation, name, value)) >= least:
            raise ValueError(f"{operation}: {name} must be at least {least}; got {value}")
        return number
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{operation}: {name} must be a number; got {value if value is None else type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{operation}: {name} is beyond a float, which reaches to 1.8e308") from None


def check_flag(operation: str, name: str, value: Any) -> bool:
    """True or False, and nothing that only counts as such."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{operation}: {name} must be True or False; got {value!r}")
    return bool(value)


def check_code(code: str, codes: Collection[str]) -> None:
    """One of the codes that the contract lists."""
    if code not in codes:
        raise ValueError(f"{code}: no such operation; there are {', '.join(codes)}")


def check_backend(operation: str, backend: Any) -> None:
    """An object that computes, not its name or its class."""
    if isinstance(backend, type) or not hasattr(backend, "binary"):
        raise TypeError(f"{operation}: the backend must be one such as CpuBackend() or CudaBackend(); got {backend!r}")


def check_same(operation: str, backend: Backend, other: Backend) -> None:
    """Two tensors are on one backend."""
    if backend != other:
        raise ValueError(f"{operation}: tensors are on different backends, {backend!r} and {other!r}; move one with .to(backend)")


def check_rank(operation: str, shape: Sequence[int]) -> None:
    """At most four axes."""
    if len(shape) > RANK:
        raise ValueError(f"{operation}: a tensor has at most {RANK} axes; got shape {tuple(shape)}; merge some with reshape")


def check_dtype(operation: str, dtype: object) -> str:
    """The name of a dtype that tensors can have."""
    if not isinstance(dtype, (str, np.dtype)) or dtype not in DTYPES:
        raise TypeError(f"{operation}: dtypes are {', '.join(DTYPES)}; got {dtype}")
    return str(dtype)


def check_floats(operation: str, backend: Backend, *arrays: Array) -> None:
    """All arrays have one floating dtype."""
    dtypes = [backend.dtype(x) for x in arrays]
    if dtypes[0] not in FLOATS or dtypes.count(dtypes[0]) < len(dtypes):
        given = " and ".join(f"{tuple(x.shape)} {dtype}" for x, dtype in zip(arrays, dtypes, strict=True))
        raise TypeError(f"{operation}: operands must have one dtype, {', '.join(FLOATS)}; got {given}; convert with .cast(dtype)")


def check_indices(operation: str, backend: Backend, indices: Array) -> None:
    """int64, so that no NaN and no fraction is an index."""
    if backend.dtype(indices) != "int64":
        raise TypeError(f"{operation}: indices must be int64; got {backend.dtype(indices)}; convert with .cast('int64')")


def check_axis(operation: str, axis: Any, rank: int) -> int:
    """The axis, counted from the front."""
    if rank == 0:
        raise ValueError(f"{operation}: a tensor of shape () has no axis {axis!r}; leave it out")
    if not is_integer(axis) or not -rank <= axis < rank:
        raise ValueError(f"{operation}: axis must be an integer from {-rank} to {rank - 1} for {rank} axes; got {axis!r}")
    return int(axis) % rank


def check_maximum(shape: Sequence[int], axis: int) -> None:
    """The axis has elements, of which one is the largest."""
    if shape[axis] == 0:
        raise ValueError(f"max: axis {axis} of shape {tuple(shape)} is empty; only a sum has a value there")


def check_broadcast(operation: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape that two shapes broadcast to."""
    if a == b or not b:
        return tuple(a)
    shape = broadcast_shape(a, b)
    if shape is None:
        raise ValueError(
            f"{operation}: shapes {tuple(a)} and {tuple(b)} do not broadcast; counted from the right, sizes must be equal or 1"
        )
    return shape


def check_sizes(operation: str, sizes: Iterable[Any]) -> tuple[int, ...]:
    """The sizes of a shape as Python's integers; -1, where it means something, is one too."""
    shape = tuple(sizes)
    if {*map(type, shape)} <= {int}:
        return shape
    if not all(map(is_integer, shape)):
        raise TypeError(f"{operation}: sizes must be integers; got {', '.join(map(repr, shape))}")
    return tuple(map(int, shape))


def check_size(operation: str, shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The wanted shape with at most one -1 worked out; it has as many elements as `shape`."""
    check_rank(operation, wanted)
    known = prod(size for size in wanted if size != -1)
    total = prod(shape)
    unknown = sum(size == -1 for size in wanted)
    if unknown == 1 and known and total % known == 0:
        return tuple(total // known if size == -1 else size for size in wanted)
    if unknown or total != known or any(size < 0 for size in wanted):
        raise ValueError(f"{operation}: shape {tuple(shape)} has {total} elements and does not fit {tuple(wanted)}")
    return tuple(wanted)


def check_product(operation: str, a: Sequence[int], b: Sequence[int], *, same_batch: bool) -> None:
    """(…,M,K) x (…,K,N), both as they are multiplied."""
    given = f"got {tuple(a)} and {tuple(b)}; shapes that fit are (…,M,K) and (…,K,N)"
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{operation}: operands need two axes or more; {given}")
    if a[-1] != b[-2]:
        raise ValueError(f"{operation}: inner sizes differ, {a[-1]} and {b[-2]}; {given}")
    if same_batch and tuple(a[:-2]) != tuple(b[:-2]):
        raise ValueError(f"{operation}: batch axes must be equal; {given}")
    check_broadcast(operation, a[:-2], b[:-2])
