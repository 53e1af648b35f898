"""The backend on NumPy arrays. It defines what the primitives mean; torch computes most of them, on the same memory."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from trigemm.kernels.catalogue import serving

Array = np.ndarray[Any, Any]

NAMES = {np.dtype(name): name for name in ("float64", "float32", "float16", "int64")}  # NumPy makes a dtype's name anew each time

STAGE = 256
"""Elements that one stage of a sum takes together."""

Torch = torch.Tensor


def _torch(a: Array) -> Torch:
    """The same memory as a torch tensor, whose functions use all cores and vector units."""
    return torch.from_numpy(a)


def _wide(a: Array) -> Torch:
    """The same, in the dtype in which elements are summed."""
    return _torch(a).float() if a.dtype == np.float16 else _torch(a)


def _like(x: Torch, a: Array) -> Array:
    """A result as an array, in the dtype of `a`."""
    out: Array = x.numpy()
    return out if out.dtype == a.dtype else out.astype(a.dtype)


UNARY: dict[str, Callable[[Torch], Torch]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
}

BINARY: dict[str, Callable[[Any, Any], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}


def _staged(x: Torch) -> Torch:
    """Sums over the middle axis of (outer, n, inner), at most STAGE elements at a time."""
    while x.shape[1] > STAGE:
        outer, n, inner = x.shape
        whole = n // STAGE * STAGE
        stage = x[:, :whole].reshape(outer, -1, STAGE, inner).sum(2)
        x = torch.cat((stage, x[:, whole:].sum(1, keepdim=True)), 1) if whole < n else stage
    return x.sum(1)


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

    @np.errstate(all="ignore")
    def cast(self, a: Array, dtype: str) -> Array:
        out = a.astype(_dtype(dtype))
        if a.dtype.kind == "f" and dtype == "int64":
            out[np.isnan(a)] = np.iinfo(np.int64).min
        return out

    def unary(self, code: str, a: Array) -> Array:
        return _like(UNARY[code](_torch(a)), a)

    @np.errstate(all="ignore")
    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        dtype = a.dtype if isinstance(a, np.ndarray) else np.asarray(b).dtype
        if code == "masked_fill":
            return np.where(np.equal(b, 0), a, dtype.type(param))
        if code == "gelu_backward":
            grad, x = (_torch(np.asarray(y, dtype)) for y in (a, b))
            return _like(torch.ops.aten.gelu_backward(*torch.broadcast_tensors(grad, x), approximate="tanh"), np.empty(0, dtype))
        return np.asarray(BINARY[code](a, b)).astype(dtype, copy=False)

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        x = _torch(a)  # whose copies go block by block, several times as fast
        return x.permute(tuple(axes)).contiguous().numpy() if x.numel() else np.array(a.transpose(axes))

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
        before, after = a.shape[:axis], a.shape[axis + 1 :]
        return _like(_staged(_wide(a).reshape(prod(before), a.shape[axis], prod(after))), a).reshape(before + after)

    def sum(self, a: Array) -> Array:
        return _like(_staged(_wide(a).reshape(1, a.size, 1)), a).reshape(())

    def max_axis(self, a: Array, axis: int) -> Array:
        return np.asarray(a.max(axis))

    def softmax(self, a: Array) -> Array:
        return _like(torch.softmax(_wide(a), -1), a)

    def log_softmax(self, a: Array) -> Array:
        return _like(torch.log_softmax(_wide(a), -1), a)

    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        left, right = _wide(a), _wide(b)
        return _like((left.mT if transpose_a else left) @ (right.mT if transpose_b else right), a)

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        right = b.swapaxes(-1, -2) if transpose_b else b
        out = np.empty((*a.shape[:-1], right.shape[-1]), a.dtype)
        kernel = serving("gemmt", "cpu", _torch(out).dtype)
        kernel.run(*map(_torch, (a, right, out)), alpha=alpha, diagonal=diagonal, fill=fill, precision="highest")
        return out

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        left, uplo = (a.swapaxes(-1, -2), "upper") if transpose else (a, "lower")
        out = np.empty((*left.shape[:-1], b.shape[-1]), a.dtype)
        kernel = serving("trmm", "cpu", _torch(out).dtype)
        diagonal = -diagonal if transpose else diagonal
        kernel.run(*map(_torch, (left, b, out)), alpha=alpha, uplo=uplo, diagonal=diagonal, precision="highest")
        return out

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        out = np.empty((*a.shape[:-1], a.shape[-2]), a.dtype)
        kernel = serving("syrk", "cpu", _torch(out).dtype)
        kernel.run(_torch(a), None, _torch(out), alpha=alpha, beta=0.0, uplo="full", precision="highest")
        return out

    def gather(self, table: Array, indices: Array) -> Array:
        _check_range("gather", indices, len(table))
        return table[indices]

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        _check_range("scatter_add", indices, rows)
        flat = _wide(updates).reshape(indices.size, updates.shape[-1])
        sums = torch.zeros((rows, updates.shape[-1]), dtype=flat.dtype)
        return _like(sums.index_add_(0, _torch(indices.reshape(-1)), flat), updates)

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        _check_range("cross_entropy", targets, logits.shape[1])
        log = torch.log_softmax(_wide(logits), 1)
        return _like(-log.gather(1, _torch(targets)[:, None])[:, 0], logits)

    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        share = torch.softmax(_wide(logits), 1)
        share[torch.arange(len(targets)), _torch(targets)] -= 1
        return _like(share.mul_(_wide(grad)[:, None]), logits)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        y, mean, rstd = torch.native_layer_norm(_wide(x), weight.shape, _wide(weight), _wide(bias), eps)
        return _like(y, x), mean[:, 0].numpy(), rstd[:, 0].numpy()

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
        new_m = (_wide(m) * beta1).add_(slope, alpha=1 - beta1)
        new_v = (_wide(v) * beta2).addcmul_(slope, slope, value=1 - beta2)
        size = (new_v / (1 - beta2**number)).sqrt_().add_(eps)
        new = (_wide(param) * (1 - rate * weight_decay)).addcdiv_(new_m, size, value=-rate / (1 - beta1**number))
        return _like(new, param), _like(new_m, m), _like(new_v, v)


def _check_range(operation: str, indices: Array, rows: int) -> None:
    """IndexError for an index outside 0 to rows - 1."""
    wrong = (indices < 0) | (indices >= rows)
    if wrong.any():
        raise IndexError(f"{operation}: index {indices[wrong][0]} is outside 0 to {rows - 1}")
