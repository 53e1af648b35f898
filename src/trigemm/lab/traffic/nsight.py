"""The same launches under Nsight Compute: what a GPU measures, beside what the simulator counts.

`measure` runs a command under ncu and reads the counters of its kernels. Global loads and stores must be equal to the
last digit, the wavefronts of shared memory within 2%: now and then the hardware takes a pass more for reasons of its own.
"""

import csv
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Counter(NamedTuple):
    """A count of the simulator and the hardware counter that measures the same."""

    space: str
    operation: str
    field: str
    metric: str


COUNTERS: Mapping[str, Counter] = {
    "load_requests": Counter("global", "load", "requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    "load_sectors": Counter("global", "load", "sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"),
    "store_requests": Counter("global", "store", "requests", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
    "store_sectors": Counter("global", "store", "sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    "shared_load_wavefronts": Counter("shared", "load", "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"),
    "shared_store_wavefronts": Counter("shared", "store", "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"),
}
SIMULATORS = ("NUMBA_ENABLE_CUDASIM", "TRITON_INTERPRET")
WAVEFRONT_TOLERANCE = 0.02


class NsightError(RuntimeError):
    """Nsight Compute could not measure; the message says why."""


class Measured(NamedTuple):
    """The counters of one launch."""

    kernel: str
    counts: dict[str, int]


def measure(command: Sequence[str], kernels: Collection[str] | None = None) -> list[Measured]:
    """Run a command under ncu, without locking clocks, and read the counters of each launch of these kernels (None: of all)."""
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise NsightError("Nsight Compute's command ncu is not on the PATH: it comes with the CUDA toolkit")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--target-processes", "all"]
        options += ["--log-file", str(log), "--metrics", ",".join(counter.metric for counter in COUNTERS.values())]
        environment = {name: value for name, value in os.environ.items() if name not in SIMULATORS}
        done = subprocess.run([ncu, *options, *command], env=environment, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    launches = [launch for launch in parse(text) if kernels is None or launch.kernel in kernels]
    if not launches:
        raise NsightError(_reason(text + "\n" + done.stdout + "\n" + done.stderr))
    return launches


def _reason(output: str) -> str:
    """Why ncu measured nothing, in a sentence."""
    if "ERR_NVGPUCTRPERM" in output:
        return "Nsight Compute may not read the GPU's counters here (ERR_NVGPUCTRPERM): the driver lets only administrators do so"
    errors = re.findall(r"^(?:==ERROR== (.*)|(\w*Error: .*)|(error: .*))$", output, re.MULTILINE)
    said = "; ".join("".join(parts) for parts in errors) or "no such kernel was launched"
    return f"Nsight Compute measured nothing: {said}"


def parse(text: str) -> list[Measured]:
    """The launches in ncu's raw page of comma-separated values: a row of names, a row of units, then a row a launch."""
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > len(COUNTERS)]
    if len(rows) < 3:
        return []
    names = rows[0]
    found = []
    for row in rows[2:]:
        cells = dict(zip(names, row, strict=False))
        measured = {name: cells.get(counter.metric, "n/a") for name, counter in COUNTERS.items()}
        counts = {name: _integer(value) for name, value in measured.items() if value != "n/a"}
        found.append(Measured(function_name(cells.get("Kernel Name", "")), counts))
    return found


def _integer(text: str) -> int:
    """A number of ncu's, which may have separators.

    >>> _integer("1,310,720"), _integer("6144.0")
    (1310720, 6144)
    """
    return round(float(text.replace(",", "")))


def function_name(kernel: str) -> str:
    """The Python function behind a numba-cuda kernel's name, demangled or mangled.

    >>> function_name("__main__::transpose[abi:v1][abi:cw51](Array<float, 2, C, mutable, aligned>)")
    'transpose'
    >>> function_name("_ZN6cudapy8__main__9transposeB2v1B4cw51E5ArrayIfLi2E1C7mutable7alignedE")
    'transpose'
    """
    if kernel.startswith("_Z"):
        names, rest = [], kernel.removeprefix("_ZN")
        while found := re.match(r"(\d+)", rest):
            end = found.end() + int(found[1])
            names.append(rest[found.end() : end])
            rest = rest[end:]
        return names[-1] if names else kernel
    return re.split(r"[\[(<]", kernel.removeprefix("void "))[0].split("::")[-1]


def counted(record: Mapping[str, Any]) -> dict[str, int]:
    """The counts of a launch's record that the hardware measures too."""
    return {
        name: int(record.get(counter.space, {}).get(counter.operation, {}).get(counter.field, 0))
        for name, counter in COUNTERS.items()
    }


def agrees(name: str, counted: int, measured: int) -> bool:
    """Whether a count is what was measured."""
    if name.startswith("shared"):
        return abs(measured - counted) <= WAVEFRONT_TOLERANCE * counted
    return counted == measured


def compare(record: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    """A launch's record beside what was measured: counts, whether they agree, and what the compiler may have done."""
    counts = counted(record)
    found = {name: agrees(name, counts[name], value) for name, value in measured.counts.items()}
    return {
        "kernel": record["kernel"],
        "counted": counts,
        "measured": measured.counts,
        "equal": all(found.values()),
        "notes": [_note(name, counts[name], measured.counts[name]) for name, equal in found.items() if not equal],
    }


def _note(name: str, counted: int, measured: int) -> str:
    what = name.replace("_", " ")
    if name.endswith("requests") and measured < counted:
        return f"{what}: the compiler merged or hoisted {counted - measured:,} of {counted:,} accesses"
    if name.endswith("requests"):
        return f"{what}: the compiler made {measured - counted:,} more than the source has, by splitting or repeating accesses"
    return f"{what}: {counted:,} counted, {measured:,} measured ({measured / max(counted, 1) - 1:+.2%})"
