"""What a kernel is: the record that the catalogue, the dispatcher, the harness and the documentation share.

A kernel computes one operation on operands that have already been checked and brought into one form, and writes into `out`:

    gemmt(a, b, out, *, alpha, diagonal, fill, precision, keep=True)
        a (…,M,K), b (…,K,N), out (…,M,N). The lower triangle of alpha * a @ b (an upper one arrives transposed).
        `fill` a number: the rest of `out` is set to it. `fill` None: the rest of `out` is not touched; without `keep` it may hold
        anything afterwards.
    trmm(a, b, out, *, alpha, uplo, diagonal, precision)
        a (…,M,K), b (…,K,N), out (…,M,N). alpha * tri(a) @ b; the other half of `a` is not read into the result.
    syrk(a, c, out, *, alpha, beta, uplo, precision)
        a (…,N,K), c None or (…,N,N), out (…,N,N). uplo "lower" (zeros above the diagonal; only that half of c counts) or "full".
    causal_scores_qkvpacked(qkv, out, *, scale, fill, precision)
        qkv (B,T,3,NH,HS), out (B,NH,T,T). The ladder's operation.
    causal_softmax(scores, out, *, diagonal)
        scores, out (…,T,S). Softmax of the lower triangle, row by row; zeros elsewhere. `out` may be `scores`.
    causal_softmax_backward(grad, weights, out, *, diagonal)
        grad, weights, out (…,T,S). The gradient of the scores, from that of the weights, of which the other half is not read.
    causal_attention(q, k, v, output, weights, columns, stats, *, FORM, heads, fill, precision)
        q, output (B,NH,T,HS), k, v (B,NH_kv,S,HS). The weights of the listed heads (B,len(heads),T,S), with contiguous rows and
        `fill` above the diagonal (None: anything); their sums over the queries, contiguous (B,NH,S), or (B,0,S) where none are
        asked for; what the backward needs of each row, (2,B,NH,T) or (0,) where nothing is. FORM: key_lengths (B,) or None,
        key_mask (B,S) or None, scale, softcap or None, window or None.
    causal_attention_backward(q, k, v, output, stats, d_output, d_weights, d_columns, dq, dk, dv, *, FORM, heads, precision)
        d_output, d_weights, d_columns like the results of the forward, or None. Into dq, dk, dv, like the operands, or in the
        dtype of sums.

The batch dimensions of all operands of one call are equal (broadcast dimensions have stride 0), strides are arbitrary, no operand
overlaps `out` but where that is said, and `precision` is "highest", "high" or "medium". Sizes may be 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

ALL_DTYPES = ("float64", "float32", "float16", "bfloat16")


def takes_all(problem: Mapping[str, Any]) -> str | None:
    """The `refuse` of a kernel without limits."""
    return None


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of the catalogue.

    number       its rung on the ladder, where 0 is the baseline; from 2 on the kernels of other operations (`catalogue`)
    name         what a user types: `trigemm bench --kernel NAME`
    operation    the operation that it computes, as above
    idea         the one thing that it does differently, in a line
    device       "cpu", "cuda", or "any"
    dtypes       names of the dtypes that it takes
    entry_point  "module:function", imported when the kernel is first used
    refuse       why it cannot take a problem (a sentence that says what would work), or None. The problem is a mapping of the
                 operation's dimension names and parameters, for the ladder B, T, NH, HS and fill
    predict      "module:function" that predicts its global memory traffic from the problem's sizes, or None
    takes_keep   whether its entry point takes `keep`, as gemmt's does
    """

    number: int
    name: str
    operation: str
    idea: str
    device: str
    dtypes: tuple[str, ...]
    entry_point: str
    refuse: Callable[[Mapping[str, Any]], str | None] = takes_all
    predict: str | None = None
    takes_keep: bool = False

    @cached_property
    def run(self) -> Callable[..., None]:
        """The kernel's entry point, imported now."""
        entry: Callable[..., None] = _imported(self.entry_point)
        return entry

    @cached_property
    def predicted_traffic(self) -> Callable[..., dict[str, int]] | None:
        """The function behind `predict`, imported now: sizes -> load_requests, load_sectors, store_requests, store_sectors."""
        return None if self.predict is None else _imported(self.predict)


def _imported(path: str) -> Any:
    """What "module:function" names."""
    module, function = path.split(":")
    return getattr(import_module(module), function)
