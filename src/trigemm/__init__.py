"""Matrix products that compute only the triangle that causal attention needs."""

from trigemm.ops.products import gemmt, syrk, trmm
from trigemm.ops.scores import causal_scores, causal_scores_qkvpacked

__all__ = ["causal_scores", "causal_scores_qkvpacked", "gemmt", "syrk", "trmm"]
__version__ = "0.1.0"
