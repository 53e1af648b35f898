"""What `import trigemm` loads and costs, and that the version is the same wherever it stands."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import trigemm

ROOT = Path(__file__).parents[1]

REPORT = """
import json, sys, time
import torch
start = time.perf_counter()
import trigemm
print(json.dumps({"seconds": time.perf_counter() - start, "modules": sorted(sys.modules)}))
"""


def import_report():
    """Seconds that `import trigemm` takes after torch's import, and all modules then loaded, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    return json.loads(done.stdout)


def test_import_loads_no_compiler_and_no_tool_and_costs_little():
    """At most 0.1 s over torch's import. Other work on the machine only adds time, so the best of a few tries counts."""
    for _ in range(5):
        report = import_report()
        if report["seconds"] < 0.1:
            break
    assert report["seconds"] < 0.1
    assert "trigemm.ops" in report["modules"]
    assert not {"matplotlib", "numba", "rich", "transformers", "triton", "typer"} & set(report["modules"])


def test_public_names():
    assert set(trigemm.__all__) >= {"causal_scores", "causal_scores_qkvpacked", "gemmt", "syrk", "trmm"}
    assert all(callable(getattr(trigemm, name)) for name in trigemm.__all__)


def test_version_is_the_same_everywhere():
    assert f"\nversion: {trigemm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "trigemm.__version__"}
