import pytest
import torch
from triton.runtime.errors import OutOfResources

from trigemm.kernels.tiles.operand import cut_batches, form_of
from trigemm.kernels.tiles.plan import Launch, Plan


class Kernel:
    """Stands in for a JIT kernel, and for what it compiles to; `fits` is the largest number of stages that compiles."""

    def __init__(self, fits=3):
        self.fits, self.compiled_with, self.calls = fits, [], []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            if options:
                if options["num_stages"] > self.fits:
                    raise OutOfResources(1, 0, "shared memory")
                self.compiled_with.append(options)
            self.calls.append((grid, arguments))
            return self

        return launch


def plan_of(kernel, x, precision="tf32", num_stages=3):
    def launch(batches, precision):
        return Launch(kernel, batches.matrices, (precision,), offsets=batches.offsets, num_stages=num_stages)

    return Plan(cut_batches(form_of(x)), launch, precision)


def test_a_kernel_is_compiled_once_and_launched_again():
    kernel, x = Kernel(), torch.zeros(5, 2, 3)
    plan = plan_of(kernel, x)
    plan.run((x,), 0.5)
    plan.run((x,), 0.25)
    assert len(kernel.compiled_with) == 1
    assert [(grid, arguments[2:]) for grid, arguments in kernel.calls] == [
        ((5, 1, 1), (0.5, "tf32")),
        ((5, 1, 1), (0.25, "tf32")),
    ]


def test_split_products_are_followed_by_a_repair_that_shares_their_flags():
    kernel, x = Kernel(), torch.zeros(5, 2, 3)
    plan_of(kernel, x, "bf16x6").run((x,))
    (_, first), (_, second) = kernel.calls
    assert (first[-1], second[-1]) == ("bf16x6", "ieee")
    assert first[1] is second[1]
    assert (first[1].shape, first[1].dtype) == ((5,), torch.int32)


def test_more_batch_dimensions_than_a_kernel_takes_become_launches():
    kernel = Kernel()
    x = torch.arange(2 * 3 * 2 * 3 * 2 * 2).reshape(2, 3, 2, 3, 2, 2).permute(3, 1, 0, 2, 4, 5)
    plan_of(kernel, x).run((x,))
    assert [arguments[0].data_ptr() for _, arguments in kernel.calls] == [x[i].data_ptr() for i in range(3)]


def test_fewer_stages_where_shared_memory_is_small():
    kernel, x = Kernel(fits=1), torch.zeros(2, 3)
    plan_of(kernel, x).run((x,))
    assert kernel.compiled_with == [{"num_stages": 1}]
    with pytest.raises(OutOfResources):
        plan_of(Kernel(fits=0), x).run((x,))
