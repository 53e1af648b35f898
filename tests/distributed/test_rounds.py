"""The order of one large matrix's product: every entry once, messages that meet, places that are free when rows come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm.distributed.rounds import Round, rounds
from trigemm.distributed.split import rank_rows

SIZES = pytest.mark.parametrize("ranks", range(1, 9))


def of_all_ranks(length: int, ranks: int, height: int) -> list[list[Round]]:
    return [rounds(length, ranks, rank, height) for rank in range(ranks)]


@SIZES
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 60), height=st.integers(1, 20))
def test_every_entry_below_the_diagonal_is_computed_once_and_mirrored_once(ranks: int, length: int, height: int) -> None:
    computed, mirrored = [], []
    for rank, every in enumerate(of_all_ranks(length, ranks, height)):
        own = {row for rows in rank_rows(length, ranks, rank) for row in rows}
        computed += [(r, c) for of in every for r in of.own for c in of.columns]
        mirrored += [(c, r) for of in every for r in of.mirrored for c in of.beside]
        assert own.issuperset(r for of in every for rows in (of.own, of.mirrored, of.sends) for r in rows)
        computed += [(r, c) for r in own for c in own if c <= r]
        mirrored += [(r, c) for r in own for c in own if c <= r]
    wanted = [(r, c) for r in range(length) for c in range(r + 1)]
    assert sorted(computed) == wanted
    assert sorted(mirrored) == wanted


@SIZES
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 60), height=st.integers(1, 20))
def test_what_is_sent_in_a_round_comes_in_the_same_one(ranks: int, length: int, height: int) -> None:
    every = of_all_ranks(length, ranks, height)
    assert len({len(some) for some in every}) == 1
    for together in zip(*every, strict=True):
        for rank, of in enumerate(together):
            assert together[of.target].source == rank
            assert together[of.target].comes == of.sends
            assert (together[of.target].columns, together[of.target].own) == (of.mirrored, of.beside)
            assert max(map(len, (of.comes, of.columns))) <= height


@SIZES
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 60), height=st.integers(1, 20))
def test_rows_are_in_their_place_when_they_are_used(ranks: int, length: int, height: int) -> None:
    """Rows come while those of the round before are used: its place must be the other one."""
    for every in of_all_ranks(length, ranks, height):
        places: dict[int, tuple[int, range]] = {}
        for number, of in enumerate([*every, None]):
            if of and of.comes:
                places[of.slot] = of.source, of.comes
            before = every[number - 1] if number else None
            if before and before.own and before.columns:
                assert places[before.slot] == (before.source, before.columns)


def test_two_ranks_have_as_much_to_do_and_wait_for_as_little() -> None:
    first, second = of_all_ranks(16, 2, 2)
    assert [len(of.own) * len(of.columns) for of in first] == [len(of.own) * len(of.columns) for of in second] == [8] * 4
    assert [len(of.comes) for of in first] == [2, 2, 2, 2]
    assert [len(of.comes) for of in second] == [2, 0, 2, 0]
