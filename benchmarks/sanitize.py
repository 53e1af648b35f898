"""Run every kernel for CUDA once or twice at a small size, for NVIDIA's compute-sanitizer to watch.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1    # every tensor its own allocation, so that a step beyond one is seen
    compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize.py    # libraries probe the driver
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

Results are compared with the referee as well. Names of kernels may be given to run these alone.
"""

import sys

import torch

from trigemm import reference
from trigemm.kernels.catalogue import CATALOGUE, LADDER


def run(spec, dtype):
    """The kernel's result and the referee's, at sizes that end inside a tile where the kernel takes such sizes."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    if spec.operation == LADDER:
        length = 128 if spec.refuse({"T": 136}) else 136
        qkv = normal(1, length, 3, 2, 32)
        out = torch.zeros(1, 2, length, length, dtype=dtype, device="cuda")
        spec.run(qkv, out, scale=0.25, fill=None, precision="highest")
        return out, reference.causal_scores_qkvpacked(qkv, scale=0.25, fill=0.0)
    a, b = normal(2, 131, 70), normal(2, 70, 133)
    out = torch.zeros(2, 131, 131 if spec.operation == "syrk" else 133, dtype=dtype, device="cuda")
    if spec.operation == "gemmt":
        spec.run(a, b, out, alpha=0.5, diagonal=1, fill=2.0, precision="highest")
        return out, reference.gemmt(a, b, alpha=0.5, diagonal=1, fill=2.0)
    if spec.operation == "trmm":
        spec.run(a, b, out, alpha=0.5, uplo="upper", diagonal=-1, precision="highest")
        return out, reference.trmm(a, b, alpha=0.5, uplo="upper", diagonal=-1)
    c = normal(2, 131, 131)
    spec.run(a, c, out, alpha=0.5, beta=-1.0, uplo="full", precision="highest")
    return out, reference.syrk(a, alpha=0.5, beta=-1.0, c=c)


def main():
    chosen = sys.argv[1:]
    for spec in CATALOGUE:
        if spec.device != "cuda" or (chosen and spec.name not in chosen):
            continue
        for name in {"float32", "bfloat16"}.intersection(spec.dtypes):
            dtype = getattr(torch, name)
            out, expected = run(spec, dtype)
            error = ((out.double() - expected).norm() / expected.norm()).item()
            print(f"{spec.operation} {spec.name} {name}: relative error {error:.1e}")
            if not error < (1e-6 if dtype == torch.float32 else 1e-2):
                raise SystemExit(f"{spec.operation} {spec.name} {name} is wrong")


if __name__ == "__main__":
    main()
