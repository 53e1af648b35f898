"""Run every kernel for CUDA once or twice at a small size, for NVIDIA's compute-sanitizer to watch.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1    # every tensor its own allocation, so that a step beyond one is seen
    compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize.py    # libraries probe the driver
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

Results are compared with the referee as well. Names of kernels or operations may be given to run these alone. Where there is no
GPU the operations run on the CPU, to try the script.

On an H200 (compute-sanitizer of CUDA 13.0, Triton 3.6) memcheck finds nothing, and racecheck two things, both in `hopper_kernel`
and both Triton's own: what `warp_specialize` hands to its warps, written before a barrier of the block and read after it (STS;
BAR.SYNC 0x1; LDS). racecheck does not take that barrier, in which warps of several roles meet, for one.
"""

import sys
from functools import partial

import torch

import trigemm
from trigemm import reference
from trigemm.kernels.catalogue import CATALOGUE, LADDER

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def operands(dtype, *shapes):
    """Random tensors, the same ones each time."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    return [torch.randn(*shape, generator=generator, device=DEVICE).to(dtype) for shape in shapes]


def product(spec, dtype):
    """A kernel's result and the referee's, at sizes that end inside a tile where the kernel takes such sizes."""
    if spec.operation == LADDER:
        length = 128 if spec.refuse({"T": 136}) else 136
        (qkv,) = operands(dtype, (1, length, 3, 2, 32))
        out = torch.zeros(1, 2, length, length, dtype=dtype, device=DEVICE)
        spec.run(qkv, out, scale=0.25, fill=None, precision="highest")
        return [(out, reference.causal_scores_qkvpacked(qkv, scale=0.25, fill=0.0))]
    # By pointers, and where rows are at multiples of 16 bytes by TMA; the last three go by rows of tiles, and
    # in the last one the result's rows begin anywhere.
    forms = [
        (131, 70, 133, False),
        (136, 136, 144, False),
        (136, 144, 144, False),
        (136, 72, 144, True),
        (136, 40, 144, True),
        (136, 40, 133, True),
    ]
    return [square_product(spec, dtype, *form) for form in forms if spec.operation == "gemmt" or not form[-1]]


def square_product(spec, dtype, m, k, n, columns_first):
    """The same of one operation at one size; `columns_first`, with the second operand's columns contiguous.

    The first operand holds what cannot be split, and the second is stretched over the batch; where m = k, the result's memory
    has a gap after each entry.
    """
    a, b, c = operands(dtype, (2, m, k), (1, n, k) if columns_first else (1, k, n), (2, m, m))
    a[0, m // 2, 3] = 1e-30
    b = (b.mT if columns_first else b).expand(2, k, n)
    shape = (2, m, m if spec.operation == "syrk" else n)
    out = torch.zeros(*shape, 2, dtype=dtype, device=DEVICE)[..., 0] if m == k else torch.zeros(shape, dtype=dtype, device=DEVICE)
    if spec.operation == "gemmt":
        spec.run(a, b, out, alpha=0.5, diagonal=1, fill=2.0, precision="highest")
        return out, reference.gemmt(a, b, alpha=0.5, diagonal=1, fill=2.0)
    if spec.operation == "trmm":
        spec.run(a, b, out, alpha=0.5, uplo="upper", diagonal=-1, precision="highest")
        return out, reference.trmm(a, b, alpha=0.5, uplo="upper", diagonal=-1)
    spec.run(a, c, out, alpha=0.5, beta=-1.0, uplo="full", precision="highest")
    return out, reference.syrk(a, alpha=0.5, beta=-1.0, c=c)


def with_gradients(call, referee, dtype, *shapes):
    """The results of an operation and the gradients of their weighted sum, each beside the referee's."""
    inputs = [x.requires_grad_() for x in operands(dtype, *shapes)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = call(*inputs), referee(*exact)
    upstream = operands(dtype, *(x.shape for x in found))
    gradients = torch.autograd.grad(found, inputs, upstream)
    true = torch.autograd.grad(expected, exact, [x.double() for x in upstream])
    return list(zip((*found, *gradients), (*expected, *true), strict=True))


def softmax(dtype):
    return with_gradients(lambda x: (trigemm.causal_softmax(x),), lambda x: (reference.causal_softmax(x),), dtype, (2, 131, 140))


def attention(dtype, heads, size, **form):
    """Grouped heads; the weights of some heads, or the sums of their columns."""

    def referee(q, k, v):
        output, weights = reference.causal_attention(q, k, v, **form)
        return output, weights.sum(-2) if heads == "columns" else weights[:, heads]

    return with_gradients(
        lambda q, k, v: trigemm.causal_attention(q, k, v, return_weights=heads, **form),
        referee, dtype, (1, 4, 136, size), (1, 2, 144, size), (1, 2, 144, size),
    )  # fmt: skip


def cases():
    """Name and dtype of what is run, and the function that runs it."""
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for spec in CATALOGUE:
            if (
                spec.device == DEVICE == "cuda"
                and name in spec.dtypes
                and not spec.operation.startswith(("causal_softmax", "causal_attention"))
            ):
                yield f"{spec.operation} {spec.name} {name}", dtype, lambda dtype, spec=spec: product(spec, dtype)
        yield f"causal_softmax {name}", dtype, softmax
        for heads in ([0, 3], "columns"):
            for size, form in ((41, {"softcap": 3.0}), (64, {}), (160, {})):
                run = partial(attention, heads=heads, size=size, **form)
                yield f"causal_attention {heads} {size} {name}", dtype, run


def main():
    chosen = set(sys.argv[1:])
    for name, dtype, run in cases():
        if chosen and not chosen.intersection(name.split()):
            continue
        errors = [((x.double() - true).norm() / true.norm()).item() for x, true in run(dtype)]
        print(f"{name}: relative error {max(errors):.1e}", flush=True)
        if not max(errors) < (3e-6 if dtype == torch.float32 else 2e-2):
            raise SystemExit(f"{name} is wrong")


if __name__ == "__main__":
    main()
