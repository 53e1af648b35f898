"""Elements moved, not changed, on every backend: axes in another order, stretched, cut and padded; and tensors without any."""

import numpy as np
import pytest
import torch

from trigemm.tensor import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0), (2, 3, 0, 1), (0, 1, 3, 2)])
def test_permute(axes, inputs, dtype, agrees):
    x = inputs(2, 7, 33, 5, dtype=dtype)
    agrees(x.permute(*axes), lambda x: x.permute(axes), x)


def test_transpose_of_a_large_matrix(inputs, dtype, agrees):
    x = inputs(133, 71, dtype=dtype)
    agrees(x.T, lambda x: x.T, x)


def test_a_short_axis_is_turned_with_the_next(inputs, dtype, agrees):
    """Both lie in one tile of rows, and reach over several."""
    x = inputs(70, 33, 5, dtype=dtype)
    agrees(x.permute(2, 1, 0), lambda x: x.permute(2, 1, 0), x)
    agrees(x.reshape(2, 35, 33, 5).permute(3, 0, 2, 1), lambda x: x.reshape(2, 35, 33, 5).permute(3, 0, 2, 1), x)


def test_permute_of_indices(inputs, agrees, near):
    x = inputs.indices(5, 9, below=100)
    assert np.array_equal(x.T.numpy(), x.numpy().T)


@pytest.mark.parametrize(("shape", "to"), [((7, 1), (7, 300)), ((300,), (7, 300)), ((2, 1, 1, 5), (2, 3, 4, 5)), ((), (3, 2))])
def test_expand(shape, to, inputs, agrees):
    x = inputs(*shape)
    agrees(x.expand(*to), lambda x: x.expand(to), x)


def test_reshape_copies_nothing(inputs, backend):
    x = inputs(7, 300)
    y = x.reshape(3, -1, 7)
    assert y.shape == (3, 100, 7)
    assert np.array_equal(y.numpy().ravel(), x.numpy().ravel())
    assert torch.from_dlpack(y).data_ptr() == torch.from_dlpack(x).data_ptr()


def test_slices_copy_nothing(inputs):
    x = inputs(7, 6, 5)
    assert np.array_equal(x[2:5].numpy(), x.numpy()[2:5])
    assert np.array_equal(x[3, 1:4].numpy(), x.numpy()[3, 1:4])
    assert torch.from_dlpack(x[1]).data_ptr() == torch.from_dlpack(x).data_ptr() + 30 * 4


@pytest.mark.parametrize("shape", [(3, 5), (5, 700), (4, 128, 8)])
def test_pad_rows(shape, inputs, backend, dtype):
    x = inputs(*shape, dtype=dtype)
    padded = x.like(backend.pad_rows(x.array, 2, 4)).numpy()
    assert np.array_equal(padded, np.pad(x.numpy(), ((2, 4), *((0, 0),) * (len(shape) - 1))))


def test_rows_that_begin_anywhere(inputs, agrees):
    """Slices of an odd number of elements: addresses that no vector load takes."""
    x, y, column = inputs(5, 7, 9)[1:3], inputs(4, 63)[3].reshape(7, 9), inputs(5, 7, 1)[1:3]
    agrees(x + y, torch.add, x, y)
    agrees(x * column, torch.mul, x, column)
    agrees(x.exp(), torch.exp, x)
    agrees(x.T, lambda x: x.mT, x)
    agrees(x.softmax(), lambda x: x.softmax(-1), x)
    agrees(x.sum(0), lambda x: x.sum(0), x, magnitude=1.0)


def test_full(backend):
    x = backend.full((7, 3), -0.5, "float32")
    assert np.array_equal(backend.numpy(x), np.full((7, 3), -0.5, np.float32))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_empty_tensors(shape, backend):
    x = Tensor(np.zeros(shape, np.float32), backend)
    assert (x + 1.0).shape == x.exp().shape == x.softmax().shape == shape
    assert x.sum().item() == 0.0
    assert np.array_equal(x.sum(0).numpy(), np.zeros(shape[1:], np.float32))
    assert x.permute(*reversed(range(len(shape)))).shape == shape[::-1]
