"""How fast can a triangle be written? Tiles of constants, stored in several ways; nothing is read or multiplied.

    python benchmarks/stores.py --save benchmarks/stores/h200.jsonl    # on a GPU

The triangles are the reference case's: 96 matrices of 1024 x 1024. Tiles are stored by the threads or by TMA; those that the
diagonal crosses are written whole, or the triangle's part of them alone. Times are medians, caches flushed, ways interleaved.
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

MATRICES, LENGTH = 96, 1024
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (16, 256))


@triton.jit
def store_rows(
    c_desc, c_ptr, length, BY_TMA: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    matrix = tl.program_id(0) % (tl.num_programs(0) // (length // BM))
    top = length - (tl.program_id(0) // (tl.num_programs(0) // (length // BM)) + 1) * BM
    rows = top + tl.arange(0, BM)  # [BM]
    c_ptr += matrix.to(tl.int64) * length * length
    value = tl.full([BM, BN], 1.0, tl.float32).to(c_ptr.dtype.element_ty)
    inside = (top + 1) // BN
    live = tl.cdiv(top + BM, BN)
    if WHOLE:
        inside = live
    for j in range(inside):
        columns = j * BN + tl.arange(0, BN)  # [BN]
        if BY_TMA:
            c_desc.store([matrix, top, j * BN], value.reshape(1, BM, BN))
        else:
            tl.store(c_ptr + rows[:, None] * length + columns[None, :], value)
    for j in range(inside, live):
        store_below(c_ptr, value, rows, j * BN + tl.arange(0, BN), length, length, 0, length // VECTOR, VECTOR, VECTOR)


def launch(out, by_tma, whole, bm, bn):
    desc = TensorDescriptor(out, out.shape, out.stride(), [1, bm, bn])
    grid = (MATRICES * LENGTH // bm,)
    store_rows[grid](desc, out, LENGTH, by_tma, whole, 16 // out.element_size(), bm, bn, num_warps=4)


def written(whole, bm, bn):
    """Elements that one way writes."""
    rows = range(0, LENGTH, bm)
    if whole:
        return MATRICES * sum(bm * bn * triton.cdiv(top + bm, bn) for top in rows)
    return MATRICES * LENGTH * (LENGTH + 1) // 2


def check(out, whole):
    below = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=out.device).tril()
    right = bool((out[:, below] == 1).all()) and (whole or bool(out[:, ~below].isnan().all()))
    if not right:
        sys.exit("error: a way of storing wrote something else than the triangle")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="append a JSON line for each way to this file")
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
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(MATRICES, LENGTH, LENGTH, dtype=dtype, device="cuda")
        calls, ways = {"fill_": lambda out=out: out.fill_(1.0)}, {"fill_": {"elements": out.numel()}}
        for (bm, bn), by_tma, whole in product(TILES, (True, False), (True, False)):
            name = f"{bm}x{bn} tiles {'by TMA' if by_tma else 'by threads'}, {'whole' if whole else 'cut'} at the diagonal"
            out.fill_(float("nan"))
            launch(out, by_tma, whole, bm, bn)
            check(out, whole)
            calls[name] = lambda out=out, way=(by_tma, whole, bm, bn): launch(out, *way)
            ways[name] = {"block": (bm, bn), "by_tma": by_tma, "whole": whole, "elements": written(whole, bm, bn)}
        times = interleaved(calls, repeats=15, device="cuda")
        for name in sorted(calls, key=lambda each: times[each].median_ms):
            gigabytes = ways[name]["elements"] * out.element_size() / 1e9
            rate = gigabytes / times[name].median_ms * 1e3
            print(f"{times[name].median_ms * 1e3:7.1f} us {gigabytes * 1e3:6.0f} MB {rate:6.0f} GB/s  {dtype} {name}")
            if save:
                record = {"way": name, "dtype": str(dtype)[6:], **ways[name], "median_ms": times[name].median_ms, "gbps": rate}
                records.append(save, {**record, **common})


if __name__ == "__main__":
    main()
