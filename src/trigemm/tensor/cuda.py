"""The backend on a GPU: PyTorch's storage and allocator, and kernels at the level of tiles."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from trigemm.kernels.catalogue import serving
from trigemm.kernels.spec import KernelSpec
from trigemm.kernels.tiles import adamw as adamw_tiles
from trigemm.kernels.tiles import elementwise, embedding, rowwise
from trigemm.kernels.tiles import layer_norm as norm_tiles
from trigemm.kernels.tiles.multiply import INTERPRETED
from trigemm.kernels.tiles.permute import pad, permute
from trigemm.kernels.tiles.reduce import reduce
from trigemm.layout import Layout, broadcast_shape
from trigemm.tensor import checks
from trigemm.tensor.backend import BINARY, UNARY
from trigemm.tensor.capture import Captured, Function
from trigemm.tensor.cpu import copied, from_host, read_only
from trigemm.tensor.recording import Recording
from trigemm.tensor.tensor import Tensor
from trigemm.tensor.ufuncs import quietly

Array = torch.Tensor

DTYPES = ("float32", "float16", "bfloat16", "int64")
NAMES = {getattr(torch, name): name for name in DTYPES}


def _device(name: Any) -> torch.device:
    """The device of a name, with its number; one that is there."""
    try:
        device = torch.device(name) if isinstance(name, (str, torch.device)) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cuda", "cpu"):
        raise ValueError(f"CudaBackend: the device must be 'cuda', 'cuda:1' and so on; got {name!r}")
    if device.type == "cpu" and not INTERPRETED.value:
        raise ValueError("CudaBackend: on 'cpu' Triton's interpreter computes; start Python with TRITON_INTERPRET=1 for it")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("CudaBackend: PyTorch finds no CUDA device here; a CpuBackend works everywhere")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"CudaBackend: there are {torch.cuda.device_count()} CUDA devices, numbered from 0; got {name!r}")
    return torch.empty(0, device=device).device


def _serving(operation: str, a: Array) -> KernelSpec:
    """The kernel of an operation for operands like `a`."""
    if a.dtype == torch.bfloat16 and not a.is_cuda:
        raise TypeError(f"{operation}: Triton's interpreter does not multiply bfloat16; give float32, or a GPU")
    return serving(operation, "cuda", a.dtype)


class CudaBackend:
    """Contiguous torch tensors on one device; work is queued in PyTorch's current stream, and reading back waits for it.

    Memory comes from PyTorch's caching allocator, which reuses it in the order of that stream: a tensor may be dropped while
    a queued kernel still reads it. Sums of float16 and bfloat16 are made in float32; float64 is refused.

    Args:
        device: "cuda", "cuda:1", …; "cpu" only in Triton's interpreter, which the environment's TRITON_INTERPRET=1 chooses.
        precision: of products of float32, as in torch.set_float32_matmul_precision.
        checked: whether an index outside its table is an IndexError, which waits for the device each time. Otherwise such an
            index gives NaN in `gather` and `cross_entropy`, and adds nothing in `scatter_add`.

    Tensors of backends that differ in any of these do not mix; `.to(backend)` copies one to the other.

    Raises ValueError where PyTorch does not find the device, or for another precision.
    """

    name = "cuda"

    def __init__(self, device: str = "cuda", *, precision: str = "highest", checked: bool = False):
        self.device = _device(device)
        if precision not in ("highest", "high", "medium"):
            raise ValueError(f"CudaBackend: the precision must be 'highest', 'high' or 'medium'; got {precision!r}")
        self.precision, self.checked = precision, checks.check_flag("CudaBackend", "checked", checked)
        self._options = self.device, precision, self.checked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaBackend) and self._options == other._options

    def __hash__(self) -> int:
        return hash(self._options)

    def __repr__(self) -> str:
        precision = "" if self.precision == "highest" else f", precision={self.precision!r}"
        return f"CudaBackend('{self.device}'{precision}{', checked=True' if self.checked else ''})"

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Array:
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def _dtype(self, name: str) -> torch.dtype:
        if name not in DTYPES:
            raise TypeError(f"CudaBackend: dtypes are {', '.join(DTYPES)}; got {name}; give dtype='float32', or convert first")
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def array(self, data: np.ndarray[Any, Any], dtype: str) -> Array:
        narrow = "float32" if dtype == "bfloat16" else dtype  # NumPy has no bfloat16
        host = torch.from_numpy(quietly(copied, data, narrow)).to(dtype=self._dtype(dtype))
        if self.device.type == "cuda":  # from pinned memory the copy is queued, and nothing waits for it
            return host.pin_memory().to(self.device, non_blocking=True)
        return host

    def numpy(self, a: Array) -> np.ndarray[Any, Any]:
        return read_only((a.float() if a.dtype == torch.bfloat16 else a).cpu().numpy())

    def from_dlpack(self, x: Any) -> Array:
        if not isinstance(x, torch.Tensor):
            in_host = x.__dlpack_device__()[0] == 1
            x = torch.from_numpy(from_host(x)) if in_host else torch.utils.dlpack.from_dlpack(x)
        array: Array = x
        if array.device != self.device:
            raise ValueError(
                f"from_dlpack: the memory is on {array.device}, the backend on {self.device}; Tensor(x, backend) copies"
            )
        self._dtype(self.dtype(array))
        return array.contiguous()

    def dtype(self, a: Array) -> str:
        return NAMES.get(a.dtype) or str(a.dtype).removeprefix("torch.")

    def synchronize(self) -> None:
        Recording.refuse("synchronizes", "do so after the replay")
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def capture(self, function: Function, *examples: Tensor) -> Captured:
        """Record `function(*examples)` as a CUDA graph, to be replayed with new tensors of the same shapes and dtypes.

        The function takes tensors and returns one or several. It is run twice here and may compute anything, gradients and AdamW
        steps too, but it must not need the host: it reads no tensor back, makes none of the host's data, and does the same
        whatever the elements are. Numbers and tensors that it has from elsewhere are recorded as they are now. What a replay
        returns has no history: gradients are taken inside the function, and `gradients` through a result is a ValueError.

        Raises:
            ValueError: the function does what cannot be recorded; on a replay: other shapes, dtypes or backend than recorded.
            TypeError: an argument or a result is no tensor.

            >>> double = backend.capture(lambda x: x * 2.0, x)  # doctest: +SKIP
            >>> double(y)  # doctest: +SKIP
        """
        return Captured(self, function, examples)

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        return torch.full(tuple(shape), value, dtype=self._dtype(dtype), device=self.device)

    def cast(self, a: Array, dtype: str) -> Array:
        out = self._empty(a.shape, self._dtype(dtype))
        elementwise.unary("cast", a, out)
        return out

    def unary(self, code: str, a: Array) -> Array:
        checks.check_code(code, UNARY)
        out = torch.empty_like(a)
        elementwise.unary(code, a, out)
        return out

    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        checks.check_code(code, BINARY)
        if not isinstance(a, torch.Tensor):
            out = torch.empty_like(b)  # type: ignore[arg-type]
        elif not isinstance(b, torch.Tensor) or a.shape == b.shape:
            out = torch.empty_like(a)
        else:
            out = self._empty(broadcast_shape(a.shape, b.shape) or (), a.dtype)
        elementwise.binary(code, a, b, out, param)
        return out

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        if len(set(axes)) != a.dim():
            raise ValueError(f"permute: axes must be 0 to {a.dim() - 1} in some order; got {tuple(axes)}")
        out = self._empty([a.shape[axis] for axis in axes], a.dtype)
        permute(a, Layout.contiguous(a.shape).permute(axes), out)
        return out

    def expand(self, a: Array, shape: Sequence[int]) -> Array:
        out = self._empty(shape, a.dtype)
        permute(a, Layout.contiguous(a.shape).expand(shape), out)
        return out

    def reshape(self, a: Array, shape: Sequence[int]) -> Array:
        return a.view(tuple(shape))

    def slice_rows(self, a: Array, begin: int, end: int) -> Array:
        return a[begin:end]

    def pad_rows(self, a: Array, before: int, after: int) -> Array:
        out = self._empty((before + len(a) + after, *a.shape[1:]), a.dtype)
        pad(a, before * prod(a.shape[1:]), out)
        return out

    def _reduce(self, a: Array, axis: int, *, maximum: bool) -> Array:
        before, after = a.shape[:axis], a.shape[axis + 1 :]
        out = self._empty((*before, *after), a.dtype)
        reduce(a, prod(before), a.shape[axis], prod(after), out, maximum=maximum)
        return out

    def sum_axis(self, a: Array, axis: int) -> Array:
        return self._reduce(a, axis, maximum=False)

    def sum(self, a: Array) -> Array:
        return self._reduce(a.view(-1), 0, maximum=False)

    def max_axis(self, a: Array, axis: int) -> Array:
        checks.check_maximum(a.shape, axis)
        return self._reduce(a, axis, maximum=True)

    def _softmax(self, a: Array, *, log: bool) -> Array:
        out = torch.empty_like(a)
        rows = prod(a.shape[:-1]), a.shape[-1]
        rowwise.softmax(a.view(rows), out.view(rows), log=log)
        return out

    def softmax(self, a: Array) -> Array:
        return self._softmax(a, log=False)

    def log_softmax(self, a: Array) -> Array:
        return self._softmax(a, log=True)

    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        left, right = a.mT if transpose_a else a, b.mT if transpose_b else b
        if b.dim() == 2 and a.dim() > 2 and not transpose_a:  # one product in place of many
            left = left.reshape(prod(left.shape[:-1]), left.shape[-1])
        batch = broadcast_shape(left.shape[:-2], right.shape[:-2]) or ()
        left, right = left.expand(*batch, *left.shape[-2:]), right.expand(*batch, *right.shape[-2:])
        product = self._triangle(left, right, 1.0, right.shape[-1], None)  # a diagonal so high that everything is below it
        return product.view(*a.shape[:-1], right.shape[-1]) if left.dim() < a.dim() else product

    def _triangle(self, a: Array, b: Array, alpha: float, diagonal: int, fill: float | None) -> Array:
        out = self._empty((*a.shape[:-1], b.shape[-1]), a.dtype)
        kernel = _serving("gemmt", a)
        kernel.run(a, b, out, alpha=alpha, diagonal=diagonal, fill=fill, precision=self.precision)
        return out

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        return self._triangle(a, b.mT if transpose_b else b, alpha, diagonal, fill)

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        left, uplo, diagonal = (a.mT, "upper", -diagonal) if transpose else (a, "lower", diagonal)
        out = self._empty((*left.shape[:-1], b.shape[-1]), a.dtype)
        kernel = _serving("trmm", a)
        kernel.run(left, b, out, alpha=alpha, uplo=uplo, diagonal=diagonal, precision=self.precision)
        return out

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        out = self._empty((*a.shape[:-1], a.shape[-2]), a.dtype)
        kernel = _serving("syrk", a)
        kernel.run(a, None, out, alpha=alpha, beta=0.0, uplo="full", precision=self.precision)
        return out

    def _check_range(self, operation: str, indices: Array, rows: int) -> None:
        if self.checked and indices.numel():
            Recording.refuse("checks indices", "capture on a backend that is not checked")
            wrong = indices[(indices < 0) | (indices >= rows)]
            if wrong.numel():
                raise IndexError(f"{operation}: index {int(wrong[0])} is outside 0 to {rows - 1}")

    def gather(self, table: Array, indices: Array) -> Array:
        self._check_range("gather", indices, len(table))
        out = self._empty((*indices.shape, table.shape[1]), table.dtype)
        embedding.gather(table, indices, out)
        return out

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        self._check_range("scatter_add", indices, rows)
        out = self._empty((rows, updates.shape[-1]), updates.dtype)
        embedding.scatter_add(updates, indices, out)
        return out

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        self._check_range("cross_entropy", targets, logits.shape[1])
        if not logits.shape[1]:  # no target is in a row
            return logits.new_full(targets.shape, float("nan"))
        out = self._empty(targets.shape, logits.dtype)
        rowwise.cross_entropy(logits, targets, out)
        return out

    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        out = torch.empty_like(logits)
        rowwise.cross_entropy_backward(grad, logits, targets, out)
        return out

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        out = torch.empty_like(x)
        mean, rstd = (self._empty(x.shape[:1], torch.float32) for _ in range(2))
        norm_tiles.layer_norm(x, weight, bias, eps, out, mean, rstd)
        return out, mean, rstd

    def layer_norm_backward(self, grad: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
        out, weights = torch.empty_like(x), self._empty((2, *weight.shape), weight.dtype)
        norm_tiles.layer_norm_backward(grad, x, weight, mean, rstd, out, weights)
        return out, weights[0], weights[1]

    def adamw(
        self, param: Array, grad: Array, m: Array, v: Array, *,
        step: int | Array, lr: float | Array, beta1: float, beta2: float, eps: float, weight_decay: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        new = torch.empty_like(param), torch.empty_like(m), torch.empty_like(v)
        adamw_tiles.adamw(
            (param, grad, m, v), new, step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay
        )
        return new
