"""Causal attention with its weights against eager PyTorch, torch.compile and SDPA; and the configurations of its kernels.

    python benchmarks/attention.py [--only CASE …] [--save FILE] [--repeats N] [--seconds S] [--no-compile]
    python benchmarks/attention.py --sweep KERNEL [--only CASE] [--jobs 8]

Every contender is verified against the float64 referee before it is timed: its error may be twice that of eager attention in the
same dtype. Contenders take turns with the caches flushed before each call. With --save, each becomes a record. --sweep times one
tile kernel ("weights", "output", "columns", "row_sums", "queries" or "keys") in many configurations, the fastest first; --jobs
compiles them beforehand in so many processes. --tiny makes every case small: to try the script, on the CPU too, where
TRITON_INTERPRET=1 lets --sweep run.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F

import trigemm
from trigemm import reference
from trigemm.lab import environment, records
from trigemm.lab.timing import ceilings, interleaved
from trigemm.triangle import Triangle

Results = tuple[torch.Tensor, ...]
KERNELS = ("weights", "output", "columns", "row_sums", "queries", "keys")


@dataclass(frozen=True)
class Case:
    """mode: "output" alone, "weights" of all heads, "unwritten" above the diagonal, of `heads` heads, "columns" sums, or
    "training": gradients of a loss on output and weights, with the forward."""

    name: str
    mode: str
    B: int
    T: int
    NH: int
    HS: int
    dtype: str = "bfloat16"
    precision: str = "highest"
    heads: int = 0

    @property
    def listed(self) -> tuple[int, ...]:
        return tuple(range(self.NH)) if self.mode in ("weights", "unwritten", "training") else tuple(range(self.heads))

    @property
    def asked(self) -> bool | str | list[int]:
        return {"output": False, "columns": "columns", "heads": list(self.listed)}.get(self.mode, True)

    @property
    def fill(self) -> float | None:
        return None if self.mode == "unwritten" else 0.0


CASES = [
    *(Case(f"reference-{mode}", mode, 8, 1024, 12, 64) for mode in ("weights", "unwritten", "output", "columns")),
    *(Case(f"float32-{precision}", "weights", 8, 1024, 12, 64, "float32", precision) for precision in ("highest", "high")),
    Case("float32-output", "output", 8, 1024, 12, 64, "float32"),
    Case("long-output", "output", 1, 4096, 32, 128),
    Case("long-heads", "heads", 1, 4096, 32, 128, heads=4),
    Case("training", "training", 4, 2048, 12, 64),
]


def operands(case: Case, device: str) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shape = (case.B, case.T, 3, case.NH, case.HS)
    qkv = torch.randn(shape, generator=generator, device=device).to(getattr(torch, case.dtype))
    return [x.contiguous() for x in qkv.permute(2, 0, 3, 1, 4)]


def upstream(case: Case, q: torch.Tensor) -> Results:
    """Gradients that reach output and weights."""
    generator = torch.Generator(q.device).manual_seed(1)
    shapes = q.shape, (case.B, case.NH, case.T, case.T)
    return tuple(torch.randn(shape, generator=generator, device=q.device).to(q.dtype) for shape in shapes)


def eager(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """What one writes in PyTorch."""
    hidden = torch.ones(case.T, case.T, dtype=torch.bool, device=q.device).triu(1)
    weights = (q @ k.mT * case.HS**-0.5).masked_fill(hidden, -math.inf).softmax(-1)
    return chosen(case, weights @ v, weights)


def chosen(case: Case, output: torch.Tensor, weights: torch.Tensor) -> Results:
    """What a case asks for, of the output and all weights."""
    if case.mode == "output":
        return (output,)
    return output, weights.sum(-2) if case.mode == "columns" else weights[:, list(case.listed)]


def ours(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    found = trigemm.causal_attention(q, k, v, return_weights=case.asked, fill=case.fill, precision=case.precision)
    return found if isinstance(found, tuple) else (found,)


def sdpa(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


def tiles(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """The tile kernels themselves, also where another kernel would serve."""
    from trigemm.kernels.tiles.attention import causal_attention, causal_attention_backward

    output, stats = torch.empty_like(q), torch.empty(2, *q.shape[:3], device=q.device)
    weights = q.new_empty(case.B, len(case.listed), case.T, case.T)
    columns = torch.empty(case.B, case.NH if case.mode == "columns" else 0, case.T, device=q.device)
    form = dict(key_lengths=None, key_mask=None, scale=case.HS**-0.5, softcap=None, window=None, precision=case.precision)
    causal_attention(q, k, v, output, weights, columns, stats, heads=case.listed, fill=case.fill, **form)
    if case.mode == "training":
        found = tuple(torch.empty_like(x) for x in (q, k, v))
        d_output, d_weights = upstream(case, q)
        causal_attention_backward(q, k, v, output, stats, d_output, d_weights, None, *found, heads=case.listed, **form)
        return found
    return (output, *(x for x in (weights, columns) if x.numel()))


def trained(function: Callable[..., Results], case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """Gradients by a function that gives output and weights."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(function(case, *leaves), leaves, upstream(case, q))


def contenders(case: Case, compiled: bool) -> dict[str, Callable[..., Results]]:
    found: dict[str, Callable[..., Results]] = {"eager": eager}
    if compiled:
        torch._dynamo.reset()  # after so many forms of one function it would compile no more
        found["compiled"] = torch.compile(eager, dynamic=False)
    if case.mode in ("output", "heads", "columns"):  # of the last two, SDPA computes a part: what they cost beside it
        found["sdpa"] = sdpa
    found["trigemm"] = ours
    if case.mode == "training":
        return {name: partial(trained, function) for name, function in found.items()}
    return found


def exact(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """The referee's answer for the first of the batch."""
    first = [x[:1].double().requires_grad_(case.mode == "training") for x in (q, k, v)]
    found = chosen(case, *reference.causal_attention(*first))
    if case.mode != "training":
        return found
    return torch.autograd.grad(found, first, [x[:1].double() for x in upstream(case, q)])


def errors(case: Case, found: Results, expected: Results) -> list[float]:
    """Each result's largest error over its largest entry; infinite where something is not finite."""
    worst = []
    for x, y in zip(found, expected, strict=False):
        x, y = x[:1].double(), y
        if case.fill is None and x.dim() == 4 and x.shape[-1] == x.shape[-2]:
            x = x.tril()
        error = float((x - y).abs().max() / y.abs().max())
        worst.append(error if math.isfinite(error) else math.inf)
    return worst


def budgets(case: Case, plain: list[float]) -> list[float]:
    """What errors may be: twice eager's, and at least a rounding of the dtype."""
    unit = {"float32": 2.0**-22 if case.precision == "highest" else 2.0**-11, "float16": 2.0**-10, "bfloat16": 2.0**-7}[
        case.dtype
    ]
    return [max(2 * error, unit) for error in plain]


def over_budget(case: Case, found: Results, expected: Results, allowed: list[float]) -> float:
    return max(error / limit for error, limit in zip(errors(case, found, expected), allowed, strict=False))


def useful(case: Case) -> tuple[int, int]:
    """Bytes that must move, and flops: of the triangle, each entry once."""
    triangle, matrices, size = Triangle(case.T, case.T), case.B * case.NH, getattr(torch, case.dtype).itemsize
    rows = matrices * case.T * case.HS
    square = case.B * len(case.listed) * (triangle.size if case.mode == "unwritten" else case.T**2)
    if case.mode == "training":  # operands, gradients, output and weights written; the triangle of the weights' gradient read
        return size * (8 * rows + square + matrices * triangle.size), 7 * matrices * triangle.flops(case.HS)
    columns = 4 * matrices * case.T if case.mode == "columns" else 0
    return size * (4 * rows + square) + columns, 2 * matrices * triangle.flops(case.HS)


def measure(case: Case, device: str, arguments: argparse.Namespace) -> None:
    tensors = operands(case, device)
    expected = exact(case, *tensors)
    calls = contenders(case, device == "cuda" and not arguments.no_compile)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(case.precision)
    try:
        allowed = budgets(case, errors(case, calls["eager"](case, *tensors), expected))
        worst = {name: over_budget(case, call(case, *tensors), expected, allowed) for name, call in calls.items()}
        right = {name: partial(call, case, *tensors) for name, call in calls.items() if worst[name] <= 1}
        times = interleaved(right, repeats=arguments.repeats, device=device, seconds=arguments.seconds)
    finally:
        torch.set_float32_matmul_precision(before)
    ceiling = ceilings(device, getattr(torch, case.dtype), case.precision)
    moved, flops = useful(case)
    floor = max(moved / ceiling.best_gbps / 1e6, flops / ceiling.gemm_tflops / 1e9)
    print(f"{case.name}: {case.dtype} {case.B} x {case.NH} x {case.T} x {case.HS}, floor {1e3 * floor:.1f} us", flush=True)
    for name in calls:
        timing = times.get(name)
        median = timing.median_ms if timing else None
        shown = (
            f"{1e3 * median:9.1f} us [{1e3 * timing.p20_ms:.1f}-{1e3 * timing.p80_ms:.1f}]" if timing else "fails verification"
        )
        print(f"    {name:10} {shown}   error {worst[name]:.2f} of the budget", flush=True)
        if arguments.save:
            baseline = times["eager"].median_ms
            record = {
                "operation": "causal_attention", "kernel": name, "mode": case.mode, "case": case.name, "device": device,
                "dtype": case.dtype, "precision": case.precision, "fill": case.fill,
                "shape": {"B": case.B, "T": case.T, "NH": case.NH, "HS": case.HS}, "heads": len(case.listed),
                "verdict": "pass" if timing else "fail", "error_over_budget": worst[name],
                "median_ms": median, "p20_ms": timing and timing.p20_ms, "p80_ms": timing and timing.p80_ms,
                "repeats": len(timing.samples) if timing else 0, "baseline_ms": baseline, "speedup": median and baseline / median,
                "floor_ms": floor, "floor_share": median and floor / median, "useful_bytes": moved, "useful_flops": flops,
                "ceilings": asdict(ceiling), "cold_l2": True, "device_name": environment.device_name(device),
                "versions": environment.versions(device), "commit": environment.commit(),
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "threads": torch.get_num_threads() if device == "cpu" else None,
            }  # fmt: skip
            records.append(arguments.save, record)


def peak_memory(tiny: bool) -> None:
    """What a call with one head's weights allocates at its peak, over what it returns and is given."""
    case = Case("memory", "heads", 1, 512 if tiny else 8192, 32, 64, heads=1)
    tensors = operands(case, "cuda")
    ours(case, *tensors)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = torch.cuda.memory_allocated()
    results = ours(case, *tensors)
    peak = torch.cuda.max_memory_allocated() - begin
    given, returned = (sum(x.nbytes for x in group) for group in (tensors, results))
    excess = (given + peak) / (given + returned) - 1
    print(f"memory: peak {excess:+.2%} over operands and results ({(given + returned) / 1e6:.0f} MB)")


def candidates(kernel: str, bits: int) -> Iterator[tuple]:
    """Configurations worth a try, as arguments of `Config`."""
    rows, columns = ((64, 128), (32, 64, 128)) if kernel not in ("columns", "keys") else ((32, 64, 128), (64, 128))
    for bm, bn, warps, stages, together in product(rows, columns, (4, 8), (2, 3, 4) if bits == 16 else (1, 2, 3), (0, 24)):
        if not together or kernel not in ("columns", "keys"):
            yield bm, bn, warps, stages, together
    if kernel == "weights":
        shapes = ((64, 32), (64, 64)) if bits == 16 else ((64, 32),)
        yield from ((*shape, 4, 3, 0, registers, 4) for shape in shapes for registers in (80, 96, 128, 168))


def configured(kernel: str, case: Case, candidate: tuple) -> Callable[..., Results]:
    """The tile kernels with one of them configured like that."""
    from trigemm.kernels.tiles.attention_config import TABLE, Config
    from trigemm.kernels.tiles.hopper_attention import TABLE as OF_HOPPER

    OF_HOPPER.clear()  # its own kernel would take the calls
    by_size = TABLE[kernel][8 * getattr(torch, case.dtype).itemsize]
    size = next(size for size in by_size if size >= case.HS)

    def call(*tensors: torch.Tensor) -> Results:
        before, by_size[size] = by_size[size], Config(*candidate)
        try:
            return tiles(case, *tensors)
        finally:
            by_size[size] = before

    return call


def compile_one(kernel: str, case: Case, device: str, candidate: tuple) -> None:
    """Compile in a process of its own: the compiled kernel stays in Triton's cache on disk."""
    try:
        configured(kernel, case, candidate)(*operands(case, device))
    except Exception as error:
        print(f"{candidate}: {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)


def sweep(kernel: str, case: Case, device: str, arguments: argparse.Namespace) -> None:
    chosen = list(candidates(kernel, 8 * getattr(torch, case.dtype).itemsize))[: arguments.limit]
    if arguments.jobs > 1:
        with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
            list(pool.map(partial(compile_one, kernel, case, device), chosen))
    tensors = operands(case, device)
    expected = exact(case, *tensors)
    plain = partial(trained, eager) if case.mode == "training" else eager
    allowed = budgets(case, errors(case, plain(case, *tensors), expected))
    able = {}
    for candidate in chosen:
        call = configured(kernel, case, candidate)
        try:
            if over_budget(case, call(*tensors), expected, allowed) <= 1:
                able[str(candidate)] = partial(call, *tensors)
            else:
                print(f"{candidate}: wrong", flush=True)
        except Exception as error:
            print(f"{candidate}: {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
    times = interleaved(able, repeats=arguments.repeats, device=device, seconds=arguments.seconds)
    print(f"{case.name}, {kernel}: BM, BN, warps, stages, together, registers, first stages")
    for name in sorted(times, key=lambda name: times[name].median_ms):
        print(f"    {1e3 * times[name].median_ms:9.1f} us  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--save", type=Path)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="stop timing a case after so long")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile among the contenders")
    parser.add_argument("--sweep", choices=KERNELS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="sweep only the first so many configurations")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    names = arguments.only or [case.name for case in CASES if case.mode != "training" or arguments.device == "cuda"]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"unknown cases {', '.join(sorted(unknown))}")
    cases = [case for case in CASES if case.name in names]
    if arguments.tiny:
        cases = [
            replace(case, B=1, T=96, NH=4, HS=16, dtype="float32" if case.dtype == "float32" else "float16") for case in cases
        ]
    if arguments.save:
        records.check_writable(arguments.save)
    for case in cases:
        if arguments.sweep:
            sweep(arguments.sweep, case, arguments.device, arguments)
        else:
            measure(case, arguments.device, arguments)
    if arguments.device == "cuda" and not arguments.sweep:
        peak_memory(arguments.tiny)


if __name__ == "__main__":
    main()
