import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trigemm.reference import triangle_mask
from trigemm.triangle import TileSchedule, Triangle, ceil_div

SIZES = (0, 1, 2, 5, 8)
DIAGONALS = (-9, -3, -1, 0, 1, 4, 9)
BLOCKS = ((1, 1), (2, 2), (3, 3), (4, 2), (4, 1))


@pytest.mark.parametrize("uplo", ["lower", "upper"])
def test_a_triangle_is_what_torch_says(uplo):
    for rows, columns, diagonal in itertools.product(SIZES, SIZES, DIAGONALS):
        triangle = Triangle(rows, columns, uplo, diagonal)
        ones = torch.ones(rows, columns)
        expected = (torch.tril if uplo == "lower" else torch.triu)(ones, diagonal).bool()
        members = [[(r, c) in triangle for c in range(columns)] for r in range(rows)]
        assert torch.equal(torch.tensor(members, dtype=torch.bool).reshape(rows, columns), expected)
        assert torch.equal(triangle_mask(rows, columns, uplo, diagonal), expected)
        assert triangle.size == expected.sum()
        for r in range(rows):
            assert list(triangle.columns_of(r)) == expected[r].nonzero().flatten().tolist()


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(["lower", "upper"]), st.integers(-60, 60))
def test_complement_and_transposition(rows, columns, uplo, diagonal):
    triangle = Triangle(rows, columns, uplo, diagonal)
    for r, c in itertools.product(range(rows), range(columns)):
        assert ((r, c) in triangle) != ((r, c) in triangle.complement)
        assert ((r, c) in triangle) == ((c, r) in triangle.transposed)
    assert triangle.size + triangle.complement.size == rows * columns
    assert triangle.flops(7) == 14 * triangle.size


def live_tiles(triangle, block_rows, block_columns):
    """Tiles with an entry of the triangle, found by looking at every entry."""
    return [
        (i, j)
        for i in range(ceil_div(triangle.rows, block_rows))
        for j in range(ceil_div(triangle.columns, block_columns))
        if any(
            (r, c) in triangle
            for r in range(i * block_rows, (i + 1) * block_rows)
            for c in range(j * block_columns, (j + 1) * block_columns)
        )
    ]


@pytest.mark.parametrize(("block_rows", "block_columns"), BLOCKS)
def test_a_schedule_numbers_exactly_the_live_tiles(block_rows, block_columns):
    for rows, columns, diagonal in itertools.product(SIZES, SIZES, DIAGONALS):
        triangle = Triangle(rows, columns, "lower", diagonal)
        schedule = triangle.tiles(block_rows, block_columns)
        expected = live_tiles(triangle, block_rows, block_columns)
        assert list(schedule) == expected
        assert len(schedule) == len(expected)
        assert [schedule.tile(n) for n in range(len(schedule))] == expected
        assert [schedule.number(*tile) for tile in expected] == list(range(len(schedule)))


@pytest.mark.parametrize(("block_rows", "block_columns"), BLOCKS)
def test_live_and_dead_tiles_are_all_tiles_once(block_rows, block_columns):
    for tile_rows, columns, diagonal in itertools.product(range(4), SIZES, DIAGONALS):
        schedule = Triangle(tile_rows * block_rows, columns, "lower", diagonal).tiles(block_rows, block_columns)
        last_row, last_column = schedule.tile_rows - 1, schedule.tile_columns - 1
        dead = [(last_row - i, last_column - j) for i, j in schedule.dead]
        everything = itertools.product(range(schedule.tile_rows), range(schedule.tile_columns))
        assert sorted([*schedule, *dead]) == sorted(everything)


def test_the_closed_form_holds_far_out():
    schedule = TileSchedule(Triangle(10**9, 10**9), 128, 128)
    for number in (8_390_655, 8_390_656, 2**33, len(schedule) - 1):
        row, column = schedule.tile(number)
        assert schedule.number(row, column) == number


def test_what_a_schedule_refuses():
    with pytest.raises(ValueError, match="lower triangle"):
        Triangle(4, 4, "upper").tiles(2, 2)
    with pytest.raises(ValueError, match="multiple of block_columns, got 2 and 3"):
        Triangle(4, 4).tiles(2, 3)
    with pytest.raises(ValueError, match="multiple of block_rows"):
        _ = Triangle(5, 5).tiles(2, 2).dead
    with pytest.raises(IndexError, match="not live"):
        Triangle(4, 4).tiles(2, 2).number(0, 1)
    with pytest.raises(IndexError, match="outside 0 to 2"):
        Triangle(4, 4).tiles(2, 2).tile(3)
