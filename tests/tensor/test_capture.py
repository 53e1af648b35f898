"""Chains that are recorded once and replayed: as CUDA graphs on a GPU, by running them again in the interpreter."""

import numpy as np
import pytest
import torch

from trigemm.tensor import CpuBackend, Tensor, adamw, gather, gradients
from trigemm.tensor.cuda import CudaBackend

pytestmark = [
    pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning"),  # NumPy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]


@pytest.fixture
def cuda(device):
    return CudaBackend(device)


@pytest.fixture
def x(cuda):
    return Tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3), cuda)


def test_a_replay_computes_with_new_inputs_and_gives_new_tensors(cuda, x):
    double = cuda.capture(lambda x: x * 2.0, x)
    first, second = double(x), double(x + 1.0)
    assert first.numpy().tolist() == (2 * x.numpy()).tolist()
    assert second.numpy().tolist() == (2 * x.numpy() + 2).tolist()
    assert torch.from_dlpack(first).data_ptr() != torch.from_dlpack(second).data_ptr()
    assert x.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_several_results_of_several_dtypes_and_an_input_among_them(cuda, x):
    indices = Tensor([2, 0], cuda)
    record = cuda.capture(lambda x, i: [x, i, gather(x.T, i), x.sum().cast("float16")], x, indices)
    for values in (x, -x):
        a, i, rows, total = record(values, indices)
        assert np.array_equal(a.numpy(), values.numpy())
        assert i.numpy().tolist() == [2, 0]
        assert np.array_equal(rows.numpy(), values.numpy().T[[2, 0]])
        assert (total.item(), total.dtype) == (values.numpy().sum(), "float16")


def test_a_training_step_replayed_is_the_step_launched(cuda):
    random = np.random.default_rng(0)
    inputs = Tensor(random.normal(size=(5, 3)).astype(np.float32), cuda)
    zeros = Tensor(np.zeros((3, 2), np.float32), cuda)

    def step(number, lr, weight, m, v):
        loss = ((inputs @ weight).tanh() - 0.5).sum()
        return [loss, *adamw(weight, *gradients(loss, [weight]), m, v, step=number, lr=lr)]

    start = Tensor(random.normal(size=(3, 2)).astype(np.float32), cuda, requires_grad=True)
    states = {"launched": (start, zeros, zeros), "replayed": (start, zeros, zeros)}
    numbers = [(Tensor(i, cuda), Tensor(0.1 / i, cuda)) for i in (1, 2, 3)]
    functions = {"launched": step, "replayed": cuda.capture(step, *numbers[0], *states["replayed"])}
    losses = {name: [] for name in states}
    for number in numbers:
        for name, function in functions.items():
            loss, *states[name] = function(*number, *states[name])
            losses[name].append(loss.item())
    assert states["replayed"][0].requires_grad
    assert losses["replayed"] == losses["launched"]
    assert losses["launched"][2] < losses["launched"][0]
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(*states.values(), strict=True))


@pytest.mark.gpu
def test_tensors_from_elsewhere_stay_where_they_are_read(cuda, x):
    weights = [x + 0.0]
    add = cuda.capture(lambda x: x + weights[0], x)
    weights.clear()
    junk = [Tensor(np.full((2, 3), np.nan, np.float32), cuda) for _ in range(20)]  # would take the place of freed memory
    assert np.array_equal(add(x).numpy(), 2 * x.numpy())
    assert len(junk) == 20


def test_tensors_from_elsewhere_are_held(cuda, x):
    weight = x + 0.0
    add = cuda.capture(lambda x: x + weight, x)
    assert any(array is weight.array for array in add._outside)
    assert all(array is not x.array for array in add._outside)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x * x.sum().item(), "reads a tensor back, which cannot be recorded; return the tensor"),
        (lambda x: x if x[0, 0] > 0.0 else -x, "reads a tensor back"),
        (lambda x: Tensor(x, x.backend), "makes a tensor of the host's data, which cannot be recorded; make it before"),
        (lambda x: x.backend.synchronize() or x, "synchronizes, which cannot be recorded"),
        (lambda x: x.backend.capture(lambda y: y, x)(x), "another recording is under way"),
    ],
)
def test_what_needs_the_host_is_refused(function, words, cuda, x):
    with pytest.raises(ValueError, match=words):
        cuda.capture(function, x)
    assert cuda.capture(lambda x: x + 1.0, x)(x).numpy()[0, 0] == 1.0  # and the next recording works


def test_checked_indices_are_refused(device):
    checked = CudaBackend(device, checked=True)
    x, i = Tensor(np.ones((2, 3), np.float32), checked), Tensor([1], checked)
    with pytest.raises(ValueError, match="checks indices, which cannot be recorded; capture on a backend that is not checked"):
        checked.capture(gather, x, i)


@pytest.mark.parametrize("result", [None, 1.0, [1.0], "x", []])
def test_what_is_no_tensor_is_no_result(result, cuda, x):
    with pytest.raises(TypeError, match="must return a Tensor or a sequence of them; got"):
        cuda.capture(lambda x: result, x)


def test_other_inputs_than_recorded_are_refused(cuda, x):
    double = cuda.capture(lambda x: x * 2.0, x)
    for wrong, words in [
        (x.T, r"argument 0 was recorded as \(2, 3\) float32; got \(3, 2\) float32; capture again"),
        (x.cast("float16"), r"recorded as \(2, 3\) float32; got \(2, 3\) float16"),
        (Tensor(x, CpuBackend()), r"argument 0 is on CpuBackend\(\), the recording on CudaBackend"),
        (x.detach(requires_grad=True) * 1.0, r"gradients do not pass through a replay; give argument 0 as \.detach\(\)"),
    ]:
        with pytest.raises(ValueError, match=words):
            double(wrong)
    with pytest.raises(ValueError, match="recorded with 1 arguments, replayed with 2"):
        double(x, x)
    with pytest.raises(TypeError, match="argument 0 is ndarray"):
        double(x.numpy())


@pytest.mark.gpu
def test_what_pytorch_cannot_record_is_a_clear_error(cuda, x):
    with pytest.raises(ValueError, match="does what a CUDA graph cannot record"):
        cuda.capture(lambda x: x.like(torch.from_dlpack(x).cpu().to("cuda")), x)
    assert (x + 1.0).numpy()[0, 0] == 1.0


@pytest.mark.gpu
def test_replays_in_two_streams_do_not_mix(cuda):
    x = Tensor(np.zeros(2**20, np.float32), cuda)

    def chain(x):
        for _ in range(50):
            x = x + 1.0
        return [x, x.sum()]

    replay = cuda.capture(chain, x)
    inputs = [x + float(i) for i in range(8)]
    cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = []
    for i, each in enumerate(inputs):
        with torch.cuda.stream(streams[i % 2]):
            results.append(replay(each))
    cuda.synchronize()
    for i, (y, total) in enumerate(results):
        assert (y.numpy() == 50 + i).all()
        assert total.item() == 2**20 * (50 + i)


@pytest.mark.gpu
def test_a_replay_waits_for_nothing(cuda, x):
    double = cuda.capture(lambda x: x * 2.0, x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            y = double(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert np.array_equal(y.numpy(), 2 * x.numpy())


def test_gradients_do_not_pass_through_a_replay(cuda, x):
    x = x.detach(requires_grad=True)
    y = cuda.capture(lambda x: x * 2.0, x)(x)
    for loss, wanted in ((y.sum(), x), (y.sum() + x.sum(), x), ((y * y).sum(), y)):
        with pytest.raises(ValueError, match="do not pass through a replay; take them in the captured function"):
            gradients(loss, [wanted])
