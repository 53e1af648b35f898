"""How each library computes an operation on given operands: what a user of it would write, at its best.

Each call gives a new result. JAX and CuPy share the operands' memory. Where a library cannot do what is asked, `Unable` says why.
"""

import ctypes
import importlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import trigemm

Call = Callable[[], Any]

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory


class Unable(Exception):
    """Why a peer cannot do what is asked, in a few words."""


@dataclass(frozen=True)
class Case:
    """An operation at one shape, P = B * NH matrices. mode: of syrk "mirrored" or "triangle", of attention "weights"."""

    operation: str
    B: int
    T: int
    NH: int
    HS: int
    mode: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The operation's, where they are not its defaults: of scores and gemmt, nothing above the diagonal is asked for."""
        if self.operation in ("causal_scores_qkvpacked", "gemmt"):
            return {"fill": None}
        return {"uplo": "lower"} if self.mode == "triangle" else {}


@dataclass(frozen=True)
class Peer:
    """call: of a case and its operands. gives: what it gives where that is less than was asked for."""

    name: str
    call: Callable[..., Call]
    gives: str | None = None


def operands(case: Case, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Normally distributed, the same for every peer."""
    B, T, NH, HS, P = case.B, case.T, case.NH, case.HS, case.B * case.NH
    shapes = {
        "causal_scores_qkvpacked": [(B, T, 3, NH, HS)],
        "gemmt": [(P, T, HS), (P, HS, T)],
        "syrk": [(P, T, HS)],
        "trmm": [(P, T, T), (P, T, HS)],
        "causal_softmax": [(P, T, T)],
        "causal_attention": 3 * [(B, NH, T, HS)],
    }[case.operation]
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]


def peers(case: Case, device: str) -> list[Peer]:
    """Those that have something like this operation on this device, trigemm first."""
    found = [Peer("trigemm", ours), Peer("eager", eager), Peer("compiled", compiled)]
    if case.operation == "causal_attention":
        found.append(Peer("sdpa", sdpa, "no weights"))
    if device == "cpu" and case.operation not in ("causal_softmax", "causal_attention") and case.mode != "mirrored":
        found.append(Peer("scipy", scipy_blas))
    if device == "cuda" and case.mode == "triangle":
        found.append(Peer("cupy", cupy_blas))
    if case.operation == "syrk":
        found.append(Peer("jax", jax_product))
    return found


def versions(device: str) -> dict[str, str | None]:
    """Of the peers beside torch; None where one is not installed."""
    found = {}
    for name in ("scipy" if device == "cpu" else "cupy", "jax"):
        try:
            found[name] = str(package(name).__version__)
        except Unable:
            found[name] = None
    return found


def package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unable("not installed") from None


def refuse_half(dtype: torch.dtype) -> None:
    """For a BLAS, which has no such routine."""
    if dtype.itemsize < 4:
        raise Unable(f"no {str(dtype).removeprefix('torch.')}")


def ours(case: Case, *operands: Tensor) -> Call:
    options = {"return_weights": True} if case.operation == "causal_attention" else case.parameters
    operation = getattr(trigemm, case.operation)
    return lambda: operation(*operands, **options)


def scores(qkv: Tensor) -> Tensor:
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind()
    return (q * qkv.shape[-1] ** -0.5) @ k.mT


def causal_softmax(x: Tensor) -> Tensor:
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return x.masked_fill(hidden, -math.inf).softmax(-1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = causal_softmax((q * q.shape[-1] ** -0.5) @ k.mT)
    return weights @ v, weights


IN_TORCH: dict[str, Callable[..., Any]] = {
    "causal_scores_qkvpacked": scores,
    "gemmt": lambda a, b: a @ b,
    "syrk": lambda a: a @ a.mT,
    "trmm": lambda a, b: a.tril() @ b,
    "causal_softmax": causal_softmax,
    "causal_attention": attention,
}


def eager(case: Case, *operands: Tensor) -> Call:
    return lambda: IN_TORCH[case.operation](*operands)


def compiled(case: Case, *operands: Tensor) -> Call:
    call = torch.compile(IN_TORCH[case.operation], dynamic=False, fullgraph=True)
    return lambda: call(*operands)


def sdpa(case: Case, *operands: Tensor) -> Call:
    return lambda: F.scaled_dot_product_attention(*operands, is_causal=True)


def scipy_blas(case: Case, *operands: Tensor) -> Call:
    """SciPy's BLAS. It stores by columns: it is handed transposes, so that nothing is copied."""
    refuse_half(operands[0].dtype)
    letter = "s" if operands[0].dtype == torch.float32 else "d"
    if case.operation == "causal_scores_qkvpacked":
        q, k, _ = operands[0].permute(2, 0, 3, 1, 4).unbind()
        return openblas_gemmt(letter, q, k.mT, case.HS**-0.5)
    if case.operation == "gemmt":
        return openblas_gemmt(letter, *operands, 1.0)
    call = getattr(package("scipy.linalg.blas"), letter + case.operation)
    arrays = [x.numpy() for x in operands]
    if case.operation == "syrk":
        (a,) = arrays[0]
        return lambda: call(1.0, a.T, trans=1, lower=1)[None]

    def trmm() -> Any:  # b.T @ a.T, in place
        out = arrays[1].copy()
        for a, b in zip(arrays[0], out, strict=True):
            call(1.0, a.T, b.T, side=1, overwrite_b=1)
        return out

    return trmm


def openblas_gemmt(letter: str, left: Tensor, right: Tensor, alpha: float) -> Call:
    """The gemmt of the OpenBLAS that SciPy brings, matrix by matrix. SciPy itself has no name for it."""
    library = ctypes.CDLL(package("scipy.linalg._fblas").__file__)
    call = getattr(library, f"scipy_cblas_{letter}gemmt", None)
    if call is None:
        raise Unable("no gemmt")
    row_major, lower, plain, transposed = 101, 122, 111, 112
    scalar = {"s": ctypes.c_float, "d": ctypes.c_double}[letter]
    T, HS = left.shape[-2:]

    def matrix(x: Tensor) -> tuple[ctypes.c_void_p, int]:
        return ctypes.c_void_p(x.data_ptr()), max(x.stride())

    def gemmt() -> Tensor:
        out = torch.empty(*left.shape[:-1], T, dtype=left.dtype)
        how = (row_major, lower, *(plain if x.stride(-1) == 1 else transposed for x in (left, right)))
        for i in product(*map(range, out.shape[:-2])):
            call(*how, T, HS, scalar(alpha), *matrix(left[i]), *matrix(right[i]), scalar(0), *matrix(out[i]))
        return out

    return gemmt


def cupy_blas(case: Case, *operands: Tensor) -> Call:
    """cuBLAS's syrk by way of CuPy, which has no trmm."""
    cupy, syrk = package("cupy"), package("cupy.cublas").syrk
    refuse_half(operands[0].dtype)
    a = cupy.from_dlpack(operands[0][0]).T  # by columns, as cuBLAS takes it
    return lambda: syrk("T", a, lower=True)[None]


def jax_product(case: Case, *operands: Tensor) -> Call:
    jax = package("jax")
    if operands[0].is_cuda:  # there it is cuBLAS's
        refuse_half(operands[0].dtype)
    jax.config.update("jax_enable_x64", True)
    linalg, symmetrize = package("jax.lax.linalg"), case.mode == "mirrored"

    @jax.jit
    def syrk(a: Any) -> Any:
        square = jax.numpy.zeros((*a.shape[:-1], a.shape[-2]), a.dtype)
        return linalg.symmetric_product(a, square, symmetrize_output=symmetrize)

    a = jax.dlpack.from_dlpack(operands[0])

    def call() -> Any:
        if operands[0].is_cuda:  # JAX has a stream of its own: it begins when torch's is done, and torch's goes on after it
            torch.cuda.current_stream().synchronize()
        return syrk(a).block_until_ready()

    return call


def as_tensors(result: Any) -> Sequence[Tensor]:
    """What a call gives, as tensors of torch."""
    results = result if isinstance(result, tuple) else (result,)
    return [x if isinstance(x, Tensor) else torch.from_dlpack(x) for x in results]
