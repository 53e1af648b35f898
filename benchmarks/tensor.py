"""The operations of trigemm.tensor against PyTorch eager and CuPy (NumPy on the CPU), and the training example against its twin.

    python benchmarks/tensor.py [--device cpu] [--save FILE] [--only NAME …] [--elements N …] [--seconds S] [--no-compile]

Results are verified before they are timed. Operations take turns with the caches flushed before each call, small ones many times
over in warm caches; a chain and a training step are timed by the host's clock, since what the host does is their cost. One line a
measurement, printed and saved (--save) as soon as it is made.
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from tensor_cases import Call, cases, make_backend
from tensor_training import host_times, measure_training, waiter

from trigemm.lab import environment, records
from trigemm.lab.timing import ceilings, interleaved

SMALL, OVER = 2**16, 100  # elements below which a sample on the CPU is of so many calls


class Recorder:
    """Prints measurements and, where a file is given, appends them as records of the lab, one by one, until time is up."""

    def __init__(self, device: str, path: Path | None, seconds: float):
        self.device, self.path, self.end = device, path, time.monotonic() + seconds
        self.common = {
            "device": device, "dtype": "float32", "precision": "highest", "fill": None, "cold_l2": True, "seed": 0,
            "device_name": environment.device_name(device), "versions": environment.versions(device),
            "commit": environment.commit(),
        }  # fmt: skip

    def time_is_up(self, label: str) -> bool:
        over = time.monotonic() > self.end
        if over:
            print(f"{label}: left out, the time is up", flush=True)
        return over

    def add(self, operation: str, kernel: str, shape: dict, timing: tuple[float, float, float], **more) -> None:
        median, low, high = timing
        record = {
            "operation": f"tensor.{operation}", "kernel": kernel, "shape": shape, "verdict": "pass", "error_over_budget": None,
            "median_ms": median, "p20_ms": low, "p80_ms": high, "baseline_ms": None, "speedup": None, "floor_ms": None,
            "floor_share": None, "when": datetime.now(UTC).isoformat(timespec="seconds"), **self.common, **more,
        }  # fmt: skip
        reason = records.complaint(record)
        if reason:
            raise ValueError(reason)
        if self.path:
            records.append(self.path, record)


def repeated(call: Call, times: int) -> Call:
    def calls():
        for _ in range(times):
            call()

    return calls if times > 1 else call


def copy_of(floats_moved: int, device: str) -> Call:
    """A copy that reads and writes so many elements of four bytes in all."""
    source = torch.zeros(floats_moved // 2, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure_operations(recorder: Recorder, sizes, only, copy_gbps: float) -> None:
    on_gpu = recorder.device != "cpu"
    shares, alike, speedups = {}, {}, {}
    for elements in sizes:
        over = OVER if elements < SMALL and not on_gpu else 1
        for case in cases(recorder.device, elements, make_backend(recorder.device)):
            label = case.label
            if (only and case.name not in only) or recorder.time_is_up(label):
                continue
            off = case.error(case.ours)
            calls = {"ours": case.ours, "torch": case.theirs}
            if case.others:
                calls["cupy" if on_gpu else "numpy"] = case.others
            if on_gpu and case.floats_moved is not None:
                calls["copy"] = copy_of(case.floats_moved, recorder.device)
            times = {}
            for names in [["ours", "torch"], ["numpy"]] if case.floats_moved is None else [list(calls)]:
                times |= interleaved(  # NumPy's BLAS apart: its threads still wait for more while the next product begins
                    {name: repeated(calls[name], over) for name in names}, repeats=25, seconds=1.0 if on_gpu else 0.5,
                    device=recorder.device, cold=over == 1,
                )  # fmt: skip
            timing = tuple(ms / over for ms in (times["ours"].median_ms, times["ours"].p20_ms, times["ours"].p80_ms))
            rivals = {name: times[name].median_ms / over for name in calls if name not in ("ours", "copy")}
            fastest = min(rivals, key=rivals.get)
            speedups[label] = rivals[fastest] / timing[0]
            listed = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in rivals.items())
            more, share = {}, ""
            if case.floats_moved is not None:
                floor = 4 * case.floats_moved / copy_gbps / 1e6
                more = {"floor_ms": floor, "floor_share": floor / timing[0]}
                if over == 1:
                    shares[label], share = floor / timing[0], f", {100 * floor / timing[0]:3.0f}% of copy bandwidth"
            if "copy" in times:
                more["copy_ms"] = times["copy"].median_ms
                alike[label] = more["copy_ms"] / timing[0]
                share += f", {100 * alike[label]:3.0f}% of a copy's speed with as many bytes"
            print(f"{label:34} {1e3 * timing[0]:9.1f} us; {listed}: {speedups[label]:5.2f}x{share}", flush=True)
            recorder.add(
                case.name, "trigemm.tensor", {"elements": elements, **{f"axis{i}": size for i, size in enumerate(case.shape)}},
                timing, baseline_ms=rivals[fastest], speedup=speedups[label], error_over_budget=off, copy_gbps=copy_gbps,
                fastest_rival=fastest, **({} if over == 1 else {"cold_l2": False}), **more,
                **{f"{name}_ms": ms for name, ms in rivals.items()},
            )  # fmt: skip
    worst_of = {"copy bandwidth": shares, "a copy's speed with as many bytes": alike, "the faster rival's speed": speedups}
    for name, rows in worst_of.items():
        if rows:
            worst = min(rows, key=rows.get)
            print(f"worst row: {worst}, {rows[worst]:.2f} of {name}")


def measure_chain(recorder: Recorder) -> None:
    """1,000 small operations: launched one by one, and replayed."""
    from trigemm.tensor import Tensor

    backend = make_backend(recorder.device)
    count = 1000
    x = torch.rand(1024, device=recorder.device)
    tensor = Tensor.from_dlpack(x, backend)

    def chain(y):
        for _ in range(count // 2):
            y = y * 0.5 + 0.25
        return y

    calls: dict[str, Call] = {"ours": lambda: chain(tensor), "torch": lambda: chain(x)}
    if recorder.device != "cpu":
        replay = backend.capture(chain, tensor)
        calls["replayed"] = lambda: replay(tensor)
        if not torch.equal(torch.from_dlpack(replay(tensor)), chain(x)):
            raise SystemExit("chain: the replayed chain is wrong")
    if not torch.equal(torch.from_dlpack(chain(tensor)), chain(x)):
        raise SystemExit("chain: our chain is wrong")
    times = host_times(calls, waiter(recorder.device), 15)
    theirs = times["torch"][0]
    for name, timing in times.items():
        each = 1e3 * timing[0] / count
        print(f"chain of {count} operations, {name}: {timing[0]:.2f} ms, {each:.2f} us each: {theirs / timing[0]:.2f}x")
        recorder.add(
            "chain", {"ours": "trigemm.tensor", "torch": "torch eager", "replayed": "trigemm.tensor, replayed"}[name],
            {"operations": count, "elements": 1024}, timing, baseline_ms=theirs, speedup=theirs / timing[0], clock="host",
            cold_l2=False,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", type=Path, help="file of JSON lines to append to")
    parser.add_argument("--only", nargs="+", default=[], help="names of operations, chain, training")
    parser.add_argument("--elements", type=int, nargs="+", help="elements of the tensors")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no measurement after so many")
    parser.add_argument("--sweep", action="store_true", help="tile sizes of the reductions against each other; records nothing")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    if options.save:
        try:
            records.check_writable(options.save)
        except ValueError as reason:
            parser.error(str(reason))
    sizes = options.elements or ([2**24, 2**26] if options.device == "cuda" else [2**13, 2**21])
    if any(size < 2**13 or size % 2**13 for size in sizes):
        parser.error("--elements: multiples of 8192")
    if options.sweep:
        from tensor_sweep import sweep

        sweep(options.device, sizes[0], options.seconds)
        return
    recorder = Recorder(options.device, options.save, options.seconds)
    only = options.only
    if not only or set(only) - {"chain", "training"}:
        copy_gbps = ceilings(options.device, torch.float32).copy_gbps
        print(f"{recorder.common['device_name']}, torch {torch.__version__}; copy {copy_gbps:.0f} GB/s")
        measure_operations(recorder, sizes, only, copy_gbps)
    if (not only or "chain" in only) and not recorder.time_is_up("chain"):
        measure_chain(recorder)
    if not only or "training" in only:
        measure_training(recorder, compiled=options.device == "cuda" and not options.no_compile)


if __name__ == "__main__":
    main()
