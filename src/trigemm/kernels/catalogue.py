"""The ordered list of all kernels, and which of them serves a call."""

from trigemm.kernels.spec import ALL_DTYPES, KernelSpec

TILE_DTYPES = ("float32", "float16", "bfloat16")
LADDER = "causal_scores_qkvpacked"

CATALOGUE: tuple[KernelSpec, ...] = (
    KernelSpec(0, "baseline", LADDER, "permute, then the whole product by the BLAS", "any", ALL_DTYPES, "trigemm.kernels.baseline:scores"),
    KernelSpec(6, "tiles", LADDER, "tensor cores, a program a tile (Triton)", "cuda", TILE_DTYPES, "trigemm.kernels.tiles.gemmt:scores"),
    KernelSpec(7, "strips", LADDER, "a BLAS call a strip of rows", "any", ALL_DTYPES, "trigemm.kernels.strips.gemmt:scores"),
)
