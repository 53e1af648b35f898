"""Runs a person's own script under the simulator, unchanged, and records its launches."""

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numba import cuda

from trigemm.lab.traffic.recorder import KernelError, record
from trigemm.lab.traffic.result import Traffic

# Of `cuda.jit`, for the compiler alone: the simulator does not know them.
COMPILER_OPTIONS = ("forceinline", "launch_bounds", "lineinfo", "lto", "max_registers")


@dataclass
class ScriptRun:
    """The launches of a script, as far as it came, and in a sentence why it came no further."""

    launches: list[Traffic] = field(default_factory=list)
    failure: str | None = None


def run_script(path: Path, args: Sequence[str] = (), *, limit: int, count_flops: bool = False) -> ScriptRun:
    """Run a script as `python path args…` would, with its launches counted and looked at for faults."""
    run = ScriptRun()
    with record(limit=limit, count_flops=count_flops) as run.launches, _as_main(path, args), _any_options():
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            if stop.code not in (None, 0):
                run.failure = f"{path.name} ended with exit code {stop.code}"
        except KernelError as error:
            run.failure = str(error)
        except KeyboardInterrupt:
            run.failure = f"{path.name} was interrupted"
        except Exception as error:
            run.failure = f"{path.name}{_where(path, error)} failed: {type(error).__name__}: {error}"
    return run


@contextmanager
def _as_main(path: Path, args: Sequence[str]) -> Iterator[None]:
    argv, first = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(path), *args], str(path.parent)
    try:
        yield
    finally:
        sys.argv, sys.path[0] = argv, first


@contextmanager
def _any_options() -> Iterator[None]:
    """Let `cuda.jit` take the options that concern only the compiler."""
    plain = cuda.jit

    def jit(*args: Any, **options: Any) -> Any:
        return plain(*args, **{name: value for name, value in options.items() if name not in COMPILER_OPTIONS})

    cuda.jit = jit
    try:
        yield
    finally:
        cuda.jit = plain


def _where(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f", line {lines[-1]}," if lines else ""
