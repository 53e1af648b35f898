"""The tensor itself: what goes in and comes out, indexing, sharing, and what is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch

from trigemm.tensor import (
    CpuBackend,
    Tensor,
    adamw,
    causal_attention,
    cross_entropy,
    gather,
    gemmt,
    gradients,
    layer_norm,
    matmul,
    scatter_add,
    syrk,
    trmm,
)

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


class OtherBackend(CpuBackend):
    """A second backend, for tests of what must not be mixed."""

    name = "other"

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, "float32"),
        ([[1.0, 2.0]], "float32"),
        ([1, 2], "int64"),
        ([True, False], "int64"),
        (np.float64([1.0]), "float64"),
        (np.float16([1.0]), "float16"),
        (np.int32([1]), "int64"),
        (torch.ones(2, 3).mT, "float32"),
    ],
)
def test_what_tensors_are_made_of(data, dtype):
    x = Tensor(data)
    assert x.dtype == dtype
    assert np.array_equal(x.numpy(), np.asarray(data))


def test_data_is_copied_and_cannot_be_written(backend):
    data = np.ones((2, 3), np.float32)
    x = Tensor(data, backend)
    data[:] = 7.0
    assert x.numpy().tolist() == [[1.0] * 3] * 2
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0, 0] = 3.0
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        x.numpy().flags.writeable = True
    assert [Tensor(np.ones(shape, np.float16), backend).numpy().shape for shape in ((), (0, 3), (2, 0))] == [(), (0, 3), (2, 0)]
    for data in (np.ones((1, 3), np.float32)[::-1], np.arange(6.0, dtype=np.float32).reshape(2, 3).T[::-1]):
        assert np.array_equal(Tensor(data, backend).numpy(), data)


def test_a_dtype_of_numpy_is_one(backend):
    x = Tensor([1.0], backend, dtype=np.dtype("float16"))
    assert (x.dtype, x.cast(np.dtype("float32")).dtype) == ("float16", "float32")


def test_no_operation_changes_its_operands(inputs):
    a, b = inputs(33, 21), inputs(33, 21)
    before = a.numpy().copy(), b.numpy().copy()
    for y in (a + b, a * b, a.T @ b, a.softmax(), a.gelu(), a.sum(0), a.reshape(21, 33) + 1.0, a[3:5] * 2.0, -a):
        y.numpy()
    assert np.array_equal(a.numpy(), before[0])
    assert np.array_equal(b.numpy(), before[1])


def test_item_and_len(backend):
    assert Tensor([[2.5]], backend).item() == 2.5
    assert len(Tensor([[1.0], [2.0]], backend)) == 2
    with pytest.raises(ValueError, match=r"one element; got shape \(2,\)"):
        Tensor([1.0, 2.0], backend).item()
    with pytest.raises(TypeError, match="no length"):
        len(Tensor(1.0, backend))


def test_repr(backend):
    assert repr(Tensor([[1.0, 2.5]], backend)) == f"Tensor([[1. , 2.5]], shape=(1, 2), dtype=float32, backend={backend.name})"
    assert len(repr(Tensor(np.zeros((200, 200)), CpuBackend()))) < 600


@pytest.mark.parametrize(
    "key", [0, -1, (1, 2), (2, 0, -1), slice(1, 3), (1, slice(0, 2)), slice(None), (0, slice(5, 2)), slice(-2, None)]
)
def test_indexing_is_numpys(key, inputs):
    x = inputs(3, 4, 5)
    assert np.array_equal(x[key].numpy(), x.numpy()[key])


@pytest.mark.parametrize("key", [slice(None, None, 2), (slice(0, 1), 2), None, [0, 1], 1.0, True, (..., 0)])
def test_other_indices_are_refused(key):
    with pytest.raises(TypeError, match="indexing takes integers for leading axes"):
        Tensor(np.zeros((3, 4)))[key]


@pytest.mark.parametrize("key", [3, -4, (0, 4), (0, 0, 0)])
def test_indices_out_of_range(key):
    with pytest.raises(IndexError):
        Tensor(np.zeros((3, 4)))[key]
    with pytest.raises(IndexError, match=r"index 0 is outside an empty axis, of shape \(0, 4\)"):
        Tensor(np.zeros((0, 4)))[0]


def test_integers_of_numpy_are_integers(inputs):
    x, two = inputs(2, 3, 4), np.int64(2)
    assert np.array_equal(x[np.int32(1), two].numpy(), x.numpy()[1, 2])
    assert np.array_equal(x.sum(two).numpy(), x.sum(2).numpy())
    assert x.permute(two, 0, 1).shape == (4, 2, 3)
    assert x.reshape(two, -1).expand(two, np.int8(12)).shape == (2, 12)
    assert [row.shape for row in x] == [(3, 4)] * 2
    zeros = x * 0.0
    assert adamw(x, x, zeros, zeros, step=np.int64(1))[0].shape == x.shape


def test_the_largest_and_the_smallest_int64_are_kept(backend):
    limits = np.array([-(2**63), 2**63 - 1])
    assert np.array_equal(Tensor(limits, backend).numpy(), limits)
    assert Tensor(limits[1:].astype(np.uint64), backend).item() == 2**63 - 1
    assert Tensor([-(2.0**63)], backend, dtype="int64").item() == -(2**63)


def test_what_is_too_large_for_float16_is_infinite(backend):
    """Without a word; warnings are errors here."""
    x = Tensor([1e30], backend, dtype="float16")
    assert x.item() == np.inf
    assert x.masked_fill(x, 1e30).item() == np.inf
    assert Tensor([1e30], backend).cast("float16").item() == np.inf
    assert Tensor([300.0], backend, dtype="float16").reshape(1, 1).expand(500, 1).sum().item() == np.inf


def test_what_torch_only_notes_is_done(backend):
    """A negation, a history."""
    imaginary = torch.tensor([1 + 2j]).conj().imag
    assert imaginary.is_neg()
    assert Tensor(imaginary, backend).item() == -2.0
    assert Tensor(torch.ones(1, requires_grad=True), backend).item() == 1.0
    if getattr(backend, "device", torch.device("cpu")).type == "cpu":
        assert Tensor.from_dlpack(imaginary, backend).item() == -2.0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_the_elements_and_no_history(copied, backend):
    x = Tensor([1.0, 2.0], backend, requires_grad=True)
    y = copied(x * 2.0)
    assert (y.dtype, y.backend, y.requires_grad) == (x.dtype, backend, True)
    assert y.numpy().tolist() == [2.0, 4.0]
    assert gradients(y.sum(), [y, x])[1].numpy().tolist() == [0.0, 0.0]


def test_numbers_of_numpy_work_on_both_sides(backend):
    x = Tensor([1.0, 2.0], backend)
    assert (np.float32(2.0) * x).numpy().tolist() == [2.0, 4.0]
    assert (x - np.int64(1)).numpy().tolist() == [0.0, 1.0]


def test_dlpack_shares_memory_with_torch_in_both_directions(backend):
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], backend)
    shared = torch.from_dlpack(x)
    assert shared.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    again = Tensor.from_dlpack(shared, backend)
    assert torch.from_dlpack(again).data_ptr() == shared.data_ptr()
    assert np.array_equal((again + 1.0).numpy(), x.numpy() + 1.0)


def test_dlpack_shares_memory_with_numpy_in_both_directions():
    x = Tensor([1.0, 2.0, 3.0])
    assert np.shares_memory(np.from_dlpack(x), x.numpy())
    data = np.arange(6.0).reshape(2, 3)
    y = Tensor.from_dlpack(data)
    assert np.shares_memory(y.numpy(), data)
    assert np.shares_memory(np.asarray(y), data)


def test_memory_that_torch_does_not_take_is_copied(backend):
    if getattr(backend, "device", torch.device("cpu")).type != "cpu":
        pytest.skip("the host's memory is no GPU's")
    for data in (np.arange(6, dtype=np.float32).reshape(2, 3)[::-1], np.ones((1, 3), np.float32)[::-1], np.arange(4.0)[::-2]):
        x = Tensor.from_dlpack(data.astype(np.float32) if data.dtype == np.float64 else data, backend)
        assert np.array_equal((x + 0.0).numpy(), data)
        assert np.array_equal(torch.from_dlpack(x).numpy(), data)
    constant = np.ones(3, np.float32)
    constant.flags.writeable = False
    torch.from_dlpack(Tensor.from_dlpack(constant, backend)).fill_(7.0)
    assert constant.tolist() == [1.0] * 3


def test_what_numpy_shares_with_a_tensor_is_read_only():
    assert not np.from_dlpack(Tensor([1.0])).flags.writeable


def test_read_only_memory_is_copied():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    y = Tensor.from_dlpack(x.numpy())
    assert not np.shares_memory(x.numpy(), y.numpy())
    assert gemmt(y.T, y).numpy().tolist() == [[10.0, 0.0], [14.0, 20.0]]


def test_dlpack_copies_what_is_not_in_row_major_order(backend):
    data = torch.arange(6.0).reshape(2, 3).mT
    x = Tensor.from_dlpack(data if backend.name == "cpu" else data.to(torch.from_dlpack(Tensor([1.0], backend)).device), backend)
    assert np.array_equal((x + 0.0).numpy(), data.numpy())


def test_dlpack_shares_memory_with_cupy_in_both_directions(backend):
    cupy = pytest.importorskip("cupy")
    if not isinstance(getattr(backend, "device", None), torch.device) or backend.device.type != "cuda":
        pytest.skip("CuPy's memory is a GPU's")
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], backend)
    shared = cupy.from_dlpack(x)
    assert shared.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    again = Tensor.from_dlpack(shared, backend)
    assert torch.from_dlpack(again).data_ptr() == shared.data.ptr
    assert np.array_equal((again + 1.0).numpy(), x.numpy() + 1.0)


def test_a_freed_tensor_has_no_elements(backend):
    x = Tensor([[1.0, 2.0]], backend)
    view, y = x.reshape(2), x + 1.0
    x.free()
    for use in (Tensor.numpy, Tensor.item, Tensor.exp, lambda x: x + 1.0, lambda x: y @ x.T, repr, torch.from_dlpack, len):
        with pytest.raises(ValueError, match="the tensor was freed; its elements are gone"):
            use(x)
    assert view.numpy().tolist() == [1.0, 2.0]
    assert y.numpy().tolist() == [[2.0, 3.0]]


def test_a_freed_tensor_leaves_its_gradients(backend):
    x = Tensor([1.0, 2.0], backend, requires_grad=True)
    y = x * x
    total = y.sum()
    y.free()
    assert gradients(total, [x])[0].numpy().tolist() == [2.0, 4.0]


def test_after_running_out_of_memory_work_goes_on():
    x = Tensor([[1.0]])
    with pytest.raises((MemoryError, RuntimeError), match=r"(?i)alloc"):
        x.expand(2**28, 2**28)
    assert (x + 1.0).item() == 2.0


def test_bfloat16_is_not_the_cpus():
    for make in (
        lambda: Tensor([1.0], dtype="bfloat16"),
        lambda: Tensor([1.0]).cast("bfloat16"),
        lambda: Tensor(torch.ones(2, dtype=torch.bfloat16)),
        lambda: Tensor.from_dlpack(torch.ones(2, dtype=torch.bfloat16)),
        lambda: CpuBackend().full((2,), 1.0, "bfloat16"),
    ):
        with pytest.raises(TypeError, match="NumPy has no bfloat16; it lives on a CudaBackend"):
            make()


def test_to_another_backend(backend):
    x = Tensor([1.0, 2.0], backend)
    other = OtherBackend()
    assert x.to(other).backend is other
    assert x.to(other).numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b.T,
        lambda a, b: a.masked_fill(b, 0.0),
        gemmt,
        lambda a, b: layer_norm(a, b[0], b[0]),
        lambda a, b: adamw(a, b, a, a, step=1),
    ],
)
def test_backends_do_not_mix(mix, backend):
    a, b = Tensor(np.ones((2, 2), np.float32), backend), Tensor(np.ones((2, 2), np.float32), OtherBackend())
    with pytest.raises(ValueError, match=r"different backends.*\.to\(backend\)"):
        mix(a, b)


@pytest.fixture
def x(backend):
    return Tensor(np.ones((3, 4), np.float32), backend)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x + x.reshape(4, 3)[0:3], r"add: shapes \(3, 4\) and \(3, 3\) do not broadcast"),
        (lambda x: x @ x, r"matmul: inner sizes differ, 4 and 3.*\(…,M,K\) and \(…,K,N\)"),
        (lambda x: x @ x[0], "matmul: operands need two axes or more"),
        (lambda x: x.expand(2, 3, 4)[0:1] @ x.T.expand(3, 4, 3)[0:2] @ x.expand(3, 3, 4), "do not broadcast"),
        (lambda x: gemmt(x.expand(2, 3, 4), x.T), "gemmt: batch axes must be equal"),
        (lambda x: trmm(x, x), "trmm: inner sizes differ"),
        (lambda x: syrk(x[0]), "syrk: the operand needs two axes"),
        (lambda x: causal_attention(x, x[0:2], x[0:2]), "S >= T"),
        (lambda x: causal_attention(x, x, x[0:2]), r"causal_attention: .* got \(3, 4\), \(3, 4\) and \(2, 4\)"),
        (lambda x: causal_attention(x, x.reshape(6, 2), x.reshape(6, 2)), r"causal_attention: .* got \(3, 4\), \(6, 2\)"),
        (lambda x: causal_attention(x[0], x, x), "causal_attention: .* need equal first axes"),
        (lambda x: causal_attention(*[x[0:0].reshape(3, 0)] * 2, x), "causal_attention: there is no 1/√HS where HS is 0"),
        (lambda x: x.reshape(5, -1), r"reshape: shape \(3, 4\) has 12 elements and does not fit \(5, -1\)"),
        (lambda x: x.reshape(-3, -4), r"does not fit \(-3, -4\)"),
        (lambda x: x.expand(-1, 4), "do not broadcast"),
        (lambda x: x.reshape(2, 2, 3, 1, 1), "at most 4 axes"),
        (lambda x: x.expand(1, 1, 1, 3, 4), "at most 4 axes"),
        (lambda x: x[0:1].expand(1, 4).reshape(4).expand(1), r"expand: shape \(4,\) does not stretch to \(1,\)"),
        (lambda x: x.expand(5, 4), r"expand: shapes \(3, 4\) and \(5, 4\) do not broadcast"),
        (lambda x: x.permute(0, 0), r"permute: axes must be 0 to 1 in some order"),
        (lambda x: x.sum(2), "sum: axis must be an integer from -2 to 1"),
        (lambda x: x.max(True), "max: axis must be an integer"),
        (lambda x: x[0:0].max(0), "max: axis 0 of shape .* is empty"),
        (lambda x: x[0, 0].softmax(), "softmax: it works along the last axis"),
        (lambda x: x[0].T, "swaps the last two axes"),
        (lambda x: layer_norm(x, x[0], x[0, 0:2]), "layer_norm: x must be"),
        (lambda x: cross_entropy(x, Tensor([0, 1], x.backend)), "cross_entropy: logits must be"),
        (lambda x: gather(x[0], Tensor([0], x.backend)), "gather: the table must be"),
        (lambda x: gather(x, Tensor(np.zeros((1, 1, 1, 1), np.int64), x.backend)), "at most 4 axes"),
        (lambda x: scatter_add(x, Tensor([0, 1], x.backend), 5), "scatter_add: updates"),
        (lambda x: scatter_add(x, Tensor([0, 1, 2], x.backend), -1), "scatter_add: rows must be at least 0; got -1"),
        (lambda x: adamw(x, x[0], x, x, step=1), "adamw: shapes must be equal"),
        (lambda x: adamw(x, x, x, x, step=0), "counted from 1"),
        (lambda x: adamw(x, x, x, x, step=1, betas=(0.9, 1.0)), "betas must be at least 0 and below 1; got 0.9 and 1.0"),
        (lambda x: adamw(x, x, x, x, step=1, betas=(float("nan"), 0.9)), "betas must be at least 0"),
        (lambda x: adamw(x, x, x, x, step=1, eps=-1e-8), "adamw: eps must be at least 0; got -1e-08"),
        (lambda x: adamw(x, x, x, x, step=1, lr=float("nan")), "adamw: lr must be at least 0; got nan"),
        (lambda x: adamw(x, x, x, x, step=1, weight_decay=-1), "adamw: weight_decay must be at least 0; got -1"),
        (lambda x: x.sum().sum(0), r"sum: a tensor of shape \(\) has no axis 0; leave it out"),
        (bool, r"true or false if it has one element; got shape \(3, 4\)"),
        (lambda x: x + 10**400, "add: the operand is beyond a float"),
        (lambda x: x.backend.unary("sin", x.array), "sin: no such operation; there are neg, exp"),
        (lambda x: x.backend.binary("pow", x.array, x.array), "pow: no such operation; there are add, sub"),
        (lambda x: x.backend.permute(x.array, (0, 0)), "axes|repeated"),
        (lambda x: x.backend.max_axis(x.array[:0], 0), "max: axis 0 of shape .* is empty"),
        (lambda x: adamw(x, x, x, x, step=1, lr=x), r"step and lr must have one element; got shapes \(3, 4\)"),
        (lambda x: Tensor(np.ones((1, 1, 1, 1, 1))), r"Tensor: a tensor has at most 4 axes; got shape \(1, 1, 1, 1, 1\)"),
        (lambda x: Tensor([[1.0, 2.0], [3.0]]), "Tensor: nested lists must have rows of equal length"),
        (lambda x: Tensor([1.0, float("nan")], dtype="int64"), "nan has no int64 value"),
        (lambda x: Tensor([1e300], dtype="int64"), r"1e\+300 has no int64 value"),
        (lambda x: Tensor(np.float16([np.inf]), dtype="int64"), "inf has no int64 value"),
        (lambda x: Tensor(np.array([2**63], np.uint64)), "9223372036854775808 has no int64 value"),
    ],
)
def test_bad_shapes_and_values(call, words, x):
    with pytest.raises(ValueError, match=words):
        call(x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x + x.cast("float16"), r"add: operands must have one dtype.*\(3, 4\) float32 and \(3, 4\) float16"),
        (lambda x: Tensor([1, 2]) + 1, "add: operands must have one dtype, float64, float32, float16"),
        (lambda x: x.cast("int8"), "cast: dtypes are"),
        (lambda x: Tensor([1.0], x.backend, dtype=np.dtype("int8")), "Tensor: dtypes are .*; got int8"),
        (lambda x: Tensor([1.0], x.backend, dtype=np.float32), "Tensor: dtypes are .*; got <class"),
        (lambda x: Tensor([1.0], x.backend, requires_grad="no"), "requires_grad must be True or False; got 'no'"),
        (lambda x: x.detach(requires_grad=1), "requires_grad must be True or False; got 1"),
        (lambda x: x.sum(0, keepdims="no"), "sum: keepdims must be True or False; got 'no'"),
        (lambda x: x.mean(keepdims=0), "mean: keepdims must be True or False; got 0"),
        (lambda x: x.max(keepdims=None), "max: keepdims must be True or False; got None"),
        (lambda x: gather(x, x[0]), "gather: indices must be int64; got float32"),
        (lambda x: cross_entropy(x, x[0, 0:3]), "cross_entropy: indices must be int64"),
        (lambda x: scatter_add(x, x[0, 0:3], 5), "scatter_add: indices must be int64"),
        (lambda x: adamw(x, x, x, x, step=x[0, 0]), "adamw: indices must be int64"),
        (lambda x: Tensor(["a"]), "elements must be real numbers"),
        (lambda x: Tensor([1j]), "elements must be real numbers"),
        (lambda x: gemmt(x, np.ones((4, 3))), "gemmt: operands must be trigemm.tensor.Tensor; got ndarray"),
        (lambda x: x + "1", "add: operands must be tensors and numbers; got str"),
        (lambda x: np.ones((3, 4)) - x, "sub: operands must be tensors and numbers; got ndarray; make it one with"),
        (lambda x: x + torch.ones(4), r"add: .* got torch\.Tensor"),
        (lambda x: x * np.complex64(1j), "mul: .* got complex64"),
        (lambda x: x.equal(None), "equal: .* got NoneType"),
        (lambda x: x.maximum([1.0]), "maximum: .* got list"),
        (lambda x: x @ np.ones((4, 3)), "matmul: operands must be tensors; got ndarray"),
        (lambda x: matmul(x, x, transpose_b="no"), "matmul: transpose_b must be True or False; got 'no'"),
        (lambda x: gemmt(x, x.T, fill=None), "gemmt: fill must be a number; got None"),
        (lambda x: gemmt(x, x.T, alpha="1"), "gemmt: alpha must be a number; got str"),
        (lambda x: gemmt(x, x.T, diagonal=0.5), "gemmt: diagonal must be an integer; got 0.5"),
        (lambda x: trmm(x, x.T, diagonal=True), "trmm: diagonal must be an integer; got True"),
        (lambda x: syrk(x, alpha=x), "syrk: alpha must be a number; got Tensor"),
        (lambda x: layer_norm(x, x[0], x[0], eps=None), "layer_norm: eps must be a number; got None"),
        (lambda x: causal_attention(x, x, x, scale="1"), "causal_attention: scale must be a number"),
        (lambda x: scatter_add(x, Tensor([0, 1, 2], x.backend), 1.5), "scatter_add: rows must be an integer; got 1.5"),
        (lambda x: x.masked_fill(np.ones((3, 4)), 0.0), "masked_fill: the mask must be a tensor; got ndarray"),
        (lambda x: x.masked_fill(x, None), "masked_fill: the value must be a number; got None"),
        (lambda x: x.masked_fill(x, x[0, 0]), "masked_fill: the value must be a number; got Tensor"),
        (lambda x: adamw(x, x, x, x, step=None), "adamw: the step, .* must be an integer; got None"),
        (lambda x: adamw(x, x, x, x, step=1.5), "must be an integer; got 1.5"),
        (lambda x: adamw(x, x, x, x, step=True), "must be an integer; got True"),
        (lambda x: adamw(x, x, x, x, step=1, lr="1"), "adamw: lr must be a number; got str"),
        (lambda x: adamw(x, x, x, x, step=1, eps=None), "adamw: eps must be a number"),
        (lambda x: adamw(x, x, x, x, step=1, weight_decay="0"), "adamw: weight_decay must be a number"),
        (lambda x: adamw(x, x, x, x, step=1, betas=0.9), "adamw: betas must be two numbers; got 0.9"),
        (lambda x: x.reshape(3, -1.0), "reshape: sizes must be integers; got 3, -1.0"),
        (lambda x: x.reshape(None), "reshape: sizes must be integers"),
        (lambda x: x.reshape(True, 12), "reshape: sizes must be integers"),
        (lambda x: x.expand("34"), "expand: sizes must be integers"),
        (lambda x: list(x.sum()), "has no length"),
        (lambda x: gradients(x.sum(), x), r"a list of the tensors.* gradients\(loss, \[x\]\)"),
        (lambda x: gradients(x.sum(), None), "a list of the tensors"),
        (lambda x: gradients(x.sum(), [None]), "a list of the tensors"),
        (lambda x: gradients(1.0, [x]), "gradients: give a tensor"),
        (lambda x: Tensor([1, 2], x.backend, requires_grad=True), "only floats have gradients; got int64"),
        (lambda x: x.cast("int64").detach(requires_grad=True), "only floats have gradients; got int64"),
        (lambda x: Tensor([1.0], "cuda"), r"the backend must be one such as CpuBackend\(\).*; got 'cuda'"),
        (lambda x: Tensor.from_dlpack(np.ones(2), type(x.backend)), "from_dlpack: the backend must be one"),
        (lambda x: Tensor.from_dlpack([1.0], x.backend), r"got list; Tensor\(x\) copies lists"),
        (lambda x: Tensor.from_dlpack(np.ma.masked_array([1.0], [True]), x.backend), "got MaskedArray"),
        (lambda x: Tensor(np.ma.masked_array([1.0], [True]), x.backend), r"give its \.filled\(value\)"),
        (lambda x: Tensor(torch.ones(2).to_sparse(), x.backend), "must be dense and have elements; got one that is sparse_coo"),
        (lambda x: Tensor.from_dlpack(torch.ones(2).to_sparse(), x.backend), "got one that is sparse_coo"),
        (lambda x: Tensor(torch.ones(2, device="meta"), x.backend), "got one that is meta"),
        (lambda x: Tensor(torch.ones(2, dtype=torch.float8_e4m3fn), x.backend), "dtypes are .*; got float8_e4m3fn"),
        (lambda x: Tensor.from_dlpack(np.ones(2, np.int8), x.backend), "dtypes are .*; got int8"),
        (lambda x: Tensor([10**30], x.backend), "elements must be real numbers of at most 64 bits"),
    ],
)
def test_bad_dtypes(call, words, x):
    with pytest.raises(TypeError, match=words):
        call(x)


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_indices_outside_the_table(index):
    x = Tensor(np.ones((3, 4), np.float32))
    with pytest.raises(IndexError, match=rf"gather: index {index} is outside 0 to 2"):
        gather(x, Tensor([0, index]))
    with pytest.raises(IndexError, match=rf"scatter_add: index {index} is outside 0 to 2"):
        scatter_add(x[0:2], Tensor([0, index]), 3)
    with pytest.raises(IndexError, match=rf"cross_entropy: index {index + 1} is outside 0 to 3" if index > 0 else "outside"):
        cross_entropy(x[0:2], Tensor([0, index + 1 if index > 0 else index]))
