"""Products with one triangle: `gemmt`, `trmm`, `syrk`."""

from torch import Tensor

from trigemm.errors import choice, describe
from trigemm.ops import gradients, schema
from trigemm.ops.checks import check_fill, check_operands, check_out, check_scalars, check_words, checked_diagonal

TRIANGLES = ("lower", "upper")


def gemmt(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    uplo: str = "lower",
    diagonal: int = 0,
    fill: float | None = 0.0,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One triangle of a matrix product: tri(alpha * a @ b), and `fill` in the rest.

    Only the tiles that hold an entry of the triangle are computed.

    Args:
        a: (…,M,K). b: (…,K,N). Batch dimensions broadcast as in torch.matmul; any strides. float64, float32, float16 or
            bfloat16; half-precision products accumulate in float32.
        alpha: factor of the product.
        uplo: "lower" keeps entries (r, c) with c - r <= diagonal, "upper" those with c - r >= diagonal.
        diagonal: as in torch.tril and torch.triu.
        fill: value of the other entries; with None they are not written: `out` keeps what it had there, and without `out` they
            are unspecified.
        precision: for float32, "highest" (as accurate as a float32 product), "high" (at least TF32) or "medium" (bfloat16
            products); None takes torch.get_float32_matmul_precision().
        out: tensor of shape (…,M,N) to write into. It may not overlap an operand, and excludes gradients. As for torch.matmul,
            operands stay as they are under autocast.

    Returns:
        (…,M,N), of the operands' dtype.

    Raises:
        TypeError: an operand is not a dense floating tensor, or dtypes differ.
        ValueError: shapes do not fit, devices differ, a word is unknown, or `out` cannot take the result.

    Source: GEMMT of Intel's MKL (?gemmt) and BLIS; in LAPACK from 3.12.1 as ?GEMMTR.

    >>> import torch, trigemm
    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> trigemm.gemmt(a, a)
    tensor([[ 7.,  0.],
            [15., 22.]])
    """
    a, b = check_operands("gemmt", autocast=out is None, a=a, b=b)
    check_words("gemmt", uplo=uplo, uplos=TRIANGLES, precision=precision)
    check_scalars("gemmt", a.dtype, alpha=alpha)
    check_fill("gemmt", fill, a.dtype)
    diagonal = checked_diagonal("gemmt", diagonal)
    shape = schema.gemmt_shape(a, b)
    if out is not None:
        check_out("gemmt", out, shape, a, b)
    return checked_gemmt(a, b, alpha, uplo, diagonal, fill, precision, out)


def checked_gemmt(
    a: Tensor, b: Tensor, alpha: float, uplo: str, diagonal: int, fill: float | None, precision: str | None, out: Tensor | None
) -> Tensor:
    """`gemmt` of arguments that are known to be acceptable."""
    if out is None:
        return gradients.gemmt(a, b, alpha, uplo, diagonal, fill, precision)
    schema.gemmt_out(a, b, alpha, uplo, diagonal, fill, precision, out=out)
    return out


def trmm(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    uplo: str = "lower",
    diagonal: int = 0,
    side: str = "left",
    transpose: bool = False,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A product with a triangular matrix: alpha * op(tri(a)) @ b, or from the right alpha * b @ op(tri(a)).

    `a` is the triangular operand on either side and need not be square. Its other half is never read into the result: NaN there
    changes nothing.

    Args:
        a: (…,M,K) for side="left", (…,K,N) for side="right"; the last two dimensions swapped if `transpose`.
        b: (…,K,N) for side="left", (…,M,K) for side="right". Batch dimensions broadcast; any strides; dtypes as for `gemmt`.
            What is not finite in `b` also reaches some of the sums that skip it: it meets zeros, a tile at a time.
        alpha: factor of the product.
        uplo: which side of the diagonal of `a` counts (before it is transposed): "lower" or "upper".
        diagonal: of `a`, as in torch.tril and torch.triu.
        side: "left" or "right", where the triangular operand stands.
        transpose: whether op transposes.
        precision: as for `gemmt`.
        out: tensor of shape (…,M,N) to write into, as for `gemmt`.

    Returns:
        (…,M,N), of the operands' dtype.

    Raises:
        TypeError: an operand is not a dense floating tensor, or dtypes differ.
        ValueError: shapes do not fit, devices differ, a word is unknown, or `out` cannot take the result.

    Source: TRMM of BLAS level 3, out of place.

    >>> import torch, trigemm
    >>> a = torch.tensor([[1.0, float("nan")], [3.0, 4.0]])
    >>> trigemm.trmm(a, torch.ones(2, 1))
    tensor([[1.],
            [7.]])
    """
    a, b = check_operands("trmm", autocast=out is None, a=a, b=b)
    check_words("trmm", uplo=uplo, uplos=TRIANGLES, precision=precision)
    check_scalars("trmm", a.dtype, alpha=alpha)
    diagonal = checked_diagonal("trmm", diagonal)
    if not isinstance(transpose, bool):
        raise TypeError(f"trmm: transpose must be a bool, got {type(transpose).__name__}")
    if side not in schema.SIDES:
        raise choice("trmm", "side", side, schema.SIDES)
    shape = schema.trmm_shape(a, b, alpha, uplo, diagonal, side, transpose)
    if out is None:
        return gradients.trmm(a, b, alpha, uplo, diagonal, side, transpose, precision)
    check_out("trmm", out, shape, a, b)
    schema.trmm_out(a, b, alpha, uplo, diagonal, side, transpose, precision, out=out)
    return out


def syrk(
    a: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    uplo: str = "full",
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A product of a matrix with its own transpose: alpha * a @ aᵀ + beta * c. Half of it is computed.

    Args:
        a: (…,N,K). Any batch dimensions, any strides; dtypes as for `gemmt`.
        alpha: factor of the product.
        beta: factor of `c`; with 0, `c` is not read.
        c: of any shape that broadcasts to (…,N,N); need not be symmetric.
        uplo: "full" mirrors the computed half, so that a @ aᵀ is symmetric to the bit; "lower" or "upper" gives that triangle
            with zeros elsewhere, and reads that triangle of `c` alone.
        precision: as for `gemmt`.
        out: tensor of shape (…,N,N) to write into, as for `gemmt`.

    Returns:
        (…,N,N), of the operands' dtype.

    Raises:
        TypeError: an operand is not a dense floating tensor, or dtypes differ.
        ValueError: shapes do not fit, devices differ, a word is unknown, or `out` cannot take the result.

    Source: SYRK of BLAS level 3, out of place.

    >>> import torch, trigemm
    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> trigemm.syrk(a)
    tensor([[ 5., 11.],
            [11., 25.]])
    """
    a, c = check_operands("syrk", optional=("c",), autocast=out is None, a=a, c=c)
    check_words("syrk", uplo=uplo, uplos=("full", *TRIANGLES), precision=precision)
    check_scalars("syrk", a.dtype, alpha=alpha, beta=beta)
    shape = schema.syrk_shape(a)
    if c is None and beta != 0:
        raise ValueError(f"syrk: beta is {beta} and there is no c to multiply; give c, or leave beta at 0")
    if c is not None and (c.dim() > len(shape) or any(x not in (1, y) for x, y in zip(c.shape[::-1], shape[::-1], strict=False))):
        raise ValueError(f"syrk: c must broadcast to the result's shape {shape}; got {describe(a=a, c=c)}")
    if out is None:
        return gradients.syrk(a, c, alpha, beta, uplo, precision)
    check_out("syrk", out, shape, a, c)
    schema.syrk_out(a, c, alpha, beta, uplo, precision, out=out)
    return out
