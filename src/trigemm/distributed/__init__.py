"""Beyond one GPU, on torch.distributed: importing this module lets the operations take DTensors.

`trigemm.gemmt`, `trmm`, `syrk`, `causal_scores`, `causal_scores_qkvpacked`, `causal_softmax` and `causal_attention` then take
DTensors that are sharded over batch or heads, and return DTensors sharded alike, without communication, gradients included. The
functions here take those too, and what is sharded over the sequence, or over the rows of one large matrix.
"""

from trigemm.distributed import rules
from trigemm.distributed.functions import causal_attention, causal_scores, causal_scores_qkvpacked, causal_softmax, syrk
from trigemm.distributed.sequence import sequence_order, shard_sequence, unshard_sequence
from trigemm.distributed.split import balance

__all__ = [
    "balance",
    "causal_attention",
    "causal_scores",
    "causal_scores_qkvpacked",
    "causal_softmax",
    "sequence_order",
    "shard_sequence",
    "syrk",
    "unshard_sequence",
]

rules.register()
