"""The operands of a problem, the calls that contend, and what the work comes to in flops and bytes.

Four sizes describe every operation; P = B * NH is its number of matrices:

    causal_scores_qkvpacked   qkv (B,T,3,NH,HS)           -> (B,NH,T,T)    the ladder; one contender a kernel of the catalogue
    causal_scores             q, k (B,NH,T,HS)            -> (B,NH,T,T)
    gemmt                     a (P,T,HS), b (P,HS,T)      -> (P,T,T)
    syrk                      a (P,T,HS)                  -> (P,T,T)       the whole symmetric result
    trmm                      a (P,T,T) lower, b (P,T,HS) -> (P,T,HS)

Useful flops are those of the triangle's entries, to the entry. Bytes are each operand once (of a triangular operand its triangle)
and what must be written: the triangle's entries, or every entry where there is a fill or the result is whole.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor

import trigemm
from trigemm.kernels import baseline
from trigemm.kernels.catalogue import CATALOGUE, LADDER, PUBLIC
from trigemm.kernels.spec import ALL_DTYPES, KernelSpec
from trigemm.lab import environment
from trigemm.lab.problem import Problem
from trigemm.lab.verify import kernel_call
from trigemm.triangle import Triangle

_PLAIN = "torch.matmul, the whole product"

# Second baselines: where each is there, and what it is. The first is there on the ladder alone.
_SECOND: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "baseline_alone": ("any", ALL_DTYPES, "the baseline's product without its permutation"),
    "baseline_tf32": ("cuda", ("float32",), "the baseline in TF32"),
    "baseline_numpy": ("cpu", ("float64", "float32"), "numpy.matmul, the whole product"),
}


@dataclass(frozen=True)
class Contender:
    """One way to compute a workload.

    call              writes the result into a tensor
    number            its rung on the ladder; None for a second baseline
    refusal           why it cannot take this problem, in a sentence; it is then not to be called
    by_default        whether it contends where no kernel is asked for
    writes_all        overwrites entries that are not part of the answer
    executed_flops    floating-point operations that it really does, where that is known
    """

    name: str
    idea: str
    call: Callable[[Tensor], object]
    precision: str
    number: int | None = None
    refusal: str | None = None
    by_default: bool = True
    writes_all: bool = False
    executed_flops: int | None = None


@dataclass(frozen=True)
class Workload:
    """A problem with its operands on the device.

    out           where results are written, contiguous
    parameters    the operation's, where they are not its defaults
    left, right   the plain product that has the answer among its entries, times alpha
    """

    problem: Problem
    operands: tuple[Tensor, ...]
    out: Tensor
    parameters: Mapping[str, Any]
    left: Tensor
    right: Tensor
    alpha: float
    useful_flops: int
    useful_bytes: int

    @property
    def square_flops(self) -> int:
        """Floating-point operations of the plain product."""
        return 2 * self.out.numel() * self.left.shape[-1]


def build(problem: Problem) -> Workload:
    """A problem's operands, normally distributed from its seed. Raises ValueError where it does not fit in memory."""
    shape = problem.shape
    entries = shape.B * shape.NH * (shape.T * shape.T + 3 * shape.T * shape.HS)
    # The operands and the result, verification's copies of both, and one more while they are compared.
    needed, free = 4 * entries * problem.torch_dtype.itemsize, environment.free_memory(problem.device)
    if free is not None and needed > free:
        sizes = ", ".join(f"{name}={size}" for name, size in asdict(shape).items())
        raise ValueError(
            f"{problem.operation} at {sizes} in {problem.dtype} needs about {_size(needed)} with its verification, "
            f"and {_size(free)} are free on {problem.device}; choose smaller sizes"
        )
    return _BUILDERS[problem.operation](problem)


def _size(count: float) -> str:
    """Bytes, in GB or a larger unit.

    >>> _size(2e8), _size(3.2e23)
    ('0.2 GB', '320.0 ZB')
    """
    size = count / 1e9
    for unit in ("GB", "TB", "PB", "EB"):
        if size < 1000:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} ZB"


def contenders(work: Workload) -> list[Contender]:
    """All that can compute a workload: kernel 0, second baselines, off the ladder the public operation, then the kernels."""
    problem = work.problem
    fill, precision = problem.fill, problem.precision

    def plain(out: Tensor, precision: str = precision) -> None:
        baseline.product(work.left, work.right, out, alpha=work.alpha, precision=precision)
        if fill is not None:
            baseline.set_above_diagonal(out, fill)

    def public(out: Tensor) -> None:
        _public(work, out)

    def product(name: str, idea: str, call: Callable[[Tensor], object], precision: str = precision) -> Contender:
        return Contender(name, idea, call, precision, writes_all=fill is None, executed_flops=work.square_flops)

    def second(name: str, call: Callable[[Tensor], object], precision: str = precision) -> Contender:
        return product(name, _SECOND[name][2], call, precision)

    kernels = [spec for spec in CATALOGUE if spec.operation == problem.operation]
    if problem.operation == LADDER:
        first, *rest = (_rung(spec, work) for spec in kernels)
        others = [second("baseline_alone", plain)]
        tf32 = partial(baseline.scores, work.operands[0], scale=work.alpha, fill=fill, precision="high")
    else:
        first = replace(product("baseline", _PLAIN, plain), number=0)
        rest = [Contender(PUBLIC, f"trigemm.{problem.operation}", public, precision, number=1)]
        rest += (_kernel(spec, work) for spec in kernels)
        others = []
        tf32 = partial(plain, precision="high")
    if problem.device == "cuda" and problem.dtype == "float32" and precision == "highest":
        others.append(second("baseline_tf32", tf32, "high"))
    if problem.device == "cpu" and problem.dtype in ("float64", "float32"):
        others.append(second("baseline_numpy", _numpy_product(work)))
    return [first, *others, *rest]


def listing(operation: str, asked: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What `contenders` may hold for an operation, or of it what is asked for: number, kernel, device, dtypes, idea.

    Raises ValueError for a number or name that is not there.
    """
    kernels: list[tuple[Any, ...]] = [
        (spec.number, spec.name, spec.device, spec.dtypes, spec.idea) for spec in CATALOGUE if spec.operation == operation
    ]
    first = kernels.pop(0) if operation == LADDER else (0, "baseline", "any", ALL_DTYPES, _PLAIN)
    second = [(None, name, *about) for name, about in _SECOND.items() if operation == LADDER or name != "baseline_alone"]
    public = [] if operation == LADDER else [(1, PUBLIC, "any", ALL_DTYPES, f"trigemm.{operation}")]
    rows = [
        dict(zip(("number", "kernel", "device", "dtypes", "idea"), row, strict=True))
        for row in (first, *second, *public, *kernels)
    ]
    for key in asked:
        if not any(key in (row["kernel"], str(row["number"])) for row in rows):
            raise no_kernel(key, [(row["number"], row["kernel"]) for row in rows])
    return [row for row in rows if not asked or not {row["kernel"], str(row["number"])}.isdisjoint(asked)]


def no_kernel(key: str, known: Iterable[tuple[int | None, str]]) -> ValueError:
    """The error for a kernel that is not there."""
    listed = ", ".join(name if number is None else f"{number} {name}" for number, name in known)
    return ValueError(f"there is no kernel {key!r}; there are {listed}")


def refusal(spec: KernelSpec, problem: Problem) -> str | None:
    """Why a kernel cannot take a problem, in a sentence, or None."""
    if spec.device not in ("any", problem.device):
        return f"it runs on {spec.device}, not on {problem.device}"
    if problem.dtype not in spec.dtypes:
        return f"it takes {', '.join(spec.dtypes)}, not {problem.dtype}"
    sentence = spec.refuse({**asdict(problem.shape), "fill": problem.fill})
    if sentence is None:
        try:
            _ = spec.run
        except ImportError as error:
            return f"it needs a package that is missing here: {error}"
    return sentence


def _rung(spec: KernelSpec, work: Workload) -> Contender:
    problem = work.problem
    # What lies above the diagonal of a new result may be anything where there is no fill: so users call a kernel.
    fresh = {"keep": False} if spec.takes_keep and problem.fill is None else {}

    def call(out: Tensor) -> None:
        spec.run(*work.operands, out, **work.parameters, precision=problem.precision, **fresh)

    return Contender(
        spec.name,
        spec.idea,
        call,
        problem.precision,
        spec.number,
        refusal(spec, problem),
        writes_all=bool(fresh) or (spec.number == 0 and problem.fill is None),
        executed_flops=work.square_flops if spec.number == 0 else None,
    )


def _kernel(spec: KernelSpec, work: Workload) -> Contender:
    """A kernel of an operation that is not the ladder's: it may be the one that serves users, so it has to be asked for."""
    problem = work.problem

    def call(out: Tensor) -> None:
        kernel_call(spec.run, problem.operation, work.operands, out, work.parameters, problem.precision)()

    return Contender(spec.name, spec.idea, call, problem.precision, spec.number, refusal(spec, problem), by_default=False)


def _public(work: Workload, out: Tensor) -> None:
    operation = getattr(trigemm, work.problem.operation)
    operation(*work.operands, **work.parameters, precision=work.problem.precision, out=out)


def _numpy_product(work: Workload) -> Callable[[Tensor], None]:
    """The plain product by NumPy, which takes the strided queries and keys of a packed tensor as they are."""
    if work.problem.operation == LADDER:
        q, k, _ = work.operands[0].permute(2, 0, 3, 1, 4)
        left, right = q.numpy(), k.mT.numpy()
    else:
        left, right = work.left.numpy(), work.right.numpy()
    alpha = left.dtype.type(work.alpha)

    def call(out: Tensor) -> None:
        numpy.matmul(left if alpha == 1 else left * alpha, right, out=out.numpy())
        if work.problem.fill is not None:
            baseline.set_above_diagonal(out, work.problem.fill)

    return call


def _normal(problem: Problem, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator(problem.device).manual_seed(problem.seed)
    return (torch.randn(shape, generator=generator, device=problem.device).to(problem.torch_dtype) for shape in shapes)


def _scores(problem: Problem) -> Workload:
    B, T, NH, HS = asdict(problem.shape).values()
    scale = 1 / math.sqrt(HS)
    if problem.operation == LADDER:
        (qkv,) = _normal(problem, (B, T, 3, NH, HS))
        q, k, _ = baseline.permuted(qkv)
        return _workload(problem, (qkv,), q, k.mT, alpha=scale, scale=scale, fill=problem.fill)
    q, k = _normal(problem, (B, NH, T, HS), (B, NH, T, HS))
    return _workload(problem, (q, k), q, k.mT, alpha=scale, scale=scale, fill=problem.fill)


def _gemmt(problem: Problem) -> Workload:
    B, T, NH, HS = asdict(problem.shape).values()
    a, b = _normal(problem, (B * NH, T, HS), (B * NH, HS, T))
    return _workload(problem, (a, b), a, b, fill=problem.fill)


def _syrk(problem: Problem) -> Workload:
    B, T, NH, HS = asdict(problem.shape).values()
    (a,) = _normal(problem, (B * NH, T, HS))
    return _workload(problem, (a,), a, a.mT)


def _trmm(problem: Problem) -> Workload:
    B, T, NH, HS = asdict(problem.shape).values()
    a, b = _normal(problem, (B * NH, T, T), (B * NH, T, HS))
    # The plain product is handed a masked operand: the time of masking is not counted against it.
    return _workload(problem, (a, b), a.tril(), b)


def _workload(
    problem: Problem, operands: tuple[Tensor, ...], left: Tensor, right: Tensor, alpha: float = 1.0, **parameters: float | None
) -> Workload:
    shape, operation = problem.shape, problem.operation
    matrices, triangle = shape.B * shape.NH, Triangle(shape.T, shape.T)
    out = torch.empty(*left.shape[:-1], right.shape[-1], dtype=left.dtype, device=left.device)
    if operation == "trmm":
        entries = matrices * triangle.size + right.numel() + out.numel()
    elif operation == "syrk":
        entries = left.numel() + out.numel()
    else:
        written = matrices * triangle.size if problem.fill is None else out.numel()
        entries = left.numel() + right.numel() + written
    return Workload(
        problem,
        operands,
        out,
        parameters,
        left,
        right,
        alpha,
        useful_flops=matrices * triangle.flops(shape.HS),
        useful_bytes=entries * out.element_size(),
    )


_BUILDERS: Mapping[str, Callable[[Problem], Workload]] = {
    LADDER: _scores,
    "causal_scores": _scores,
    "gemmt": _gemmt,
    "syrk": _syrk,
    "trmm": _trmm,
}
