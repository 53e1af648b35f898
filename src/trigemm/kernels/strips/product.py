"""What the strips are made with: products of strided matrices by a BLAS, masked stores, and groups of a batch.

On the CPU there are two BLASes. NumPy's takes views with a leading dimension as they are and computes float32 as float32 whatever
torch's precision settings say. torch's is the faster one for batches of products with a short inner dimension, and its calls can
be made side by side. Where NumPy's multiplies, NumPy also does the work between the products: torch's threads, waiting for more
work after an operation, would hold the cores that the BLAS's threads need. On other devices torch does all of it.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf, prod
from struct import pack, unpack
from typing import Any

import numpy
import torch
from torch import Tensor

from trigemm.kernels.strips.scratch import scratch
from trigemm.triangle import Triangle, ceil_div

Array = Any
"""A numpy.ndarray that shares a CPU tensor's memory, or a tensor of another device; both are sliced alike."""

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The dtype that shows the bits of numbers of so many bytes."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which products of `dtype` are summed: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_blas_layout(x: Tensor) -> bool:
    """Whether each matrix of `x` has a dimension of unit stride, and another with a stride that a BLAS takes."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def operand(x: Tensor) -> Tensor:
    """`x` in the dtype of its sums and in a layout that a BLAS reads in place; stretched batch dimensions stay stretched."""
    if x.dtype == sum_dtype(x.dtype) and in_blas_layout(x):
        return x.resolve_neg()
    base = x
    for dim in range(x.dim() - 2):
        if x.stride(dim) == 0 and x.shape[dim] > 1:
            base = base.narrow(dim, 0, 1)
    base = base.to(sum_dtype(x.dtype)).resolve_neg()
    return (base if in_blas_layout(base) else base.contiguous()).expand(x.shape)


def torch_is_exact(x: Tensor) -> bool:
    """Whether torch multiplies CPU tensors of this dtype in full precision under the settings now in force."""
    float32_precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return x.device.type == "cpu" and (x.dtype == torch.float64 or float32_precision in ("none", "ieee"))


def takes_sums(out: Tensor) -> bool:
    """Whether a BLAS can write its sums into `out` itself."""
    return out.dtype == sum_dtype(out.dtype) and in_blas_layout(out)


def array(x: Tensor) -> Array:
    """The tensor's memory, for slicing and for the functions below."""
    return x.detach().numpy() if x.device.type == "cpu" else x.detach()


def tensor(x: Array) -> Tensor:
    """The same memory as a tensor."""
    return torch.from_numpy(x) if isinstance(x, numpy.ndarray) else x


def _piece(a: Array, b: Array) -> int:
    """How many terms of a CPU product to sum in one go.

    NumPy's BLAS sums up to about 384 terms one after the other, torch's takes shorter pieces; either sums long runs for a result
    of a few rows or columns. These pieces, as even as can be, keep the error within twice that of torch's whole product.
    """
    depth: int = a.shape[-1]
    on_host = isinstance(a, numpy.ndarray)
    if depth >= 384 or not (a.dtype == numpy.float32 if on_host else a.dtype == torch.float32 and a.device.type == "cpu"):
        return max(1, depth)
    if 1 < min(a.shape[-2], b.shape[-1]) <= 8:
        return 16
    pieces = ceil_div(depth, 192) if on_host else 1
    return max(1, ceil_div(depth, max(1, pieces)))


def multiply(a: Array, b: Array, out: Array | None = None, alpha: float = 1.0) -> Array:
    """alpha * a @ b, into `out` where one is given; else the result may be overwritten by the next call."""
    on_host, shape = isinstance(a, numpy.ndarray), (*a.shape[:-1], b.shape[-1])
    if out is None and on_host:
        out = scratch("product", shape, a.dtype)
    product, piece = numpy.matmul if on_host else torch.matmul, _piece(a, b)
    out = product(a[..., :piece], b[..., :piece, :], out=out)
    for begin in range(piece, a.shape[-1], piece):
        term = scratch("term", shape, a.dtype) if on_host else None
        out += product(a[..., begin : begin + piece], b[..., begin : begin + piece, :], out=term)
    if alpha != 1.0:
        out *= alpha
    return out


def multiply_batch(a: Tensor, b: Tensor, out: Tensor | None = None, alpha: float = 1.0) -> Tensor:
    """As `multiply`, with torch's BLAS on the CPU: (n,M,K) x (n,K,N) -> (n,M,N).

    That BLAS does not read operands that it would multiply by zero, and torch takes NaN for 1: then the product is scaled after.
    """
    if out is None:
        out = torch.from_numpy(scratch("product", (*a.shape[:-1], b.shape[-1]), str(a.dtype).removeprefix("torch.")))
    piece = _piece(a, b)
    factor = alpha if torch.finfo(out.dtype).tiny <= abs(alpha) < inf else 1.0
    torch.baddbmm(out, a[..., :piece], b[..., :piece, :], beta=0, alpha=factor, out=out)
    for begin in range(piece, a.shape[-1], piece):
        out.baddbmm_(a[..., begin : begin + piece], b[..., begin : begin + piece, :], alpha=factor)
    if alpha != factor:
        out.mul_(alpha)
    return out


CACHED_ENTRIES = 2**16
"""Entries up to which a mask is kept for the next call."""


def _host_mask(triangle: Triangle) -> Array:
    made = _cached_host_mask if triangle.rows * triangle.columns <= CACHED_ENTRIES else _cached_host_mask.__wrapped__
    return made(triangle)


@lru_cache(maxsize=128)
def _cached_host_mask(triangle: Triangle) -> Array:
    diagonal = triangle.diagonal if triangle.uplo == "lower" else triangle.diagonal - 1
    below = numpy.tri(triangle.rows, triangle.columns, diagonal, dtype=bool)
    return below if triangle.uplo == "lower" else ~below


def mask(triangle: Triangle, like: Array) -> Array:
    """True where an entry belongs to the triangle, as an array of the kind of `like`."""
    if isinstance(like, numpy.ndarray):
        return _host_mask(triangle)
    ones = torch.ones(triangle.rows, triangle.columns, dtype=torch.bool, device=like.device)
    return ones.tril_(triangle.diagonal) if triangle.uplo == "lower" else ones.triu_(triangle.diagonal)


def masked(x: Array, triangle: Triangle) -> Array:
    """A copy of `x` with zeros outside the triangle, whatever stood there."""
    where: Array = numpy.where if isinstance(x, numpy.ndarray) else torch.where
    return where(mask(triangle, x), x, x.dtype.type(0) if isinstance(x, numpy.ndarray) else 0.0)


def _bits(inside: Triangle, dtype: torch.dtype, fill: float) -> tuple[Tensor, Tensor, Tensor]:
    """Integers as wide as `dtype`: all ones and 0 inside the triangle and outside; 0 and 1; 0 and the bits of `fill`."""
    made = _cached_bits if inside.rows * inside.columns <= CACHED_ENTRIES else _cached_bits.__wrapped__
    return made(inside, dtype, pack("d", fill))


@lru_cache(maxsize=32)
def _cached_bits(inside: Triangle, dtype: torch.dtype, fill: bytes) -> tuple[Tensor, Tensor, Tensor]:
    """`_bits` for a fill as it lies in memory: so 0.0 is not -0.0, and NaN is NaN."""
    ones = torch.from_numpy(_host_mask(inside)).to(INTEGERS[dtype.itemsize]).neg_()
    return ones, ones + 1, torch.tensor(unpack("d", fill)[0], dtype=dtype).view(ones.dtype) & ~ones


def store(sums: Array, out: Tensor, inside: Triangle | None = None) -> None:
    """Round `sums` into `out`: all entries, or those inside the triangle, leaving the others untouched. `sums` is spoilt."""
    if inside is None:
        out.copy_(tensor(sums))
    elif isinstance(sums, numpy.ndarray) and out.dtype == tensor(sums).dtype:
        numpy.copyto(array(out), sums, where=mask(inside, sums))
    elif out.device.type == "cpu" and out.dtype == sums.dtype:
        # torch.where takes one entry at a time, these take a vector.
        belongs, others, _ = _bits(inside, out.dtype, 0.0)
        old, new = out.view(belongs.dtype), sums.view(belongs.dtype)
        torch.addcmul(new.bitwise_and_(belongs), old, others, out=old)
    else:
        belongs = tensor(mask(inside, sums))
        torch.where(belongs, tensor(sums).to(out.dtype), out, out=out)


def set_outside(out: Tensor, inside: Triangle, fill: float) -> None:
    """Set the entries of `out` outside the triangle to `fill`."""
    if out.device.type == "cpu":
        belongs, _, others = _bits(inside, out.dtype, fill)
        out.view(belongs.dtype).bitwise_and_(belongs).bitwise_or_(others)
    else:
        out.masked_fill_(~mask(inside, out), fill)


def scaled(a: Array, alpha: float, b: Array) -> tuple[Array, float]:
    """alpha * a and 1; or a and alpha, where scaling before the product with `b` might overflow or lose digits to underflow."""
    if abs(alpha) >= 1.0 or not isinstance(a, numpy.ndarray) or a.size == 0 or b.size == 0:
        return a, alpha
    product = numpy.multiply(a, a.dtype.type(alpha), out=scratch("scaled", a.shape, a.dtype))
    smallest = numpy.sqrt(numpy.finfo(a.dtype).tiny)
    safe = all(numpy.abs(x, out=scratch("product", x.shape, x.dtype)).min() >= smallest for x in (product, b.swapaxes(-1, -2)))
    return (product, 1.0) if safe else (a, alpha)


def groups(limit: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, which have equal batch dimensions, in parts of at most `limit` matrices each."""
    batch = tensors[0].shape[:-2]
    if prod(batch) <= limit:
        yield tensors
        return
    inner = prod(batch[1:])
    step = max(1, limit // inner)
    for begin in range(0, batch[0], step):
        index = begin if inner > limit else slice(begin, begin + step)
        yield from groups(limit, *(x[index] for x in tensors))


def batches(limit: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """As `groups`, with one batch dimension each: (…,M,N) in parts of (n,M,N), n at most `limit` and about equal."""
    batch = tensors[0].shape[:-2]
    if len(batch) == 1 and batch[0] <= limit:
        yield tensors
        return
    try:
        flat = [x.view(prod(batch), *x.shape[-2:]) for x in tensors]
    except RuntimeError:  # strides that do not merge
        for parts in zip(*tensors, strict=True):
            yield from batches(limit, *parts)
        return
    count = prod(batch)
    step = ceil_div(count, ceil_div(count, limit))
    for begin in range(0, count, step):
        yield tuple(x[begin : begin + step] for x in flat)
