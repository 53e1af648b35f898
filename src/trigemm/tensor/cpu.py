"""The backend on NumPy arrays. It defines what the primitives mean.

NumPy computes what it computes as fast as any, and all that is small; of large arrays torch computes, on the same memory, what it
shares out among cores. What each primitive must give, tests write out in float64, without torch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from trigemm.kernels.catalogue import serving

Array = np.ndarray[Any, Any]

HALF = np.dtype("float16")
NAMES = {np.dtype(name): name for name in ("float64", "float32", "float16", "int64")}  # NumPy makes a dtype's name anew each time

SMALL = 2**15
"""Elements below which torch works on one core too, and handing an array over costs more than it saves."""

SMALL_PRODUCT = 2**18
"""Multiply-adds up to which a product is NumPy's, on one core."""

SMALL_SQUARE = 2**17
"""Entries of a triangle's matrix below which all of it is computed, for a batch by one call."""

Torch = torch.Tensor


def _torch(a: Array) -> Torch:
    """The same memory as a torch tensor, whose functions use all cores and vector units."""
    return torch.from_numpy(a)


def _wide(a: Array) -> Torch:
    """The same, in the dtype in which elements are summed."""
    return torch.from_numpy(a).float() if a.dtype == HALF else torch.from_numpy(a)


def _like(x: Torch, a: Array) -> Array:
    """A result as an array, in the dtype of `a`."""
    out: Array = x.numpy()
    return out if out.dtype == a.dtype else out.astype(a.dtype)


Ufunc = Callable[..., Any]

UNARY: dict[str, Ufunc] = {"neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh}

SHARED_UNARY: dict[str, Callable[[Torch], Torch]] = {
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
}
"""What takes longer to compute than to read, so that a second core helps; and what NumPy has no function for."""

BINARY: dict[str, Ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}


def _dtype(name: str) -> str:
    if name == "bfloat16":
        raise TypeError("CpuBackend: NumPy has no bfloat16; it lives on a CudaBackend; take float32 or float16 here")
    return name


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
        return np.array(data, _dtype(dtype), order="C")

    def numpy(self, a: Array) -> Array:
        view = a.view()
        view.flags.writeable = False
        return view

    def from_dlpack(self, x: Any) -> Array:
        array = np.asarray(np.from_dlpack(x), order="C")
        return array if array.flags.writeable else array.copy()  # torch, and so the triangles, takes no other

    def dtype(self, a: Array) -> str:
        return NAMES.get(a.dtype) or str(a.dtype)

    def synchronize(self) -> None:
        pass

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        return np.full(shape, value, _dtype(dtype))

    def cast(self, a: Array, dtype: str) -> Array:
        if dtype != "int64":
            return _torch(a).to(getattr(torch, _dtype(dtype))).numpy()  # NumPy converts half precision one by one
        with np.errstate(invalid="ignore"):
            out = a.astype(dtype)
        if a.dtype.kind == "f":
            out[np.isnan(a)] = np.iinfo(np.int64).min
        return out

    @np.errstate(all="ignore")
    def unary(self, code: str, a: Array) -> Array:
        if code in UNARY and (a.size < SMALL or code not in SHARED_UNARY):
            return np.asarray(UNARY[code](a))
        return _like(SHARED_UNARY[code](_torch(a)), a)

    @np.errstate(all="ignore")
    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        dtype = a.dtype if isinstance(a, np.ndarray) else np.asarray(b).dtype
        if code == "masked_fill":
            return np.where(np.equal(b, 0), a, dtype.type(param))
        if code == "gelu_backward":
            grad, x = (_torch(np.asarray(y, dtype)) for y in (a, b))
            return _like(torch.ops.aten.gelu_backward(*torch.broadcast_tensors(grad, x), approximate="tanh"), np.empty(0, dtype))
        out = np.asarray(BINARY[code](a, b))
        return out if out.dtype == dtype else out.astype(dtype)

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
        return _like(_wide(a).sum(axis), a)  # in stages along any axis, where NumPy adds up one after the other along some

    def sum(self, a: Array) -> Array:
        if a.size < SMALL and a.dtype != HALF:
            return np.asarray(a.reshape(-1).sum())  # in stages too, as all lies along one axis
        return _like(_wide(a).sum(), a)

    def max_axis(self, a: Array, axis: int) -> Array:
        return _torch(a).amax(axis).numpy()

    def softmax(self, a: Array) -> Array:
        return _like(torch.softmax(_wide(a), -1), a)

    def log_softmax(self, a: Array) -> Array:
        return _like(torch.log_softmax(_wide(a), -1), a)

    @np.errstate(all="ignore")
    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        left, right = (x.swapaxes(-1, -2) if turned else x for x, turned in ((a, transpose_a), (b, transpose_b)))
        if left.size * right.shape[-1] <= SMALL_PRODUCT and a.dtype != HALF:
            product: Array = np.matmul(left, right)
            return product
        return _like(_wide(left) @ _wide(right), a)

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        right = b.swapaxes(-1, -2) if transpose_b else b
        rows, columns = a.shape[-2], right.shape[-1]
        if rows * columns < SMALL_SQUARE:
            product = _scaled(self.matmul(a, right), alpha)
            np.copyto(product, fill, where=_above(rows, columns, diagonal))
            return product
        out = np.empty((*a.shape[:-1], columns), a.dtype)
        kernel = serving("gemmt", "cpu", _torch(out).dtype)
        kernel.run(*map(_torch, (a, right, out)), alpha=alpha, diagonal=diagonal, fill=fill, precision="highest")
        return out

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        columns = b.shape[-1]
        if a.shape[-2] * a.shape[-1] < SMALL_SQUARE:
            triangle = a.copy()
            np.copyto(triangle, 0, where=_above(a.shape[-2], a.shape[-1], diagonal))
            return _scaled(self.matmul(triangle, b, transpose_a=transpose), alpha)
        left, uplo, diagonal = (a.swapaxes(-1, -2), "upper", -diagonal) if transpose else (a, "lower", diagonal)
        out = np.empty((*left.shape[:-1], columns), a.dtype)
        kernel = serving("trmm", "cpu", _torch(out).dtype)
        kernel.run(*map(_torch, (left, b, out)), alpha=alpha, uplo=uplo, diagonal=diagonal, precision="highest")
        return out

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        rows = a.shape[-2]
        if rows * rows < SMALL_SQUARE:
            return _scaled(self.matmul(a, a, transpose_b=True), alpha)
        out = np.empty((*a.shape[:-1], rows), a.dtype)
        kernel = serving("syrk", "cpu", _torch(out).dtype)
        kernel.run(_torch(a), None, _torch(out), alpha=alpha, beta=0.0, uplo="full", precision="highest")
        return out

    def gather(self, table: Array, indices: Array) -> Array:
        _check_range("gather", indices, len(table))
        return table.take(indices, axis=0)

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        _check_range("scatter_add", indices, rows)
        flat = _wide(updates).reshape(indices.size, updates.shape[-1])
        sums = torch.zeros((rows, updates.shape[-1]), dtype=flat.dtype)
        return _like(sums.index_add_(0, _torch(indices.reshape(-1)), flat), updates)

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        _check_range("cross_entropy", targets, logits.shape[1])
        return _like(torch.nn.functional.cross_entropy(_wide(logits), _torch(targets), reduction="none"), logits)

    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        share = torch.softmax(_wide(logits), 1)
        share[torch.arange(len(targets)), _torch(targets)] -= 1
        return _like(share.mul_(_wide(grad)[:, None]), logits)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        y, mean, rstd = torch.native_layer_norm(_wide(x), weight.shape, _wide(weight), _wide(bias), eps)
        return _like(y, x), mean.numpy().reshape(-1), rstd.numpy().reshape(-1)

    def layer_norm_backward(self, grad: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
        columns = (_torch(each)[:, None] for each in (mean, rstd))
        factors = *columns, _wide(weight), _wide(weight)  # the second in place of the bias, of which only the shape counts
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(_wide(grad), _wide(x), weight.shape, *factors, [True] * 3)
        return _like(dx, x), _like(dweight, weight), _like(dbias, weight)

    def adamw(
        self, param: Array, grad: Array, m: Array, v: Array, *,
        step: int | Array, lr: float | Array, beta1: float, beta2: float, eps: float, weight_decay: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        number, rate, slope = np.asarray(step).item(), np.asarray(lr).item(), _wide(grad)
        new_m = _wide(m).lerp(slope, 1 - beta1)
        new_v = (_wide(v) * beta2).addcmul_(slope, slope, value=1 - beta2)
        root = (1 - beta2**number) ** 0.5  # taken out of the square root, so that one pass less is made
        size = new_v.sqrt().add_(eps * root)
        new = (_wide(param) * (1 - rate * weight_decay)).addcdiv_(new_m, size, value=-rate * root / (1 - beta1**number))
        return _like(new, param), _like(new_m, m), _like(new_v, v)


def _above(rows: int, columns: int, diagonal: int) -> Array:
    """(rows,columns): True outside the lower triangle."""
    above: Array = np.arange(columns) > np.arange(diagonal, diagonal + rows)[:, None]
    return above


@np.errstate(all="ignore")
def _scaled(a: Array, alpha: float) -> Array:
    """alpha * a, in its place."""
    if alpha != 1:
        a *= alpha
    return a


def _check_range(operation: str, indices: Array, rows: int) -> None:
    """IndexError for an index outside 0 to rows - 1."""
    if indices.size and indices.view(np.uint64).max() >= rows:  # what is negative is a huge one
        wrong = indices[(indices < 0) | (indices >= rows)]
        raise IndexError(f"{operation}: index {wrong[0]} is outside 0 to {rows - 1}")
