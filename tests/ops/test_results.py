"""Memory for results: large ones on the CPU lie in huge pages, and are tensors like any other."""

import copy
import mmap
import pickle
import re
from pathlib import Path

import pytest
import torch

import trigemm
from trigemm.ops.results import LARGE, new_result

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 1000, LARGE // 2, LARGE + 1])
def test_it_is_a_tensor_like_any_other(size, dtype):
    x = new_result(torch.empty(0, dtype=dtype), (size, 1))
    assert (x.shape, x.dtype, x.is_contiguous(), x._is_view()) == ((size, 1), dtype, True, False)
    x.fill_(2.0)
    assert x.sum(dtype=torch.float64) == 2 * size
    assert x.resize_(size + 7, 1).shape == (size + 7, 1)


@pytest.mark.skipif(not SETTING.exists() or "[never]" in SETTING.read_text(), reason="needs transparent huge pages")
def test_a_large_one_lies_in_huge_pages():
    x = new_result(torch.ones(1), (2**24,))
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    middle = x.data_ptr() + x.nbytes // 2

    def holds(area):
        begin, end = (int(number, 16) for number in area.split()[0].split("-"))
        return begin <= middle < end

    (flags,) = [re.search("VmFlags:(.*)", area)[1].split() for area in maps if area and holds(area)]
    assert "hg" in flags


def test_without_huge_pages_to_ask_for_it_is_the_same(monkeypatch):
    from trigemm.ops import results

    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    results._madvise.cache_clear()
    assert new_result(torch.ones(1), (2**21,)).shape == (2**21,)
    results._madvise.cache_clear()


def test_the_dtype_may_be_named():
    assert new_result(torch.ones(1), (2000, 2000), torch.bfloat16).dtype == torch.bfloat16


def test_a_large_result_is_copied_pickled_shared_and_changed_like_a_small_one():
    a, factor = torch.randn(1100, 3), torch.ones(1100, 1100, requires_grad=True)
    expected = (a @ a.mT).tril()
    result = trigemm.gemmt(a, a.mT)
    assert result.nbytes > LARGE
    copies = copy.deepcopy(result), pickle.loads(pickle.dumps(result)), result.clone().share_memory_(), result.share_memory_()
    for same in copies:
        torch.testing.assert_close(same, expected)
    with torch.no_grad():
        result = trigemm.gemmt(a, a.mT)
    result.mul_(factor).sum().backward()
    torch.testing.assert_close(factor.grad, expected)


def test_a_large_result_passes_torch_library_opcheck():
    a = torch.randn(1100, 3)
    torch.library.opcheck(torch.ops.trigemm.gemmt.default, (a, a.mT, 1.0, "lower", 0, 0.0, None))
