"""What is particular to the GPU backend: its checks in the interpreter too, its queue and its memory on a GPU alone."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from trigemm.tensor import CpuBackend, Tensor, cross_entropy, gather, gemmt, layer_norm, scatter_add, syrk, trmm
from trigemm.tensor.cuda import CudaBackend

pytestmark = [
    pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning"),  # NumPy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]


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
    with pytest.raises(TypeError, match="CudaBackend: dtypes are float32, float16, bfloat16, int64; got float64"):
        Tensor(np.ones(3), cuda)
    with pytest.raises(TypeError, match="got float64"):
        Tensor([1.0], cuda).cast("float64")


def test_backends_of_one_device_are_one(device):
    assert CudaBackend(device, checked=True) == CudaBackend(device, checked=True)
    assert CudaBackend(device) != CpuBackend()
    assert hash(CudaBackend(device)) == hash(CudaBackend(device))
    assert repr(CudaBackend(device)).startswith("CudaBackend('")


@pytest.mark.parametrize("options", [{"checked": True}, {"precision": "high"}])
def test_backends_of_other_options_do_not_mix(options, cuda, device):
    other = CudaBackend(device, **options)
    name, value = next(iter(options.items()))
    assert other != cuda
    assert repr(other) == f"{repr(cuda)[:-1]}, {name}={value!r})"
    x = Tensor([1.0], cuda)
    with pytest.raises(ValueError, match=f"tensors are on different backends, .* and .*{name}=.*; move one with"):
        x + x.to(other)
    assert (x + x.to(other).to(cuda)).item() == 2.0


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


@contextmanager
def waiting_is_an_error():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_thousands_of_operations_wait_for_nothing(cuda):
    """PyTorch raises at the first call that waits for the device; every intermediate tensor is dropped while it is queued."""
    x = Tensor(np.full((7, 300), 0.5, np.float32), cuda)
    y = (x * 0.5 + 0.25).sum(1)  # compiled before the count
    with waiting_is_an_error():
        y = x
        for _ in range(2500):
            y = y * 0.5 + 0.25
        total = y.sum()
    assert total.item() == 0.5 * 7 * 300
    with pytest.raises(RuntimeError, match="synchronizing"), waiting_is_an_error():
        total.item()


@pytest.mark.gpu
def test_data_from_the_host_wait_for_nothing(cuda):
    data = np.random.default_rng(0).normal(size=(100, 33)).astype(np.float32)
    with waiting_is_an_error():
        tensors = [Tensor(data + i, cuda) for i in range(50)]
    assert all(np.array_equal(x.numpy(), data + i) for i, x in enumerate(tensors))


@pytest.mark.gpu
def test_a_freed_tensor_is_still_read_by_queued_work(cuda):
    """The device sleeps while its reader is queued, the tensor is freed, and its memory is asked for and written again."""
    x, ones = Tensor(np.full(2**20, 3.0, np.float32), cuda), Tensor(np.ones(2**20, np.float32), cuda)
    address = torch.from_dlpack(x).data_ptr()
    x + ones  # compiled
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    y = x + ones
    x.free()
    others = [ones * 7.0 for _ in range(4)]
    assert address in [torch.from_dlpack(other).data_ptr() for other in others]
    assert (y.numpy() == 4.0).all()


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
@pytest.mark.parametrize("shape", [(2**26,), (4096, 4096), (4097, 4099)])
def test_large_tensors(shape, cuda):
    x = torch.randn(shape, device="cuda")
    y = Tensor.from_dlpack(x, cuda)
    assert torch.equal(torch.from_dlpack(y + y), x + x)
    assert torch.allclose(torch.from_dlpack(y.softmax()), x.softmax(-1), rtol=1e-5)
    assert abs(y.sum().item() - x.double().sum().item()) <= 1e-6 * x.double().abs().sum().item()
    if len(shape) == 2:
        assert torch.equal(torch.from_dlpack(y.T), x.T)


@pytest.mark.gpu
def test_more_elements_than_32_bits_number(cuda):
    x = torch.zeros(2**31 + 8192, dtype=torch.float16, device="cuda")
    x[-1], x[2**31] = 1.0, 2.0
    y = Tensor.from_dlpack(x, cuda)
    result = torch.from_dlpack(y * 2.0 + y)
    assert result[[-1, 2**31, 0]].tolist() == [3.0, 6.0, 0.0]
    assert y.sum().item() == 3.0
    tall = y.reshape(-1, 8192)
    assert torch.from_dlpack(tall.T)[-1, -1].item() == 1.0
    assert torch.from_dlpack(tall.max())[[-1, -2]].tolist() == [2.0, 0.0]


HALVES = ["float16", "bfloat16"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_stored_and_float32_computed(dtype, cuda):
    """Each result is torch's float32 result on the same stored numbers, rounded once."""
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    a, b = (torch.randn(65, 48, device="cuda").to(kind) for _ in range(2))
    w, v = (torch.randn(48, device="cuda").to(kind) for _ in range(2))
    x, y, g, h = (Tensor.from_dlpack(t, cuda) for t in (a, b, w, v))
    A, B, W, V = a.float(), b.float(), w.float(), v.float()
    targets = torch.arange(65, device="cuda") % 48
    index = Tensor.from_dlpack(targets, cuda)
    pairs = {
        "add": (x + y, A + B),
        "row": (x * g, A * W),
        "number": (x * 0.5, A * 0.5),
        "gelu": (x.gelu(), torch.nn.functional.gelu(A, approximate="tanh")),
        "softmax": (x.softmax(), A.softmax(-1)),
        "log_softmax": (x.log_softmax(), A.log_softmax(-1)),
        "layer_norm": (layer_norm(x, g, h), torch.nn.functional.layer_norm(A, (48,), W, V)),
        "matmul": (x @ y.T, (a.double() @ b.double().T).float()),
        "sum": (x.sum(0), A.double().sum(0).float()),
        "max": (x.max(1), A.amax(1)),
        "transpose": (x.T, A.T),
        "gather": (gather(x, index), A[targets]),
        "scatter_add": (scatter_add(x, index, 48), torch.zeros(48, 48, device="cuda").index_add_(0, targets, A)),
        "cross_entropy": (
            x.like(cuda.cross_entropy(x.array, index.array)),
            torch.nn.functional.cross_entropy(A, targets, reduction="none"),
        ),
        "cast": (x.cast("float32"), A),
    }
    steps = {"float16": 2**-10, "bfloat16": 2**-7}
    for name, (ours, exact) in pairs.items():
        assert ours.dtype == ("float32" if name == "cast" else dtype), name
        error = (torch.from_dlpack(ours).float() - exact).abs()
        assert (error <= steps[dtype] * exact.abs() + 1e-3 * steps[dtype] * 48).all(), (name, error.max())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_half_precision_are_made_in_float32(dtype, cuda):
    """A running sum in half precision would stop growing at 256 (bfloat16) or 2048 (float16)."""
    x = Tensor(np.ones((5000, 3)), cuda, dtype=dtype)
    assert np.abs(x.sum(0).numpy() / 5000 - 1).max() < 0.004
    assert np.abs((x.T @ x).numpy() / 5000 - 1).max() < 0.004


@pytest.mark.gpu
def test_bfloat16_goes_out_as_float32_and_in_from_any_float(cuda):
    x = Tensor([1.0, 2.5, 1 + 2**-9], cuda, dtype="bfloat16")
    assert (x.dtype, x.numpy().dtype, x.numpy().tolist()) == ("bfloat16", np.float32, [1.0, 2.5, 1.0])
    assert x.to(cuda).dtype == "bfloat16"
    assert Tensor(torch.ones(2, dtype=torch.bfloat16), cuda).dtype == "bfloat16"


@pytest.mark.gpu
def test_scatter_add_has_the_same_bits_in_every_run(cuda):
    torch.manual_seed(0)
    updates, indices = torch.randn(200_000, 64, device="cuda"), torch.randint(0, 97, (200_000,), device="cuda")
    x, i = Tensor.from_dlpack(updates, cuda), Tensor.from_dlpack(indices, cuda)
    first = scatter_add(x, i, 97).numpy()
    assert all(np.array_equal(scatter_add(x, i, 97).numpy(), first) for _ in range(5))
    exact = torch.zeros(97, 64, dtype=torch.float64, device="cuda").index_add_(0, indices, updates.double())
    assert np.abs(first - exact.cpu().numpy()).max() <= 1e-5 * 2000


def test_logits_without_columns_have_no_losses(device):
    x, targets = Tensor(np.ones((2, 0), np.float32), CudaBackend(device)), Tensor([0, 0], CudaBackend(device))
    assert np.isnan(cross_entropy(x, targets).item())
    checked = CudaBackend(device, checked=True)
    with pytest.raises(IndexError, match="cross_entropy: index 0"):
        cross_entropy(x.to(checked), targets.to(checked))


def test_the_interpreter_does_not_multiply_bfloat16(device):
    if device != "cpu":
        pytest.skip("a GPU does")
    x = Tensor([[1.5]], CudaBackend(device), dtype="bfloat16")
    for product in (lambda: x @ x, lambda: gemmt(x, x), lambda: trmm(x, x), lambda: syrk(x)):
        with pytest.raises(TypeError, match="Triton's interpreter does not multiply bfloat16; give float32, or a GPU"):
            product()
    assert ((x + x) * 0.5).item() == 1.5


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_every_precision_computes(precision, device):
    x = Tensor([[1.5]], CudaBackend(device, precision=precision))
    assert (x @ x).item() == 2.25


@pytest.mark.parametrize("name", ["meta", "foo", 3, None, "cuda:99"])
def test_other_devices_are_refused(name):
    with pytest.raises(ValueError, match=r"CudaBackend: (the device must be 'cuda', 'cuda:1'|PyTorch finds no|there are)"):
        CudaBackend(name)


def test_other_options_are_refused(device):
    with pytest.raises(ValueError, match="the precision must be 'highest', 'high' or 'medium'; got 'bogus'"):
        CudaBackend(device, precision="bogus")
    with pytest.raises(TypeError, match="checked must be True or False"):
        CudaBackend(device, checked=None)


@pytest.mark.gpu
def test_memory_of_the_host_is_refused_whatever_its_strides(cuda):
    for data in (np.ones((2, 3), np.float32)[::-1], np.ones(3, np.float32)):
        with pytest.raises(ValueError, match="the memory is on cpu, the backend on cuda:0"):
            Tensor.from_dlpack(data, cuda)
