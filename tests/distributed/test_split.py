"""How rows are dealt out: every row once, evenly; blocks that have the triangle; heads in groups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm.distributed import gather
from trigemm.distributed.heads import groups
from trigemm.distributed.sequence import sequence_order
from trigemm.distributed.split import balance, causal_blocks, fill_beyond, live_tiles, rank_rows
from trigemm.triangle import Triangle

RANKS = st.integers(1, 64)


@given(st.integers(1, 3000), RANKS)
def test_every_row_has_one_rank_and_sizes_are_those_of_dtensor(length: int, ranks: int) -> None:
    shares = [rank_rows(length, ranks, rank) for rank in range(ranks)]
    assert sorted(row for share in shares for rows in share for row in rows) == list(range(length))
    chunk = -(-length // ranks)
    assert [len(head) + len(tail) for head, tail in shares] == [max(0, min(chunk, length - r * chunk)) for r in range(ranks)]


@given(st.integers(1, 64), RANKS)
def test_blocks_are_head_and_tail_where_the_length_is_a_multiple(height: int, ranks: int) -> None:
    for rank in range(ranks):
        mirrored = 2 * ranks - 1 - rank
        assert rank_rows(2 * ranks * height, ranks, rank) == (
            range(rank * height, (rank + 1) * height),
            range(mirrored * height, (mirrored + 1) * height),
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4096), RANKS)
def test_the_balance_is_within_two_percent_for_every_multiple(height: int, ranks: int) -> None:
    length = 2 * ranks * height
    assert balance(length, ranks) <= 1.02
    assert balance(length, ranks, tile=1) <= 1.02
    assert balance(128 * length, ranks, tile=128) <= 1.02


def test_tiles_that_do_not_divide_the_blocks_and_lengths_that_are_no_multiple_cost_something() -> None:
    assert balance(384, 64, tile=128) == pytest.approx(1.2444, abs=1e-3)
    assert balance(6, 2, tile=1) == pytest.approx(24 / 21)
    assert [live_tiles(8, 2, rank, 2) for rank in range(2)] == [5, 5]


@pytest.mark.parametrize(("length", "ranks"), [(0, 2), (4, 0)])
def test_there_must_be_rows_and_ranks(length: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        balance(length, ranks)


@pytest.mark.parametrize(("length", "ranks"), [(8, 0), (8, -1), (-1, 2)])
def test_an_order_needs_a_length_and_ranks(length: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"sequence_order: .*got {length} and {ranks}"):
        sequence_order(length, ranks)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 8))
def test_blocks_have_the_triangle_once(queries: int, cached: int, ranks: int) -> None:
    keys = queries + cached
    live = set()
    for rank in range(ranks):
        own = [row for rows in rank_rows(queries, ranks, rank) for row in rows]
        of_blocks = [block.own for block in causal_blocks(queries, keys, ranks, rank)]
        assert sorted(row for place in of_blocks for row in own[place]) == own
        for block in causal_blocks(queries, keys, ranks, rank):
            rows = own[block.own]
            triangle = Triangle(len(rows), block.columns, "lower", block.diagonal)
            found = {(rows[r], c) for r in range(len(rows)) for c in triangle.columns_of(r)}
            assert triangle.columns_of(len(rows) - 1).stop == block.columns
            assert not live & found
            live |= found
    assert live == {(r, c) for r in range(queries) for c in range(keys) if (r, c) in Triangle(queries, keys, "lower", cached)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (16, 18), (15, 17)])
def test_what_lies_beyond_the_columns_of_a_block_is_filled(dtype: torch.dtype, queries: int, keys: int) -> None:
    blocks = causal_blocks(queries, keys, 2, 1)
    x = torch.full((2, 3, sum(map(len, rank_rows(queries, 2, 1))), keys), torch.nan, dtype=dtype)
    fill_beyond(x, blocks, -0.5)
    for block in blocks:
        assert x[..., block.own, : block.columns].isnan().all()
        assert (x[..., block.own, block.columns :] == -0.5).all()


@pytest.mark.parametrize(
    ("listed", "together"),
    [
        ([], [[0], [1], [2], [3]]),
        ([3, 2, 7], [[1], [3], [0], [2]]),
        ([6, 0, 7, 5], [[3, 0], [2], [1]]),  # heads 6 and 7 share a key head, and head 0 is asked for between them
    ],
)
def test_groups_have_every_head_once_and_listed_ones_in_their_order(listed: list[int], together: list[list[int]]) -> None:
    found = groups(8, 4, gather.GROUP_BYTES, listed)
    assert [[x for span in group.kv_heads for x in span] for group in found] == together
    assert [x for group in found for x in range(len(listed))[group.listed]] == list(range(len(listed)))
    for group in found:
        heads = [head for span in group.heads for head in span]
        assert [heads[x] for x in group.weighted] == listed[group.listed]
        x = torch.arange(8)[None]
        assert group.queries_of(x)[0].tolist() == heads
    everything = groups(8, 4, gather.GROUP_BYTES // 16, listed)
    assert len(everything) == 1
