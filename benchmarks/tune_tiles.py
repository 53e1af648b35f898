"""The measurement behind trigemm.kernels.tiles.config: candidates for each case, verified and timed against each other.

    python benchmarks/tune_tiles.py --list
    python benchmarks/tune_tiles.py --case scores-float32-highest --case gemmt-bfloat16 --save tuning.jsonl

For a GPU. Each result is compared with a float64 product; its error may be twice that of torch's own product. Times
are medians, caches flushed, candidates and torch's whole product interleaved. The configuration in use is marked.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import torch

from trigemm.kernels.tiles import gemmt, rows, syrk, trmm
from trigemm.kernels.tiles.config import Config, RowConfig, TriangleConfig, TrmmConfig, row_config, triangle_config, trmm_config
from trigemm.lab import environment, records
from trigemm.lab.budget import torch_matmul
from trigemm.lab.timing import interleaved
from trigemm.triangle import Triangle

REFERENCE = (8, 12, 1024, 64)
LARGE = (1, 1, 4096, 4096)
VALUES = (1, 32, 4096, 128)


@dataclass(frozen=True)
class Case:
    """An operation at one shape (B, NH, T, HS), dtype and precision, and the configurations to try."""

    operation: str
    dtype: str
    precision: str
    shape: tuple[int, int, int, int]
    candidates: tuple[Config, ...]
    fill: float | None = None

    @property
    def name(self):
        filled = "" if self.fill is None else "-filled"
        precision = f"-{self.precision}" if self.dtype == "float32" else ""
        return f"{self.operation}-{self.dtype}{precision}{filled}"


ROWS = ((64, 64, 4), (128, 64, 8), (64, 128, 4))


def row_candidates(precision, groups=(16, 32, 96), registers=(None,), shapes=ROWS):
    for (bm, bn, warps), depth, group, by_tma, most in product(shapes, (2, 3), groups, (True, False), registers):
        yield RowConfig(precision, (bm, bn, 0), warps, depth, group, by_tma, most)


def product_candidates(precision, depths=(64,), warps=(4, 8), stages=(2, 3, 4), shapes=((128, 128), (128, 256), (256, 128))):
    for (bm, bn), bk, each, depth in product(shapes, depths, warps, stages):
        yield Config(precision, (bm, bn, bk), each, depth)


def trmm_candidates(precision, depths):
    for config in product_candidates(precision, depths):
        yield TrmmConfig(**asdict(config))


def triangle_candidates(precision, depths=(64,)):
    for config, by_tma in product(
        product_candidates(precision, depths, shapes=((64, 64), (128, 128), (128, 256))), (True, False)
    ):
        yield TriangleConfig(**asdict(config), by_tma=by_tma)


def cases():
    """Every case, by name."""
    split = ((128, 64, 8), (128, 64, 4), (64, 64, 4), (128, 32, 4), (64, 32, 4))
    made = [
        Case("scores", "float32", "highest", REFERENCE, tuple(row_candidates("float16x2", (32, 96), (None, 128, 168), split))),
        Case(
            "scores", "float32", "high", REFERENCE, tuple(row_candidates("float16", shapes=(*ROWS, (128, 64, 4), (128, 32, 4))))
        ),
        Case("scores", "bfloat16", "highest", REFERENCE, tuple(row_candidates("tf32"))),
        Case("scores", "float32", "highest", REFERENCE, tuple(row_candidates("float16x2", (96,), (None, 128), split[:2])), -1.0),
        Case("scores", "bfloat16", "highest", REFERENCE, tuple(row_candidates("tf32", (32, 96))), -1.0),
        *(Case(each, "bfloat16", "highest", LARGE, tuple(triangle_candidates("tf32"))) for each in ("gemmt", "syrk")),
        *(Case(each, "float32", "highest", LARGE, tuple(triangle_candidates("bf16x6", (32, 64)))) for each in ("gemmt", "syrk")),
        Case("gemmt", "float32", "high", LARGE, tuple(triangle_candidates("bf16x3", (32, 64)))),
        Case("trmm", "bfloat16", "highest", VALUES, tuple(trmm_candidates("tf32", (64, 128)))),
        Case("trmm", "float32", "high", VALUES, tuple(trmm_candidates("bf16x3", (32, 64)))),
        Case("trmm", "float32", "highest", VALUES, tuple(trmm_candidates("bf16x6", (32, 64)))),
    ]
    return {case.name: case for case in made}


def operands(case):
    """a, b and a poisoned result. Scores take views of a packed projection."""
    batch, heads, length, depth = case.shape
    generator = torch.Generator("cuda").manual_seed(0)
    draw = partial(torch.randn, generator=generator, device="cuda")
    dtype = getattr(torch, case.dtype)
    if case.operation == "scores":
        q, k, _ = draw(batch, length, 3, heads, depth).to(dtype).permute(2, 0, 3, 1, 4)
        a, b = q, k.mT
    elif case.operation == "trmm":
        a, b = draw(batch, heads, length, length).to(dtype), draw(batch, heads, length, depth).to(dtype)
    else:
        a = draw(length, depth).to(dtype)
        b = a.mT if case.operation == "syrk" else draw(depth, length).to(dtype)
    return a, b, torch.full((*a.shape[:-1], b.shape[-1]), float("nan"), dtype=dtype, device="cuda")


def call_of(case, a, b, out) -> Callable[[], None]:
    """The operation as its users call it."""
    if case.operation == "syrk":
        return partial(syrk.syrk, a, None, out, alpha=1.0, beta=0.0, uplo="full", precision=case.precision)
    if case.operation == "trmm":
        return partial(trmm.trmm, a, b, out, alpha=1.0, uplo="lower", diagonal=0, precision=case.precision)
    return partial(gemmt.gemmt, a, b, out, alpha=1.0, diagonal=0, fill=case.fill, precision=case.precision, keep=False)


def configured(case, config, call):
    """The call with a configuration in place of the package's: it makes its plan now, and keeps it."""
    module = {"scores": rows, "gemmt": gemmt, "syrk": syrk, "trmm": trmm}[case.operation]
    name = {"scores": "row_config", "trmm": "trmm_config"}.get(case.operation, "triangle_config")
    plans = rows.plan if module is rows else module._plan
    plans.cache_clear()
    made = []

    def keep(plan, *arguments):
        made.append((plan, arguments))
        run(plan, *arguments)

    run = rows.Plan.run
    with patch.object(module, name, lambda *_, **__: config), patch.object(rows.Plan, "run", keep):
        call()
    plans.cache_clear()
    ((plan, arguments),) = made
    return lambda: run(plan, *arguments)


def compile_ahead(case, config):
    """Put the kernels of one configuration into Triton's cache on disk, in a process of its own."""
    try:
        configured(case, config, call_of(case, *operands(case)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def config_in_use(case):
    """What the package takes for a case."""
    dtype, length = getattr(torch, case.dtype), case.shape[2]
    if case.operation == "scores":
        return row_config(dtype, case.precision, *case.shape[2:])
    if case.operation == "trmm":
        return trmm_config(dtype, case.precision, case.shape[2], addressable=True)
    return triangle_config(case.operation, dtype, case.precision, Triangle(length, length).size, by_tma=True)


def tune(case, pool, rounds):
    """Records of all candidates of a case, the fastest first."""
    used = config_in_use(case)
    candidates = list(dict.fromkeys([used, *case.candidates]))
    refusals = list(pool.map(partial(compile_ahead, case), candidates))
    a, b, out = operands(case)
    left = a.double().tril() if case.operation == "trmm" else a.double()
    exact = left @ b.double()
    size = left.abs() @ b.double().abs()
    judged = torch.ones(exact.shape[-2:], dtype=torch.bool, device="cuda")
    judged = judged.tril() if case.operation in ("scores", "gemmt") else judged
    plain = a.tril() if case.operation == "trmm" else a

    def error(result):
        return ((result.double() - exact).abs() / size)[..., judged].max().item()

    budget = 2 * error(torch_matmul(plain, b, case.precision))
    calls, errors = {}, {}
    for config, refusal in zip(candidates, refusals, strict=True):
        if refusal is None:
            call = configured(case, config, call_of(case, a, b, out))
            out.fill_(float("nan"))
            call()
            errors[config] = error(out)
            calls[config] = call
    dense = torch.empty_like(out)
    times = interleaved({"torch": lambda: torch.matmul(a, b, out=dense), **calls}, repeats=rounds, device="cuda")
    made = []
    for config in sorted(calls, key=lambda each: times[each].median_ms):
        made.append(
            {
                "case": case.name,
                "shape": case.shape,
                **asdict(config),
                "in_use": config == used,
                "verdict": "pass" if errors[config] <= budget else "fail",
                "error_over_budget": errors[config] / budget,
                "median_ms": times[config].median_ms,
                "torch_ms": times["torch"].median_ms,
            }
        )
    return made, {repr(config): refusal for config, refusal in zip(candidates, refusals, strict=True) if refusal}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=sorted(cases()), help="tune this case; may be repeated (default: all)")
    parser.add_argument("--list", action="store_true", help="list the cases and how many candidates each has")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that compile")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each candidate")
    parser.add_argument("--show", type=int, default=8, help="candidates to print")
    parser.add_argument("--save", type=Path, help="append a JSON line for each candidate to this file")
    options = parser.parse_args()
    if options.list:
        for name, case in cases().items():
            print(f"{name}: {len(case.candidates)}")
        return
    if not torch.cuda.is_available():
        sys.exit("error: tuning needs a CUDA device, and torch finds none")
    if options.save:
        records.check_writable(options.save)
    common = {
        "device_name": environment.device_name("cuda"),
        "versions": environment.versions("cuda"),
        "commit": environment.commit(),
    }
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for name in options.case or cases():
            made, refusals = tune(cases()[name], pool, options.rounds)
            print(f"\n{name}: torch {made[0]['torch_ms'] * 1e3:.1f} us; {len(refusals)} candidates do not compile or fit")
            for place, record in enumerate(made):
                if options.save:
                    records.append(options.save, {**record, **common})
                if place < options.show or record["in_use"] or record["verdict"] == "fail":
                    kept = {key: record[key] for key in record if key not in ("case", "shape", "median_ms", "torch_ms")}
                    print(f"{record['median_ms'] * 1e3:8.1f} us  {json.dumps(kept)}", flush=True)


if __name__ == "__main__":
    main()
