"""The sdist and the wheel build from the project's own files, and the wheel works in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import trigemm

ROOT = Path(__file__).parents[1]
FILES = ["CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt", "pyproject.toml"]
EXAMPLE = """
import torch, trigemm
a, b = torch.randn(3, 4), torch.randn(4, 5)
torch.testing.assert_close(trigemm.gemmt(a, b), (a @ b).tril())
print(trigemm.__file__)
"""

pytestmark = pytest.mark.xdist_group("wheel")  # one build for all


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the sdist and the wheel that is made from the sdist, built without the network."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tests", source / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    return dist


@pytest.fixture(scope="module")
def fresh(dist, tmp_path_factory):
    """The scripts folder of a new environment: the wheel, and the dependencies of this one."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    purelib = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", home / "bin/python", "install", "--no-deps", "--no-index", wheel)
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin"


def test_wheel_holds_the_typed_package(dist):
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"trigemm-{trigemm.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "trigemm/py.typed",
        "trigemm/triangle.py",
        "trigemm/cli/main.py",
        "trigemm/lab/report/assets/page.html",
        "trigemm/tiling/devices.toml",
    } <= set(names)
    assert {name.split("/")[0] for name in names} == {"trigemm", f"trigemm-{trigemm.__version__}.dist-info"}


def test_sdist_holds_what_the_tests_need(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*FILES, "src/trigemm/py.typed", "tests/conftest.py", "tests/test_wheel.py"} <= names


def test_wheel_works_in_a_fresh_environment(fresh, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON", "NUMBA"))}
    module = run(fresh / "python", "-c", EXAMPLE, cwd=tmp_path, env=environment)
    assert Path(module.strip()).is_relative_to(fresh.parent)
    assert "bench" in run(fresh / "trigemm", "--help", cwd=tmp_path, env=environment)
