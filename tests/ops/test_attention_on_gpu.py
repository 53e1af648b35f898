"""causal_attention and causal_softmax on a GPU: dtypes, memory, CUDA graphs, streams, compilation, refusals."""

import math

import pytest
import torch

import trigemm
from trigemm import reference

pytestmark = pytest.mark.gpu
NAN = math.nan
ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def operands(B=2, NH=4, KV=2, T=300, S=333, HS=64, dtype=torch.float32, **options):
    shapes = (B, NH, T, HS), (B, KV, S, HS), (B, KV, S, HS)
    return tuple(
        torch.randn(shape, device="cuda").to(dtype).requires_grad_(options.get("requires_grad", False)) for shape in shapes
    )


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("size", [16, 64, 80, 128, 256])
def test_results_and_gradients(dtype, size):
    if dtype == torch.float32 and size > 128:
        pytest.skip("compiles for minutes")
    tensors = operands(HS=size, dtype=dtype, requires_grad=True)
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    exact = reference.causal_attention(*doubles)
    found = trigemm.causal_attention(*tensors, return_weights=[3, 1], precision="highest")
    expected = exact[0], exact[1][:, [3, 1]]
    upstream = [torch.randn_like(x) for x in found]
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, atol=ERROR[dtype], rtol=ERROR[dtype])
    found = torch.autograd.grad(found, tensors, upstream)
    expected = torch.autograd.grad(expected, doubles, [g.double() for g in upstream])
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y, atol=4 * ERROR[dtype] * float(y.abs().max()), rtol=0)


def test_a_packed_projection_of_bfloat16_and_lengths():
    qkv = torch.randn(3, 129, 3, 2, 64, device="cuda").bfloat16()
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    lengths = torch.tensor([0, 100, 129], device="cuda")
    mask = torch.arange(129, device="cuda") < lengths[:, None]
    expected = reference.causal_attention(q, k, v, key_mask=mask)
    for form in ({"key_lengths": lengths}, {"key_mask": mask}):
        found = trigemm.causal_attention(q, k, v, return_weights=True, **form)
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x.double(), y, atol=2e-2, rtol=2e-2)
        assert (found[0][0] == 0).all()
        sums = trigemm.causal_attention(q, k, v, return_weights="columns", **form)[1]
        torch.testing.assert_close(sums.double(), expected[1].sum(-2), atol=1e-2, rtol=1e-2)


def test_the_square_is_never_held_unless_asked_for():
    q, k, v = operands(B=1, NH=8, KV=8, T=4096, S=4096, dtype=torch.bfloat16, requires_grad=True)
    for asked, weights in (("columns", 0), ([5], 1), (False, 0)):
        trigemm.causal_attention(q, k, v, return_weights=asked)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin = torch.cuda.memory_allocated()
        found = trigemm.causal_attention(q, k, v, return_weights=asked)
        peak = torch.cuda.max_memory_allocated() - begin
        results = q.nbytes + weights * 2 * 4096**2 + 8 * 4096 * 4
        assert peak <= 1.05 * results + 2 * 8 * 4096 * 4
        output = found if asked is False else found[0]
        torch.autograd.grad(output.sum(), (q, k, v), retain_graph=True)
        torch.cuda.reset_peak_memory_stats()
        begin = torch.cuda.memory_allocated()
        torch.autograd.grad(output.sum(), (q, k, v))
        assert torch.cuda.max_memory_allocated() - begin <= 5 * q.nbytes
        del found, output


def test_cuda_graphs_and_streams():
    tensors = operands(dtype=torch.float16)
    call = lambda: trigemm.causal_attention(*tensors, return_weights=[2])  # noqa: E731
    expected = call()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = call()
    torch.cuda.current_stream().wait_stream(stream)
    assert all(map(torch.equal, found, expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for x in tensors:
        x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(map(torch.equal, captured, call()))


def test_compiled_and_under_autocast():
    tensors = operands(requires_grad=True)

    def loss(q, k, v):
        output, weights = trigemm.causal_attention(q, k, v, return_weights=True, precision="highest")
        return output.square().sum() + (weights * weights).sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tensors), tensors)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    with torch.autocast("cuda", torch.bfloat16):
        assert trigemm.causal_attention(*tensors).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ERROR)
def test_softmax(dtype):
    for shape in ((3, 100, 133), (2, 5, 20_000)):
        scores = torch.randn(shape, device="cuda").to(dtype)
        edge = shape[-1] - shape[-2]
        unread = torch.where(reference.triangle_mask(*shape[-2:], "lower", edge).cuda(), scores, NAN).requires_grad_()
        found = trigemm.causal_softmax(unread)
        exact = scores.double().requires_grad_()
        expected = reference.causal_softmax(exact)
        torch.testing.assert_close(found.double(), expected, atol=ERROR[dtype], rtol=ERROR[dtype])
        grad = torch.randn_like(found)
        (found,) = torch.autograd.grad(found, unread, grad)
        (expected,) = torch.autograd.grad(expected, exact, grad.double())
        torch.testing.assert_close(found.double(), expected, atol=4 * ERROR[dtype], rtol=ERROR[dtype])


@pytest.mark.parametrize("size", [8, 264])
def test_head_sizes_beyond_the_range(size):
    with pytest.raises(ValueError, match=f"causal_attention: head sizes are 16 to 256 on CUDA, got HS={size}"):
        trigemm.causal_attention(*operands(HS=size))
    double = operands(HS=size, T=20, S=20, dtype=torch.float64)
    torch.testing.assert_close(trigemm.causal_attention(*double), reference.causal_attention(*double)[0])
