"""The contract of a backend: the closed list of primitives that a tensor library is made of.

An array is whatever a backend keeps its elements in; it has `shape`, of at most four axes in row-major order. No primitive
modifies an array. Callers (`trigemm.tensor.operations`) have checked shapes and dtypes; a backend checks what only elements tell.

float64, float32, float16 and bfloat16 arrays hold numbers, as far as a backend has them; what sums float16 or bfloat16 does so in
float32. int64 arrays hold indices.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = Any

FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64")

UNARY = ("neg", "exp", "log", "sqrt", "tanh", "gelu")
BINARY = ("add", "sub", "mul", "div", "maximum", "less", "less_equal", "equal", "masked_fill", "gelu_backward")


class Backend(Protocol):
    """What a backend does. `CpuBackend` defines the meaning; every other agrees with it within rounding."""

    name: str

    def array(self, data: np.ndarray[Any, Any], dtype: str) -> Array:
        """An array of the backend with a copy of the elements of a NumPy array, in `dtype`."""

    def numpy(self, a: Array) -> np.ndarray[Any, Any]:
        """The elements on the host, read-only, bfloat16 as float32. Waits for the work that makes them."""

    def from_dlpack(self, x: Any) -> Array:
        """An array that shares the memory of `x`, an object with `__dlpack__`; a copy where it is not in row-major order
        or read-only.

        BufferError or ValueError where the memory is on another device.
        """

    def dtype(self, a: Array) -> str:
        """The name of an array's dtype, one of DTYPES."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Array:
        """An array with every element `value`."""

    def cast(self, a: Array, dtype: str) -> Array:
        """The elements in another dtype. As int64 they are truncated, and a NaN is the smallest, which is no index."""

    def unary(self, code: str, a: Array) -> Array:
        """`code` of each element: neg -x, exp, log, sqrt, tanh, or gelu x/2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    def binary(self, code: str, a: Array | float, b: Array | float, param: float = 0.0) -> Array:
        """`code` of each pair of elements of two arrays that broadcast; one of them may be a number. Beside half precision it is
        a float32, but compared in the dtype of the array.

        add, sub, mul, div, maximum (NaN if either is); less, less_equal, equal give 1 or 0 in the dtype of `a`; masked_fill gives
        `param` where `b` is not 0, else `a`; gelu_backward gives a * gelu'(b).
        """

    def permute(self, a: Array, axes: Sequence[int]) -> Array:
        """Axis i of the result is axis `axes[i]` of `a`."""

    def expand(self, a: Array, shape: Sequence[int]) -> Array:
        """`a` stretched to a shape that it broadcasts to."""

    def reshape(self, a: Array, shape: Sequence[int]) -> Array:
        """The same elements in another shape of the same size. Copies nothing."""

    def slice_rows(self, a: Array, begin: int, end: int) -> Array:
        """Elements `begin` to `end` of the first axis. Copies nothing."""

    def pad_rows(self, a: Array, before: int, after: int) -> Array:
        """`a` with zeros before and after it along the first axis: what `slice_rows` undoes."""

    def sum_axis(self, a: Array, axis: int) -> Array:
        """The sums over one axis, which disappears: (outer, n, inner) -> (outer, inner)."""

    def sum(self, a: Array) -> Array:
        """The sum of all elements, of shape (): in stages of 256 at most, so that rounding grows with their number alone."""

    def max_axis(self, a: Array, axis: int) -> Array:
        """The largest elements along one axis, which is not empty and disappears. NaN where there is one."""

    def softmax(self, a: Array) -> Array:
        """exp(x - max) / Σ exp(x - max) over the last axis. A row that is -inf throughout gives NaN."""

    def log_softmax(self, a: Array) -> Array:
        """(x - max) - ln Σ exp(x - max) over the last axis. The two numbers stay apart: their sum would lose the smaller."""

    def matmul(self, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
        """op(a) @ op(b): (…,M,K) x (…,K,N) -> (…,M,N), batch axes broadcast; op swaps the last two axes if asked to."""

    def gemmt(
        self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
    ) -> Array:
        """The lower triangle of alpha * a @ op(b), `fill` elsewhere; equal batch axes. The rest is not computed."""

    def trmm(self, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Array:
        """alpha * op(tri(a)) @ b, tri the lower triangle; equal batch axes. The other half of `a` is not read into the result."""

    def syrk(self, a: Array, *, alpha: float = 1.0) -> Array:
        """alpha * a @ aᵀ: (…,N,K) -> (…,N,N), half of it computed and mirrored."""

    def gather(self, table: Array, indices: Array) -> Array:
        """Row indices[…] of a table: (V,C), (…) -> (…,C). IndexError for an index outside 0 to V - 1."""

    def scatter_add(self, updates: Array, indices: Array, rows: int) -> Array:
        """The sums of the updates of equal index: (…,C), (…) -> (rows,C), the gradient of `gather`. Errors as there."""

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        """-log_softmax(logits) at the target of each row: (R,V), (R) -> (R). IndexError for a target outside 0 to V - 1."""

    def cross_entropy_backward(self, grad: Array, logits: Array, targets: Array) -> Array:
        """grad * (softmax(logits) - onehot(targets)): (R), (R,V), (R) -> (R,V)."""

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
        """weight * (x - mean) * rstd + bias over the last axis, with mean and rstd = 1/√(variance + eps).

        (R,C), (C), (C) -> (R,C), (R), (R); mean and rstd are float32 where x is float16 or bfloat16.
        """

    def layer_norm_backward(self, grad: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Array, Array, Array]:
        """Gradients of x, weight and bias, from that of `layer_norm`'s first result."""

    def adamw(
        self, param: Array, grad: Array, m: Array, v: Array, *,
        step: int | Array, lr: float | Array, beta1: float, beta2: float, eps: float, weight_decay: float,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """New parameters and moments after step number `step`, from 1 on (Loshchilov and Hutter 2019, as in torch.optim.AdamW).
        `step` and `lr` are numbers, or arrays of one element.

        m' = β₁m + (1-β₁)g; v' = β₂v + (1-β₂)g²; p' = p (1 - lr·decay) - lr · m'/(1-β₁ˢ) / (√(v'/(1-β₂ˢ)) + eps)
        """
