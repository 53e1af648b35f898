"""The primitives of trigemm.tensor as `benchmarks/tensor.py` measures them, each beside torch's own and CuPy's or NumPy's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F

from trigemm.tensor import CpuBackend

try:
    import cupy
except ImportError:
    cupy = None

Call = Callable[[], object]
BUDGET = 1e-5  # of an error, relative to the largest element
PAIRS = ("add", "sub", "mul", "div", "maximum", "less", "less_equal", "equal")


@dataclass(frozen=True)
class Case:
    """One operation on one shape: ours, torch's, torch's in float64, and that of CuPy or NumPy where it has one.

    floats_moved  what must be read and written, in elements of four bytes; None for products, which are bound by flops
    """

    name: str
    shape: tuple[int, ...]
    floats_moved: int | None
    ours: Call
    theirs: Call
    exact: Call
    others: Call | None = None

    @property
    def label(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}"

    def error(self, call: Call) -> float:
        """The largest error relative to the largest element, over the budget. SystemExit where it exceeds it, or is NaN."""
        exact = self.exact().double()
        result = torch.from_dlpack(call()).double().reshape(exact.shape)
        worst = ((result - exact).abs().max() / exact.abs().max()).item() / BUDGET
        if not worst <= 1:
            raise SystemExit(f"{self.label}: wrong by {worst:.2g} times the budget of {BUDGET}")
        return worst


def make_backend(device):
    if device == "cpu":
        return CpuBackend()
    from trigemm.tensor.cuda import CudaBackend

    return CudaBackend(device)


class Maker:
    """Makes operands, and cases of them."""

    def __init__(self, device: str, backend):
        self.device, self.backend = device, backend
        self.arrays = numpy if device == "cpu" else cupy
        self.generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def below(self, bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=self.generator, device=self.device)

    def case(self, name, moved, ours, theirs, *operands, others=None, shape=None) -> Case:
        """`ours(*arrays)`, `theirs(*tensors)` and `others(module, *arrays)` on the same memory; numbers stay numbers."""
        is_tensor = [isinstance(x, torch.Tensor) for x in operands]
        own = [self.backend.from_dlpack(x) if tensor else x for x, tensor in zip(operands, is_tensor, strict=True)]
        exact = [x.double() if tensor and x.is_floating_point() else x for x, tensor in zip(operands, is_tensor, strict=True)]
        foreign = None
        if self.arrays is not None and others is not None:
            arrays = [self.arrays.from_dlpack(x) if tensor else x for x, tensor in zip(operands, is_tensor, strict=True)]
            foreign = lambda: others(self.arrays, *arrays)  # noqa: E731
        return Case(
            name, tuple(shape or operands[0].shape), moved, lambda: ours(*own), lambda: theirs(*operands),
            lambda: theirs(*exact), foreign,
        )  # fmt: skip


def cases(device: str, elements: int, backend) -> Iterator[Case]:
    """Every operation of the contract on tensors of so many elements, a multiple of 8192; products on the CPU alone."""
    maker = Maker(device, backend)
    rows = 2 ** (elements.bit_length() // 2)
    a, b = (maker.normal(rows, elements // rows) for _ in range(2))
    yield from _elementwise(maker, a, b)
    yield from _moves(maker, a)
    yield from _reductions(maker, a)
    yield from _rowwise(maker, a, b)
    yield from _by_index(maker, a)
    yield from _adamw(maker, a, b)
    if device == "cpu":
        yield from _products(maker, a)


def _squares(a: torch.Tensor) -> torch.Tensor:
    """The same elements as scores: (B,NH,T,T) with T of 256 at most."""
    side = min(256, 2 ** ((a.numel().bit_length() + 2) // 3))
    return a.view(4, -1, side, side)


def _pair(code: str, a, b):
    """What torch and NumPy have for a code, in the dtype of the operands."""
    names = {"sub": "subtract", "mul": "multiply", "div": "divide", "equal": "eq"}
    result = getattr(torch, names.get(code, code))(a, b)
    return result.to(a.dtype) if result.dtype == torch.bool else result


def _foreign_pair(code: str, xp, a, b):
    names = {"sub": "subtract", "mul": "multiply", "div": "divide"}
    result = getattr(xp, names.get(code, code))(a, b)
    return result.astype(a.dtype) if result.dtype == bool else result


def _elementwise(maker: Maker, a: torch.Tensor, b: torch.Tensor) -> Iterator[Case]:
    n, backend = a.numel(), maker.backend
    row, column, scores = maker.normal(a.shape[1]), maker.normal(a.shape[0], 1), _squares(a)

    def binary(code):
        return lambda a, b: backend.binary(code, a, b)

    for code in PAIRS:
        operand = {"div": b.abs() + 1, "equal": a.where(b > 0, b)}.get(code, b)
        yield maker.case(
            code, 3 * n, binary(code), lambda a, b, code=code: _pair(code, a, b), a, operand,
            others=lambda xp, a, b, code=code: _foreign_pair(code, xp, a, b),
        )  # fmt: skip
    yield maker.case("add_number", 2 * n, binary("add"), torch.add, a, 1.5, others=lambda xp, a, b: a + numpy.float32(b))
    for name, x, y in (("add_row", a, row), ("row_add", row, a), ("add_column", a, column), ("add_mask", scores, scores[0, 0])):
        yield maker.case(
            name,
            2 * n,
            binary("add"),
            torch.add,
            x,
            y,
            others=lambda xp, a, b: a + b,
            shape=scores.shape if x is scores else a.shape,
        )
    lower = torch.ones_like(scores[0, 0], dtype=torch.int64).tril()
    yield maker.case(
        "masked_fill", 2 * n, lambda x, m: backend.binary("masked_fill", x, m, -1.0), lambda x, m: x.masked_fill(m != 0, -1.0),
        scores, lower, others=lambda xp, x, m: xp.where(m != 0, numpy.float32(-1), x),
    )  # fmt: skip
    positive = a.abs().clamp(min=1e-6)  # among millions of random numbers one is 0
    for code in ("neg", "exp", "log", "sqrt", "tanh"):
        yield maker.case(
            code, 2 * n, lambda x, code=code: backend.unary(code, x), getattr(torch, code),
            positive if code in ("log", "sqrt") else a,
            others=lambda xp, x, code=code: getattr(xp, "negative" if code == "neg" else code)(x),
        )  # fmt: skip
    yield maker.case("gelu", 2 * n, lambda x: backend.unary("gelu", x), lambda x: F.gelu(x, approximate="tanh"), a)
    yield maker.case(
        "gelu_backward", 3 * n, binary("gelu_backward"),
        lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"), a, b,
    )  # fmt: skip
    yield maker.case(
        "cast", 3 * n // 2, lambda x: backend.cast(x, "float16"), torch.Tensor.half, a,
        others=lambda xp, x: x.astype(numpy.float16),
    )  # fmt: skip


def _moves(maker: Maker, a: torch.Tensor) -> Iterator[Case]:
    n, backend = a.numel(), maker.backend
    axes = {
        "transpose": (a, (1, 0)),
        "permute_heads": (a.view(16, -1, 8, 64), (0, 2, 1, 3)),
        "permute_reversed": (a.view(a.shape[0], -1, 32), (2, 1, 0)),
    }
    for name, (x, order) in axes.items():
        yield maker.case(
            name, 2 * n, lambda x, order=order: backend.permute(x, order),
            lambda x, order=order: x.permute(order).contiguous(), x,
            others=lambda xp, x, order=order: xp.ascontiguousarray(x.transpose(order)),
        )  # fmt: skip
    row, shape = maker.normal(a.shape[1]), tuple(a.shape)
    yield maker.case(
        "expand", n, lambda x: backend.expand(x, shape), lambda x: x.expand(shape).contiguous(), row,
        others=lambda xp, x: xp.ascontiguousarray(xp.broadcast_to(x, shape)), shape=shape,
    )  # fmt: skip
    yield maker.case(
        "full", n, lambda: backend.full(shape, 0.5, "float32"), lambda: torch.full(shape, 0.5, device=maker.device),
        others=lambda xp: xp.full(shape, 0.5, numpy.float32), shape=shape,
    )  # fmt: skip
    yield maker.case(
        "pad_rows", 2 * n, lambda x: backend.pad_rows(x, 1, 2), lambda x: F.pad(x, (0, 0, 1, 2)), a,
        others=(lambda xp, x: xp.pad(x, ((1, 2), (0, 0)))),
    )  # fmt: skip


def _reductions(maker: Maker, a: torch.Tensor) -> Iterator[Case]:
    n, backend = a.numel(), maker.backend
    for name, x in (("", a), ("_of_3", a.view(a.shape[0], -1, 32)), ("_of_4", _squares(a))):
        for axis in range(x.dim()) if name != "_of_3" else (1,):
            yield maker.case(
                f"sum_axis{axis}{name}", n + n // x.shape[axis],
                lambda x, axis=axis: backend.sum_axis(x, axis), lambda x, axis=axis: x.sum(axis), x,
                others=lambda xp, x, axis=axis: x.sum(axis),
            )  # fmt: skip
    yield maker.case("sum", n, backend.sum, torch.sum, a, others=lambda xp, x: x.sum())
    for axis in (0, 1):
        yield maker.case(
            f"max_axis{axis}", n + n // a.shape[axis],
            lambda x, axis=axis: backend.max_axis(x, axis), lambda x, axis=axis: x.amax(axis), a,
            others=lambda xp, x, axis=axis: x.max(axis),
        )  # fmt: skip


def _rowwise(maker: Maker, a: torch.Tensor, b: torch.Tensor) -> Iterator[Case]:
    n, backend = a.numel(), maker.backend
    rows, columns = a.shape
    for x in (a.view(-1, min(1024, n // 8)), a, _squares(a)):
        yield maker.case("softmax", 2 * n, backend.softmax, lambda x: x.softmax(-1), x)
        yield maker.case("log_softmax", 2 * n, backend.log_softmax, lambda x: x.log_softmax(-1), x)
        if x.dim() == 2:
            weight, bias = maker.normal(x.shape[1]), maker.normal(x.shape[1])
            yield maker.case(
                "layer_norm", 2 * n, lambda x, w, v: backend.layer_norm(x, w, v, 1e-5)[0],
                lambda x, w, v: F.layer_norm(x, w.shape, w, v), x, weight, bias,
            )  # fmt: skip
    mean, rstd, weight = a.mean(1), (a.var(1, correction=0) + 1e-5).rsqrt(), maker.normal(columns)
    yield maker.case(
        "layer_norm_backward", 3 * n, lambda g, x, w, m, r: backend.layer_norm_backward(g, x, w, m, r)[0],
        lambda g, x, w, m, r: torch.ops.aten.native_layer_norm_backward(
            g, x, w.shape, m[:, None], r[:, None], w, w, [True] * 3
        )[0], b, a, weight, mean, rstd,
    )  # fmt: skip
    targets = maker.below(columns, rows)
    yield maker.case("cross_entropy", n, backend.cross_entropy, lambda x, t: F.cross_entropy(x, t, reduction="none"), a, targets)

    def torch_backward(g, x, t):  # what autograd runs, from the saved log-probabilities; these are made anew
        return torch.ops.aten._log_softmax_backward_data(
            -F.one_hot(t, columns).to(x.dtype) * g[:, None], x.log_softmax(1), 1, x.dtype
        )

    ones = torch.ones(rows, device=maker.device)
    yield maker.case(
        "cross_entropy_backward", 2 * n, backend.cross_entropy_backward, torch_backward, ones, a, targets, shape=a.shape
    )


def _by_index(maker: Maker, a: torch.Tensor) -> Iterator[Case]:
    n, backend = a.numel(), maker.backend
    length, width = min(50_257, n // 64), min(256, n // 64)
    table, updates = maker.normal(length, width), a.view(-1, width)
    picks = maker.below(length, n // width)
    yield maker.case("gather", 2 * n, backend.gather, lambda t, i: t[i], table, picks, others=lambda xp, t, i: t[i])

    def torch_add(u, i):
        return torch.zeros(length, width, dtype=u.dtype, device=u.device).index_add_(0, i, u)

    yield maker.case(
        "scatter_add", n + table.numel(), lambda u, i: backend.scatter_add(u, i, length), torch_add, updates, picks,
        shape=table.shape,
    )  # fmt: skip


def _adamw(maker: Maker, a: torch.Tensor, b: torch.Tensor) -> Iterator[Case]:
    moments = maker.normal(*a.shape), maker.normal(*a.shape).square()
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01}

    def torch_adamw(p, g, m, v):  # works in place, so on copies, as ours makes new tensors
        p, m, v = p.clone(), m.clone(), v.clone()
        step = torch.tensor(9.0, device=p.device)
        torch._fused_adamw_([p], [g], [m], [v], [], [step], **numbers, amsgrad=False, maximize=False)
        return p

    yield maker.case(
        "adamw", 7 * a.numel(), lambda p, g, m, v: maker.backend.adamw(p, g, m, v, step=9, **numbers)[0], torch_adamw,
        a, b, *moments,
    )  # fmt: skip


def _products(maker: Maker, a: torch.Tensor) -> Iterator[Case]:
    """Batched, of a batch and a matrix, and the triangles, which torch computes whole."""
    backend = maker.backend
    batch = _squares(a)[:2]
    side = batch.shape[-1]
    q, k = batch[..., : side // 4].contiguous(), batch[..., side // 4 : side // 2].contiguous()
    matrix = maker.normal(side, 2 * side)

    def product(xp, x, y):
        return xp.matmul(x, y)

    yield maker.case("matmul_batched", None, backend.matmul, torch.matmul, batch, batch.flip(0), others=product)
    yield maker.case(
        "matmul_transposed", None, lambda q, k: backend.matmul(q, k, transpose_b=True), lambda q, k: q @ k.mT, q, k,
        others=lambda xp, q, k: q @ k.swapaxes(-1, -2),
    )  # fmt: skip
    yield maker.case("matmul_matrix", None, backend.matmul, torch.matmul, batch, matrix, others=product)
    yield maker.case(
        "gemmt", None, lambda q, k: backend.gemmt(q, k, transpose_b=True), lambda q, k: (q @ k.mT).tril_(), q, k,
        others=lambda xp, q, k: xp.tril(q @ k.swapaxes(-1, -2)),
    )  # fmt: skip
    yield maker.case("trmm", None, backend.trmm, lambda x, y: x.tril() @ y, batch, q, others=lambda xp, x, y: xp.tril(x) @ y)
    yield maker.case("syrk", None, backend.syrk, lambda x: x @ x.mT, batch, others=lambda xp, x: x @ x.swapaxes(-1, -2))
