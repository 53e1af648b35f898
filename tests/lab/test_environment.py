"""What is recorded about the machine is what the machine says."""

import subprocess
from pathlib import Path

import numpy
import pytest
import torch

import trigemm
from trigemm.lab import environment


def test_versions_are_those_that_are_imported():
    found = environment.versions("cpu")
    assert found["torch"] == torch.__version__
    assert found["numpy"] == numpy.__version__
    assert found["blas"] == environment.blas_name("cpu")
    assert "cuda" not in found


def test_a_package_that_is_missing_has_no_version():
    assert environment._installed("no-such-package-of-ours") is None


@pytest.mark.parametrize(
    ("shown", "name"),
    [("a, BLAS_INFO=mkl, b", "MKL"), ("BLAS_INFO=open", "OpenBLAS"), ("BLAS_INFO=other", "other"), ("", "torch's BLAS")],
)
def test_the_blas_is_read_from_how_torch_was_built(monkeypatch, shown, name):
    monkeypatch.setattr(torch.__config__, "show", lambda: shown)
    assert environment.blas_name("cpu") == name


def test_the_cpu_is_named_with_its_threads():
    model = environment.device_name("cpu")
    assert model.rsplit(", ", 1)[1].split()[0] == str(torch.get_num_threads())
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "model name" in cpuinfo.read_text():
        assert f": {model.rsplit(', ', 1)[0]}\n" in cpuinfo.read_text()


def test_free_memory_of_the_cpu_is_a_number_of_bytes():
    free = environment.free_memory("cpu")
    assert free is None or 2**20 < free < 2**50


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a package in it, as `environment` sees its own."""
    here = tmp_path / "src/trigemm/lab"
    here.mkdir(parents=True)
    (here / "file.py").write_text("1\n")
    monkeypatch.setattr(environment, "_HERE", here)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def head(folder):
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_is_the_head_of_the_checkout_and_says_when_files_differ(checkout):
    assert environment.commit() == head(checkout)[:12]
    (checkout / "untracked").write_text("")
    assert environment.commit() == head(checkout)[:12]
    (checkout / "src/trigemm/lab/file.py").write_text("2\n")
    assert environment.commit() == head(checkout)[:12] + "-dirty"


def test_a_tag_does_not_hide_the_commit(checkout):
    subprocess.run(["git", "-C", str(checkout), "tag", "v1"], check=True)
    assert environment.commit() == head(checkout)[:12]


def test_another_repository_around_an_installed_copy_is_not_ours(checkout, monkeypatch):
    installed = checkout / "venv/site-packages/trigemm/lab"
    installed.mkdir(parents=True)
    monkeypatch.setattr(environment, "_HERE", installed)
    assert environment.commit() is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert environment.commit() is None


@pytest.mark.gpu
def test_on_cuda_the_driver_and_the_toolkit_are_named():
    found = environment.versions("cuda")
    assert found["cuda"] == torch.version.cuda
    assert found["driver"]
    assert found["blas"] == "cuBLAS"
    assert environment.device_name("cuda") == torch.cuda.get_device_name()


def test_the_version_of_a_source_tree_is_known(monkeypatch):
    monkeypatch.setattr(environment, "_installed", lambda package: None)
    assert environment.versions("cpu")["trigemm"] == trigemm.__version__
