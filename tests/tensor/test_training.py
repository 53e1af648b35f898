"""What a training step needs beside the model, on every backend, against torch: rows of a table and their gradient, AdamW."""

import numpy as np
import pytest
import torch

from trigemm.tensor import Tensor, adamw, gather, scatter_add

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")  # NumPy's, in Triton's interpreter


def test_gather(inputs, dtype, agrees):
    table, indices = inputs(33, 21, dtype=dtype), inputs.indices(4, 9, below=33)
    agrees(gather(table, indices), lambda t, i: t[i], table, indices)


@pytest.mark.parametrize(("shape", "below"), [((4, 90, 21), 7), ((4, 70, 5), 2), ((2, 33, 300), 1)])
def test_scatter_add(inputs, agrees, shape, below):
    updates, indices = inputs(*shape), inputs.indices(*shape[:2], below=below)

    def theirs(u, i):
        return torch.zeros(8, shape[2], dtype=u.dtype).index_add(0, i.reshape(-1), u.reshape(-1, shape[2]))

    agrees(scatter_add(updates, indices, 8), theirs, updates, indices, magnitude=theirs)


def test_scatter_add_adds_in_the_order_of_the_updates(backend):
    """In float32, and in one order: the same bits in every run, as a running sum has them here."""
    updates = np.array([1e8, 1.0, -1e8, 1.0, 5.0], np.float32)[:, None]
    first = scatter_add(Tensor(updates, backend), Tensor([1, 1, 1, 1, 0], backend), 2).numpy()
    assert first[0, 0] == 5.0
    for _ in range(3):
        again = scatter_add(Tensor(updates, backend), Tensor([1, 1, 1, 1, 0], backend), 2).numpy()
        assert np.array_equal(first, again)


def test_adamw_takes_its_numbers_from_tensors_too(inputs, near):
    x, grad = inputs(7, 33), inputs(7, 33)
    for step in (1, 5, 1000):
        plain = adamw(x, grad, x * 0.1, x * x, step=step, lr=0.05, betas=(0.8, 0.999))
        stored = adamw(x, grad, x * 0.1, x * x, step=x.like(x.backend.full((), step, "int64")),
                       lr=x.like(x.backend.full((1,), 0.05, "float32")), betas=(0.8, 0.999))  # fmt: skip
        for a, b in zip(plain, stored, strict=True):
            near(a.numpy(), b.numpy(), rtol=1e-6)


def test_adamw_is_torchs(inputs, near):
    """Five steps of torch.optim.AdamW from the same start."""
    start, grads = inputs(7, 33), [inputs(7, 33) for _ in range(5)]
    theirs = torch.tensor(np.array(start.numpy()), requires_grad=True)
    optimizer = torch.optim.AdamW([theirs], lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)
    param, m, v = start, start * 0.0, start * 0.0
    for step, grad in enumerate(grads, 1):
        theirs.grad = torch.tensor(np.array(grad.numpy()))
        optimizer.step()
        param, m, v = adamw(param, grad, m, v, step=step, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1)
        near(param.numpy(), theirs.detach().numpy(), rtol=1e-5, magnitude=1e-2)
    assert not np.array_equal(param.numpy(), start.numpy())
