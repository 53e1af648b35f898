"""The tensor: an immutable array of a backend, with operators and gradients."""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import torch

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
        data: a number, nested lists, a NumPy array, or a torch tensor. It is copied; `from_dlpack` shares.
        backend: where the elements lie and who computes.
        dtype: "float64", "float32", "float16", "bfloat16" or "int64". By default arrays keep theirs (integers and booleans become
            int64), and Python's floats become float32. float64 is the CPU's alone, bfloat16 a GPU's. int64 is for indices, and
            has no arithmetic.
        requires_grad: whether `gradients` can be asked for this tensor, which must be of floats.

    Raises:
        TypeError: the data, the backend or the dtype is none of these.
        ValueError: there are more than four axes, rows of unequal length, or numbers that an int64 does not hold.

    A pickled or copied tensor has the elements, and no history.

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
        self.backend: Backend = CpuBackend() if backend is None else backend
        checks.check_backend("Tensor", self.backend)
        if isinstance(data, torch.Tensor):
            data = _plain("Tensor", data).cpu()
            if data.dtype == torch.bfloat16:  # which NumPy lacks
                data, dtype = data.float(), dtype or "bfloat16"
            elif data.is_floating_point():
                checks.check_dtype("Tensor", _name(data.dtype))
        if isinstance(data, np.ma.MaskedArray):
            raise TypeError("Tensor: a masked array has no elements where it is masked; give its .filled(value)")
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
        dtype = checks.check_dtype("Tensor", dtype)
        if host.dtype.kind not in "fiub":
            raise TypeError(f"Tensor: elements must be real numbers of at most 64 bits; got {host.dtype}")
        checks.check_rank("Tensor", host.shape)
        if host.dtype.kind in "fu" and dtype == "int64":
            outside = _no_int64(host)
            if outside.any():
                raise ValueError(f"Tensor: {host[outside][0]} has no int64 value; replace it first")
        self.array: Array = self.backend.array(host, dtype)
        self.node: Node | None = Node() if _wants_gradient(requires_grad, dtype) else None

    @classmethod
    def from_dlpack(cls, x: Any, backend: Backend | None = None) -> "Tensor":
        """A tensor that shares the memory of a torch, NumPy or CuPy array; a copy where that is not in row-major order.

        Whoever writes into that memory changes the tensor. Read-only memory is copied, too.
        """
        backend = CpuBackend() if backend is None else backend
        checks.check_backend("from_dlpack", backend)
        if isinstance(x, Tensor):
            x = x.array
        if isinstance(x, torch.Tensor):
            x = _plain("from_dlpack", x)
        if isinstance(x, np.ma.MaskedArray) or not hasattr(x, "__dlpack__"):
            raise TypeError(
                f"from_dlpack: it takes a torch, NumPy or CuPy array; got {type(x).__name__}; Tensor(x) copies lists and numbers"
            )
        if isinstance(x, (np.ndarray, torch.Tensor)):
            checks.check_dtype("from_dlpack", _name(x.dtype))
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
        return cls._of(array, backend, Node() if _wants_gradient(requires_grad, backend.dtype(array)) else None)

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

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (np.array(self.numpy()), self.backend, self.dtype, self.requires_grad)

    def __dlpack__(self, **options: Any) -> Any:
        readable = isinstance(self.array, np.ndarray) and (options.get("max_version") or (0, 0)) >= (1, 0)
        array = self.backend.numpy(self.array) if readable else self.array  # read-only, where the protocol has a word for it
        return array.__dlpack__(**options)

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

    def __iter__(self) -> "Iterator[Tensor]":
        return (self._row(number) for number in range(len(self)))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"a tensor is true or false if it has one element; got shape {self.shape}; take its sum or max")
        return bool(self.item())

    def __getitem__(self, key: Any) -> "Tensor":
        """Integers for leading axes, and at most one slice of step 1 after them. Nothing is copied."""
        keys = key if isinstance(key, tuple) else (key,)
        *numbers, last = keys or (slice(None),)
        if (
            not all(map(checks.is_integer, numbers))
            or not (checks.is_integer(last) or isinstance(last, slice))
            or (isinstance(last, slice) and last.step not in (None, 1))
        ):
            raise TypeError(f"indexing takes integers for leading axes, then at most one slice of step 1; got {key!r}")
        if len(keys) > len(self.shape):
            raise IndexError(f"{len(keys)} indices are too many for shape {self.shape}")
        x = self
        for each in numbers:
            x = x._row(each)
        if not isinstance(last, slice):
            return x._row(last)
        begin, end, _ = last.indices(x.shape[0] if x.shape else 0)
        return apply(operations.slice_rows, x, begin=begin, end=max(begin, end)) if x.shape else x

    def _row(self, number: int) -> "Tensor":
        rows = self.shape[0]
        if not rows:
            raise IndexError(f"index {number} is outside an empty axis, of shape {self.shape}")
        if not -rows <= number < rows:
            raise IndexError(f"index {number} is outside an axis of size {rows}")
        begin = int(number) % rows
        row = apply(operations.slice_rows, self, begin=begin, end=begin + 1)
        return apply(operations.reshape, row, shape=self.shape[1:])

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
        if not isinstance(other, Tensor):
            raise TypeError(f"matmul: operands must be tensors; got {type(other).__name__}; make one with Tensor(x, backend)")
        return apply(operations.matmul, self, other)

    def equal(self, other: Any) -> "Tensor":
        """1 where elements are equal, else 0. (`==` compares identity, so that tensors can be keys.)"""
        return _binary("equal", self, other)

    def maximum(self, other: Any) -> "Tensor":
        """The larger of each pair of elements; where they are equal, each has half of the gradient."""
        return _binary("maximum", self, other)

    def masked_fill(self, mask: "Tensor", value: float) -> "Tensor":
        """`value` where the mask is not 0."""
        if not isinstance(mask, Tensor):
            raise TypeError(f"masked_fill: the mask must be a tensor; got {type(mask).__name__}; Tensor(x, backend) makes one")
        return apply(operations.masked_fill, self, mask, value=checks.check_number("masked_fill", "the value", value))

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
        return apply(operations.expand, self, shape=checks.check_sizes("expand", _flat(shape)))

    def reshape(self, *shape: Any) -> "Tensor":
        """The same elements in another shape; one size may be -1. Nothing is copied."""
        return apply(operations.reshape, self, shape=checks.check_sizes("reshape", _flat(shape)))

    def sum(self, axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
        """The sum of all elements, or over one axis."""
        total = apply(operations.sum_all, self) if axis is None else apply(operations.sum_axis, self, axis=axis)
        return self._keep(total, axis) if checks.check_flag("sum", "keepdims", keepdims) else total

    def mean(self, axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
        """The mean of all elements, or over one axis. Only the mean itself is rounded to half precision, not the sum."""
        checks.check_flag("mean", "keepdims", keepdims)
        half = self.dtype in ("float16", "bfloat16")
        total = (self.cast("float32") if half else self).sum(axis, keepdims=keepdims)
        mean = total * (total.size / self.size if self.size else float("nan"))
        return mean.cast(self.dtype) if half else mean

    def max(self, axis: int = -1, *, keepdims: bool = False) -> "Tensor":
        """The largest elements along one axis; equal ones share the gradient."""
        largest = apply(operations.max_axis, self, axis=axis)
        return self._keep(largest, axis) if checks.check_flag("max", "keepdims", keepdims) else largest

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
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], Iterable) else sizes


def _plain(operation: str, x: torch.Tensor) -> torch.Tensor:
    """A torch tensor whose memory holds its elements: without history, and not negated or conjugated in passing."""
    if x.layout != torch.strided or x.is_meta:
        kind = "meta" if x.is_meta else _name(x.layout)
        raise TypeError(f"{operation}: a torch tensor must be dense and have elements; got one that is {kind}")
    return x.detach().resolve_conj().resolve_neg()


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _restored(elements: np.ndarray[Any, Any], backend: Backend, dtype: str, requires_grad: bool) -> Tensor:
    return Tensor(elements, backend, dtype=dtype, requires_grad=requires_grad)


def _no_int64(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where elements are no int64, NaN among them."""
    if x.dtype.kind == "u":
        return np.asarray(x > np.uint64(2**63 - 1))
    wide = x.astype(np.float64)
    return np.asarray(~((wide >= -(2.0**63)) & (wide < 2.0**63)))


def _wants_gradient(requires_grad: bool, dtype: str) -> bool:
    wanted = checks.check_flag("Tensor", "requires_grad", requires_grad)
    if wanted and dtype == "int64":
        raise TypeError("Tensor: only floats have gradients; got int64; give dtype='float32', or leave requires_grad out")
    return wanted


def _binary(code: str, a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor):
        a = _number(code, a)
    elif not isinstance(b, Tensor):
        b = _number(code, b)
    return apply(operations.binary, a, b, code=code)


def _number(code: str, x: Any) -> float:
    if isinstance(x, (bool, int, float, np.integer, np.floating)):
        return checks.check_number(code, "the operand", int(x) if isinstance(x, bool) else x)
    given = "torch.Tensor" if isinstance(x, torch.Tensor) else type(x).__name__
    raise TypeError(f"{code}: operands must be tensors and numbers; got {given}; make it one with Tensor(x, backend)")


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
        elif x.backend is not backend:
            checks.check_same(parameters.get("code", operation.__name__), backend, x.backend)
        if recording is not None:
            recording.reads(x.array)
        arrays.append(x.array)
        parents.append(x.node)
    result, pull = operation(backend, *arrays, **parameters)
    keeps = any(parents) and pull is not operations.nothing
    return Tensor._of(result, backend, Node(parents, pull) if keeps else None)
