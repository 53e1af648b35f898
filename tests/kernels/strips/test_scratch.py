import threading

import numpy
import torch

from trigemm.kernels.strips.scratch import HUGE_BYTES, empty, scratch


def test_empty_is_like_torch_empty(dtype):
    for rows in (0, 3, HUGE_BYTES // 8):
        x, like = empty((rows, 5), dtype), torch.empty(rows, 5, dtype=dtype)
        assert (x.shape, x.dtype, x.stride(), x.storage_offset()) == (like.shape, like.dtype, like.stride(), 0)
        assert x.fill_(1).sum(dtype=torch.float64) == 5 * rows


def test_large_tensors_outlive_their_maker():
    tensors = [empty((HUGE_BYTES,), torch.float32).fill_(i) for i in range(3)]
    assert [x[-1].item() for x in tensors] == [0, 1, 2]


def test_scratch_is_kept_by_name_and_by_thread():
    first = scratch("test", (4, 6), numpy.float32)
    assert numpy.shares_memory(first, scratch("test", (3,), numpy.float64))
    assert not numpy.shares_memory(first, scratch("another", (4, 6), numpy.float32))
    others = []
    thread = threading.Thread(target=lambda: others.append(scratch("test", (4, 6), numpy.float32)))
    thread.start()
    thread.join()
    assert not numpy.shares_memory(first, others[0])
