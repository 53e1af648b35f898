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
    return apply(operations.matmul, a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def gemmt(a: Tensor, b: Tensor, *, alpha: float = 1.0, diagonal: int = 0, fill: float = 0.0, transpose_b: bool = False) -> Tensor:
    """The lower triangle of alpha * a @ op(b), `fill` elsewhere: (…,M,K) x (…,K,N) -> (…,M,N). `diagonal` as in torch.tril.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> gemmt(x, x)
    Tensor([[ 7.,  0.],
            [15., 22.]], shape=(2, 2), dtype=float32, backend=cpu)
    """
    _tensors("gemmt", a, b)
    return apply(operations.gemmt, a, b, alpha=alpha, diagonal=diagonal, fill=fill, transpose_b=transpose_b)


def trmm(a: Tensor, b: Tensor, *, alpha: float = 1.0, diagonal: int = 0, transpose: bool = False) -> Tensor:
    """alpha * op(tri(a)) @ b with the lower triangle of `a`: (…,M,K) x (…,K,N) -> (…,M,N).

    >>> trmm(Tensor([[1.0, float("nan")], [3.0, 4.0]]), Tensor([[1.0], [1.0]])).numpy().tolist()
    [[1.0], [7.0]]
    """
    _tensors("trmm", a, b)
    return apply(operations.trmm, a, b, alpha=alpha, diagonal=diagonal, transpose=transpose)


def syrk(a: Tensor, *, alpha: float = 1.0) -> Tensor:
    """alpha * a @ aᵀ, half of it computed: (…,N,K) -> (…,N,N).

    >>> syrk(Tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    _tensors("syrk", a)
    return apply(operations.syrk, a, alpha=alpha)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """softmax(scale * tri(q @ kᵀ)) @ v: queries (…,T,HS), keys (…,S,HS), values (…,S,C) -> (…,T,C), S >= T.

    Only the triangle of both products is computed; the diagonal is aligned bottom right. `scale` is 1/√HS by default.

    >>> x = Tensor([[1.0], [1.0], [1.0]])
    >>> causal_attention(x, x, Tensor([[1.0], [2.0], [6.0]])).numpy().tolist()
    [[1.0], [1.5], [3.0]]
    """
    _tensors("causal_attention", q, k, v)
    if len(q.shape) < 2 or len(k.shape) < 2 or k.shape[-2] < q.shape[-2]:
        raise ValueError(f"causal_attention: q (…,T,HS) and k (…,S,HS) need S >= T; got {q.shape} and {k.shape}")
    diagonal = k.shape[-2] - q.shape[-2]
    alpha = q.shape[-1] ** -0.5 if scale is None else scale
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
    return apply(operations.scatter_add, updates, indices, rows=rows)


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
    return apply(operations.layer_norm, x, weight, bias, eps=eps)


def adamw(
    param: Tensor, grad: Tensor, m: Tensor, v: Tensor, *,
    step: int | Tensor, lr: float | Tensor = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """New parameters and new first and second moments, after step number `step` (from 1 on), as torch.optim.AdamW computes them.

    `step` may be a tensor of one int64, and `lr` one of one float: so can both change between the replays of a recorded step.

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
    numbers = [x for x in (step, lr) if isinstance(x, Tensor)]
    if any(x.backend != param.backend for x in (grad, m, v, *numbers)):
        raise ValueError("adamw: tensors are on different backends; move them with .to(backend)")
    if any(x.size != 1 for x in numbers):
        raise ValueError(f"adamw: step and lr must have one element; got shapes {', '.join(str(x.shape) for x in numbers)}")
    if isinstance(step, Tensor):
        checks.check_indices("adamw", param.backend, step.array)
    if isinstance(lr, Tensor):
        checks.check_floats("adamw", param.backend, lr.array)
    recording = Recording.current.get()
    if recording is not None:
        for x in (param, grad, m, v, *numbers):
            recording.reads(x.array)
    if isinstance(step, int) and step < 1:
        raise ValueError(f"adamw: steps are counted from 1; got {step}")
    new = param.backend.adamw(
        param.array, grad.array, m.array, v.array,
        step=step.array if isinstance(step, Tensor) else step, lr=lr.array if isinstance(lr, Tensor) else lr,
        beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay,
    )  # fmt: skip
    return param.like(new[0], requires_grad=param.requires_grad), param.like(new[1]), param.like(new[2])
