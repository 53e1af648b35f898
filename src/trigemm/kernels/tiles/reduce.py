"""Sums and maxima over one axis: (outer, n, inner) -> (outer, inner), in float32.

A program reduces a piece of the axis. Where there are too few results to keep the device busy, an axis is cut into pieces; the
program that is the last to finish a piece reduces the pieces' results, always in the same order. Sums go in stages: at most
STEPS elements one after the other, then what these gave, then the lanes of a tile as a tree.

A tile is 16 bytes for each thread, and the loads of several tiles are on their way before the first is needed. So a thread needs
few registers, and what a multiprocessor waits for is some hundred kilobytes, which a memory at full speed asks for.
"""

from functools import cache, lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trigemm.kernels.tiles.index import Form, Launch, form, index_type
from trigemm.kernels.tiles.plan import PLANS
from trigemm.triangle import ceil_div

STEPS = tl.constexpr(64)
LOADS = 8
"""Tiles along the axis that are loaded at a time."""

NARROW = 32
"""Columns of a tile where the axis is long: of float32 a cache line. Where it is short, tiles are as wide as it lets them be."""

WARPS, PROGRAMS = 4, 1024
"""Warps of a program, and programs that pieces of the axis make at most: 8 for each multiprocessor."""

SPREAD = 128
"""Programs at least, where tiles could be smaller: one for each multiprocessor."""

LAST_TILES = 16
"""Tiles of partial results that the last program has to reduce at most; it does so alone."""

COUNTERS = 1024
"""Results, in tiles, whose axis may be cut."""


@triton.jit
def combine(acc, x, MAXIMUM: tl.constexpr):
    if MAXIMUM:
        return tl.maximum(acc, x, propagate_nan=tl.PropagateNan.ALL)
    else:
        return acc + x


@triton.jit
def largest(x):
    """The maxima along the middle axis, NaN where there is one: of integers in the order of the numbers, with NaN on top."""
    bits = x.to(tl.int32, bitcast=True)
    rank = tl.max(tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF)), 1)
    return (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_once(ptr, in_tile, empty):
    """Elements that nobody reads again: they shall not drive others from the L2, which may have to be written first."""
    return tl.load(ptr, in_tile, other=empty, eviction_policy="evict_first").to(tl.float32)


@triton.jit
def reduce_range(
    ptr, place, step, begin, end, in_tile,
    MAXIMUM: tl.constexpr, INDEX: tl.constexpr, LOADS: tl.constexpr, BO: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Elements `begin` to `end` along the middle axis, which are `step` apart, of the places [BO, 1, BI]: [BO, BI]."""
    empty = float("-inf") if MAXIMUM else 0.0
    total = tl.full([BO, BN, BI], empty, tl.float32)
    whole = begin + (end - begin) // BN * BN
    for stage in range(begin, whole, BN * STEPS):
        acc = tl.full([BO, BN, BI], empty, tl.float32)
        for first in tl.range(stage, tl.minimum(stage + BN * STEPS, whole), BN, loop_unroll_factor=LOADS):
            k = (first + tl.arange(0, BN)).to(INDEX)[None, :, None]
            acc = combine(acc, load_once(ptr + place + k * step, in_tile, empty), MAXIMUM)  # [BO, BN, BI]
        total = combine(total, acc, MAXIMUM)
    if whole < end:
        k = (whole + tl.arange(0, BN)).to(INDEX)[None, :, None]
        total = combine(total, load_once(ptr + place + k * step, in_tile & (k < end), empty), MAXIMUM)
    return largest(total) if MAXIMUM else tl.sum(total, 1)


@triton.jit(do_not_specialize=["pieces"])
def reduce_kernel(
    x_ptr, partial_ptr, counter_ptr, out_ptr, outer, n, inner, pieces, piece,
    CUT: tl.constexpr, MAXIMUM: tl.constexpr, INDEX: tl.constexpr,
    LOADS: tl.constexpr, BO: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """A tile [BO, BN, BI] that moves along the middle axis. Where the axis is CUT, partial is (outer, pieces, inner)."""
    tiles = tl.cdiv(inner, BI)
    across = tl.program_id(0) % tiles
    rest = tl.program_id(0) // tiles
    p, along = rest % pieces, rest // pieces
    i = across.to(INDEX) * BI + tl.arange(0, BI)  # [BI]
    o = along.to(INDEX) * BO + tl.arange(0, BO)  # [BO]
    in_out = (o < outer)[:, None] & (i < inner)[None, :]
    in_tile = (o < outer)[:, None, None] & (i < inner)[None, None, :]
    target = o[:, None] * inner + i[None, :]
    if not CUT:
        place = o[:, None, None] * n * inner + i[None, None, :]  # [BO, 1, BI]
        result = reduce_range(x_ptr, place, inner, 0, n, in_tile, MAXIMUM, INDEX, LOADS, BO, BN, BI)
        tl.store(out_ptr + target, result.to(out_ptr.dtype.element_ty), in_out)
    else:
        begin = p.to(INDEX) * piece
        place = o[:, None, None] * n * inner + i[None, None, :]
        end = tl.minimum(begin + piece, n)
        result = reduce_range(x_ptr, place, inner, begin, end, in_tile, MAXIMUM, INDEX, LOADS, BO, BN, BI)
        place = o[:, None, None] * pieces * inner + i[None, None, :]
        tl.store(partial_ptr + (o[:, None] * pieces + p) * inner + i[None, :], result, in_out)
        tl.debug_barrier()  # all threads' results, before one thread counts them
        counter_ptr += along * tiles + across
        if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == pieces - 1:
            tl.store(counter_ptr, 0)
            result = reduce_range(partial_ptr, place, inner, 0, pieces, in_tile, MAXIMUM, INDEX, LOADS, BO, BN, BI)
            tl.store(out_ptr + target, result.to(out_ptr.dtype.element_ty), in_out)


@cache
def _counters_of(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def _counters(device: torch.device) -> Tensor:
    """Zeros, to which each launch brings them back. One set for each stream, whose launches follow one another.

    A CUDA graph may be replayed in any stream, so it takes and clears its own.
    """
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        return _counters_of(device, torch.cuda.current_stream(device).cuda_stream)
    return _counters_of(device, 0)


class Tile(NamedTuple):
    """BO, BN and BI of a tile, how many are loaded at a time, and the pieces of the axis."""

    height: int
    length: int
    width: int
    loads: int
    pieces: int


def tile_of(outer: int, n: int, inner: int, itemsize: int) -> Tile:
    """Tiles of 16 bytes a thread, several where the axis is short; it is cut where there would be too few programs."""
    once, longest = WARPS * 512 // itemsize, triton.next_power_of_2(max(1, n))
    width = min(NARROW if longest * NARROW >= LOADS * once else once, triton.next_power_of_2(inner))
    length = min(once // width, longest)
    loads = min(LOADS, longest // length)
    height = min(max(1, LOADS // 2 * once // (width * length * loads)), triton.next_power_of_2(ceil_div(outer, SPREAD)))
    tiles = ceil_div(outer, height) * ceil_div(inner, width)
    pieces = min(PROGRAMS // tiles, LAST_TILES * length, ceil_div(n, 2 * length * loads)) if tiles <= COUNTERS else 1
    return Tile(height, length, width, loads, max(1, pieces))


class _Plan:
    """The launch, and whether it needs room for (outer, pieces, inner) partial results."""

    def __init__(self, x: Form, outer: int, n: int, inner: int, maximum: bool):
        height, length, width, loads, pieces = tile_of(outer, n, inner, x[1].itemsize)
        piece = ceil_div(ceil_div(n, pieces), length) * length
        pieces = max(1, ceil_div(n, max(1, piece)))
        self.partial = (outer, pieces, inner) if pieces > 1 else None
        index = index_type(max(x[0].numel(), outer * pieces * inner))
        arguments = outer, n, inner, pieces, piece, pieces > 1, maximum, index, loads, height, length, width
        programs = ceil_div(outer, height) * ceil_div(inner, width) * pieces
        self.launch = Launch(reduce_kernel, programs, *arguments, num_warps=WARPS)


@lru_cache(PLANS)
def _plan(
    x: Form, out: Form, outer: int, n: int, inner: int, maximum: bool,
    device: torch.device,
) -> _Plan:  # fmt: skip
    return _Plan(x, outer, n, inner, maximum)


def reduce(x: Tensor, outer: int, n: int, inner: int, out: Tensor, *, maximum: bool = False) -> None:
    """Sums (or maxima) over the middle axis of the contiguous (outer, n, inner) into `out`."""
    if outer * inner == 0:
        return
    plan = _plan(form(x), form(out), outer, n, inner, maximum, x.device)
    if plan.partial is None:
        plan.launch(x, x, x, out)
    else:
        partial = torch.empty(plan.partial, dtype=torch.float32, device=x.device)
        plan.launch(x, partial, _counters(x.device), out)
