"""The operations as functions over the primitives: each takes a backend and arrays, and gives its result and its pullback.

A pullback takes the gradient of the result and gives one function for each argument, which makes that argument's gradient; None
where there is none. Numbers among the arguments count as constants.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from trigemm.tensor import checks
from trigemm.tensor.backend import Array, Backend

Gradient = Callable[[], Array] | None
Pullback = Callable[[Array], tuple[Gradient, ...]]
Result = tuple[Array, Pullback]


def nothing(grad: Array) -> tuple[Gradient, ...]:
    """The pullback of what has no gradient."""
    return (None, None)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(getattr(x, "shape", ()))


def _swapped(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _transpose(be: Backend, a: Array) -> Array:
    rank = len(a.shape)
    return be.permute(a, (*range(rank - 2), rank - 1, rank - 2))


def _sum_to(be: Backend, grad: Array, shape: Sequence[int]) -> Array:
    """The gradient of what was stretched from `shape`: the sums over the stretched axes, rounded once."""
    extra = len(grad.shape) - len(shape)
    axes = [axis for axis, size in enumerate(shape) if size == 1 and grad.shape[extra + axis] != 1]
    dtype = be.dtype(grad)
    rounds = bool(extra) + len(axes) > 1 and dtype in ("float16", "bfloat16")
    if rounds:
        grad = be.cast(grad, "float32")
    if extra:
        grad = be.sum_axis(be.reshape(grad, (prod(grad.shape[:extra]), *grad.shape[extra:])), 0)
    for axis in axes:
        grad = be.reshape(be.sum_axis(grad, axis), _kept(grad.shape, axis))
    return be.cast(grad, dtype) if rounds else grad


def unary(be: Backend, a: Array, *, code: str) -> Result:
    checks.check_floats(code, be, a)
    y = be.unary(code, a)

    def gradient(g: Array) -> Array:
        if code == "neg":
            return be.unary("neg", g)
        if code == "exp":
            return be.binary("mul", g, y)
        if code == "log":
            return be.binary("div", g, a)
        if code == "sqrt":
            return be.binary("div", be.binary("mul", g, 0.5), y)
        if code == "tanh":
            return be.binary("mul", g, be.binary("sub", 1.0, be.binary("mul", y, y)))
        return be.binary("gelu_backward", g, a)

    return y, lambda g: (lambda: gradient(g),)


def binary(be: Backend, a: Array | float, b: Array | float, *, code: str) -> Result:
    """add, sub, mul, div, maximum, and the comparisons, which have no gradient."""
    if isinstance(a, float) or isinstance(b, float):
        checks.check_floats(code, be, b if isinstance(a, float) else a)
    else:
        checks.check_floats(code, be, a, b)
        checks.check_broadcast(code, a.shape, b.shape)
    y = be.binary(code, a, b)

    def towards(g: Array, x: Any, other: Any) -> Array:
        """The gradient of the larger of x and other; where they are equal, each has half, and at a NaN all, as in torch."""
        less = be.binary("add", be.binary("less", x, other), be.binary("less_equal", x, other))
        return be.binary("mul", g, be.binary("sub", 1.0, be.binary("mul", less, 0.5)))

    def gradient_a(g: Array) -> Array:
        if code in ("mul", "div"):
            return be.binary(code, g, b)
        return towards(g, a, b) if code == "maximum" else g

    def gradient_b(g: Array) -> Array:
        if code == "mul":
            return be.binary("mul", g, a)
        if code == "sub":
            return be.unary("neg", g)
        if code == "div":  # -g a / b² in an order in which b² and g * y do not overflow
            return be.unary("neg", be.binary("mul", g, be.binary("div", y, b)))
        return towards(g, b, a) if code == "maximum" else g

    if code in ("less", "less_equal", "equal"):
        return y, nothing
    return y, lambda g: (lambda: _sum_to(be, gradient_a(g), _shape(a)), lambda: _sum_to(be, gradient_b(g), _shape(b)))


def masked_fill(be: Backend, a: Array, mask: Array, *, value: float) -> Result:
    checks.check_floats("masked_fill", be, a)
    checks.check_broadcast("masked_fill", a.shape, mask.shape)
    y = be.binary("masked_fill", a, mask, value)
    return y, lambda g: (lambda: _sum_to(be, be.binary("masked_fill", g, mask, 0.0), a.shape), None)


def cast(be: Backend, a: Array, *, dtype: str) -> Result:
    before, after = be.dtype(a), checks.check_dtype("cast", dtype)
    y = be.cast(a, after)
    if "int64" in (before, after):
        return y, nothing
    return y, lambda g: (lambda: be.cast(g, before),)


def permute(be: Backend, a: Array, *, axes: Sequence[int]) -> Result:
    rank = len(a.shape)
    if sorted(axes) != list(range(rank)):
        raise ValueError(f"permute: axes must be 0 to {rank - 1} in some order for shape {tuple(a.shape)}; got {tuple(axes)}")
    back = [axes.index(axis) for axis in range(rank)]
    return be.permute(a, axes), lambda g: (lambda: be.permute(g, back),)


def expand(be: Backend, a: Array, *, shape: Sequence[int]) -> Result:
    checks.check_rank("expand", shape)
    if checks.check_broadcast("expand", a.shape, shape) != tuple(shape):
        raise ValueError(f"expand: shape {tuple(a.shape)} does not stretch to {tuple(shape)}; only axes of size 1 do")
    return be.expand(a, shape), lambda g: (lambda: _sum_to(be, g, a.shape),)


def reshape(be: Backend, a: Array, *, shape: Sequence[int]) -> Result:
    wanted = checks.check_size("reshape", a.shape, shape)
    return be.reshape(a, wanted), lambda g: (lambda: be.reshape(g, a.shape),)


def slice_rows(be: Backend, a: Array, *, begin: int, end: int) -> Result:
    rows = a.shape[0]
    return be.slice_rows(a, begin, end), lambda g: (lambda: be.pad_rows(g, begin, rows - end),)


def _kept(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def sum_axis(be: Backend, a: Array, *, axis: int) -> Result:
    checks.check_floats("sum", be, a)
    axis = checks.check_axis("sum", axis, len(a.shape))
    return be.sum_axis(a, axis), lambda g: (lambda: be.expand(be.reshape(g, _kept(a.shape, axis)), a.shape),)


def sum_all(be: Backend, a: Array) -> Result:
    checks.check_floats("sum", be, a)
    return be.sum(a), lambda g: (lambda: be.expand(g, a.shape),)


def max_axis(be: Backend, a: Array, *, axis: int) -> Result:
    """Equal largest elements share the gradient."""
    checks.check_floats("max", be, a)
    axis = checks.check_axis("max", axis, len(a.shape))
    y = be.max_axis(a, axis)

    def gradient(g: Array) -> Array:
        kept = _kept(a.shape, axis)
        largest = be.binary("equal", a, be.reshape(y, kept))
        share = be.binary("div", g, be.sum_axis(largest, axis))
        return be.binary("mul", largest, be.reshape(share, kept))

    return y, lambda g: (lambda: gradient(g),)


def softmax(be: Backend, a: Array) -> Result:
    _check_rows("softmax", be, a)
    y = be.softmax(a)

    def gradient(g: Array) -> Array:
        last = len(a.shape) - 1
        inner = be.reshape(be.sum_axis(be.binary("mul", g, y), last), _kept(a.shape, last))
        return be.binary("mul", y, be.binary("sub", g, inner))

    return y, lambda g: (lambda: gradient(g),)


def log_softmax(be: Backend, a: Array) -> Result:
    _check_rows("log_softmax", be, a)
    y = be.log_softmax(a)

    def gradient(g: Array) -> Array:
        last = len(a.shape) - 1
        total = be.reshape(be.sum_axis(g, last), _kept(a.shape, last))
        return be.binary("sub", g, be.binary("mul", be.unary("exp", y), total))

    return y, lambda g: (lambda: gradient(g),)


def _check_rows(operation: str, be: Backend, a: Array) -> None:
    checks.check_floats(operation, be, a)
    if not a.shape:
        raise ValueError(f"{operation}: it works along the last axis, and a single number has none; give (…,N)")


def matmul(be: Backend, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Result:
    checks.check_floats("matmul", be, a, b)
    left = _swapped(a.shape) if transpose_a and len(a.shape) > 1 else a.shape
    right = _swapped(b.shape) if transpose_b and len(b.shape) > 1 else b.shape
    checks.check_product("matmul", left, right, same_batch=False)

    def gradient_a(g: Array) -> Array:
        if transpose_a:
            return _sum_to(be, be.matmul(b, g, transpose_a=transpose_b, transpose_b=True), a.shape)
        return _sum_to(be, be.matmul(g, b, transpose_b=not transpose_b), a.shape)

    def gradient_b(g: Array) -> Array:
        x = a
        if len(b.shape) == 2 and not transpose_a:  # a linear layer: one product of all rows
            x, g = be.reshape(a, (prod(a.shape[:-1]), a.shape[-1])), be.reshape(g, (prod(g.shape[:-1]), g.shape[-1]))
        if transpose_b:
            return _sum_to(be, be.matmul(g, x, transpose_a=True, transpose_b=transpose_a), b.shape)
        return _sum_to(be, be.matmul(x, g, transpose_a=not transpose_a), b.shape)

    y = be.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return y, lambda g: (lambda: gradient_a(g), lambda: gradient_b(g))


def gemmt(
    be: Backend, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False
) -> Result:
    """The gradient's upper half is not read, so a fill of -inf does no harm."""
    checks.check_floats("gemmt", be, a, b)
    right = _swapped(b.shape) if transpose_b and len(b.shape) > 1 else b.shape
    checks.check_product("gemmt", a.shape, right, same_batch=True)
    y = be.gemmt(a, b, alpha=alpha, diagonal=diagonal, fill=fill, transpose_b=transpose_b)

    def gradient_a(g: Array) -> Array:
        return be.trmm(g, b if transpose_b else _transpose(be, b), alpha=alpha, diagonal=diagonal)

    def gradient_b(g: Array) -> Array:
        grad = be.trmm(g, a, alpha=alpha, diagonal=diagonal, transpose=True)
        return grad if transpose_b else _transpose(be, grad)

    return y, lambda g: (lambda: gradient_a(g), lambda: gradient_b(g))


def trmm(be: Backend, a: Array, b: Array, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Result:
    checks.check_floats("trmm", be, a, b)
    left = _swapped(a.shape) if transpose and len(a.shape) > 1 else a.shape
    checks.check_product("trmm", left, b.shape, same_batch=True)
    y = be.trmm(a, b, alpha=alpha, diagonal=diagonal, transpose=transpose)

    def gradient_a(g: Array) -> Array:
        x, z = (b, g) if transpose else (g, b)
        return be.gemmt(x, z, alpha=alpha, diagonal=diagonal, transpose_b=True)

    return y, lambda g: (lambda: gradient_a(g), lambda: be.trmm(a, g, alpha=alpha, diagonal=diagonal, transpose=not transpose))


def syrk(be: Backend, a: Array, *, alpha: float = 1.0) -> Result:
    checks.check_floats("syrk", be, a)
    if len(a.shape) < 2:
        raise ValueError(f"syrk: the operand needs two axes or more, (…,N,K); got {tuple(a.shape)}")
    y = be.syrk(a, alpha=alpha)

    def gradient(g: Array) -> Array:
        both = be.binary("add", g, _transpose(be, g))
        return be.matmul(both if alpha == 1.0 else be.binary("mul", both, alpha), a)

    return y, lambda g: (lambda: gradient(g),)


def gather(be: Backend, table: Array, indices: Array) -> Result:
    checks.check_floats("gather", be, table)
    checks.check_indices("gather", be, indices)
    if len(table.shape) != 2:
        raise ValueError(f"gather: the table must be (V,C); got {tuple(table.shape)}")
    checks.check_rank("gather", (*indices.shape, table.shape[1]))
    return be.gather(table, indices), lambda g: (lambda: be.scatter_add(g, indices, table.shape[0]), None)


def scatter_add(be: Backend, updates: Array, indices: Array, *, rows: int) -> Result:
    checks.check_floats("scatter_add", be, updates)
    checks.check_indices("scatter_add", be, indices)
    if not updates.shape or tuple(updates.shape[:-1]) != tuple(indices.shape):
        raise ValueError(
            f"scatter_add: updates (…,C) and indices (…) must share their first axes; "
            f"got {tuple(updates.shape)} and {tuple(indices.shape)}"
        )
    return be.scatter_add(updates, indices, rows), lambda g: (lambda: be.gather(g, indices), None)


def cross_entropy(be: Backend, logits: Array, targets: Array) -> Result:
    checks.check_floats("cross_entropy", be, logits)
    checks.check_indices("cross_entropy", be, targets)
    if len(logits.shape) != 2 or tuple(targets.shape) != tuple(logits.shape[:1]):
        raise ValueError(
            f"cross_entropy: logits must be (R,V) and targets (R); got {tuple(logits.shape)} and {tuple(targets.shape)}; "
            "reshape would work"
        )
    return be.cross_entropy(logits, targets), lambda g: (lambda: be.cross_entropy_backward(g, logits, targets), None)


def layer_norm(be: Backend, x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Result:
    checks.check_floats("layer_norm", be, x, weight, bias)
    if not x.shape or tuple(weight.shape) != tuple(x.shape[-1:]) or tuple(bias.shape) != tuple(x.shape[-1:]):
        raise ValueError(
            f"layer_norm: x must be (…,C), weight and bias (C); "
            f"got {tuple(x.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    matrix = prod(x.shape[:-1]), x.shape[-1]
    rows = be.reshape(x, matrix)
    y, mean, rstd = be.layer_norm(rows, weight, bias, eps)

    def pull(g: Array) -> tuple[Gradient, ...]:
        dx, dweight, dbias = be.layer_norm_backward(be.reshape(g, matrix), rows, weight, mean, rstd)
        return (lambda: be.reshape(dx, x.shape), lambda: dweight, lambda: dbias)

    return be.reshape(y, x.shape), pull
