"""What is particular to the GPU backend: its checks in the interpreter too, its queue and its memory on a GPU alone."""

import numpy as np
import pytest
import torch

from trigemm.tensor import CpuBackend, Tensor, cross_entropy, gather, scatter_add
from trigemm.tensor.cuda import CudaBackend

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


@pytest.fixture
def cuda(device):
    return CudaBackend(device)


@pytest.fixture
def checked(device):
    return CudaBackend(device, checked=True)


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_a_checked_backend_refuses_an_index_outside_the_table(index, checked):
    x, indices = Tensor(np.ones((3, 3), np.float32), checked), Tensor([0, index, 1], checked)
    for use in (gather, cross_entropy, lambda x, i: scatter_add(x, i, 3)):
        with pytest.raises(IndexError, match=f"index {index} is outside 0 to 2"):
            use(x, indices)


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_an_unchecked_backend_reads_and_writes_nothing_outside_the_table(index, cuda):
    x, indices = Tensor(np.ones((3, 3), np.float32), cuda), Tensor([0, index, 1], cuda)
    assert np.isnan(gather(x, indices).numpy()).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert scatter_add(x, indices, 3).numpy().tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    losses = cuda.numpy(cuda.cross_entropy(x.array, indices.array))
    assert np.isnan(losses).tolist() == [False, True, False]
    grads = cuda.numpy(cuda.cross_entropy_backward(cuda.full((3,), 1.0, "float32"), x.array, indices.array))
    assert np.isnan(grads).all(1).tolist() == [False, True, False]


def test_other_dtypes_are_refused(cuda):
    with pytest.raises(TypeError, match="CudaBackend: dtypes are float32, float16, int64; got float64"):
        Tensor(np.ones(3), cuda)
    with pytest.raises(TypeError, match="got float64"):
        Tensor([1.0], cuda).cast("float64")


def test_backends_of_one_device_are_one(device):
    assert CudaBackend(device) == CudaBackend(device, checked=True)
    assert CudaBackend(device) != CpuBackend()
    assert hash(CudaBackend(device)) == hash(CudaBackend(device))
    assert repr(CudaBackend(device)).startswith("CudaBackend('")


@pytest.mark.gpu
def test_memory_elsewhere_is_not_shared(cuda):
    with pytest.raises(ValueError, match="the memory is on cpu, the backend on cuda:0"):
        Tensor.from_dlpack(torch.ones(2), cuda)


def test_tensors_of_many_tiles(cuda):
    """A tile is not the last one: more than one program, and a border inside the last."""
    x = np.random.default_rng(1).normal(size=9_001).astype(np.float32)
    y = Tensor(x, cuda)
    assert np.array_equal((y + y).numpy(), x + x)
    assert np.array_equal(y.reshape(-1, 1).expand(9_001, 2).T[1].numpy(), x)


@pytest.mark.gpu
def test_thousands_of_operations_wait_for_nothing(cuda):
    """PyTorch raises at the first call that waits for the device; every intermediate tensor is dropped while it is queued."""
    x = Tensor(np.full((7, 300), 0.5, np.float32), cuda)
    y = (x * 0.5 + 0.25).sum(1)  # compiled before the count
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = x
        for _ in range(2500):
            y = y * 0.5 + 0.25
        total = y.sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert total.item() == 0.5 * 7 * 300


@pytest.mark.gpu
def test_two_streams(cuda):
    x = [Tensor(np.full((1000, 1000), value, np.float32), cuda) for value in (1.0, 2.0)]
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in x], list(x)
    for _ in range(100):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i] = results[i] + 1.0
    cuda.synchronize()
    for value, result in zip((101.0, 102.0), results, strict=True):
        assert (result.numpy() == value).all()


@pytest.mark.gpu
def test_after_running_out_of_memory_work_goes_on(cuda):
    x = Tensor([[1.0]], cuda)
    with pytest.raises(torch.OutOfMemoryError):
        x.expand(2**21, 2**21)
    assert (x + 1.0).item() == 2.0


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2**26,), (4096, 4096)])
def test_large_tensors(shape, cuda):
    x = torch.randn(shape, device="cuda")
    y = Tensor.from_dlpack(x, cuda)
    assert torch.equal(torch.from_dlpack(y + y), x + x)
    assert torch.allclose(torch.from_dlpack(y.softmax()), x.softmax(-1), rtol=1e-5)
    assert abs(y.sum().item() - x.double().sum().item()) <= 1e-6 * x.double().abs().sum().item()
    if len(shape) == 2:
        assert torch.equal(torch.from_dlpack(y.T), x.T)
