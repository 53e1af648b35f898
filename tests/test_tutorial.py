"""The notebooks run from top to bottom and print what is stored in them. `make tutorial` stores it anew."""

import os
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "tutorial").glob("*.ipynb"))


def printed(cell):
    """The text that a cell prints, streams and results alike. Pictures count as their size."""
    return "".join(
        output["text"] if output.output_type == "stream" else output["data"]["text/plain"] + "\n" for output in cell.outputs
    )


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    stored = nbformat.read(request.param, as_version=4)
    nbformat.validate(stored)
    return stored


def test_there_are_four():
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


def test_stored_cells_are_a_run_from_top_to_bottom_with_pictures_that_are_described(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    pictures = [output for cell in cells for output in cell.outputs if "image/png" in output.get("data", ())]
    assert len(pictures) >= 3
    assert all(len(picture.metadata["image/png"]["alt"]) > 50 for picture in pictures)


def test_a_run_prints_what_is_stored(notebook):
    run = deepcopy(notebook)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    NotebookClient(run, resources={"metadata": {"path": str(ROOT / "tutorial")}}).execute(env=environment)
    for stored, cell in zip(notebook.cells, run.cells, strict=True):
        # Cells tagged "records" print measurements, which are others as soon as they are made again.
        if cell.cell_type == "code" and "records" not in cell.metadata.get("tags", ()):
            assert printed(cell) == printed(stored), f"run make tutorial and look at the difference:\n{cell.source}"
