"""The plain product with tiles: right at every border, and its traffic is the predicted one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trigemm.kernels.tiles.config import triangle_config
from trigemm.kernels.tiles.gemmt import gemmt
from trigemm.kernels.tiles.matmul import matmul
from trigemm.tiling import predicted_traffic
from trigemm.triangle import Triangle

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
BLOCKS = [(16, 32, 16), (32, 16, 64), (64, 64, 32)]


def operands(m, n, k, dtype, device, transposed=False):
    generator = torch.Generator(device).manual_seed(m + n + k)
    a = torch.randn(m, k, generator=generator, device=device).to(dtype)
    b = torch.randn(n, k, generator=generator, device=device).to(dtype).mT
    return a, b if transposed else b.contiguous(), torch.full((m, n), float("nan"), dtype=dtype, device=device)


def check(m, n, k, dtype, device, block, **options):
    a, b, c = operands(m, n, k, dtype, device, **options)
    matmul(a, b, c, blocks=block)
    exact = a.double() @ b.double()
    own = (a @ b).double()
    assert (c.double() - exact).norm() <= 2 * (own - exact).norm() + torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 64), (70, 33, 50), (17, 129, 16), (65, 40, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_product(sizes, dtype, transposed, block, device):
    check(*sizes, dtype, device, block, transposed=transposed)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "block"),
    [
        (torch.float32, (64, 64, 32)),
        (torch.float16, (128, 128, 64)),
        (torch.bfloat16, (128, 128, 64)),
        (torch.bfloat16, (64, 64, 128)),
        (torch.bfloat16, (32, 128, 32)),
    ],
)
def test_the_product_compiled(block, dtype, device):
    check(1000, 777, 515, dtype, device, block)
    check(512, 256, 1024, dtype, device, block, transposed=True)


def test_an_empty_product_launches_nothing(device):
    a, b, c = operands(0, 5, 3, torch.float32, device)
    matmul(a, b, c, blocks=(16, 16, 16))


def moved(launches, traffic, itemsize):
    """Of each matrix: elements counted in the interpreter and predicted, and the same of masked ones."""
    for name, operation, predicted in (("a", "load", traffic.a), ("b", "load", traffic.b), ("c", "store", traffic.c)):
        counts = [  # a kernel may get one tensor under two names
            counts
            for launch in launches
            for access, counts in launch.rows.items()
            if access.operation == operation and {name, f"{name}_ptr"} & set(access.array.split("/"))
        ]
        elements = sum(count.elements for count in counts)
        masked = sum(count.attempted_bytes - count.bytes for count in counts) // itemsize
        yield (elements, masked), (predicted.elements, predicted.masked)


@interpreted
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.sampled_from(BLOCKS))
@settings(max_examples=25, deadline=None)
def test_the_interpreter_counts_what_is_predicted(m, n, k, block):
    from trigemm.lab.traffic.tiles import record_tiles

    a, b, c = operands(m, n, k, torch.float16, "cpu")
    with record_tiles() as launches:
        matmul(a, b, c, blocks=block)
    assert launches[0].blocks == predicted_traffic(m, n, k, *block).tiles
    for counted, predicted in moved(launches, predicted_traffic(m, n, k, *block), a.itemsize):
        assert counted == predicted


@interpreted
@pytest.mark.parametrize(("m", "n", "k", "diagonal"), [(300, 264, 144, 0), (256, 384, 150, -40), (200, 130, 129, 500)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_triangular_kernel_moves_what_is_predicted(m, n, k, diagonal, dtype):
    """The first operands are loaded by TMA; rows of 150 and 129 elements can only be loaded by pointers."""
    from trigemm.lab.traffic.tiles import record_tiles

    a, b, c = operands(m, n, k, dtype, "cpu")
    block = triangle_config("gemmt", dtype, "highest", Triangle(m, n, "lower", diagonal).size, by_tma=k == 144).blocks
    with record_tiles() as launches:
        gemmt(a, b, c, alpha=1.0, diagonal=diagonal, fill=None, precision="highest")
    for counted, predicted in moved(launches, predicted_traffic(m, n, k, *block, diagonal=diagonal), a.itemsize):
        assert counted[0] == predicted[0]
