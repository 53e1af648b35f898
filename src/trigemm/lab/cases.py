"""What verification tries: one case is an operation, its sizes, and everything about its operands that could matter.

The sizes of a case go by the names of the operation's dimensions:

    gemmt                     M, N, K                 a (…,M,K), b (…,K,N)
    trmm                      M, N, K                 op(tri(a)) is M x K from the left, K x N from the right
    syrk                      N, K                    a (…,N,K), and c (…,N,N) where `beta` is among the parameters
    causal_scores             B, NH, NH_kv, T, S, HS  q (B,NH,T,HS), k (B,NH_kv,S,HS)
    causal_scores_qkvpacked   B, T, NH, HS            qkv (B,T,3,NH,HS)
    causal_softmax            T, S                    scores (…,T,S)
    causal_attention          B, NH, NH_kv, T, S, HS  q (B,NH,T,HS), k and v (B,NH_kv,S,HS)

A case determines its operands to the last bit (trigemm.lab.operands), and prints as the Python that makes it again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, nan
from random import Random
from typing import Any

from trigemm.kernels.spec import ALL_DTYPES

OPERATIONS = ("gemmt", "trmm", "syrk", "causal_scores", "causal_scores_qkvpacked", "causal_softmax", "causal_attention")
KERNEL_OPERATIONS = ("gemmt", "trmm", "syrk", "causal_scores_qkvpacked", "causal_softmax")
PRECISIONS = ("highest", "high", "medium")
LAYOUTS = ("contiguous", "transposed", "packed", "sliced", "stepped", "expanded", "misaligned")
VALUES = ("normal", "wide", "huge", "tiny", "nonfinite", "sparse")
DIFFERENTIABLE = ("gemmt", "trmm", "syrk")

# Sizes by how often 2 divides them: this decides alignment, and the product of two sizes falls into one kind too.
_SIZES: Mapping[str, tuple[int, ...]] = {
    "odd": (3, 7, 7, 33, 33, 65, 127, 129, 257),
    "eight": (8, 24, 40, 136),
    "sixteen": (16, 32, 64, 128, 192, 256),
    "one": (1,),
    "zero": (0,),
}
_LARGE_SIZES: Mapping[str, int] = {"odd": 1023, "eight": 1000, "sixteen": 1024}


@dataclass(frozen=True, repr=False)
class Case:
    """One problem to verify.

    batch        leading dimensions of each operand of gemmt, trmm, syrk or causal_softmax; they broadcast
    parameters   keyword arguments of the operation, those that are not at their default
    layouts      how each operand lies in memory, one of LAYOUTS; contiguous where the list ends
    out          the layout of the tensor given as `out=`; None: none is given
    values       what kind of numbers the operands hold, one of VALUES
    gradient     whether gradients are verified instead of the result

    >>> Case("trmm", {"M": 7, "N": 5, "K": 7}, parameters={"uplo": "upper"}, out="sliced")
    Case('trmm', {'M': 7, 'N': 5, 'K': 7}, parameters={'uplo': 'upper'}, out='sliced')
    """

    operation: str
    sizes: Mapping[str, int]
    batch: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float32"
    precision: str = "highest"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    layouts: tuple[str, ...] = ()
    out: str | None = None
    values: str = "normal"
    gradient: bool = False
    seed: int = 0

    def __repr__(self) -> str:
        plain = Case(self.operation, self.sizes)
        given = [
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[2:] if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return f"Case({', '.join([repr(self.operation), repr(dict(self.sizes)), *given])})"

    def as_python(self, **options: Any) -> str:
        """One line of Python that verifies this case; `options` are further arguments of `verify_case`."""
        names = [name for name in ("inf", "nan") if name in repr(list(self.parameters.values()))]
        imports = f"from math import {', '.join(names)}; " if names else ""
        arguments = ", ".join([repr(self), *(f"{name}={value!r}" for name, value in options.items())])
        return f"{imports}from trigemm.lab.verify import Case, verify_case; print(verify_case({arguments}))"

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each operand, in the order of the call."""
        sizes = self.sizes
        if self.operation == "causal_scores_qkvpacked":
            return ((sizes["B"], sizes["T"], 3, sizes["NH"], sizes["HS"]),)
        if self.operation in ("causal_scores", "causal_attention"):
            q, k = (
                (sizes["B"], sizes["NH"], sizes["T"], sizes["HS"]),
                (sizes["B"], sizes["NH_kv"], sizes["S"], sizes["HS"]),
            )
            return (q, k) if self.operation == "causal_scores" else (q, k, k)
        if self.operation == "causal_softmax":
            matrices: tuple[tuple[int, int], ...] = ((sizes["T"], sizes["S"]),)
        elif self.operation == "syrk":
            N, K = sizes["N"], sizes["K"]
            matrices = ((N, K), (N, N)) if "beta" in self.parameters else ((N, K),)
        else:
            M, N, K = sizes["M"], sizes["N"], sizes["K"]
            matrices = ((M, K), (K, N))
            if self.operation == "trmm":
                triangular, dense = matrices if self.parameters.get("side", "left") == "left" else matrices[::-1]
                matrices = (triangular[::-1] if self.parameters.get("transpose") else triangular, dense)
        batch = (*self.batch, (), ())
        return tuple((*batch[i], *matrix) for i, matrix in enumerate(matrices))

    def layout(self, operand: int) -> str:
        """The layout of one operand."""
        return self.layouts[operand] if operand < len(self.layouts) else "contiguous"

    def unread(self, operand: int) -> tuple[str, int] | None:
        """The (uplo, diagonal) of the triangle of an operand that may be read, where the rest of it may not."""
        if self.operation == "causal_softmax":
            return "lower", self.parameters.get("diagonal", self.sizes["S"] - self.sizes["T"])
        if self.operation == "trmm" and operand == 0:
            return self.parameters.get("uplo", "lower"), self.parameters.get("diagonal", 0)
        uplo = self.parameters.get("uplo", "full")
        return (uplo, 0) if self.operation == "syrk" and operand == 1 and uplo != "full" else None

    @classmethod
    def random(
        cls,
        rng: Random,
        form: Random | None = None,
        *,
        operations: Sequence[str] = OPERATIONS,
        dtypes: Sequence[str] = ALL_DTYPES,
        precisions: Sequence[str] = PRECISIONS,
        for_kernel: bool = False,
        largest: int = 1024,
    ) -> "Case":
        """A case at random.

        `form` draws what decides how a kernel is compiled: dtype, precision, layouts, whether sizes are odd or multiples of 16.
        Cases from equal forms need the same compiled kernels. `for_kernel` keeps to what a kernel's entry point takes
        (trigemm.kernels.spec).
        """
        return _draw(cls, rng, form or rng, operations, dtypes, precisions, for_kernel, largest)


def _draw(
    make: type[Case],
    rng: Random,
    form: Random,
    operations: Sequence[str],
    dtypes: Sequence[str],
    precisions: Sequence[str],
    for_kernel: bool,
    largest: int,
) -> Case:
    operation = form.choice(operations)
    dtype = form.choice([*dtypes, *(["float32"] * 2 if "float32" in dtypes else [])])
    precision = form.choice(precisions) if dtype == "float32" else "highest"
    kinds = [form.choices(list(_SIZES), (50, 12, 25, 10, 3))[0] for _ in range(3)]
    first, second, third = (_size(rng, kind, largest) for kind in kinds)
    gradient = not for_kernel and operation in DIFFERENTIABLE and form.random() < 0.15
    # What overflows in a score has no weight that could be foreseen.
    chances = {"causal_attention": (50, 20, 0, 10, 0, 20), "causal_softmax": (40, 20, 0, 10, 20, 10)}
    values = "normal" if gradient else rng.choices(VALUES, chances.get(operation, (40, 20, 10, 10, 10, 10)))[0]
    parameters: dict[str, Any] = {}
    batch: tuple[tuple[int, ...], ...] = ()

    alpha = rng.choice((1.0, 1.0, 0.5, -1.25, 3.0, 0.0))
    if alpha != 1 and not (alpha == 0 and values in ("huge", "nonfinite")):
        parameters["alpha"] = alpha
    if operation == "causal_softmax":
        parameters.pop("alpha", None)
        sizes = {"T": first, "S": second}
        if rng.random() < 0.5:
            parameters["diagonal"] = rng.choice((0, 1, -1, 5, -5, 40, -40, first + 3, -second - 3))
        batch = _batch(rng, form)[:1]
    elif operation in ("gemmt", "trmm"):
        sizes = {"M": first, "N": second, "K": third}
        if form.random() < 0.4 and not (for_kernel and operation == "gemmt"):
            parameters["uplo"] = "upper"
        diagonal = rng.choice((0, 0, 0, 1, -1, 5, -5, 16, -16, 40, -40, first + 3, -second - 3))
        if diagonal:
            parameters["diagonal"] = diagonal
        batch = _batch(rng, form)
        if operation == "trmm" and not for_kernel:
            if form.random() < 0.4:
                parameters["side"] = "right"
            if form.random() < 0.4:
                parameters["transpose"] = True
    elif operation == "syrk":
        sizes = {"N": first, "K": third}
        uplo = form.choice(("full", "full", "lower") if for_kernel else ("full", "lower", "upper"))
        if uplo != "full":
            parameters["uplo"] = uplo
        if form.random() < 0.5:
            parameters["beta"] = rng.choice((1.0, -0.5, 0.0, 2.0))
        a_batch, c_batch = _batch(rng, form)
        batch = (a_batch, c_batch if len(c_batch) <= len(a_batch) and all(size == 1 for size in c_batch) else a_batch)
    else:
        parameters.pop("alpha", None)
        if for_kernel or rng.random() < 0.5:
            parameters["scale"] = rng.choice((1.0, 0.125, -0.3))
        B, heads = rng.choice((1, 2, 3)), rng.choice((1, 2, 3))
        if operation in ("causal_scores", "causal_attention"):
            queries, keys = sorted((first, second))
            group = form.choice((1, 1, 2, 4))
            size = (
                third or 1
                if operation == "causal_scores"
                else form.choice([size for size in (16, 24, 40, 64, 80, 128, 256) if size <= max(16, largest)])
            )
            sizes = {"B": B, "NH": heads * group, "NH_kv": heads, "T": queries, "S": keys, "HS": size}
        else:
            sizes = {"B": B, "T": first, "NH": heads, "HS": third or 1}
    if operation == "causal_attention":
        for name, options in (("softcap", (0.5, 30.0)), ("window", (1, 5, 40))):
            if form.random() < 0.25:
                parameters[name] = rng.choice(options)
        listed = [head for head in range(sizes["NH"]) if rng.random() < 0.5] or [0]
        weights = form.choice((False, True, listed))
        if weights is not False:
            parameters["return_weights"] = weights
    if operation not in ("trmm", "syrk", "causal_softmax") and not (operation == "causal_attention" and weights is False):
        fills = (0.0, -inf, nan, -2.5, 1.0)
        # A number, or none: the other values make no other kernel.
        chosen = None if form.random() < 0.3 else rng.choice(fills)
        if chosen is None or for_kernel or rng.random() < 0.7:
            parameters["fill"] = chosen
    operands = len(make(operation, sizes, batch=batch, parameters=parameters).operand_shapes)
    return make(
        operation,
        sizes,
        batch=batch,
        dtype=dtype,
        precision=precision,
        parameters=parameters,
        layouts=tuple(form.choice(LAYOUTS) for _ in range(operands)),
        out=form.choice([layout for layout in LAYOUTS if layout != "expanded"])
        if for_kernel or (not gradient and operation != "causal_attention" and form.random() < 0.6)
        else None,
        values=values,
        gradient=gradient,
        seed=rng.randrange(10**6),
    )


def _size(rng: Random, kind: str, largest: int) -> int:
    if kind in _LARGE_SIZES and rng.random() < 0.03 and _LARGE_SIZES[kind] <= largest:
        return _LARGE_SIZES[kind]
    return rng.choice([size for size in _SIZES[kind] if size <= largest])


def _batch(rng: Random, form: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading dimensions of two operands that broadcast: equal, or with dimensions of 1 or missing ones on either side."""
    whole = tuple(rng.choice((2, 3, 5)) for _ in range(form.choice((0, 0, 1, 1, 2, 3))))
    pair = []
    for _ in range(2):
        stretched = [1 if form.random() < 0.2 else size for size in whole]
        pair.append(tuple(stretched[1:] if stretched and form.random() < 0.15 else stretched))
    return pair[0], pair[1]


def shrink(case: Case, fails: Callable[[Case], bool], limit: int = 500) -> Case:
    """The simplest case found that still fails: greedily, from simpler variants of `case`, in at most `limit` trials."""
    trials = 0
    while trials < limit:
        for simpler in _simpler(case):
            trials += 1
            if fails(simpler):
                case = simpler
                break
            if trials >= limit:
                break
        else:
            break
    return case


def _simpler(case: Case) -> Iterator[Case]:
    """Variants with one thing made simpler: the most telling simplifications first."""
    if case.values != "normal":
        yield replace(case, values="normal")
    if any(layout != "contiguous" for layout in case.layouts):
        yield replace(case, layouts=())
    if any(case.batch):
        yield replace(case, batch=())
        yield from (replace(case, batch=tuple(batch[i:] for batch in case.batch)) for i in range(1, max(map(len, case.batch))))
    for name, size in case.sizes.items():
        for smaller in sorted({1, size // 4, size // 2, size - 16, size - 1}):
            if 0 < smaller < size:
                sizes = {**case.sizes, name: smaller}
                if sizes.get("S", 0) >= sizes.get("T", 0) and sizes.get("NH", 0) % sizes.get("NH_kv", 1) == 0:
                    yield replace(case, sizes=sizes)
    for place in range(1, 1 + max(map(len, case.batch), default=0)):
        ones = tuple(
            (*batch[:-place], 1, *batch[len(batch) - place + 1 :]) if len(batch) >= place else batch for batch in case.batch
        )
        if ones != case.batch:
            yield replace(case, batch=ones)
    for name, value in case.parameters.items():
        if name in ("diagonal", "scale") and value not in (0, 1.0):
            yield replace(case, parameters={**case.parameters, name: int(value / 2) if name == "diagonal" else 1.0})
        if not (name == "fill" and case.out and value is None):
            yield replace(case, parameters={key: kept for key, kept in case.parameters.items() if key != name})
    for i, layout in enumerate(case.layouts):
        if layout != "contiguous":
            yield replace(case, layouts=(*case.layouts[:i], "contiguous", *case.layouts[i + 1 :]))
    if case.out not in (None, "contiguous"):
        yield replace(case, out="contiguous")
    if case.seed:
        yield replace(case, seed=0)
