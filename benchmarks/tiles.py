"""Is the tile that `trigemm.tiling.plan` picks a good one? Every candidate is timed, at twelve shapes.

    python benchmarks/tiles.py --save benchmarks/tiles/h200.jsonl    # on a GPU: verify, time, print, keep
    python benchmarks/tiles.py --records benchmarks/tiles/h200.jsonl # measure nothing: compare the model with records
    python benchmarks/tiles.py --records … --fit                     # costs that suit the records best; cross-validated

The kernel is trigemm.kernels.tiles.matmul with the launch options of the plan. Each product is compared with one in float64, and
its error may be twice that of torch.matmul. Times are medians, caches flushed, candidates interleaved. A record is a shape.
Without a GPU, TRITON_INTERPRET=1 and a small `--shape` try the script out.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import partial
from math import log
from multiprocessing import get_context
from pathlib import Path

import numpy
import torch

from trigemm.kernels.tiles.matmul import matmul
from trigemm.lab import environment, records
from trigemm.lab.timing import ceilings, interleaved
from trigemm.tiling import devices
from trigemm.tiling.plan import COSTS, Costs, plan

SHAPES = [
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 512),
    (8192, 8192, 1024),
    (8192, 8192, 128),
    (4096, 4096, 64),
    (512, 512, 16384),
    (256, 4096, 4096),
    (8192, 256, 8192),
    (64, 8192, 4096),
    (3000, 2000, 1000),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WITHIN = 1.10  # of the best: the pick's time


def operands(m, n, k, dtype):
    """Random a and b, and a poisoned c; float32 b is contiguous along k, as TF32 tensor cores want it."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    a = torch.randn(m, k, generator=generator, device=DEVICE)
    b = torch.randn(n, k, generator=generator, device=DEVICE).mT if dtype == torch.float32 else None
    if b is None:
        b = torch.randn(k, n, generator=generator, device=DEVICE)
    return a.to(dtype), b.to(dtype), torch.full((m, n), float("nan"), dtype=dtype, device=DEVICE)


def measured_ceilings():
    """GB/s of a copy and TFLOP/s of a product of 16-bit floats."""
    found = ceilings(DEVICE, torch.float16)
    return found.copy_gbps, found.gemm_tflops


def compile_ahead(dtype, block, num_warps, num_stages):
    """Put one compiled kernel into Triton's cache on disk, in a process of its own. What it says is why it cannot be."""
    a, b, c = operands(256, 256, 256, dtype)
    try:
        matmul(a, b, c, blocks=block, num_warps=num_warps, num_stages=num_stages)
    except Exception as error:  # too many registers or too much shared memory: the kernel is then no candidate
        return f"{type(error).__name__}: {error}"
    return None


def call_of(candidate, a, b, c):
    return partial(matmul, a, b, c, blocks=candidate.block, num_warps=candidate.num_warps, num_stages=candidate.num_stages)


def relative_error(c, exact):
    return ((c.double() - exact).norm() / exact.norm()).item()


def search(shape, dtype, device, broken, repeats):
    """The record of one shape."""
    m, n, k = shape
    found = plan(m, n, k, dtype, device)
    a, b, c = operands(m, n, k, dtype)
    exact = a.double() @ b.double()
    budget = 2 * relative_error(a @ b, exact)
    calls, rows = {}, {}
    for candidate in found.candidates:
        row = {"block": candidate.block, "num_warps": candidate.num_warps, "num_stages": candidate.num_stages}
        name = str(candidate.block)
        rows[name] = row
        if candidate.block in broken:
            row["refused"] = broken[candidate.block]
            continue
        call = call_of(candidate, a, b, c.fill_(float("nan")))
        call()
        row["error_over_budget"] = relative_error(c, exact) / budget
        if row["error_over_budget"] <= 1:  # not so of NaN
            calls[name] = call
    timings = interleaved(calls, repeats=repeats, device=DEVICE)
    for name, timing in timings.items():
        rows[name] |= {"median_ms": timing.median_ms, "p20_ms": timing.p20_ms, "p80_ms": timing.p80_ms}
    return {
        "m": m,
        "n": n,
        "k": k,
        "dtype": str(dtype).removeprefix("torch."),
        "repeats": repeats,
        "tiles": list(rows.values()),
        "device": asdict(device),
        "device_name": environment.device_name(DEVICE),
        "versions": environment.versions(DEVICE),
        "commit": environment.commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cold_l2": True,
    }


def outcome(record, costs=COSTS):
    """(pick, its time, best tile, its time) of a record: tiles that were verified and timed, times in milliseconds."""
    timed = {tuple(row["block"]): row["median_ms"] for row in record["tiles"] if "median_ms" in row}
    device = devices.Device(**record["device"])
    found = plan(record["m"], record["n"], record["k"], record["dtype"], device, costs=costs)
    pick = found.pick.block
    best = min(timed, key=timed.get)
    return pick, timed.get(pick, float("inf")), best, timed[best], found, timed


def show(kept):
    """A line a shape; returns whether every pick is within the bound."""
    print(f"{'M x N x K':>20} {'dtype':>9}  {'pick':>14} {'ms':>8}  {'best':>14} {'ms':>8}  ratio  predicted")
    right = True
    for record in kept:
        pick, pick_ms, best, best_ms, found, _ = outcome(record)
        ratio = pick_ms / best_ms
        right = right and ratio <= WITHIN
        shape, names = "{m} x {n} x {k}".format(**record), ["x".join(map(str, block)) for block in (pick, best)]
        print(
            f"{shape:>20} {record['dtype']:>9}  {names[0]:>14} {pick_ms:8.4f}  {names[1]:>14} {best_ms:8.4f}"
            f"  {ratio:5.3f}  {found.pick.predicted_ms:8.4f}"
        )
    for record in kept:
        for row in record["tiles"]:
            if "median_ms" not in row:
                print("not timed:", "{m} x {n} x {k}".format(**record), row)
    return right


def errors(kept, costs):
    """Logarithms of predicted over measured times, of the tiles that are up to twice as slow as the best of their shape."""
    found = []
    for record in kept:
        _, _, _, best_ms, plan_of, timed = outcome(record, costs)
        within = {block: ms for block, ms in timed.items() if ms <= 2 * best_ms}
        predicted = {candidate.block: candidate.predicted_ms for candidate in plan_of.candidates}
        found += [log(predicted[block] / ms) for block, ms in within.items()]
    return numpy.array(found)


def fit(kept):
    """The costs of the least squared errors, each of them positive (Levenberg-Marquardt on their logarithms)."""
    names, damping, step = [field.name for field in fields(Costs)], 1e-2, 1e-3

    def costs_at(point):
        return Costs(**dict(zip(names, numpy.exp(point).tolist(), strict=True)))

    point = numpy.log([getattr(COSTS, name) for name in names])
    off = errors(kept, costs_at(point))
    for _ in range(12):
        slopes = numpy.stack([(errors(kept, costs_at(point + row)) - off) / step for row in step * numpy.eye(len(names))], 1)
        square = slopes.T @ slopes
        moved = point - numpy.linalg.solve(square + damping * numpy.diag(square.diagonal() + 1e-9), slopes.T @ off)
        then = errors(kept, costs_at(moved))
        if then @ then < off @ off:
            point, off, damping = moved, then, damping / 4
        else:
            damping *= 4
    return costs_at(point)


def show_fit(kept):
    """The costs that suit all records; and how well those do that were fitted without the records that they are then held to."""
    costs = fit(kept)
    off = errors(kept, costs)
    print(costs)
    print(f"predicted times off by {100 * numpy.abs(off).mean():.0f}% (mean), {100 * numpy.sqrt((off**2).mean()):.0f}% (rms)")
    for left_out in (1, 4):
        rounds = [set(range(first, len(kept), len(kept) // left_out)) for first in range(len(kept) // left_out)]
        ratios = []
        for out in rounds:
            without = fit([record for number, record in enumerate(kept) if number not in out])
            ratios += [pick_ms / best_ms for _, pick_ms, _, best_ms, _, _ in (outcome(kept[i], without) for i in sorted(out))]
        within = sum(ratio <= WITHIN for ratio in ratios)
        print(f"{left_out} left out: {within} of {len(ratios)} picks within {WITHIN} of the best, worst {max(ratios):.3f}")


def measure(options):
    dtype = getattr(torch, options.dtype)
    shapes = [tuple(map(int, shape.split(","))) for shape in options.shape] or SHAPES
    device = devices.here(measured_ceilings) if DEVICE == "cuda" else devices.known("h200")
    everything = {candidate.block: candidate for shape in shapes for candidate in plan(*shape, dtype, device).candidates}
    broken = {}
    if DEVICE == "cuda":
        with ProcessPoolExecutor(min(12, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
            said = {
                block: pool.submit(compile_ahead, dtype, block, candidate.num_warps, candidate.num_stages)
                for block, candidate in everything.items()
            }
            broken = {block: reason for block, future in said.items() if (reason := future.result()) is not None}
    kept = []
    for shape in shapes:
        record = search(shape, dtype, device, broken, options.repeats)
        kept.append(json.loads(records.encode(record)))
        if options.save is not None:
            records.append(options.save, record)
        print("searched {m} x {n} x {k}".format(**record), file=sys.stderr, flush=True)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--shape", action="append", default=[], help="M,N,K; may be repeated; default: twelve")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--save", type=Path, help="append the records to this file")
    parser.add_argument("--records", type=Path, help="measure nothing: take these")
    parser.add_argument(
        "--fit", action="store_true", help="print the costs that suit the records best, and try them on records left out"
    )
    options = parser.parse_args()
    if options.save is not None:
        records.check_writable(options.save)
    kept = [json.loads(line) for line in options.records.open()] if options.records else measure(options)
    right = show(kept)
    if options.fit:
        show_fit(kept)
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
