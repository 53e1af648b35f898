"""What the package offers, and the page that explains it."""

import re
from pathlib import Path

import pytest

import trigemm.lab.traffic
from trigemm.lab.traffic import nsight

ROOT = Path(__file__).parents[3]


def test_the_public_names():
    pytest.importorskip("numba.cuda", reason="needs numba-cuda")
    for name in trigemm.lab.traffic.__all__:
        assert getattr(trigemm.lab.traffic, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trigemm.lab.traffic.nothing  # noqa: B018


def test_the_page_names_each_kind_of_fault_and_the_counters():
    page = (ROOT / "docs/traffic.md").read_text(encoding="utf-8")
    source = (ROOT / "src/trigemm/lab/traffic/sanitize.py").read_text(encoding="utf-8")
    kinds = re.findall(r"^    ([a-z]+(?:-[a-z]+)*)  +\w", source, re.MULTILINE)
    assert len(kinds) == 11
    for kind in kinds:
        assert f"`{kind}`" in page
    for counter in nsight.COUNTERS.values():
        assert counter.metric.replace("_st.sum", "_ld.sum") in page
