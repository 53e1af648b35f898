import os
import subprocess
import sys
import threading
import time
from concurrent.futures import wait

import pytest
import torch

from trigemm.kernels.strips import workers
from trigemm.kernels.strips.workers import side_by_side

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_item_is_worked_on_once_and_by_single_threads(threads):
    seen, both_here = [], threading.Barrier(min(threads, 2))

    def work(item):
        if item < 2:
            both_here.wait(timeout=30)  # items 0 and 1 meet here: they are not worked on one after the other
        seen.append((item, torch.get_num_threads()))

    side_by_side(work, range(100), CPU)
    assert sorted(seen) == [(item, 1) for item in range(100)]
    assert torch.get_num_threads() == threads


def test_threads_that_start_later_are_not_left_with_one_thread(threads):
    side_by_side(lambda item: None, [1, 2], CPU)
    found = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [threads]


def test_a_device_is_given_its_work_by_the_calling_thread_whose_stream_it_is(threads):
    seen = []
    side_by_side(lambda item: seen.append((item, threading.get_ident())), range(20), torch.device("cuda"))
    assert seen == [(item, threading.get_ident()) for item in range(20)]


def test_an_error_reaches_the_caller_once_all_is_done(threads):
    done = []

    def work(item):
        if item == 3:
            raise ValueError("three")
        done.append(item)

    with pytest.raises(ValueError, match="three"):
        side_by_side(work, range(8), CPU)
    assert set(done) == set(range(8 if threads > 1 else 3)) - {3}


def test_after_an_interruption_nothing_is_worked_on(monkeypatch):
    begun, finished, waits = threading.Event(), [], []

    def work(item):
        begun.set()
        time.sleep(0.05)
        finished.append(item)

    def interrupted(futures):
        waits.append(len(futures))
        if len(waits) == 1:
            begun.wait(30)
            raise KeyboardInterrupt
        return wait(futures)

    monkeypatch.setattr(workers, "wait", interrupted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(50), CPU)
    seen = len(finished)
    time.sleep(0.2)
    assert 1 <= seen == len(finished) <= 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_workers_of_its_own():
    script = """
import os, torch
from trigemm.kernels.strips.workers import side_by_side
torch.set_num_threads(2)
done = []
side_by_side(done.append, [1, 2, 3], torch.device("cpu"))
child = os.fork()
if child == 0:
    side_by_side(done.append, [4, 5], torch.device("cpu"))
    os._exit(sorted(done) != [1, 2, 3, 4, 5])
raise SystemExit(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0
