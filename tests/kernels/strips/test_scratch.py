import threading

import numpy

from trigemm.kernels.strips.scratch import scratch


def test_scratch_is_kept_by_name_and_by_thread():
    first = scratch("test", (4, 6), numpy.float32)
    assert numpy.shares_memory(first, scratch("test", (3,), numpy.float64))
    assert not numpy.shares_memory(first, scratch("another", (4, 6), numpy.float32))
    others = []
    thread = threading.Thread(target=lambda: others.append(scratch("test", (4, 6), numpy.float32)))
    thread.start()
    thread.join()
    assert not numpy.shares_memory(first, others[0])


def test_scratch_begins_at_a_cache_line():
    for size in (1, 1000, 2**23 + 1):
        assert scratch("aligned", (size,), numpy.uint8).ctypes.data % 64 == 0
