"""Threads that make BLAS calls side by side, each call on one thread alone.

A BLAS that spreads a product over its threads starts and joins them for every matrix. The many small products of a batch are
faster side by side.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")


def _keep_to_one_thread() -> None:
    torch.get_num_threads()  # a thread's first look takes over the number that others have set
    torch.set_num_threads(1)


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """As many threads, in each of which torch and its BLAS use one thread."""
    pool = ThreadPoolExecutor(size, "trigemm", _keep_to_one_thread)
    all_started = Barrier(size + 1)
    for _ in range(size):
        pool.submit(all_started.wait)
    all_started.wait()
    torch.set_num_threads(size)  # what was set last is also what threads that start later begin with
    return pool


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def side_by_side(work: Callable[[Item], object], items: Sequence[Item], device: torch.device) -> None:
    """Calls `work` on each item, on as many threads as torch uses; returns when all is done. The items are taken in order.

    For another device than the CPU the calling thread does all: a device has its own threads, and queues work in the stream that
    is the caller's alone.

    >>> done = []
    >>> side_by_side(done.append, [1, 2, 3], torch.device("cpu"))
    >>> sorted(done)
    [1, 2, 3]
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) <= 1 or device.type != "cpu":
        for item in items:
            work(item)
        return
    queue = iter(items)

    def take() -> None:
        # The caller's work is below autograd, and its tensors may be those of inference mode: a new thread knows neither.
        with torch.inference_mode():
            for item in queue:
                work(item)

    pool = _pool(threads)
    started = [pool.submit(take) for _ in range(min(threads, len(items)))]
    try:
        wait(started)
    except BaseException:  # an interruption: nothing may be written any more once the caller knows of it
        for _ in queue:
            pass
        wait(started)
        raise
    for future in started:
        future.result()
