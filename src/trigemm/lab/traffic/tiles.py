"""Tile-level (Triton) kernels, counted in Triton's interpreter: bytes loaded and stored, attempted and let through by masks.

A tile-level kernel does not say which thread makes which access, so there are no requests and no sectors to count: the compiler
decides. The interpreter runs every program of the grid, and needs TRITON_INTERPRET=1 before the kernels are defined.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from triton.runtime import interpreter

from trigemm.lab.traffic.count import Counts
from trigemm.lab.traffic.log import Line, Operation
from trigemm.lab.traffic.result import Access, Traffic

Dim3 = tuple[int, int, int]


@contextmanager
def record_tiles() -> Iterator[list[Traffic]]:
    """Within the context, each launch of a Triton kernel is counted; the list grows by one `Traffic` a launch."""
    launches: list[Traffic] = []
    tensors: list[tuple[str, int, int]] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")
    plain = {name: getattr(builder, name) for name in names}
    call, set_grid_dim = executor.__call__, builder.set_grid_dim

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.append(Traffic(self.fn.__name__, (1, 1, 1), (1, 1, 1), 0))
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        given = {name: getattr(arg, "base", arg) for name, arg in given.items()}  # the tensor of a descriptor
        tensors[:] = [(name, *_extent(arg)) for name, arg in given.items() if hasattr(arg, "data_ptr")]
        return call(self, *args, **kwargs)

    def grid(self: Any, nx: int, ny: int, nz: int) -> Any:
        launches[-1].grid = (nx, ny, nz)
        launches[-1].blocks = launches[-1].traced = nx * ny * nz
        return set_grid_dim(self, nx, ny, nz)

    def counted(name: str, operation: Operation) -> Any:
        def method(self: Any, *args: Any) -> Any:
            pointers = args[1] if name == "create_atomic_rmw" else args[0]
            mask = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}.get(name)
            size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            enabled = np.ones(1, dtype=bool) if mask is None else args[mask].data
            enabled = np.broadcast_to(enabled, pointers.data.shape)
            first = int(pointers.data[enabled].min()) if enabled.any() else int(pointers.data.flat[0])
            array = "/".join(name for name, low, high in tensors if low <= first < high)
            elements = int(enabled.sum())
            counts = Counts(elements=elements, bytes=elements * size, attempted_bytes=pointers.data.size * size)
            access = Access("global", array, operation, _line(sys._getframe(1)))
            launches[-1].rows[access] = launches[-1].rows.get(access, Counts()) + counts
            return plain[name](self, *args)

        return method

    operations: dict[str, Operation] = dict(zip(names, ("load", "store", "atomic", "atomic"), strict=True))
    executor.__call__, builder.set_grid_dim = launched, grid
    for name, operation in operations.items():
        setattr(builder, name, _with_keywords(counted(name, operation), plain[name]))
    try:
        yield launches
    finally:
        executor.__call__, builder.set_grid_dim = call, set_grid_dim
        for name in names:
            setattr(builder, name, plain[name])


def _with_keywords(method: Any, plain: Any) -> Any:
    """`method` for callers that name their arguments as `plain` does."""
    parameters = plain.__code__.co_varnames[1 : plain.__code__.co_argcount]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, *(kwargs[name] for name in parameters[len(args) :]))

    return call


def _extent(tensor: Any) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _line(frame: FrameType | None) -> Line:
    """The innermost line outside of Triton."""
    while frame is not None and ("/triton/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    assert frame is not None
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
