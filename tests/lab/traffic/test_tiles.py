"""Tile-level kernels: bytes attempted and bytes that masks let through, over all programs."""

import pytest
import torch
import triton
import triton.language as tl

from trigemm.lab.traffic import ladder
from trigemm.lab.traffic.result import add_up
from trigemm.lab.traffic.tiles import record_tiles

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, value, mask=at < n)
    tl.atomic_add(out_ptr, 1.0)


@interpreted
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2), (torch.float64, 8)])
def test_masked_bytes(dtype, size):
    x, out = torch.ones(100, dtype=dtype), torch.zeros(128, dtype=dtype)
    with record_tiles() as launches:
        copy[(4,)](x, out, 100, BLOCK=32)
    (traffic,) = launches
    assert (traffic.kernel, traffic.grid, traffic.blocks) == ("copy", (4, 1, 1), 4)
    for operation, array in (("load", "x_ptr"), ("store", "out_ptr")):
        counts = traffic.total("global", operation, array)
        assert (counts.elements, counts.bytes, counts.attempted_bytes) == (100, 100 * size, 128 * size)
    assert traffic.total("global", "atomic", "out_ptr").elements == 4
    assert {access.line.function for access in traffic.rows} == {"copy"}
    assert out.sum() == 104


@interpreted
def test_after_the_context_nothing_is_counted():
    with record_tiles() as launches:
        pass
    copy[(1,)](torch.ones(8), torch.zeros(32), 8, BLOCK=32)
    assert launches == []


@interpreted
@pytest.mark.parametrize("T", [64, 100])
def test_the_tile_rung_stores_each_entry_of_the_triangle_once_for_each_head(T):
    (spec,) = ladder.chosen(["tiles"])
    shape = {"B": 2, "T": T, "NH": 2, "HS": 16}
    sampled, every = ladder.trace_rung(spec, shape), ladder.trace_rung(spec, shape, every_block=True)
    stored = sum(counts.bytes for access, counts in sampled.rows.items() if access.operation == "store" and "c_" in access.array)
    assert stored == 4 * 4 * T * (T + 1) // 2

    def but_flags(traffic):
        return add_up((access.operation, counts) for access, counts in traffic.rows.items() if "flags" not in access.array)

    assert but_flags(sampled) == but_flags(every)
