"""What commands share: how wide they print, how they show progress, and how a signal ends them."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def console(stderr: bool = False) -> Console:
    """Standard output or error; where it is no terminal, wide enough for the tables."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=200)


def cannot_write(error: OSError) -> str:
    """A sentence on the file that could not be written. An error without one is standard output's: it goes on to `main`."""
    if error.filename is None:
        raise error
    return f"error: cannot write {error.filename}: {error.strerror}"


@contextmanager
def progress(stage: str) -> Iterator[Callable[[str, int, int], object]]:
    """A bar on standard error, to be told (stage, done, total). Where that is no terminal, nothing."""
    err = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(stage, total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """SIGTERM (of `timeout`, of a batch system) raises KeyboardInterrupt as SIGINT does.

    Sent again within a second, as `timeout` does, either counts once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -inf

    def interrupt(number: int, frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > 1:
            raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
