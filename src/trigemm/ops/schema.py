"""The torch.library declarations: schemas, shapes, and the way from a call to a kernel.

torch alone is needed to import this module. A kernel's module is imported when the kernel is first called (`KernelSpec.run`).

Each operation is declared twice, as PyTorch's own are: a functional form that has gradients, and a form that writes
into `out`. That may be given by position, as torch.compile wants one that is not contiguous. A `precision` of None is resolved
when the operation runs, so it follows torch.set_float32_matmul_precision inside compiled graphs too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trigemm.errors import choice
from trigemm.kernels.catalogue import serving
from trigemm.ops.checks import check_out, product_shape, refuse_overlap
from trigemm.ops.direct import needs_no_dispatch
from trigemm.ops.results import count_write, new_result

LIBRARY = torch.library.Library("trigemm", "DEF")

GEMMT = "Tensor a, Tensor b, float alpha, str uplo, SymInt diagonal, float? fill, str? precision"
TRMM = "Tensor a, Tensor b, float alpha, str uplo, SymInt diagonal, str side, bool transpose, str? precision"
SYRK = "Tensor a, Tensor? c, float alpha, float beta, str uplo, str? precision"

OPPOSITE = {"lower": "upper", "upper": "lower"}
SIDES = ("left", "right")
TRMM_SHAPES = {
    ("left", False): "a (…,M,K) and b (…,K,N)",
    ("left", True): "a (…,K,M) and b (…,K,N) with transpose=True",
    ("right", False): 'a (…,K,N) and b (…,M,K) with side="right"',
    ("right", True): 'a (…,N,K) and b (…,M,K) with side="right" and transpose=True',
}


def resolve(precision: str | None) -> str:
    """A precision in words: torch's own setting, as it is now, for None."""
    return precision or torch.get_float32_matmul_precision()


def _expand(x: Tensor, batch: Sequence[int]) -> Tensor:
    return x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:])


def gemmt_shape(a: Tensor, b: Tensor, *_: object) -> tuple[int, ...]:
    return product_shape("gemmt", a, b, a=a, b=b)


def gemmt_write(
    a: Tensor,
    b: Tensor,
    alpha: float,
    uplo: str,
    diagonal: int,
    fill: float | None,
    precision: str | None,
    *,
    out: Tensor,
    keep: bool = True,
) -> None:
    if uplo not in OPPOSITE:
        raise choice("gemmt", "uplo", uplo, OPPOSITE)
    if uplo == "upper":
        a, b, out, diagonal = b.mT, a.mT, out.mT, -diagonal
    kernel = serving("gemmt", out.device.type, out.dtype)
    batch = out.shape[:-2]
    kernel.run(
        _expand(a, batch),
        _expand(b, batch),
        out,
        alpha=alpha,
        diagonal=diagonal,
        fill=fill,
        precision=resolve(precision),
        keep=keep,
    )


def trmm_shape(
    a: Tensor, b: Tensor, alpha: float, uplo: str, diagonal: int, side: str, transpose: bool, *_: object
) -> tuple[int, ...]:
    if side not in SIDES:
        raise choice("trmm", "side", side, SIDES)
    fitting = TRMM_SHAPES[side, transpose]
    if side == "left":
        return product_shape("trmm", a, b, transposed=transpose, fitting=fitting, a=a, b=b)
    rows_last = product_shape("trmm", a, b.mT, transposed=not transpose, fitting=fitting, a=a, b=b)
    return (*rows_last[:-2], rows_last[-1], rows_last[-2])


def trmm_write(
    a: Tensor,
    b: Tensor,
    alpha: float,
    uplo: str,
    diagonal: int,
    side: str,
    transpose: bool,
    precision: str | None,
    *,
    out: Tensor,
) -> None:
    if uplo not in OPPOSITE:
        raise choice("trmm", "uplo", uplo, OPPOSITE)
    if side == "right":  # (b @ t)ᵀ = tᵀ @ bᵀ
        b, out, transpose = b.mT, out.mT, not transpose
    if transpose:
        a, uplo, diagonal = a.mT, OPPOSITE[uplo], -diagonal
    kernel = serving("trmm", out.device.type, out.dtype)
    batch = out.shape[:-2]
    kernel.run(_expand(a, batch), _expand(b, batch), out, alpha=alpha, uplo=uplo, diagonal=diagonal, precision=resolve(precision))


def syrk_shape(a: Tensor, *_: object) -> tuple[int, ...]:
    return (*a.shape[:-1], a.shape[-2])


def syrk_write(a: Tensor, c: Tensor | None, alpha: float, beta: float, uplo: str, precision: str | None, *, out: Tensor) -> None:
    if uplo != "full" and uplo not in OPPOSITE:
        raise choice("syrk", "uplo", uplo, ("full", *OPPOSITE))
    c = None if beta == 0 or c is None else c.expand(out.shape)
    if uplo == "upper":
        c, out, uplo = None if c is None else c.mT, out.mT, "lower"
    kernel = serving("syrk", out.device.type, out.dtype)
    kernel.run(a, c, out, alpha=alpha, beta=beta, uplo=uplo, precision=resolve(precision))


def _batching_rule(name: str) -> Callable[..., tuple[Tensor, int]]:
    """torch.vmap: the mapped dimension becomes the first batch dimension of every operand."""

    def rule(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        operands = [(i, x, d) for i, (x, d) in enumerate(zip(arguments, in_dims, strict=True)) if isinstance(x, Tensor)]
        rank = max(x.dim() - (d is not None) for _, x, d in operands)
        mapped = list(arguments)
        for i, x, d in operands:
            front = x.unsqueeze(0).expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            mapped[i] = front[(slice(None), *[None] * (rank + 1 - front.dim()))]
        return getattr(torch.ops.trigemm, name).default(*mapped), 0

    return rule


def _define(
    name: str, arguments: str, shape: Callable[..., tuple[int, ...]], write: Callable[..., None], **fresh: Any
) -> tuple[Callable[..., Tensor], Callable[..., None]]:
    """Declare an operation and its `out` form; return both as functions. `fresh` goes to `write` with a new tensor."""

    def empty(first: Tensor, *rest: object) -> Tensor:
        return new_result(first, shape(first, *rest))

    def forward(first: Tensor, *rest: object) -> Tensor:
        out = empty(first, *rest)
        write(first, *rest, out=out, **fresh)
        return out

    def into(first: Tensor, second: Tensor | None, *parameters: Any) -> None:
        *rest, out = parameters
        refuse_overlap(name, out, **{"a": first, "c" if name == "syrk" else "b": second})
        write(first, second, *rest, out=out)
        count_write(out)

    def checked_into(first: Tensor, second: Tensor | None, *parameters: Any) -> None:
        *rest, out = parameters
        check_out(name, out, shape(first, second, *rest), first)
        into(first, second, *parameters)

    LIBRARY.define(f"{name}({arguments}) -> Tensor")
    LIBRARY.define(f"{name}.out({arguments}, Tensor(a!) out) -> ()")
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, forward, device)
        LIBRARY.impl(f"{name}.out", checked_into, device)
    torch.library.register_fake(f"trigemm::{name}", empty, lib=LIBRARY)
    torch.library.register_fake(f"trigemm::{name}.out", lambda *_: None, lib=LIBRARY)
    torch.library.register_vmap(f"trigemm::{name}", _batching_rule(name), lib=LIBRARY)
    packet = getattr(torch.ops.trigemm, name)
    dispatched, dispatched_into = packet.default, packet.out

    def call(first: Tensor, second: Any, *rest: object) -> Tensor:
        return (forward if needs_no_dispatch(first, second) else dispatched)(first, second, *rest)

    def call_into(first: Tensor, second: Any, *rest: object, out: Tensor) -> None:
        (into if needs_no_dispatch(first, second, out) else dispatched_into)(first, second, *rest, out)

    return call, call_into


gemmt, gemmt_out = _define("gemmt", GEMMT, gemmt_shape, gemmt_write, keep=False)
trmm, trmm_out = _define("trmm", TRMM, trmm_shape, trmm_write)
syrk, syrk_out = _define("syrk", SYRK, syrk_shape, syrk_write)
