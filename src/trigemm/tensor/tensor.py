"""The tensor: an immutable array of a backend, with operators and gradients."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from trigemm.tensor import checks, operations
from trigemm.tensor.autograd import Node
from trigemm.tensor.backend import Array, Backend
from trigemm.tensor.cpu import CpuBackend
from trigemm.tensor.recording import Recording


class _Freed:
    """In place of the array of a tensor that was freed."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("the tensor was freed; its elements are gone")


class Tensor:
    """Numbers in up to four axes, on a backend. No operation changes a tensor; each makes a new one.

    Args:
        data: a number, nested lists, a NumPy array, or a torch tensor on the CPU. It is copied; `from_dlpack` shares.
        backend: where the elements lie and who computes.
        dtype: "float64", "float32", "float16", "bfloat16" or "int64". By default arrays keep theirs (integers and booleans become
            int64), and Python's floats become float32.
        requires_grad: whether `gradients` can be asked for this tensor.

    Raises:
        TypeError: the data or the dtype is none of these.
        ValueError: there are more than four axes, or rows of unequal length.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x @ x.T + 1
    Tensor([[ 6., 12.],
            [12., 26.]], shape=(2, 2), dtype=float32, backend=cpu)
    >>> x[1].sum().item()
    7.0
    """

    __slots__ = ("array", "backend", "node")
    __array_ufunc__ = None  # NumPy's operators leave operations to us: its numbers work, its arrays are refused

    def __init__(self, data: Any, backend: Backend | None = None, *, dtype: str | None = None, requires_grad: bool = False):
        Recording.refuse("makes a tensor of the host's data", "make it before, and give it as an argument")
        if str(getattr(data, "dtype", "")) == "torch.bfloat16":  # which NumPy lacks
            data, dtype = data.float(), dtype or "bfloat16"
        try:
            host = data.numpy() if isinstance(data, Tensor) else np.asarray(data)
        except ValueError:
            if not isinstance(data, (list, tuple)):
                raise
            raise ValueError("Tensor: nested lists must have rows of equal length; pad the short ones") from None
        if dtype is None:
            whole = host.dtype.kind in "iub"
            given = hasattr(data, "dtype")
            dtype = "int64" if whole else host.dtype.name if given else "float32"
        checks.check_dtype("Tensor", dtype)
        if host.dtype.kind not in "fiub":
            raise TypeError(f"Tensor: elements must be numbers; got {host.dtype}")
        checks.check_rank("Tensor", host.shape)
        if host.dtype.kind == "f" and dtype == "int64" and not np.isfinite(host).all():
            raise ValueError("Tensor: a NaN or an infinity has no int64 value; replace it first")
        self.backend: Backend = backend or CpuBackend()
        self.array: Array = self.backend.array(host, dtype)
        self.node: Node | None = Node() if requires_grad else None

    @classmethod
    def from_dlpack(cls, x: Any, backend: Backend | None = None) -> "Tensor":
        """A tensor that shares the memory of a torch, NumPy or CuPy array; a copy where that is not in row-major order.

        Whoever writes into that memory changes the tensor.
        """
        backend = backend or CpuBackend()
        array = backend.from_dlpack(x)
        checks.check_rank("from_dlpack", array.shape)
        checks.check_dtype("from_dlpack", backend.dtype(array))
        recording = Recording.current.get()
        if recording is not None:
            recording.reads(array)
        return cls._of(array, backend)

    @classmethod
    def _of(cls, array: Array, backend: Backend, node: Node | None = None) -> "Tensor":
        x = cls.__new__(cls)
        x.array, x.backend, x.node = array, backend, node
        recording = Recording.current.get()
        if recording is not None:
            recording.makes(array)
        return x

    @classmethod
    def of(cls, array: Array, backend: Backend, *, requires_grad: bool = False) -> "Tensor":
        """An array of a backend as a tensor; nothing is copied."""
        return cls._of(array, backend, Node() if requires_grad else None)

    def like(self, array: Array, *, requires_grad: bool = False) -> "Tensor":
        """An array of this tensor's backend as a tensor; nothing is copied."""
        return self.of(array, self.backend, requires_grad=requires_grad)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> str:
        return self.backend.dtype(self.array)

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    def detach(self, *, requires_grad: bool = False) -> "Tensor":
        """The same elements without their history; nothing is copied."""
        return self.like(self.array, requires_grad=requires_grad)

    def to(self, backend: Backend) -> "Tensor":
        """A copy on another backend, without history."""
        return Tensor(self, backend, dtype=self.dtype)

    def free(self) -> None:
        """Give the memory back now; whoever uses the tensor afterwards gets a ValueError.

        Queued work that reads it is safe. Tensors that share the memory (by reshape or slices) and gradients to come keep it.
        """
        self.array = _Freed()

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a read-only NumPy array (float32 for bfloat16). Waits for the work that makes them."""
        Recording.refuse("reads a tensor back", "return the tensor, and read it after the replay")
        return self.backend.numpy(self.array)

    def item(self) -> float:
        """The one element as a number; ValueError where there are more or none."""
        if self.size != 1:
            raise ValueError(f"item: the tensor must have one element; got shape {self.shape}")
        number: float = self.numpy().item()
        return number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device

    def __repr__(self) -> str:
        elements = np.array2string(self.numpy(), separator=", ", prefix="Tensor(", threshold=100, precision=4)
        return f"Tensor({elements}, shape={self.shape}, dtype={self.dtype}, backend={self.backend.name})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __getitem__(self, key: Any) -> "Tensor":
        """Integers for leading axes, and at most one slice of step 1 after them. Nothing is copied."""
        keys = key if isinstance(key, tuple) else (key,)
        *numbers, last = keys or (slice(None),)
        if (
            any(isinstance(x, bool) or not isinstance(x, int) for x in numbers)
            or isinstance(last, bool)
            or not isinstance(last, (int, slice))
            or (isinstance(last, slice) and last.step not in (None, 1))
        ):
            raise TypeError(f"indexing takes integers for leading axes, then at most one slice of step 1; got {key!r}")
        if len(keys) > len(self.shape):
            raise IndexError(f"{len(keys)} indices are too many for shape {self.shape}")
        x = self
        for each in numbers:
            x = x._row(each)
        if isinstance(last, int):
            return x._row(last)
        begin, end, _ = last.indices(x.shape[0] if x.shape else 0)
        return apply(operations.slice_rows, x, begin=begin, end=max(begin, end)) if x.shape else x

    def _row(self, number: int) -> "Tensor":
        rows = self.shape[0]
        if not -rows <= number < rows:
            raise IndexError(f"index {number} is outside an axis of size {rows}")
        begin = number % rows
        return apply(operations.slice_rows, self, begin=begin, end=begin + 1).reshape(self.shape[1:])

    def __neg__(self) -> "Tensor":
        return apply(operations.unary, self, code="neg")

    def __add__(self, other: Any) -> "Tensor":
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return _binary("div", other, self)

    def __lt__(self, other: Any) -> "Tensor":
        return _binary("less", self, other)

    def __le__(self, other: Any) -> "Tensor":
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> "Tensor":
        return _binary("less", other, self)

    def __ge__(self, other: Any) -> "Tensor":
        return _binary("less_equal", other, self)

    def __matmul__(self, other: Any) -> "Tensor":
        return apply(operations.matmul, self, other) if isinstance(other, Tensor) else NotImplemented

    def equal(self, other: Any) -> "Tensor":
        """1 where elements are equal, else 0. (`==` compares identity, so that tensors can be keys.)"""
        return _binary("equal", self, other)

    def maximum(self, other: Any) -> "Tensor":
        """The larger of each pair of elements."""
        return _binary("maximum", self, other)

    def masked_fill(self, mask: "Tensor", value: float) -> "Tensor":
        """`value` where the mask is not 0."""
        return apply(operations.masked_fill, self, mask, value=value)

    def exp(self) -> "Tensor":
        return apply(operations.unary, self, code="exp")

    def log(self) -> "Tensor":
        return apply(operations.unary, self, code="log")

    def sqrt(self) -> "Tensor":
        return apply(operations.unary, self, code="sqrt")

    def tanh(self) -> "Tensor":
        return apply(operations.unary, self, code="tanh")

    def gelu(self) -> "Tensor":
        """x/2 * (1 + tanh(√(2/π) (x + 0.044715 x³))), as torch's gelu(approximate="tanh")."""
        return apply(operations.unary, self, code="gelu")

    def cast(self, dtype: str) -> "Tensor":
        """The elements in another dtype."""
        return apply(operations.cast, self, dtype=dtype)

    @property
    def T(self) -> "Tensor":
        """The last two axes swapped."""
        rank = len(self.shape)
        if rank < 2:
            raise ValueError(f"T: it swaps the last two axes; got shape {self.shape}")
        return self.permute(*range(rank - 2), rank - 1, rank - 2)

    def permute(self, *axes: int) -> "Tensor":
        """Axis i of the result is axis axes[i]."""
        return apply(operations.permute, self, axes=[checks.check_axis("permute", axis, len(self.shape)) for axis in _flat(axes)])

    def expand(self, *shape: int) -> "Tensor":
        """Axes of size 1 stretched to a shape, with new axes on the left."""
        return apply(operations.expand, self, shape=_flat(shape))

    def reshape(self, *shape: Any) -> "Tensor":
        """The same elements in another shape; one size may be -1. Nothing is copied."""
        return apply(operations.reshape, self, shape=_flat(shape))

    def sum(self, axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
        """The sum of all elements, or over one axis."""
        total = apply(operations.sum_all, self) if axis is None else apply(operations.sum_axis, self, axis=axis)
        return self._keep(total, axis) if keepdims else total

    def mean(self, axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
        """The mean of all elements, or over one axis."""
        total = self.sum(axis, keepdims=keepdims)
        return total * (total.size / self.size if self.size else float("nan"))

    def max(self, axis: int = -1, *, keepdims: bool = False) -> "Tensor":
        """The largest elements along one axis."""
        largest = apply(operations.max_axis, self, axis=axis)
        return self._keep(largest, axis) if keepdims else largest

    def _keep(self, reduced: "Tensor", axis: int | None) -> "Tensor":
        rank = len(self.shape)
        return reduced.reshape([1 if axis is None or i == axis % rank else size for i, size in enumerate(self.shape)])

    def softmax(self) -> "Tensor":
        """exp(x - max) / Σ exp(x - max) over the last axis."""
        return apply(operations.softmax, self)

    def log_softmax(self) -> "Tensor":
        """(x - max) - ln Σ exp(x - max) over the last axis."""
        return apply(operations.log_softmax, self)


def _flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes that came one by one or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


def _binary(code: str, a: Any, b: Any) -> Tensor:
    if not isinstance(a, OPERANDS) or not isinstance(b, OPERANDS):
        return NotImplemented  # type: ignore[no-any-return]
    if not isinstance(a, Tensor):
        a = float(a)
    elif not isinstance(b, Tensor):
        b = float(b)
    return apply(operations.binary, a, b, code=code)


OPERANDS = (Tensor, int, float, np.number)


def apply(operation: Callable[..., operations.Result], *arguments: Any, **parameters: Any) -> Tensor:
    """The result of one of `operations` on tensors and numbers. It remembers them if one requires a gradient."""
    recording = Recording.current.get()
    backend: Any = None
    arrays: list[Any] = []
    parents: list[Node | None] = []
    for x in arguments:
        if not isinstance(x, Tensor):
            arrays.append(x)
            parents.append(None)
            continue
        if backend is None:
            backend = x.backend
        elif x.backend is not backend and x.backend != backend:
            name = parameters.get("code", operation.__name__)
            raise ValueError(
                f"{name}: tensors are on different backends, {backend.name} and {x.backend.name}; move one with .to(backend)"
            )
        if recording is not None:
            recording.reads(x.array)
        arrays.append(x.array)
        parents.append(x.node)
    result, pull = operation(backend, *arrays, **parameters)
    return Tensor._of(result, backend, Node(parents, pull) if any(parents) else None)
