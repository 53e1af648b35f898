"""Operations of several tensors that have no operator of their own."""

from collections.abc import Sequence
from typing import Any

from trigemm.tensor import checks, operations
from trigemm.tensor.recording import Recording
from trigemm.tensor.tensor import Tensor, apply


def _tensors(operation: str, *arguments: Any) -> None:
    for x in arguments:
        if not isinstance(x, Tensor):
            raise TypeError(f"{operation}: operands must be trigemm.tensor.Tensor; got {type(x).__name__}")


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """op(a) @ op(b): (…,M,K) x (…,K,N) -> (…,M,N); op swaps the last two axes if asked to, and nothing is permuted.

    >>> matmul(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]]), transpose_b=True).item()
    11.0
    """
    _tensors("matmul", a, b)
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return apply(operations.matmul, a, b, **{name: checks.check_flag("matmul", name, flag) for name, flag in flags.items()})


def gemmt(a: Tensor, b: Tensor, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False) -> Tensor:
    """The lower triangle of alpha * a @ op(b), `fill` elsewhere: (…,M,K) x (…,K,N) -> (…,M,N). `diagonal` as in torch.tril.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> gemmt(x, x)
    Tensor([[ 7.,  0.],
            [15., 22.]], shape=(2, 2), dtype=float32, backend=cpu)
    """
    _tensors("gemmt", a, b)
    return apply(
        operations.gemmt, a, b,
        alpha=checks.check_number("gemmt", "alpha", alpha), diagonal=checks.check_integer("gemmt", "diagonal", diagonal),
        fill=checks.check_number("gemmt", "fill", fill), transpose_b=checks.check_flag("gemmt", "transpose_b", transpose_b),
    )  # fmt: skip


def trmm(a: Tensor, b: Tensor, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Tensor:
    """alpha * op(tri(a)) @ b with the lower triangle of `a`: (…,M,K) x (…,K,N) -> (…,M,N).

    >>> trmm(Tensor([[1.0, float("nan")], [3.0, 4.0]]), Tensor([[1.0], [1.0]])).numpy().tolist()
    [[1.0], [7.0]]
    """
    _tensors("trmm", a, b)
    return apply(
        operations.trmm, a, b,
        alpha=checks.check_number("trmm", "alpha", alpha), diagonal=checks.check_integer("trmm", "diagonal", diagonal),
        transpose=checks.check_flag("trmm", "transpose", transpose),
    )  # fmt: skip


def syrk(a: Tensor, *, alpha: float = 1.0) -> Tensor:
    """alpha * a @ aᵀ, half of it computed: (…,N,K) -> (…,N,N).

    >>> syrk(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    _tensors("syrk", a)
    return apply(operations.syrk, a, alpha=checks.check_number("syrk", "alpha", alpha))


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """softmax(scale * tri(q @ kᵀ)) @ v: queries (…,T,HS), keys (…,S,HS), values (…,S,C) -> (…,T,C), S >= T.

    Only the triangle of both products is computed; the diagonal is aligned bottom right. `scale` is 1/√HS by default.

    >>> x = Tensor([[1.0], [1.0], [1.0]])
    >>> causal_attention(x, x, Tensor([[1.0], [2.0], [6.0]])).numpy().tolist()
    [[1.0], [1.5], [3.0]]
    """
    _tensors("causal_attention", q, k, v)
    fits = min(len(x.shape) for x in (q, k, v)) >= 2 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if not fits or k.shape[-2] < q.shape[-2] or k.shape[-2] != v.shape[-2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"causal_attention: q (…,T,HS), k (…,S,HS) and v (…,S,C) need equal first axes and S >= T; "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    if not q.shape[-1] and scale is None:
        raise ValueError(f"causal_attention: there is no 1/√HS where HS is 0, as in {q.shape}; give a scale")
    checks.check_floats("causal_attention", q.backend, *(x.array for x in (q, k, v)))
    diagonal = k.shape[-2] - q.shape[-2]
    alpha = q.shape[-1] ** -0.5 if scale is None else checks.check_number("causal_attention", "scale", scale)
    scores = gemmt(q, k, alpha=alpha, diagonal=diagonal, fill=float("-inf"), transpose_b=True)
    return trmm(scores.softmax(), v, diagonal=diagonal)


def gather(table: Tensor, indices: Tensor) -> Tensor:
    """Row indices[…] of a table, as for an embedding: (V,C), (…) -> (…,C).

    IndexError for an index outside 0 to V - 1, on a GPU only if the backend is checked.

    >>> gather(Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([1, 1, 0])).numpy().tolist()
    [[3.0, 4.0], [3.0, 4.0], [1.0, 2.0]]
    """
    _tensors("gather", table, indices)
    return apply(operations.gather, table, indices)


def scatter_add(updates: Tensor, indices: Tensor, rows: int) -> Tensor:
    """The sums of the updates of equal index: (…,C), (…) -> (rows,C). Errors as for `gather`.

    >>> scatter_add(Tensor([[1.0], [2.0], [4.0]]), Tensor([0, 2, 0]), 3).numpy().tolist()
    [[5.0], [0.0], [2.0]]
    """
    _tensors("scatter_add", updates, indices)
    return apply(operations.scatter_add, updates, indices, rows=checks.check_integer("scatter_add", "rows", rows, least=0))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean of -log_softmax(logits) at the targets: (R,V), (R) -> (). IndexError as for `gather`.

    >>> round(cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item(), 4)
    0.6931
    """
    _tensors("cross_entropy", logits, targets)
    return apply(operations.cross_entropy, logits, targets).mean()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """weight * (x - mean) / √(variance + eps) + bias over the last axis: (…,C), (C), (C) -> (…,C).

    >>> layer_norm(Tensor([[1.0, 3.0]]), Tensor([1.0, 1.0]), Tensor([0.0, 0.0]), eps=0.0).numpy().tolist()
    [[-1.0, 1.0]]
    """
    _tensors("layer_norm", x, weight, bias)
    return apply(operations.layer_norm, x, weight, bias, eps=checks.check_number("layer_norm", "eps", eps))


def adamw(
    param: Tensor, grad: Tensor, m: Tensor, v: Tensor, *,
    step: int | Tensor, lr: float | Tensor = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """New parameters and new first and second moments, after step number `step` (from 1 on), as torch.optim.AdamW computes them.

    `step` may be a tensor of one int64, and `lr` one of one float: so can both change between the replays of a recorded step.
    betas are at least 0 and below 1; eps, weight_decay and lr, where it is a number, are at least 0.

    >>> one, zero = Tensor([1.0], requires_grad=True), Tensor([0.0])
    >>> param, m, v = adamw(one, Tensor([2.0]), zero, zero, step=1, lr=0.1, weight_decay=0.0)
    >>> param.requires_grad, [round(x.item(), 4) for x in (param, m, v)]
    (True, [0.9, 0.2, 0.004])
    """
    _tensors("adamw", param, grad, m, v)
    checks.check_floats("adamw", param.backend, param.array, grad.array)
    checks.check_floats("adamw", param.backend, m.array, v.array)
    if len({x.shape for x in (param, grad, m, v)}) > 1:
        raise ValueError(f"adamw: shapes must be equal; got {param.shape}, {grad.shape}, {m.shape} and {v.shape}")
    beta1, beta2 = _betas(betas)
    eps, weight_decay = (checks.check_number("adamw", name, x, 0) for name, x in (("eps", eps), ("weight_decay", weight_decay)))
    numbers = [x for x in (step, lr) if isinstance(x, Tensor)]
    for x in (grad, m, v, *numbers):
        checks.check_same("adamw", param.backend, x.backend)
    if any(x.size != 1 for x in numbers):
        raise ValueError(f"adamw: step and lr must have one element; got shapes {', '.join(str(x.shape) for x in numbers)}")
    if isinstance(step, Tensor):
        checks.check_indices("adamw", param.backend, step.array)
    else:
        step = checks.check_integer("adamw", "the step, counted from 1,", step, least=1)
    if isinstance(lr, Tensor):
        checks.check_floats("adamw", param.backend, lr.array)
    else:
        lr = checks.check_number("adamw", "lr", lr, 0)
    recording = Recording.current.get()
    if recording is not None:
        for x in (param, grad, m, v, *numbers):
            recording.reads(x.array)
    new = param.backend.adamw(
        param.array, grad.array, m.array, v.array,
        step=step.array if isinstance(step, Tensor) else step, lr=lr.array if isinstance(lr, Tensor) else lr,
        beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
    )  # fmt: skip
    return param.like(new[0], requires_grad=param.requires_grad), param.like(new[1]), param.like(new[2])


def _betas(betas: Any) -> tuple[float, float]:
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"adamw: betas must be two numbers; got {betas!r}")
    beta1, beta2 = (checks.check_number("adamw", "a beta", beta) for beta in betas)
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"adamw: betas must be at least 0 and below 1; got {beta1} and {beta2}")
    return beta1, beta2
