"""The page of the committed records, made once."""

from pathlib import Path

import pytest

from trigemm.lab.report import default_files, load, page

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="package")
def loaded():
    return load(default_files(ROOT / "benchmarks"))


@pytest.fixture(scope="package")
def html(loaded):
    return page(loaded)
