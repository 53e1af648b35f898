"""The circumstances of a measurement: device, versions, commit. A number without them is not worth keeping."""

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy
import torch

import trigemm

_HERE = Path(__file__).resolve().parent


def device_name(device: str) -> str:
    """The model of the GPU, or of the CPU with the number of threads that torch uses.

    >>> "thread" in device_name("cpu")
    True
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_model()}, {threads} thread{'s' if threads > 1 else ''}"


def blas_name(device: str) -> str:
    """The library behind `torch.matmul` on this device: cuBLAS, or what torch's CPU build was linked with."""
    if torch.device(device).type == "cuda":
        return "cuBLAS" if torch.version.cuda else "hipBLAS"
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    names = {"mkl": "MKL", "open": "OpenBLAS", "accelerate": "Accelerate", "blis": "BLIS"}
    return names.get(found[1], found[1]) if found else "torch's BLAS"


def numpy_blas_name() -> str:
    """The library behind `numpy.matmul`."""
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    return "OpenBLAS" if "openblas" in blas else str(blas)


def versions(device: str) -> dict[str, str | None]:
    """Versions of what takes part in a measurement on this device; None where a package is not installed.

    >>> sorted(versions("cpu"))
    ['blas', 'numba-cuda', 'numpy', 'numpy_blas', 'python', 'torch', 'trigemm', 'triton']
    """
    found = {
        "trigemm": trigemm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "triton": _installed("triton"),
        "numba-cuda": _installed("numba-cuda"),
        "blas": blas_name(device),
        "numpy_blas": numpy_blas_name(),
    }
    if torch.device(device).type == "cuda":
        found |= {"cuda": torch.version.cuda, "driver": _driver()}
    return found


def free_memory(device: str) -> int | None:
    """Bytes that can still be allocated on the device; None where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", info.read_text(), re.MULTILINE) if info.exists() else None
    return 1024 * int(found[1]) if found else None


def commit() -> str | None:
    """The commit of the checkout that this package is imported from, with "-dirty" if tracked files differ.

    Where no commit is known, as in an exported tree, what TRIGEMM_COMMIT in the environment names, or None.
    """
    top = _output("git", "-C", str(_HERE), "rev-parse", "--show-toplevel")
    found = None
    # An installed copy may lie inside some other repository: only our own source tree counts.
    if top is not None and Path(top, "src", "trigemm", "lab").resolve() == _HERE:
        found = _output("git", "-C", str(_HERE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return found or os.environ.get("TRIGEMM_COMMIT")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _driver() -> str | None:
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines.splitlines()[0] if lines else None


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """What a program prints, or None where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
