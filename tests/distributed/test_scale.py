"""The model on paper: it counts what the split counts, and the page's tables are its own."""

import dataclasses
import re
from pathlib import Path

import pytest

from trigemm.distributed.gather import GROUP_BYTES, MIRRORED_BYTES
from trigemm.distributed.scale import CASES, H200, RANKS, attention, growing_table, scores, syrk, table
from trigemm.distributed.split import live_tiles, rank_rows

PAGE = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", [*CASES, "growing"])
def test_the_page_has_the_tables_of_the_model(case: str) -> None:
    (found,) = re.findall(rf"<!-- scale:{case} -->\n(.*?)\n<!-- /scale -->", PAGE, re.DOTALL)
    assert found == (growing_table() if case == "growing" else table(case))


def test_flops_and_messages_are_those_of_the_split() -> None:
    length, ranks = 64, 4
    entries = live_tiles(length, ranks, 1, 1)
    assert scores(ranks, length=length, heads=3, size=16).flops == 2 * 16 * 3 * entries
    assert syrk(ranks, rows=length, depth=8).flops == 2 * 8 * entries
    assert attention(ranks, length=length, heads=3, size=16, listed=1).flops == 2 * 16 * entries * (2 * 3 + 1)
    others = sum(len(span) for rank in (0, 2, 3) for span in rank_rows(length, ranks, rank))
    assert scores(ranks, length=length, heads=3, size=16).bytes_received == 2 * 3 * 16 * others


@pytest.mark.parametrize("case", CASES)
def test_time_is_computing_and_what_of_the_messages_it_does_not_hide(case: str) -> None:
    for ranks in RANKS:
        share = CASES[case](ranks)
        assert share.time(H200) >= share.computing(H200)
        assert 0 <= share.exposed(H200) <= share.communication(H200) * (1 + 1e-9)
    slow = dataclasses.replace(H200, link=1e9)
    assert CASES[case](2).time(slow) > CASES[case](2).time(H200)


def test_two_gpus_are_predicted_to_do_what_is_asked_of_them() -> None:
    for case in CASES.values():
        one, two = case(1), case(2)
        assert one.time(H200) / two.time(H200) >= 1.8
        assert two.bytes_held + (4 * MIRRORED_BYTES if case is syrk else 2 * GROUP_BYTES) <= 0.55 * one.bytes_held
