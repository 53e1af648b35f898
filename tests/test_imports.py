"""The import checker can fail: each rule of the layers is broken once, in a copy, and noticed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

VIOLATIONS = [
    ("layers", "ops/schema.py", "import trigemm.lab"),
    ("layers", "kernels/spec.py", "import trigemm.ops.schema"),
    ("layers", "kernels/spec.py", "import trigemm"),  # the package itself imports the operations
    ("layers", "stray.py", "import torch"),  # a module that no layer holds
    ("layers", "tensor/cpu.py", "import trigemm.ops.schema"),
    ("layers", "layout.py", "import trigemm.kernels.spec"),
    ("kinds", "kernels/strips/__init__.py", "import trigemm.kernels.tiles"),
    ("referee", "kernels/spec.py", "from trigemm.reference import gemmt"),
    ("referee", "ops/checks.py", "def late():\n    from trigemm import reference"),
    ("referee", "cli/__init__.py", "from trigemm import reference"),
    ("triton", "ops/schema.py", "import triton.language as tl"),
    ("triton", "kernels/threads/__init__.py", "import triton"),
    ("numba", "kernels/tiles/__init__.py", "from numba import cuda"),
    ("transformers", "nn.py", "import transformers"),
    ("matplotlib", "lab/__init__.py", "import matplotlib.pyplot"),
]


def lint(folder, *options):
    """Run the import checker on the package that lies in `folder`."""
    main = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", main, "--no-cache", "--no-logo", *options, str(ROOT / "pyproject.toml")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def package(tmp_path):
    return shutil.copytree(ROOT / "src/trigemm", tmp_path / "trigemm", ignore=shutil.ignore_patterns("__pycache__"))


def test_the_package_keeps_every_contract(package):
    done = lint(package.parent)
    assert done.returncode == 0, done.stdout
    assert "7 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(("contract", "file", "line"), VIOLATIONS)
def test_a_violation_is_noticed(package, contract, file, line):
    with (package / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint(package.parent, "--contract", contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 kept, 1 broken" in done.stdout
