"""Sharded operations against one GPU of the same run: one JSON line a case.

    NCCL_NVLS_ENABLE=0 TORCH_NCCL_HIGH_PRIORITY=1 torchrun --standalone --nproc-per-node 2 benchmarks/distributed.py --save FILE
    torchrun --standalone --nproc-per-node 2 benchmarks/distributed.py --length 512 --rows 256 --size 32 --repeats 2
    python benchmarks/distributed.py --emulate 2

Causal attention with the weights of some heads, scores, and `syrk`, in bfloat16 on GPUs and float32 on CPUs. Each is first
compared with one rank at a small size, and is not timed if it is wrong. Times are medians of the slowest rank, in milliseconds;
a GPU pauses before each call, so that the host is ahead of it, and `host_ms` is what the host took. The memory is the peak of the
fullest rank, operands included. `computing_ms` is the same call with nothing sent; what it lacks to `ms` is the part of the
communication that is not hidden, `communication_share`. `predicted_ms` is what the model in
`trigemm.distributed.scale` makes of rates that are measured first: of one rank in problems of half the edge, of a fill, and of
the link.

--emulate: so many ranks one after the other on one device, without a process group. What would be received is copied within its
memory. That is for the time that ranks compute, and for work on it where there is one GPU.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from emulated_ranks import Alone, Operations, rows_of, together
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import trigemm
from trigemm import distributed as td
from trigemm.distributed import scale
from trigemm.distributed.peers import Peers, Transfer
from trigemm.lab import environment

ASKED = {"speedup": 1.8, "memory_ratio": 0.55}
PAUSE = 10**7
"""Clock cycles that a GPU waits before a call, some 6 ms."""


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.ranks, self.rank = arguments.emulate or int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", 0))
        self.on_gpu = torch.cuda.device_count() >= (1 if arguments.emulate else self.ranks)
        self.device = f"cuda:{self.rank}" if self.on_gpu else "cpu"
        if self.on_gpu:
            torch.cuda.set_device(self.rank)
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        if not arguments.emulate:
            self.mesh: DeviceMesh = init_device_mesh("cuda" if self.on_gpu else "cpu", (self.ranks,))

    def sizes(self, case: str, edge: int | None = None) -> dict[str, int]:
        """The case's arguments in the model, with another length if one is given."""
        given = self.arguments
        if case == "syrk":
            return {"rows": edge or given.rows, "depth": edge or given.rows}
        length, heads = {"length": edge or given.length, "size": given.size}, {"heads": given.score_heads}
        return {**length, "heads": given.heads, "listed": given.listed} if case == "attention" else {**length, **heads}

    def edge(self, case: str) -> int:
        return self.arguments.rows if case == "syrk" else self.arguments.length

    def call(self, case: str, module: Any, spread: Callable[[tuple[int, ...], int], Tensor], **sizes: int) -> Callable[[], Any]:
        """The case as a function, on operands that `spread` makes of a shape and the dimension that is shared out."""
        if case == "syrk":
            a = spread((sizes["rows"], sizes["depth"]), 0)
            return lambda: module.syrk(a)
        shape = (1, sizes["heads"], sizes["length"], sizes["size"])
        q, k, v = (spread(shape, 2) for _ in range(3)) if case == "attention" else (spread(shape, 2), spread(shape, 2), None)
        listed = list(range(sizes.get("listed", 0)))
        if case == "scores":
            return lambda: module.causal_scores(q, k)
        return lambda: module.causal_attention(q, k, v, return_weights=listed)

    def whole(self, shape: tuple[int, ...], dim: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def rows(self, shape: tuple[int, ...], dim: int) -> DTensor:
        """Rows that this rank makes for itself: nowhere is there a whole operand."""
        own = sum(map(len, td.split.rank_rows(shape[dim], self.ranks, self.rank)))
        local = torch.randn((*shape[:dim], own, *shape[dim + 1 :]), device=self.device, dtype=self.dtype)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, self.mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=stride)

    def check(self, case: str) -> float:
        """The largest difference from one rank in a small problem, over the largest entry."""
        sizes = self.sizes(case, min(self.edge(case), 2048))
        found = []
        for module, shared in ((trigemm, False), (td, True)):
            torch.manual_seed(0)
            spread = (lambda shape, dim: td.shard_sequence(self.whole(shape, dim), self.mesh, dim)) if shared else self.whole
            results = self.call(case, module, spread, **sizes)()
            results = results if isinstance(results, tuple) else (results,)
            found.append([td.unshard_sequence(x) if shared else x for x in results])
        return difference(*found)

    def clock(self, function: Callable[[], Any], repeats: int) -> float:
        """The median time of a call in milliseconds; `host_ms` is that of the host."""
        times, host = [], []
        for _ in range(repeats + 2):
            if self.on_gpu:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(PAUSE)
                begin.record()
            start = time.perf_counter()
            function()
            host.append(1e3 * (time.perf_counter() - start))
            if self.on_gpu:
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
        self.host_ms = statistics.median(host[2:])
        return statistics.median(times[2:]) if self.on_gpu else self.host_ms

    def measured(self, case: str, shared: bool, *, silent: bool = False, edge: int | None = None) -> tuple[float, int]:
        """The time of a case and the peak of its memory: of all ranks together, or of one; `silent`: with nothing sent."""
        module, spread = (td, self.rows) if shared else (trigemm, self.whole)
        if shared:
            dist.barrier()
        with mock.patch.object(Peers, "exchange", nothing_sent) if silent else nullcontext():
            return self.timed(case, module, spread, edge)

    def timed(self, case: str, module: Any, spread: Callable[[tuple[int, ...], int], Tensor], edge: int | None = None) -> Any:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if self.on_gpu else 0
        taken = self.clock(self.call(case, module, spread, **self.sizes(case, edge)), self.arguments.repeats)
        return taken, torch.cuda.max_memory_allocated() - before if self.on_gpu else 0

    def slowest(self, *values: float) -> list[float]:
        """The largest of each value over all ranks."""
        every = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(every, dist.ReduceOp.MAX)
        return every.tolist()

    def memory_and_link(self, size: int) -> tuple[float, float]:
        """Bytes/s of a fill, and of a message to the next rank while one comes from the rank before."""
        peers, right, left = Peers(self.mesh.get_group(), "benchmark"), (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        sent, received = (torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(2))
        fill = size / self.clock(lambda: sent.fill_(1), 10) * 1e3
        if self.ranks == 1:
            return fill, 1e12
        return fill, size / self.clock(lambda: peers.exchange({right: [sent]}, {left: [received]}).wait(), 10) * 1e3

    def machine(self) -> scale.Machine:
        """The rates of this machine: those of each case at half of its edge on one rank, of a fill, and of the link."""
        fill, link = self.memory_and_link(2**28 if self.on_gpu else 2**20)
        rates = {}
        for case, share_of in scale.CASES.items():
            edge = self.edge(case) // 2
            share = share_of(1, **self.sizes(case, edge))
            taken = 1e-3 * self.measured(case, False, edge=edge)[0]
            rates[case] = share.flops / max(taken - share.bytes_moved / fill, taken / 10)
        return scale.Machine(**rates, memory=fill, link=link, far_link=link, near=self.ranks)

    def emulated(self) -> None:
        """Print, for each case, the time of one GPU and of each rank: with nothing sent, and with copies for messages."""
        for case in scale.CASES:
            one_ms, one_peak = self.timed(case, trigemm, self.whole)
            print(f"{case}: {one_ms:.3f} ms on one; differs by {self.emulated_check(case):.1e}", flush=True)
            for rank in range(self.ranks):

                def spread(shape: tuple[int, ...], dim: int, rank: int = rank) -> Tensor:
                    own = sum(map(len, td.split.rank_rows(shape[dim], self.ranks, rank)))
                    return self.whole((*shape[:dim], own, *shape[dim + 1 :]), dim)

                for copies in (False, True):
                    module = Operations(Alone(rank, self.ranks, copies=copies), self.edge(case))
                    self.call(case, module, spread, **self.sizes(case))()  # makes what is copied for messages
                    ms, peak = self.timed(case, module, spread)
                    share = f", {peak / one_peak:.3f} of the memory" if one_peak else ""
                    kind = "with copies" if copies else "computing alone"
                    print(f"  rank {rank} {kind}: {ms:.3f} ms, {one_ms / ms:.2f}x{share}", flush=True)

    def emulated_check(self, case: str) -> float:
        """As `check`, of ranks that are threads."""
        sizes, length = self.sizes(case, min(self.edge(case), 2048)), min(self.edge(case), 2048)
        operands: list[Tensor] = []

        def keep(shape: tuple[int, ...], dim: int) -> Tensor:
            operands.append(self.whole(shape, dim))
            return operands[-1]

        one = self.call(case, trigemm, keep, **sizes)()

        def of_rank(module: Operations, rank: int) -> tuple[Tensor, ...]:
            whole = iter(operands)
            results = self.call(case, module, lambda shape, dim: rows_of(next(whole), self.ranks, rank, dim), **sizes)()
            return results if isinstance(results, tuple) else (results,)

        many = together(self.ranks, length, of_rank)
        return difference(one if isinstance(one, tuple) else (one,), many)

    def records(self) -> list[dict[str, Any]]:
        machine = self.machine()
        shared = {
            "device": environment.device_name(self.device),
            "ranks": self.ranks,
            "dtype": str(self.dtype).removeprefix("torch."),
            "versions": environment.versions(self.device),
            "commit": environment.commit(),
        }
        found = [{"case": "machine", **shared, **{name: getattr(machine, name) for name in (*scale.CASES, "memory", "link")}}]
        for case, share_of in scale.CASES.items():
            difference = self.check(case)
            if difference > (2e-2 if self.on_gpu else 1e-5):
                raise SystemExit(f"{case}: differs from one rank by {difference:g}, so it is not timed")
            one_ms, one_peak = self.measured(case, False)
            own_ms, peak = self.measured(case, True)
            own_host_ms = self.host_ms
            silent_ms, _ = self.measured(case, True, silent=True)
            ms, host, computing, most = self.slowest(own_ms, own_host_ms, silent_ms, peak)
            one, many = (share_of(ranks, machine, **self.sizes(case)) for ranks in (1, self.ranks))
            record = {"case": case, **shared, "sizes": self.sizes(case), "one_ms": one_ms, "ms": ms, "speedup": one_ms / ms}
            record |= {"host_ms": host, "computing_ms": computing, "communication_share": max(0.0, 1 - computing / ms)}
            record |= {"one_peak_bytes": one_peak, "peak_bytes": int(most), "memory_ratio": most / one_peak if one_peak else None}
            record |= {"predicted_one_ms": 1e3 * one.time(machine), "predicted_ms": 1e3 * many.time(machine)}
            record |= {"predicted_communication_ms": 1e3 * many.communication(machine), "difference": difference, "asked": ASKED}
            found.append(record)
        return found


def difference(one: Sequence[Tensor], many: Sequence[Tensor]) -> float:
    """The largest difference of results, over the largest entry."""
    worst = 0.0
    for x, y in zip(one, many, strict=True):
        seen = x.isfinite()
        assert torch.equal(seen, y.isfinite())
        worst = max(worst, ((x.double() - y.double())[seen].abs().max() / x[seen].abs().max()).item())
    return worst


def nothing_sent(self: Peers, sent: Any, received: Any) -> Transfer:
    return Transfer((), (), str)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("length", 32768), ("heads", 32), ("size", 128), ("listed", 4), ("score-heads", 8), ("rows", 16384)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", help="a file that the lines are added to")
    parser.add_argument("--emulate", type=int, metavar="RANKS", help="so many ranks on one device, without a process group")
    bench = Bench(parser.parse_args())
    with torch.no_grad():
        if bench.arguments.emulate:
            return bench.emulated()
        records = bench.records()
    if bench.rank == 0:
        lines = [json.dumps(record) for record in records]
        print("\n".join(lines))
        if bench.arguments.save:
            with open(bench.arguments.save, "a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
