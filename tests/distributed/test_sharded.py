"""Process groups: Gloo with 1, 2 and 4 processes on the CPU, NCCL with as many as there are GPUs."""

import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for the processes, too, which import their checks by name

import sharded_checks

LAST = "a_rank_that_dies_stops_the_others"
GROUPS = [
    *(pytest.param(("cpu", ranks), id=f"gloo-{ranks}", marks=pytest.mark.xdist_group(f"gloo-{ranks}")) for ranks in (1, 2, 4)),
    pytest.param(("cuda", 0), id="nccl", marks=[pytest.mark.gpu, pytest.mark.xdist_group("nccl")]),
]


@pytest.fixture(scope="module", params=GROUPS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """What a group's ranks have left in a folder, once all have ended by themselves."""
    device, ranks = request.param
    ranks = ranks or torch.cuda.device_count()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sharded_checks"])
    folder = tmp_path_factory.mktemp("group")
    processes = [context.Process(target=sharded_checks.run, args=(rank, ranks, device, str(folder))) for rank in range(ranks)]
    for process in processes:
        process.start()
    end = time.monotonic() + sharded_checks.LIMIT[device] + 10
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    for process in processes:
        process.kill()
    stacks = [path.read_text() for path in sorted(folder.glob("stack-*"))]
    told = "\n".join([*(f"{path.name}\n{path.read_text()}" for path in sorted(folder.glob("seconds-*"))), *stacks])
    assert not any(stacks), f"out of time\n{told}"
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    failed = "\n".join(filter(None, (path.read_text() for name in sharded_checks.CHECKS for path in folder.glob(f"{name}-*"))))
    assert codes == ([0] * ranks if ranks == 1 else [*[0] * (ranks - 1), 17]), f"{codes}\n{failed}\n{told}"
    return folder, ranks


@pytest.mark.parametrize("name", sharded_checks.CHECKS)
def test_every_rank(results: tuple[Path, int], name: str) -> None:
    folder, ranks = results
    for rank in range(ranks):
        if name == LAST and rank == ranks - 1 > 0:
            continue  # it did not live to tell
        found = (folder / f"{name}-{rank}").read_text()
        assert not found, f"rank {rank}: {found}"
