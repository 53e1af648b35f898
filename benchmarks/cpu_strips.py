"""Row strips against the full products of NumPy and torch, on the CPU: one JSON line a case.

    python benchmarks/cpu_strips.py [--seconds 3] [--only NAME]
    python benchmarks/cpu_strips.py --blocks    # where the time goes: the rate of the BLAS in each kind of block, on one thread

All variants write into one output that exists already (in "fresh" each makes its own), take turns, and rest 60 ms before each
turn, so that no thread pool still spins in another one's time. Times are medians in milliseconds. `speedup` is the faster full
product's time over that of the strips. The strips leave alone what lies outside the triangle; in "anything", it may be
overwritten. "whole", "side", and "single" are the ways to multiply that trigemm.kernels.strips.gemmt chooses from.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import torch

import trigemm
from trigemm.kernels.strips import gemmt as ways
from trigemm.kernels.strips.gemmt import gemmt, scores
from trigemm.kernels.strips.geometry import Block, blocks, length
from trigemm.kernels.strips.product import batches, multiply_batch
from trigemm.kernels.strips.syrk import syrk
from trigemm.kernels.strips.trmm import trmm
from trigemm.lab import environment
from trigemm.triangle import Triangle

Variants = dict[str, Callable[[], object]]


def medians(variants: Variants, seconds: float) -> dict[str, float]:
    """The median time of each variant, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    begin = time.perf_counter()
    turns = 0
    while turns < 5 or (time.perf_counter() - begin < seconds and turns < 200):
        turns += 1
        for name, run in variants.items():
            time.sleep(0.06)
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(samples) for name, samples in times.items()}


def gemmt_case(
    batch: int, t: int, depth: int, fill: float | None = None, alpha: float = 1.0, dtype: torch.dtype = torch.float32
) -> Variants:
    a, b = torch.randn(batch, t, depth, dtype=dtype), torch.randn(batch, t, depth, dtype=dtype).mT
    out = torch.empty(batch, t, t, dtype=dtype)

    def strips(keep: bool) -> None:
        gemmt(a, b, out, alpha=alpha, diagonal=0, fill=fill, precision="highest", keep=keep)

    return {
        "numpy": lambda: numpy.matmul(a.numpy(), b.numpy(), out=out.numpy()),
        "torch": lambda: torch.bmm(a, b, out=out),
        "strips": lambda: strips(True),
        "anything": lambda: strips(False),
    }


def ways_case(batch: int, t: int, depth: int) -> Variants:
    variants = gemmt_case(batch, t, depth)
    a, b = torch.randn(batch, t, depth), torch.randn(batch, t, depth).mT
    arguments = a, b, torch.empty(batch, t, t), 1.0, Triangle(t, t), True
    variants["side"] = lambda: ways._side_by_side(*arguments)
    variants["single"] = lambda: ways._one_by_one(*arguments)
    if t <= 512:
        variants["whole"] = lambda: ways._whole(*arguments)
    return variants


def fresh_case(batch: int, t: int, depth: int) -> Variants:
    a, b = torch.randn(batch, t, depth), torch.randn(batch, t, depth).mT
    return {
        "numpy": lambda: numpy.matmul(a.numpy(), b.numpy()),
        "torch": lambda: torch.bmm(a, b),
        "strips": lambda: trigemm.gemmt(a, b, fill=None),
    }


def reference_case(permuted: bool) -> Variants:
    batch, t, heads, size = 8, 1024, 12, 64
    qkv = torch.randn(batch, t, 3, heads, size)
    out = torch.empty(batch, heads, t, t)
    full = out.view(batch * heads, t, t)
    copied = qkv.permute(2, 0, 3, 1, 4).contiguous()

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        q, k, _ = (qkv.permute(2, 0, 3, 1, 4).contiguous() if permuted else copied).view(3, batch * heads, t, size)
        return q, k.mT

    def by_numpy() -> None:
        q, k = operands()
        numpy.matmul(q.numpy(), k.numpy(), out=full.numpy())

    return {
        "numpy": by_numpy,
        "torch": lambda: torch.baddbmm(full, *operands(), beta=0, alpha=0.125, out=full),
        "strips": lambda: scores(qkv, out, scale=0.125, fill=None, precision="highest"),
    }


def trmm_case(batch: int, t: int, columns: int) -> Variants:
    a, b = torch.rand(batch, t, t).tril(), torch.randn(batch, t, columns)
    out = torch.empty(batch, t, columns)
    return {
        "numpy": lambda: numpy.matmul(a.numpy(), b.numpy(), out=out.numpy()),
        "torch": lambda: torch.bmm(a, b, out=out),
        "strips": lambda: trmm(a, b, out, alpha=1.0, uplo="lower", diagonal=0, precision="highest"),
    }


def syrk_case(t: int, depth: int, uplo: str) -> Variants:
    a = torch.randn(t, depth)
    out = torch.empty(t, t)
    variants: Variants = {
        "numpy": lambda: numpy.matmul(a.numpy(), a.numpy().T, out=out.numpy()),
        "torch": lambda: torch.mm(a, a.mT, out=out),
        "strips": lambda: syrk(a, None, out, alpha=1.0, beta=0.0, uplo=uplo, precision="highest"),
    }
    try:
        from scipy.linalg.blas import ssyrk
    except ImportError:
        return variants
    c = numpy.empty((t, t), dtype=numpy.float32, order="F")
    variants["scipy_ssyrk"] = lambda: ssyrk(1.0, a.numpy().T, c=c, trans=1, overwrite_c=1)
    return variants


def cases() -> Iterator[tuple[str, Callable[[], Variants]]]:
    yield "gemmt 1x4096x4096", lambda: gemmt_case(1, 4096, 4096)
    yield "gemmt 12x2048x64", lambda: gemmt_case(12, 2048, 64)
    yield "gemmt 12x2048x64 alpha=0.3", lambda: gemmt_case(12, 2048, 64, alpha=0.3)
    yield "gemmt 12x2048x64 fill=0", lambda: gemmt_case(12, 2048, 64, fill=0.0)
    yield "gemmt 12x2048x64 fresh", lambda: fresh_case(12, 2048, 64)
    yield "gemmt 12x1024x128", lambda: gemmt_case(12, 1024, 128)
    yield "gemmt 1x2048x2048 float64", lambda: gemmt_case(1, 2048, 2048, dtype=torch.float64)
    yield "gemmt 12x2048x64 float64", lambda: gemmt_case(12, 2048, 64, dtype=torch.float64)
    yield "scores 8x1024x12x64 with permutation", lambda: reference_case(True)
    yield "scores 8x1024x12x64 without permutation", lambda: reference_case(False)
    for t in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        yield f"gemmt sweep T={t} HS=64", lambda t=t: gemmt_case(max(1, min(256, 2**24 // (t * t))), t, 64)
    for batch, t, depth in ((256, 128, 64), (128, 192, 64), (128, 256, 64), (8, 256, 64), (4, 512, 64), (4, 2048, 64)):
        yield f"ways {batch}x{t}x{depth}", lambda batch=batch, t=t, depth=depth: ways_case(batch, t, depth)
    for depth in (96, 128, 256):
        yield f"ways 12x1024x{depth}", lambda depth=depth: ways_case(12, 1024, depth)
    for t in (64, 256, 1024, 4096):
        yield f"gemmt one matrix T={t} HS=64", lambda t=t: gemmt_case(1, t, 64)
    yield "trmm 1x4096x4096", lambda: trmm_case(1, 4096, 4096)
    yield "trmm 12x2048x64", lambda: trmm_case(12, 2048, 64)
    yield "syrk 4096x4096 full", lambda: syrk_case(4096, 4096, "full")
    yield "syrk 4096x4096 lower", lambda: syrk_case(4096, 4096, "lower")
    yield "syrk 2048x512 full", lambda: syrk_case(2048, 512, "full")


def block_rates(batch: int, t: int, depth: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A product of many matrices, whole and in the blocks that are computed side by side: times, and rates of the BLAS."""
    a, b, out = torch.randn(batch, t, depth), torch.randn(batch, t, depth).mT, torch.zeros(batch, t, t)
    groups = list(batches(max(1, ways.SIDE_BY_SIDE_COLUMNS // t), a, b, out))
    kinds: dict[tuple[int, int], list[Block]] = {(t, t): [Block(slice(0, t), slice(0, t), None)]}
    for block in blocks(Triangle(t, t), ways.SIDE_HEIGHTS):
        kinds.setdefault((length(block.rows), length(block.columns)), []).append(block)

    def multiply(alike: list[Block]) -> None:
        for block in alike:
            for left, right, target in groups:
                multiply_batch(left[:, block.rows], right[:, :, block.columns], target[:, block.rows, block.columns], 1.0)

    times = medians({str(kind): partial(multiply, alike) for kind, alike in kinds.items()}, seconds)
    for kind, alike in kinds.items():
        gflops = 2e-6 * batch * len(alike) * kind[0] * kind[1] * depth / times[str(kind)]
        yield {
            "product": f"{batch}x{t}x{depth}", "block": kind, "blocks": len(alike),
            "milliseconds": round(times[str(kind)], 1), "gflops": round(gflops), "versions": environment.versions("cpu"),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for a case, at least five turns")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--blocks", action="store_true", help="the rate of the BLAS in each kind of block, on one thread")
    options = parser.parse_args()
    if options.blocks:
        torch.set_num_threads(1)
        for size in ((12, 2048, 64), (96, 1024, 64)):
            for record in block_rates(*size, options.seconds):
                print(json.dumps(record), flush=True)
        return
    for name, make in cases():
        if options.only not in name:
            continue
        torch.manual_seed(0)
        times = medians(make(), options.seconds)
        record = {
            "case": name,
            "milliseconds": {variant: round(value, 3) for variant, value in times.items()},
            "speedup": round(min(times["numpy"], times["torch"]) / times["strips"], 2),
            "threads": torch.get_num_threads(),
            "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
            "load": round(os.getloadavg()[0], 1),
            "versions": {"numpy": numpy.__version__, "torch": torch.__version__},
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
