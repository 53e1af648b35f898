"""Memory for results: large ones on the CPU are NumPy's, and serve as torch's own do."""

import copy
import pickle

import pytest
import torch

import trigemm
from trigemm.kernels.strips.scratch import LINE
from trigemm.ops.results import HUGE_PAGES, new_result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 1000, HUGE_PAGES // 2, HUGE_PAGES + 1])
def test_it_is_a_tensor_like_any_other(size, dtype):
    x = new_result(torch.empty(0, dtype=dtype), (size, 1))
    assert (x.shape, x.dtype, x.is_contiguous(), x.data_ptr() % LINE) == ((size, 1), dtype, True, 0)
    x.fill_(2.0)
    assert x.sum(dtype=torch.float64) == 2 * size


def test_the_dtype_may_be_named():
    assert new_result(torch.ones(1), (2000, 2000), torch.bfloat16).dtype == torch.bfloat16


def test_a_large_result_is_copied_pickled_shared_and_changed_like_a_small_one():
    a = torch.randn(1100, 3, requires_grad=True)
    result = trigemm.gemmt(a, a.mT.detach())
    assert result.numel() * result.itemsize > HUGE_PAGES
    result.sum().backward()
    assert a.grad is not None
    expected = (a @ a.mT).tril().detach()
    result = result.detach()
    copies = copy.deepcopy(result), pickle.loads(pickle.dumps(result)), result.clone().share_memory_(), result.share_memory_()
    for same in copies:
        torch.testing.assert_close(same, expected)
    result.mul_(2)
    torch.testing.assert_close(result, 2 * expected)


def test_a_large_result_passes_torch_library_opcheck():
    a = torch.randn(1100, 3)
    torch.library.opcheck(torch.ops.trigemm.gemmt.default, (a, a.mT, 1.0, "lower", 0, 0.0, None))
