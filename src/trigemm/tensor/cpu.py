"""The backend on NumPy arrays. It defines what the primitives mean.

NumPy computes what it computes as fast as any, and all that is small; of large arrays torch computes, on the same memory, what it
shares out among cores. What each primitive must give, tests write out in float64, without torch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from trigemm.kernels.catalogue import serving
from trigemm.tensor import checks
from trigemm.tensor.backend import BINARY
from trigemm.tensor.backend import UNARY as CODES
from trigemm.tensor.ufuncs import ARITHMETIC, COMPARISONS, SHARED_ARITHMETIC, SHARED_UNARY, UNARY, quietly

Array = np.ndarray[Any, Any]


class _Dtypes(dict[str, np.dtype[Any]]):
    def __missing__(self, name: str) -> np.dtype[Any]:
        raise TypeError(f"CpuBackend: NumPy has no {name}; it lives on a CudaBackend; take float32 or float16 here")


DTYPES = _Dtypes((name, np.dtype(name)) for name in ("float64", "float32", "float16", "int64"))
NAMES = {dtype: name for name, dtype in DTYPES.items()}  # NumPy makes a dtype's name anew each time
HALF = DTYPES["float16"]

SMALL = 2**15
"""Elements below which torch works on one core too, and handing an array over costs more than most operations save."""

TINY = 2**12
"""Elements below which that holds of all operations, also of those for which torch has the faster loops."""

SMALL_SUM = 2**13
"""Elements up to which NumPy sums, by products with ones, on one core."""

FEW = 16
"""Rows up to which a sum of one after the other is as exact as one in stages."""

ONES = {dtype: np.ones(256, dtype) for dtype in (np.dtype("float32"), np.dtype("float64"))}

SMALL_PRODUCT = 2**18
"""Multiply-adds up to which a product is NumPy's, on one core."""

SMALL_SQUARE = 2**17
"""Entries of a triangle's matrix below which all of it is computed, for a batch by one call."""

Torch = torch.Tensor

copied = partial(np.array, order="C")

_torch = torch.from_numpy
"""The same memory as a torch tensor, whose functions use all cores and vector units."""


def _wide(a: Array) -> Torch:
    """The same, in the dtype in which elements are summed."""
    return _torch(a).float() if a.dtype == HALF else _torch(a)


def _floats(a: Array) -> Array:
    """As `_wide`, as an array."""
    return a.astype(np.float32) if a.dtype == HALF else a


def _like(x: Torch, a: Array) -> Array:
    """A result as an array, in the dtype of `a`."""
    return _narrow(x.numpy(), a.dtype)


def _narrow(a: Array, dtype: np.dtype[Any]) -> Array:
    """The same, in the dtype in which it is kept; what is too large becomes infinite."""
    return a if a.dtype == dtype else quietly(a.astype, dtype)


def from_host(x: Any) -> Array:
    """Memory of the host as an array in row-major order; a copy where torch would not take it: read-only, or strides below 0."""
    array = np.asarray(x if isinstance(x, np.ndarray) else np.from_dlpack(x), order="C")
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


def read_only(a: Array) -> Array:
    """The same memory, for reading alone: the memoryview between them keeps `flags.writeable` from being set again."""
    return np.asarray(a.data.toreadonly())


class CpuBackend:
    """NumPy arrays in row-major order; every primitive is done when it returns.

    >>> CpuBackend().binary("add", np.ones((2, 1)), np.arange(3.0))
    array([[1., 2., 3.],
           [1., 2., 3.]])
    """

    name = "cpu"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuBackend)

    def __hash__(self) -> int:
        return hash(CpuBackend)

    def __repr__(self) -> str:
        return "CpuBackend()"

    def array(self, data: Array, dtype: str) -> Array:
        return quietly(copied, data, DTYPES[dtype])

    def numpy(self, a: Array) -> Array:
        return read_only(a)

    def from_dlpack(self, x: Any) -> Array:
        if isinstance(x, torch.Tensor):
            DTYPES[str(x.dtype).removeprefix("torch.")]  # refuses bfloat16
        return from_host(x)

    def dtype(self, a: Array) -> str:
        return NAMES.get(a.dtype) or str(a.dtype)

    def synchronize(self) -> None:
        pass

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        return quietly(np.full, shape, value, DTYPES[dtype])

    def cast(self, a: Array, dtype: str) -> Array:
        if dtype == "int64":
            with np.errstate(invalid="ignore"):
                out = a.astype(dtype)
            if a.dtype.kind == "f":
                out[np.isnan(a)] = np.iinfo(np.int64).min
            return out
        out = np.empty(a.shape, DTYPES[dtype])
        _torch(out).copy_(_torch(a))  # NumPy converts half precision one by one
        return out

    def unary(self, code: str, a: Array) -> Array:
        if code in UNARY and (a.size < TINY or code not in SHARED_UNARY):
            return quietly(UNARY[code], a)
        checks.check_code(code, CODES)
        return SHARED_UNARY[code](_torch(a)).numpy()

    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        if code in ARITHMETIC:
            if getattr(a, "size", 1) + getattr(b, "size", 1) >= SMALL and _stretches(a, b):
                shared: Array = SHARED_ARITHMETIC[code](_torch(a), _torch(b)).numpy()
                return shared
            if HALF in (getattr(a, "dtype", None), getattr(b, "dtype", None)) and isinstance(a, float) | isinstance(b, float):
                wide = (x if isinstance(x, float) else x.astype(np.float32) for x in (a, b))
                return _narrow(quietly(ARITHMETIC[code], *wide), HALF)
            return quietly(ARITHMETIC[code], a, b)
        checks.check_code(code, BINARY)
        dtype = a.dtype if isinstance(a, np.ndarray) else np.asarray(b).dtype
        if code in COMPARISONS:
            return quietly(COMPARISONS[code], a, b).astype(dtype)
        if code == "masked_fill":
            return np.where(np.equal(b, 0), a, quietly(dtype.type, param))
        grad, x = np.broadcast_arrays(np.asarray(a, dtype), np.asarray(b, dtype))
        out: Array = torch.ops.aten.gelu_backward(_torch(grad), _torch(x), approximate="tanh").numpy()
        return out

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        if a.size < SMALL:
            return np.asarray(a.transpose(axes), order="C")
        return _torch(a).permute(tuple(axes)).contiguous().numpy()  # block by block, several times as fast as NumPy

    def expand(self, a: Array, shape: Sequence[int]) -> Array:
        return np.array(np.broadcast_to(a, shape), order="C")

    def reshape(self, a: Array, shape: Sequence[int]) -> Array:
        return a.reshape(shape)

    def slice_rows(self, a: Array, begin: int, end: int) -> Array:
        return a[begin:end]

    def pad_rows(self, a: Array, before: int, after: int) -> Array:
        out = np.zeros((before + len(a) + after, *a.shape[1:]), a.dtype)
        out[before : before + len(a)] = a
        return out

    def sum_axis(self, a: Array, axis: int) -> Array:
        n, last = a.shape[axis], a.ndim - 1
        if a.size <= SMALL_SUM and n <= 256 and a.dtype != HALF:
            if axis == last:
                return quietly(np.matmul, a, ONES[a.dtype][:n])
            if axis == last - 1:
                return quietly(np.matmul, ONES[a.dtype][:n], a)
            if n <= FEW:
                return quietly(np.add.reduce, a, axis)
        out = np.empty(a.shape[:axis] + a.shape[axis + 1 :], a.dtype)
        torch.sum(_torch(a), axis, out=_torch(out))  # in stages along any axis, where NumPy adds one after the other along some
        return out

    def sum(self, a: Array) -> Array:
        if a.size < SMALL and a.dtype != HALF:
            return quietly(np.add.reduce, a, None, None, np.empty((), a.dtype))  # in stages too, as all lies along one axis
        return _like(_wide(a).sum(), a)

    def max_axis(self, a: Array, axis: int) -> Array:
        checks.check_maximum(a.shape, axis)
        out = np.empty(a.shape[:axis] + a.shape[axis + 1 :], a.dtype)
        torch.amax(_torch(a), axis, out=_torch(out))
        return out

    def softmax(self, a: Array) -> Array:
        return _like(torch.softmax(_wide(a), -1), a)

    def log_softmax(self, a: Array) -> Array:
        return _like(torch.log_softmax(_wide(a), -1), a)

    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        left = a.swapaxes(-1, -2) if transpose_a else a
        right = b.swapaxes(-1, -2) if transpose_b else b
        if left.size * right.shape[-1] <= SMALL_PRODUCT and a.dtype != HALF:
            return quietly(np.matmul, left, right)
        return _like(_wide(left) @ _wide(right), a)

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        right = b.swapaxes(-1, -2) if transpose_b else b
        rows, columns = a.shape[-2], right.shape[-1]
        if rows * columns < SMALL_SQUARE:
            product = _scaled(self.matmul(_floats(a), _floats(right)), alpha)
            np.copyto(product, fill, where=_above(rows, columns, diagonal))
            return _narrow(product, a.dtype)
        out = np.empty((*a.shape[:-1], columns), a.dtype)
        kernel = serving("gemmt", "cpu", _torch(out).dtype)
        kernel.run(*map(_torch, (a, right, out)), alpha=alpha, diagonal=diagonal, fill=fill, precision="highest")
        return out

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        columns = b.shape[-1]
        if a.shape[-2] * a.shape[-1] < SMALL_SQUARE:
            triangle = np.where(_above(a.shape[-2], a.shape[-1], diagonal), a.dtype.type(0), a)
            return _narrow(_scaled(self.matmul(_floats(triangle), _floats(b), transpose_a=transpose), alpha), a.dtype)
        left, uplo, diagonal = (a.swapaxes(-1, -2), "upper", -diagonal) if transpose else (a, "lower", diagonal)
        out = np.empty((*left.shape[:-1], columns), a.dtype)
        kernel = serving("trmm", "cpu", _torch(out).dtype)
        kernel.run(*map(_torch, (left, b, out)), alpha=alpha, uplo=uplo, diagonal=diagonal, precision="highest")
        return out

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        rows = a.shape[-2]
        if rows * rows < SMALL_SQUARE:
            wide = _floats(a)
            return _narrow(_scaled(self.matmul(wide, wide, transpose_b=True), alpha), a.dtype)
        out = np.empty((*a.shape[:-1], rows), a.dtype)
        kernel = serving("syrk", "cpu", _torch(out).dtype)
        kernel.run(_torch(a), None, _torch(out), alpha=alpha, beta=0.0, uplo="full", precision="highest")
        return out

    def gather(self, table: Array, indices: Array) -> Array:
        _check_range("gather", indices, len(table))
        return table.take(indices, axis=0)

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        flat = _wide(updates.reshape(indices.size, updates.shape[-1]))
        sums = np.zeros((rows, updates.shape[-1]), np.float32 if updates.dtype == HALF else updates.dtype)
        try:
            _torch(sums).index_add_(0, _torch(indices.reshape(-1)), flat)
        except (IndexError, RuntimeError):
            _check_range("scatter_add", indices, rows)
            raise
        return _narrow(sums, updates.dtype)

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        loss: Array = np.empty(len(logits), np.float32 if logits.dtype == HALF else logits.dtype)
        try:
            torch.gather(torch.log_softmax(_wide(logits), 1), 1, _torch(targets[:, None]), out=_torch(loss[:, None]))
        except (IndexError, RuntimeError):
            _check_range("cross_entropy", targets, logits.shape[1])
            raise
        np.negative(loss, loss)
        return _narrow(loss, logits.dtype)

    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        share = torch.softmax(_wide(logits), 1)
        share[torch.arange(len(targets)), _torch(targets)] -= 1
        return _like(share.mul_(_wide(grad)[:, None]), logits)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        if x.dtype == HALF:
            x, weight, bias = (self.cast(each, "float32") for each in (x, weight, bias))
            wide, means, rstds = self.layer_norm(x, weight, bias, eps)
            return self.cast(wide, "float16"), means, rstds
        y, mean, rstd = torch.native_layer_norm(_torch(x), weight.shape, _torch(weight), _torch(bias), eps)
        return y.numpy(), mean.numpy().ravel(), rstd.numpy().ravel()

    def layer_norm_backward(self, grad: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
        columns, factor = (_torch(each[:, None]) for each in (mean, rstd)), _wide(weight)
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            _wide(grad), _wide(x), weight.shape, *columns, factor, factor, [True] * 3
        )  # the second factor in place of the bias, of which only the shape counts
        return _like(dx, x), _like(dweight, weight), _like(dbias, weight)

    def adamw(
        self, param: Array, grad: Array, m: Array, v: Array, *,
        step: int | Array, lr: float | Array, beta1: float, beta2: float, eps: float, weight_decay: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        wide = np.result_type(param, m, np.float32)
        new = [np.empty(x.shape, wide) for x in (param, m, v)]
        p, n, w = (_torch(x).copy_(_torch(old)) for x, old in zip(new, (param, m, v), strict=True))
        slope, number = _torch(grad.astype(wide, copy=False)), _torch(np.array(step, np.float32).reshape(()))
        torch._fused_adamw_(
            [p], [slope], [n], [w], [], [number], lr=float(np.asarray(lr).item()), beta1=beta1, beta2=beta2,
            eps=eps, weight_decay=weight_decay, amsgrad=False, maximize=False,
        )  # fmt: skip
        new_param, new_m, new_v = (_narrow(x, old.dtype) for x, old in zip(new, (param, m, v), strict=True))
        return new_param, new_m, new_v


def _stretches(a: Any, b: Any) -> bool:
    """Whether one of two arrays of different shapes is stretched; numbers do not count."""
    shapes = np.shape(a), np.shape(b)
    return shapes[0] != shapes[1] and () not in shapes


def _above(rows: int, columns: int, diagonal: int) -> Array:
    """(rows,columns): True outside the lower triangle."""
    above: Array = np.arange(columns) > np.arange(diagonal, diagonal + rows)[:, None]
    return above


def _scaled(a: Array, alpha: float) -> Array:
    """alpha * a, in its place."""
    return a if alpha == 1 else quietly(np.multiply, a, alpha, a)


def _check_range(operation: str, indices: Array, rows: int) -> None:
    """IndexError for an index outside 0 to rows - 1."""
    if indices.size and indices.view(np.uint64).max() >= rows:  # what is negative is a huge one
        wrong = indices[(indices < 0) | (indices >= rows)]
        raise IndexError(f"{operation}: index {wrong[0]} is outside 0 to {rows - 1}")
