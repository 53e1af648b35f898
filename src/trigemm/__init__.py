"""Matrix products that compute only the triangle that causal attention needs."""

from trigemm import nn as nn
from trigemm.ops.attention import causal_attention
from trigemm.ops.products import gemmt, syrk, trmm
from trigemm.ops.scores import causal_scores, causal_scores_qkvpacked
from trigemm.ops.softmax import causal_softmax

__all__ = ["causal_attention", "causal_scores", "causal_scores_qkvpacked", "causal_softmax", "gemmt", "syrk", "trmm"]
__version__ = "0.1.0"
