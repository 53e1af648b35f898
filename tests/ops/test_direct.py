"""The short way past PyTorch's dispatcher: taken only where nothing would see the difference."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import trigemm
from trigemm.ops.direct import needs_no_dispatch


class Watch(TorchDispatchMode):
    """Keeps the names of the operations that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_plain_tensors_go_straight():
    x = torch.randn(3, 3)
    assert needs_no_dispatch(x, None)
    with torch.no_grad():
        assert needs_no_dispatch(torch.randn(3, 3, requires_grad=True))
    with torch.inference_mode():
        assert needs_no_dispatch(torch.randn(3, 3))


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 3, requires_grad=True),
        torch.nn.Parameter(torch.randn(3, 3)),
        torch.empty(3, 3, device="meta"),
        torch._neg_view(torch.randn(3, 3)),
        torch._efficientzerotensor((3, 3)),
    ],
    ids=["gradient", "parameter", "meta", "negated", "zeros"],
)
def test_other_tensors_are_dispatched(x):
    assert not needs_no_dispatch(torch.randn(3, 3), x)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # of some versions
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_transforms_modes_and_tracing_are_dispatched():
    seen = []

    def note(x):
        seen.append(needs_no_dispatch(torch.ones(2, 2)))
        return x

    torch.vmap(note)(torch.randn(2, 3))
    with torch.device("cpu"):
        note(None)
    with Watch():
        note(None)
    with torch.profiler.profile():
        note(None)
    torch.jit.trace(note, torch.ones(2), check_trace=False)
    assert seen == [False] * 5


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # of some versions
def test_a_mode_and_a_profiler_see_the_operation():
    a = torch.randn(5, 4)
    with Watch() as watch:
        result = trigemm.syrk(a)
    assert watch.seen[0] == "trigemm.syrk.default"
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(trigemm.syrk(a), result)
    assert "trigemm::syrk" in {event.name for event in profile.events()}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    "operation",
    [trigemm.syrk, trigemm.causal_softmax, lambda a, out: trigemm.gemmt(a, a, out=out)],
    ids=["syrk", "softmax", "gemmt"],
)
def test_writing_into_out_is_seen_by_autograd(operation, watched):
    """What was saved for a gradient and then overwritten is refused, on either way to the kernel."""
    out = torch.randn(3, 3)
    x = torch.randn(3, 3, requires_grad=True)
    y = (x * out).sum()
    a = torch.randn(3, 3)
    with torch.no_grad(), Watch() if watched else torch.no_grad():
        operation(a, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("size", [3, 300])
def test_an_inference_tensor_takes_the_result_in_inference_mode_alone(size):
    a = torch.randn(size, size, dtype=torch.float64)
    with torch.inference_mode():
        out = torch.empty_like(a)
        torch.testing.assert_close(trigemm.gemmt(a, a, out=out), (a @ a).tril())
    with pytest.raises(ValueError, match=r"gemmt: out was made in inference mode, and changes only there; out.clone\(\)"):
        trigemm.gemmt(a, a, out=out)
