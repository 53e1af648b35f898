"""Where does the time of scores by rows of tiles go? The kernel's stages, one left out at a time.

    python benchmarks/stages.py --save benchmarks/stages/h200.jsonl    # on a GPU

The case is the reference's: 96 matrices of 1024 x 1024, inner dimension 64, operands in bfloat16, results in bfloat16 or float32.

    all            load queries and keys, multiply, store
    same keys      one tile of keys, loaded once, serves the whole row
    no products    tiles of keys are stored as they come, in place of results (where they have as many elements)
    no stores      everything but the stores
    stores         constants, stored in the same order; nothing is loaded or multiplied
    stores, cut    the same, but of tiles that the diagonal crosses the triangle's part alone, its last sectors in part

If the stages ran side by side perfectly, "all" would take as long as the slowest of them. Tiles are stored by the threads or by
TMA. Times are medians, caches flushed, variants interleaved; "fill_" is torch's own, of the whole square.
"""

import argparse
import sys
from itertools import product
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from trigemm.kernels.tiles.rows import store_below
from trigemm.lab import environment, records
from trigemm.lab.timing import interleaved

MATRICES, LENGTH, DEPTH = 96, 1024, 64
STAGES = ("all", "same keys", "no products", "no stores", "stores", "stores, cut")
TILES = {torch.bfloat16: ((64, 128, 4), (128, 64, 4), (128, 128, 8)), torch.float32: ((64, 64, 4), (128, 64, 4), (64, 128, 4))}


@triton.jit
def row_kernel(
    q_desc, k_desc, c_desc, c_ptr, length,
    STAGE: tl.constexpr, BY_TMA: tl.constexpr, VECTOR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    matrices = tl.num_programs(0) // (length // BM)
    matrix = tl.program_id(0) % matrices
    top = length - (tl.program_id(0) // matrices + 1) * BM  # the longest rows first
    rows = top + tl.arange(0, BM)  # [BM]
    c_ptr += matrix.to(tl.int64) * length * length
    LOADS: tl.constexpr = STAGE == "all" or STAGE == "same keys" or STAGE == "no products" or STAGE == "no stores"
    if LOADS:
        q = q_desc.load([matrix, top, 0]).reshape(BM, DEPTH)
    if STAGE == "same keys":
        k = k_desc.load([matrix, top, 0]).reshape(BN, DEPTH)
    if STAGE == "no products":
        most = tl.max(tl.max(q, 1), 0)  # the queries are waited for, too
    largest = tl.zeros([BM, BN], tl.float32)
    for j in tl.range(0, tl.cdiv(top + BM, BN), num_stages=3):
        if STAGE == "all" or STAGE == "no products" or STAGE == "no stores":
            k = k_desc.load([matrix, j * BN, 0]).reshape(BN, DEPTH)
        acc = tl.full([BM, BN], 1.0, tl.float32)
        if STAGE == "same keys":
            acc = tl.dot(q, k.T, acc * j)  # of j, so that the product stays in the loop
        elif STAGE == "no products":
            acc = tl.maximum(k, most).reshape(BM, BN).to(tl.float32)
        elif LOADS:
            acc = tl.dot(q, k.T)
        columns = j * BN + tl.arange(0, BN)  # [BN]
        if STAGE == "no stores":
            largest = tl.maximum(largest, acc)
        elif STAGE == "stores, cut" and (j + 1) * BN > top + 1:
            store_below(c_ptr, acc, rows, columns, length, length, 0, length // VECTOR, VECTOR, VECTOR)
        elif BY_TMA:
            c_desc.store([matrix, top, j * BN], acc.to(c_ptr.dtype.element_ty).reshape(1, BM, BN))
        else:
            tl.store(c_ptr + rows[:, None] * length + columns[None, :], acc.to(c_ptr.dtype.element_ty))
    if STAGE == "no stores":  # never true, which the compiler does not know
        tl.store(c_ptr + rows[:, None] * length + tl.arange(0, BN)[None, :], largest, mask=largest > 1e30)


def launch(q, k, out, stage, by_tma, bm, bn, warps):
    def describe(x, rows, columns):
        return TensorDescriptor(x, x.shape, x.stride(), [1, rows, columns])

    grid = (MATRICES * LENGTH // bm,)
    row_kernel[grid](
        describe(q, bm, DEPTH), describe(k, bn, DEPTH), describe(out, bm, bn), out, LENGTH,
        stage, by_tma, 16 // out.element_size(), bm, bn, DEPTH, num_warps=warps,
    )  # fmt: skip


def check(q, k, out, stage):
    below = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=out.device).tril()
    if stage == "all":
        right = torch.allclose(out[:, below].float(), (q @ k.mT)[:, below].float(), atol=0.1, rtol=0.02)
    elif stage.startswith("stores"):
        right = bool((out[:, below] == 1).all()) and (stage == "stores" or bool(out[:, ~below].isnan().all()))
    else:
        return
    if not right:
        sys.exit(f"error: {stage} wrote something else than the triangle")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="append a JSON line for each variant to this file")
    save = parser.parse_args().save
    if not torch.cuda.is_available():
        sys.exit("error: this needs a CUDA device, and torch finds none")
    if save:
        records.check_writable(save)
    common = {
        "device_name": environment.device_name("cuda"),
        "versions": environment.versions("cuda"),
        "commit": environment.commit(),
    }
    q, k = torch.randn(2, MATRICES, LENGTH, DEPTH, device="cuda").to(torch.bfloat16)
    for dtype, tiles in TILES.items():
        out = torch.empty(MATRICES, LENGTH, LENGTH, dtype=dtype, device="cuda")
        calls, variants = {"fill_": lambda out=out: out.fill_(1.0)}, {"fill_": {}}
        for (bm, bn, warps), by_tma, stage in product(tiles, (True, False), STAGES):
            if stage == "no products" and bm != DEPTH:
                continue
            out.fill_(float("nan"))
            launch(q, k, out, stage, by_tma, bm, bn, warps)
            check(q, k, out, stage)
            name = f"{bm}x{bn} {'by TMA' if by_tma else 'by threads'}, {stage}"
            calls[name] = lambda out=out, variant=(stage, by_tma, bm, bn, warps): launch(q, k, out, *variant)
            variants[name] = {"tile": f"{bm}x{bn}", "num_warps": warps, "by_tma": by_tma, "stage": stage}
        times = interleaved(calls, repeats=15, device="cuda")
        for name in sorted(calls, key=lambda each: times[each].median_ms):
            print(f"{times[name].median_ms * 1e3:7.1f} us  {str(dtype)[6:]} {name}")
            if save:
                record = {"variant": name, "dtype": str(dtype)[6:], **variants[name], "median_ms": times[name].median_ms}
                records.append(save, {**record, **common})


if __name__ == "__main__":
    main()
