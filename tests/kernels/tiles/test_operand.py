import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trigemm.kernels.tiles.operand import Form, cut_batches, form_of, merge_batches, needs_64_bits


@given(st.lists(st.integers(1, 3), max_size=6), st.randoms())
def test_launches_cover_every_matrix_once(batch, random):
    base = torch.arange(3**7 * 6)
    x = base[: torch.Size(batch).numel() * 6].reshape(*batch, 2, 3)
    order = list(range(len(batch)))
    random.shuffle(order)
    x = x.permute(*order, -2, -1)
    y = torch.zeros(2, 3).expand(*x.shape)
    seen = []
    for batches in cut_batches(form_of(x), form_of(y)):
        assert batches.strides[1] == (0, 0, 0)
        strides, (_, size1, size2) = batches.strides[0], batches.sizes
        for n in range(batches.matrices):
            outer, middle, inner = n // (size1 * size2), n // size2 % size1, n % size2
            seen.append(batches.offsets[0] + outer * strides[0] + middle * strides[1] + inner * strides[2])
    assert sorted(seen) == sorted(x[..., 0, 0].flatten().tolist())


def test_batches_merge_only_where_every_operand_allows():
    assert merge_batches([4, 1, 5], [[15, 2, 3], [0, 0, 0]]) == ([20], [[3], [0]])
    assert merge_batches([4, 5], [[15, 3], [5, 0]]) == ([4, 5], [[15, 3], [5, 0]])
    assert merge_batches([], [[], []]) == ([], [[], []])


@pytest.mark.parametrize(
    ("x", "order", "align"),
    [
        (torch.zeros(3, 8, 12), "row", 4),
        (torch.zeros(3, 8, 12).mT, "column", 4),
        (torch.zeros(3, 8, 12)[:, :, 1:], "row", 1),
        (torch.zeros(3, 8, 13), "row", 1),
        (torch.zeros(3, 8, 16)[:, :, :13], "row", 1),
        (torch.zeros(8, 32)[:, ::2], "none", 1),
        (torch.zeros(8, 16, dtype=torch.float16), "row", 8),
        (torch.zeros(8, 12, dtype=torch.float16), "row", 1),
        (torch.zeros(1).expand(8, 12), "none", 1),
    ],
)
def test_order_and_alignment(x, order, align):
    assert (form_of(x).order, form_of(x).align) == (order, align)


def test_offsets_beyond_31_bits_are_noticed():
    small, big = form_of(torch.zeros(4, 4)), Form((2**16, 2**15), (2**15, 1), torch.float32, True)
    assert needs_64_bits(small, big)
    assert needs_64_bits(small, big.mT)
    assert not needs_64_bits(small, form_of(torch.zeros(1).expand(2**16, 2**15)))
