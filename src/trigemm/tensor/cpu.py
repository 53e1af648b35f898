"""The backend on NumPy arrays. It defines what the primitives mean."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trigemm.kernels.catalogue import serving

Array = np.ndarray[Any, Any]

STAGE = 256
"""Elements that one stage of a sum takes together."""

GELU_SCALE, GELU_CUBE = 0.7978845608028654, 0.044715  # √(2/π), and the factor of x³

CHUNK = 2**15
"""Elements that go together through a formula of several steps, so that what a step leaves is still in cache for the next."""


def _sums(a: Array) -> Array:
    """`a` in the dtype in which its elements are summed."""
    return a.astype(np.float32) if a.dtype == np.float16 else a


def _in_chunks(formula: Callable[..., Array], *arrays: Array) -> Array:
    """formula(*arrays), element by element, for arrays of one shape."""
    out = np.empty_like(arrays[0])
    flat = [x.reshape(-1) for x in (*arrays, out)]
    for begin in range(0, out.size, CHUNK):
        *parts, target = (x[begin : begin + CHUNK] for x in flat)
        target[:] = formula(*(_sums(x) for x in parts))
    return out


def _gelu(x: Array) -> Array:
    inner: Array = x * x
    inner *= GELU_CUBE
    inner += 1
    inner *= x
    inner *= GELU_SCALE
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x
    inner *= 0.5
    return inner


def _gelu_backward(grad: Array, x: Array) -> Array:
    square = x * x
    t = np.tanh(GELU_SCALE * x * (1 + GELU_CUBE * square))
    slope: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (GELU_SCALE * (1 + 3 * GELU_CUBE * square))
    slope *= grad
    return slope


UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "gelu": lambda x: _in_chunks(_gelu, x),
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
    "gelu_backward": lambda grad, x: _in_chunks(_gelu_backward, *np.broadcast_arrays(grad, x)),
}


def _staged(a: Array) -> Array:
    """Sums over the middle axis of (outer, n, inner), at most STAGE elements at a time."""
    while a.shape[1] > STAGE:
        outer, n, inner = a.shape
        whole = n // STAGE * STAGE
        stage = a[:, :whole].reshape(outer, -1, STAGE, inner).sum(2)
        a = np.concatenate((stage, a[:, whole:].sum(1, keepdims=True)), 1) if whole < n else stage
    sums: Array = a.sum(1)
    return sums


def _shifted(a: Array) -> tuple[Array, Array, Array]:
    """x - max over the last axis, its exponentials, and their sums, the last axis kept."""
    x = _sums(a)
    shifted = x - x.max(-1, keepdims=True, initial=-np.inf)
    powers = np.exp(shifted)
    return shifted, powers, np.sum(powers, -1, keepdims=True)


def _tensors(*arrays: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(x) for x in arrays)


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
        return np.array(data, dtype, order="C")

    def numpy(self, a: Array) -> Array:
        view = a.view()
        view.flags.writeable = False
        return view

    def from_dlpack(self, x: Any) -> Array:
        array = np.asarray(np.from_dlpack(x), order="C")
        return array if array.flags.writeable else array.copy()  # torch, and so the triangles, takes no other

    def dtype(self, a: Array) -> str:
        return str(a.dtype)

    def synchronize(self) -> None:
        pass

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        return np.full(shape, value, dtype)

    @np.errstate(all="ignore")
    def cast(self, a: Array, dtype: str) -> Array:
        return a.astype(dtype)

    @np.errstate(all="ignore")
    def unary(self, code: str, a: Array) -> Array:
        return np.asarray(UNARY[code](a))

    @np.errstate(all="ignore")
    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        dtype = a.dtype if isinstance(a, np.ndarray) else np.asarray(b).dtype
        if code == "masked_fill":
            return np.where(np.equal(b, 0), a, dtype.type(param))
        return np.asarray(BINARY[code](a, b)).astype(dtype, copy=False)

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        (x,) = _tensors(a)  # whose copies go block by block, several times as fast
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

    @np.errstate(all="ignore")
    def sum_axis(self, a: Array, axis: int) -> Array:
        shape = a.shape[:axis] + a.shape[axis + 1 :]
        outer, inner = (int(np.prod(sizes)) for sizes in (a.shape[:axis], a.shape[axis + 1 :]))
        return _staged(_sums(a).reshape(outer, a.shape[axis], inner)).reshape(shape).astype(a.dtype)

    @np.errstate(all="ignore")
    def sum(self, a: Array) -> Array:
        return _staged(_sums(a).reshape(1, a.size, 1)).reshape(()).astype(a.dtype)

    def max_axis(self, a: Array, axis: int) -> Array:
        return np.asarray(a.max(axis))

    @np.errstate(all="ignore")
    def softmax(self, a: Array) -> Array:
        _, powers, total = _shifted(a)
        return np.divide(powers, total, out=powers).astype(a.dtype, copy=False)

    @np.errstate(all="ignore")
    def log_softmax(self, a: Array) -> Array:
        shifted, _, total = _shifted(a)
        return np.subtract(shifted, np.log(total), out=shifted).astype(a.dtype, copy=False)

    @np.errstate(all="ignore")
    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        left, right = _sums(a), _sums(b)
        left = left.swapaxes(-1, -2) if transpose_a else left
        right = right.swapaxes(-1, -2) if transpose_b else right
        if b.ndim == 2 and a.ndim > 2 and not transpose_a:  # one product in place of many
            product = (left.reshape(-1, left.shape[-1]) @ right).reshape(*left.shape[:-1], right.shape[-1])
        else:
            product = left @ right
        return product.astype(a.dtype, copy=False)

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        right = b.swapaxes(-1, -2) if transpose_b else b
        out = np.empty((*a.shape[:-1], right.shape[-1]), a.dtype)
        kernel = serving("gemmt", "cpu", torch.from_numpy(out).dtype)
        kernel.run(*_tensors(a, right, out), alpha=alpha, diagonal=diagonal, fill=fill, precision="highest")
        return out

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        left, uplo = (a.swapaxes(-1, -2), "upper") if transpose else (a, "lower")
        out = np.empty((*left.shape[:-1], b.shape[-1]), a.dtype)
        kernel = serving("trmm", "cpu", torch.from_numpy(out).dtype)
        diagonal = -diagonal if transpose else diagonal
        kernel.run(*_tensors(left, b, out), alpha=alpha, uplo=uplo, diagonal=diagonal, precision="highest")
        return out

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        out = np.empty((*a.shape[:-1], a.shape[-2]), a.dtype)
        kernel = serving("syrk", "cpu", torch.from_numpy(out).dtype)
        kernel.run(*_tensors(a), None, *_tensors(out), alpha=alpha, beta=0.0, uplo="full", precision="highest")
        return out

    def gather(self, table: Array, indices: Array) -> Array:
        _check_range("gather", indices, len(table))
        return table[indices]

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        _check_range("scatter_add", indices, rows)
        flat = _sums(updates).reshape(indices.size, updates.shape[-1])
        out = np.zeros((rows, updates.shape[-1]), flat.dtype)
        target, numbers, terms = _tensors(out, indices.reshape(-1), flat)
        target.index_add_(0, numbers, terms)
        return out.astype(updates.dtype, copy=False)

    @np.errstate(all="ignore")
    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        _check_range("cross_entropy", targets, logits.shape[1])
        shifted, _, total = _shifted(logits)
        return (np.log(total[:, 0]) - shifted[np.arange(len(targets)), targets]).astype(logits.dtype, copy=False)

    @np.errstate(all="ignore")
    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        _, powers, total = _shifted(logits)
        powers /= total
        powers[np.arange(len(targets)), targets] -= 1
        powers *= grad[:, None]
        return powers.astype(logits.dtype, copy=False)

    @np.errstate(all="ignore")
    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        full = _sums(x)
        mean = full.mean(-1)
        centred = full - mean[:, None]
        rstd = 1 / np.sqrt((centred * centred).mean(-1) + full.dtype.type(eps))
        centred *= rstd[:, None]
        return (centred * weight + bias).astype(x.dtype, copy=False), mean, rstd

    @np.errstate(all="ignore")
    def layer_norm_backward(self, grad: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
        full, normal = _sums(grad), (_sums(x) - mean[:, None]) * rstd[:, None]
        inner = full * weight
        dx = inner - inner.mean(-1, keepdims=True) - normal * (inner * normal).mean(-1, keepdims=True)
        dx *= rstd[:, None]
        dweight, dbias = (_staged(term[None])[0].astype(weight.dtype) for term in (full * normal, full))
        return dx.astype(x.dtype, copy=False), dweight, dbias

    @np.errstate(all="ignore")
    def adamw(
        self, param: Array, grad: Array, m: Array, v: Array, *,
        step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        m = m * beta1 + grad * (1 - beta1)
        v = v * beta2 + grad * grad * (1 - beta2)
        update = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps)
        new = param * (1 - lr * weight_decay) - lr * update
        return new.astype(param.dtype, copy=False), m, v


def _check_range(operation: str, indices: Array, rows: int) -> None:
    """IndexError for an index outside 0 to rows - 1."""
    wrong = (indices < 0) | (indices >= rows)
    if wrong.any():
        raise IndexError(f"{operation}: index {indices[wrong][0]} is outside 0 to {rows - 1}")
