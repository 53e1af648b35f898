"""Layouts: where the elements of permuted, stretched and padded tensors lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trigemm.layout import Layout, broadcast_shape, merge

shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


def read(layout, memory):
    """The elements that a layout names, in row-major order."""
    return memory[layout.source_index(np.arange(np.prod(layout.shape)))].reshape(layout.shape)


@given(shapes, st.randoms(use_true_random=False))
def test_permuted_layouts_name_the_elements_of_a_transposed_array(shape, random):
    axes = random.sample(range(len(shape)), len(shape))
    memory = np.arange(int(np.prod(shape)))
    expected = memory.reshape(shape).transpose(axes)
    result = read(Layout.contiguous(shape).permute(axes), memory)
    assert np.array_equal(result.reshape(expected.shape), expected)


@given(shapes, st.data())
def test_expanded_layouts_name_the_elements_of_a_broadcast_array(wide, data):
    ones = data.draw(st.lists(st.booleans(), min_size=len(wide), max_size=len(wide)))
    missing = data.draw(st.integers(0, len(wide)))
    narrow = tuple(1 if one else size for one, size in zip(ones, wide, strict=True))[missing:]
    memory = np.arange(int(np.prod(narrow)))
    layout = Layout.contiguous(narrow).expand(wide)
    assert np.array_equal(read(layout, memory).reshape(wide), np.broadcast_to(memory.reshape(narrow), wide))


def test_missing_and_stretched_axes_have_stride_0():
    layout = Layout.contiguous((1, 5))
    assert layout == Layout((1, 1, 1, 5), (0, 0, 5, 1))
    assert layout.expand((2, 7, 5)).strides == (0, 0, 0, 1)


@given(shapes, shapes)
def test_broadcast_shape_is_numpys(a, b):
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        expected = None
    assert broadcast_shape(a, b) == expected


def test_five_axes_are_refused():
    with pytest.raises(ValueError, match=r"at most 4 axes; got shape \(1, 2, 3, 4, 5\)"):
        Layout.contiguous((1, 2, 3, 4, 5))


def test_an_axis_that_is_not_1_does_not_stretch():
    with pytest.raises(ValueError, match="does not broadcast"):
        Layout.contiguous((2, 3)).expand((4, 3))


@given(shapes, st.randoms(use_true_random=False), st.data())
def test_merged_layouts_name_the_same_elements_with_no_more_axes(shape, random, data):
    axes = random.sample(range(len(shape)), len(shape))
    permuted = Layout.contiguous(shape).permute(axes)
    wide = tuple(3 if size == 1 and data.draw(st.booleans()) else size for size in permuted.shape)
    layouts = permuted.expand(wide), Layout.contiguous(wide)
    merged = merge(*layouts)
    flat = np.arange(np.prod(wide))
    for before, after in zip(layouts, merged, strict=True):
        assert np.array_equal(before.source_index(flat), after.source_index(flat))
        assert after.shape == merged[0].shape
    assert sum(size > 1 for size in merged[0].shape) <= sum(size > 1 for size in wide)
