"""How rows are dealt out: every row once, evenly; the blocks of a ring cover the triangle, and it is even at every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm.distributed.sequence import sequence_order
from trigemm.distributed.split import balance, blocks, live_tiles, part, rank_rows
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
@given(st.integers(1, 40), st.integers(0, 20), st.integers(1, 8), st.integers(1, 4))
def test_blocks_cover_the_triangle_once(queries: int, cached: int, ranks: int, pieces: int) -> None:
    keys = queries + cached
    seen = set()
    for rank in range(ranks):
        rows = rank_rows(queries, ranks, rank)
        own = [row for span in rows for row in span]
        for source in range(ranks):
            for piece in range(pieces):
                columns = [part(span, piece, pieces) for span in rank_rows(keys, ranks, source)]
                for block in blocks(rows, columns, cached):
                    assert own[block.own] == list(block.rows)
                    entries = {(r, c) for r in block.rows for c in block.columns}
                    live = {
                        (block.rows[r], block.columns[c])
                        for r in range(len(block.rows))
                        for c in Triangle(len(block.rows), len(block.columns), "lower", block.diagonal).columns_of(r)
                    }
                    assert live == {entry for entry in entries if entry in Triangle(queries, keys, "lower", cached)}
                    assert block.live == bool(live)
                    assert not seen & entries
                    seen |= entries
    assert seen == {(r, c) for r in range(queries) for c in range(keys)}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(2, 8), st.integers(1, 4))
def test_every_rank_has_the_same_to_do_at_every_step(height: int, ranks: int, pieces: int) -> None:
    length = 2 * ranks * height * pieces
    for step in range(1, ranks):
        for piece in range(pieces):
            work = []
            for rank in range(ranks):
                columns = [part(span, piece, pieces) for span in rank_rows(length, ranks, (rank - step) % ranks)]
                live = [b for b in blocks(rank_rows(length, ranks, rank), columns, 0) if b.live]
                work.append(sum(len(b.rows) * len(b.columns) for b in live))
            assert len(set(work)) == 1
