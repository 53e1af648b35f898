"""The operations of trigemm.tensor against PyTorch eager and CuPy (NumPy on the CPU), and the training example against its twin.

    python benchmarks/tensor.py [--device cpu] [--save FILE] [--only NAME …] [--elements N …] [--no-compile]

Results are verified before they are timed. Operations take turns with the L2 flushed before each call; a chain and a training
step are timed by the host's clock, since what the host does is their cost. One line a measurement; with --save, one record too.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

from trigemm.lab import environment, records
from trigemm.lab.timing import ceilings, interleaved
from trigemm.tensor import CpuBackend

try:
    import cupy
except ImportError:
    cupy = None

Call = Callable[[], object]
BUDGET = 1e-5  # of an error, relative to the largest element
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Case:
    """One operation on one shape: ours, torch's, and that of CuPy or NumPy where it has one; the bytes that must move."""

    name: str
    shape: tuple[int, ...]
    floats_moved: int
    ours: Call
    theirs: Call
    exact: Call
    others: Call | None = None


def make_backend(device):
    if device == "cpu":
        return CpuBackend()
    from trigemm.tensor.cuda import CudaBackend

    return CudaBackend(device)


def cases(device: str, elements: int) -> Iterator[Case]:
    """Every operation of the contract whose time is that of its memory traffic."""
    backend = make_backend(device)
    rows = 2 ** (elements.bit_length() // 2)
    columns = elements // rows
    n = rows * columns
    generator = torch.Generator(device).manual_seed(0)
    arrays = numpy if device == "cpu" else cupy

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=device)

    def ours(x):
        return x if isinstance(x, float) else backend.from_dlpack(x)

    def case(name, moved, call, theirs, *operands, others=None, shape=(rows, columns)):
        arguments = [ours(x) for x in operands]
        exact = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in operands]
        other = None
        if arrays is not None and others is not None:
            foreign = [arrays.from_dlpack(x) if isinstance(x, torch.Tensor) else x for x in operands]
            other = lambda: others(arrays, *foreign)  # noqa: E731
        return Case(name, shape, moved, lambda: call(*arguments), lambda: theirs(*operands), lambda: theirs(*exact), other)

    def binary(code):
        return lambda a, b: backend.binary(code, a, b)

    a, b, row, column = normal(rows, columns), normal(rows, columns), normal(columns), normal(rows, 1)
    cube, heads = a.view(rows, -1, 32), a.view(16, -1, 8, 64)
    wide = a.view(-1, 1024)
    targets = torch.randint(0, columns, (rows,), generator=generator, device=device)

    yield case("add", 3 * n, binary("add"), torch.add, a, b, others=lambda xp, a, b: a + b)
    yield case("add_number", 2 * n, binary("add"), torch.add, a, 1.5, others=lambda xp, a, b: a + numpy.float32(b))
    yield case("add_row", 2 * n, binary("add"), torch.add, a, row, others=lambda xp, a, b: a + b)
    yield case("row_add", 2 * n, binary("add"), torch.add, row, a, others=lambda xp, a, b: a + b)
    yield case("add_column", 2 * n, binary("add"), torch.add, a, column, others=lambda xp, a, b: a + b)
    yield case("div", 3 * n, binary("div"), torch.div, a, b.abs() + 1, others=lambda xp, a, b: a / b)
    yield case("exp", 2 * n, lambda x: backend.unary("exp", x), torch.exp, a, others=lambda xp, x: xp.exp(x))
    yield case("tanh", 2 * n, lambda x: backend.unary("tanh", x), torch.tanh, a, others=lambda xp, x: xp.tanh(x))
    yield case("gelu", 2 * n, lambda x: backend.unary("gelu", x), lambda x: F.gelu(x, approximate="tanh"), a)
    yield case(
        "gelu_backward", 3 * n, binary("gelu_backward"), lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"), a, b
    )
    yield case(
        "transpose", 2 * n, lambda x: backend.permute(x, (1, 0)), lambda x: x.T.contiguous(), a,
        others=lambda xp, x: xp.ascontiguousarray(x.T),
    )  # fmt: skip
    yield case(
        "permute_heads", 2 * n, lambda x: backend.permute(x, (0, 2, 1, 3)), lambda x: x.permute(0, 2, 1, 3).contiguous(), heads,
        others=lambda xp, x: xp.ascontiguousarray(x.transpose(0, 2, 1, 3)), shape=tuple(heads.shape),
    )  # fmt: skip
    yield case(
        "permute_reversed", 2 * n, lambda x: backend.permute(x, (2, 1, 0)), lambda x: x.permute(2, 1, 0).contiguous(), cube,
        others=lambda xp, x: xp.ascontiguousarray(x.transpose(2, 1, 0)), shape=tuple(cube.shape),
    )  # fmt: skip
    yield case("expand", n, lambda x: backend.expand(x, (rows, columns)), lambda x: x.expand(rows, columns).contiguous(), row)
    for axis in (0, 1):
        yield case(
            f"sum_axis{axis}", n, lambda x, axis=axis: backend.sum_axis(x, axis), lambda x, axis=axis: x.sum(axis), a,
            others=lambda xp, x, axis=axis: x.sum(axis),
        )  # fmt: skip
    yield case(
        "sum_axis1_of_3", n, lambda x: backend.sum_axis(x, 1), lambda x: x.sum(1), cube,
        others=lambda xp, x: x.sum(1), shape=tuple(cube.shape),
    )  # fmt: skip
    yield case("sum", n, backend.sum, torch.sum, a, others=lambda xp, x: x.sum())
    yield case("max_axis1", n, lambda x: backend.max_axis(x, 1), lambda x: x.amax(1), a, others=lambda xp, x: x.max(1))
    for x in (wide, a):
        shape = tuple(x.shape)
        yield case("softmax", 2 * n, backend.softmax, lambda x: x.softmax(-1), x, shape=shape)
        yield case("log_softmax", 2 * n, backend.log_softmax, lambda x: x.log_softmax(-1), x, shape=shape)
        w, v = normal(shape[1]), normal(shape[1])
        yield case(
            "layer_norm", 2 * n, lambda x, w, v: backend.layer_norm(x, w, v, 1e-5)[0],
            lambda x, w, v: F.layer_norm(x, w.shape, w, v), x, w, v, shape=shape,
        )  # fmt: skip
    mean, rstd = a.mean(1), (a.var(1, correction=0) + 1e-5).rsqrt()
    yield case(
        "layer_norm_backward", 3 * n, lambda g, x, w, m, r: backend.layer_norm_backward(g, x, w, m, r)[0],
        lambda g, x, w, m, r: torch.ops.aten.native_layer_norm_backward(
            g, x, w.shape, m[:, None], r[:, None], w, w, [True] * 3
        )[0], a, b, row, mean, rstd,
    )  # fmt: skip
    yield case("cross_entropy", n, backend.cross_entropy, lambda x, t: F.cross_entropy(x, t, reduction="none"), a, targets)
    ones = torch.ones(rows, device=device)

    def torch_backward(g, x, t):  # what autograd runs, from the saved log-probabilities; these are made anew
        return torch.ops.aten._log_softmax_backward_data(
            -F.one_hot(t, columns).to(x.dtype) * g[:, None], x.log_softmax(1), 1, x.dtype
        )

    yield case("cross_entropy_backward", 2 * n, backend.cross_entropy_backward, torch_backward, ones, a, targets)
    table, picks = normal(50_257, 256), torch.randint(0, 50_257, (elements // 256,), generator=generator, device=device)
    updates = a.view(-1, 256)
    yield case(
        "gather", 2 * n, backend.gather, lambda t, i: t[i], table, picks, others=lambda xp, t, i: t[i], shape=(50_257, 256)
    )
    yield case(
        "scatter_add", n + table.numel(), lambda u, i: backend.scatter_add(u, i, 50_257),
        lambda u, i: torch.zeros(50_257, 256, dtype=u.dtype, device=device).index_add_(0, i, u), updates, picks,
        shape=(50_257, 256),
    )  # fmt: skip


class Recorder:
    """Prints measurements and, where a file is given, appends them as records of the lab."""

    def __init__(self, device: str, path: Path | None):
        self.device, self.path = device, path
        self.common = {
            "device": device, "dtype": "float32", "precision": "highest", "fill": None, "cold_l2": True, "seed": 0,
            "device_name": environment.device_name(device), "versions": environment.versions(device),
            "commit": environment.commit(),
        }  # fmt: skip

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


def error(case: Case, call: Call) -> float:
    """The largest error relative to the largest element, over the budget; NaN anywhere is infinite."""
    exact = case.exact()
    result = torch.from_dlpack(call()).double().reshape(exact.shape)
    worst = ((result - exact).abs().max() / exact.abs().max()).item() / BUDGET
    return worst if worst == worst else float("inf")


def measure_operations(recorder: Recorder, sizes, only, copy_gbps: float) -> None:
    on_gpu = recorder.device != "cpu"
    shares, speedups = {}, {}
    for elements in sizes:
        for case in cases(recorder.device, elements):
            if only and case.name not in only:
                continue
            off = error(case, case.ours)
            label = f"{case.name} {'x'.join(map(str, case.shape))}"
            if not off <= 1:
                raise SystemExit(f"{label}: wrong by {off:.2g} times the budget of {BUDGET}")
            calls = {"ours": case.ours, "torch": case.theirs}
            if case.others:
                calls["cupy" if on_gpu else "numpy"] = case.others
            times = interleaved(calls, repeats=25 if on_gpu else 9, seconds=1.0, device=recorder.device)
            ours = times["ours"]
            floor = 4 * case.floats_moved / copy_gbps / 1e6
            baseline = min(times[name].median_ms for name in calls if name != "ours")
            shares[label], speedups[label] = floor / ours.median_ms, baseline / ours.median_ms
            rivals = {name: times[name].median_ms for name in calls if name != "ours"}
            listed = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in rivals.items())
            print(
                f"{label:34} {1e3 * ours.median_ms:9.1f} us; {listed}: {speedups[label]:5.2f}x, "
                f"{100 * shares[label]:3.0f}% of copy bandwidth",
                flush=True,
            )
            recorder.add(
                case.name, "trigemm.tensor", {"elements": elements, **{f"axis{i}": size for i, size in enumerate(case.shape)}},
                (ours.median_ms, ours.p20_ms, ours.p80_ms), baseline_ms=baseline, speedup=speedups[label], floor_ms=floor,
                floor_share=shares[label], error_over_budget=off, copy_gbps=copy_gbps,
                **{f"{name}_ms": ms for name, ms in rivals.items()},
            )  # fmt: skip
    for name, rows in (("copy bandwidth", shares), ("the faster rival's speed", speedups)):
        if rows:
            worst = min(rows, key=rows.get)
            print(f"worst row: {worst}, {rows[worst]:.2f} of {name}")


def host_times(calls: dict[str, Call], wait: Call, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Median, 20th and 80th percentile of each call by the host's clock, until the device is done, in ms; they take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            wait()
            begin = time.perf_counter()
            call()
            wait()
            if turn:  # the first compiles
                samples[name].append(1e3 * (time.perf_counter() - begin))
    fifths = {name: statistics.quantiles(times, n=5, method="inclusive") for name, times in samples.items()}
    return {name: (statistics.median(times), fifths[name][0], fifths[name][3]) for name, times in samples.items()}


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
    wait = torch.cuda.synchronize if recorder.device != "cpu" else lambda: None
    times = host_times(calls, wait, 15)
    theirs = times["torch"][0]
    for name, timing in times.items():
        each = 1e3 * timing[0] / count
        print(f"chain of {count} operations, {name}: {timing[0]:.2f} ms, {each:.2f} us each: {theirs / timing[0]:.2f}x")
        recorder.add(
            "chain", {"ours": "trigemm.tensor", "torch": "torch eager", "replayed": "trigemm.tensor, replayed"}[name],
            {"operations": count, "elements": 1024}, timing, baseline_ms=theirs, speedup=theirs / timing[0], clock="host",
            cold_l2=False,
        )  # fmt: skip


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def measure_training(recorder: Recorder, compiled: bool) -> None:
    """Tokens a second of the training example with its default sizes; ten steps a sample."""
    gpt, twin = load_example("train_gpt"), load_example("train_gpt_torch")
    on_gpu = recorder.device != "cpu"
    config, batch, steps = gpt.Config(vocabulary=97), 8, 10 if on_gpu else 2
    start = gpt.initial_weights(config, seed=0)
    backend = make_backend(recorder.device)
    trainers = {"ours": gpt.Trainer(config, start, backend), "torch": twin.Trainer(config, start, recorder.device)}
    if on_gpu:
        trainers["replayed"] = gpt.Trainer(config, start, backend, capture=True)
    if compiled:
        trainers["compiled"] = twin.Trainer(config, start, recorder.device, compiled=True)
    data = numpy.random.default_rng(0).integers(0, config.vocabulary, 20_000)
    batches = [gpt.draw_batch(data, batch, config.positions, 0, step) for step in range(steps)]
    first = {name: trainer.train(batches[0]).item() for name, trainer in trainers.items()}
    for name, loss in first.items():
        if not abs(loss / first["torch"] - 1) <= 1e-4:
            raise SystemExit(f"training, {name}: the first loss is {loss}, torch's {first['torch']}")

    def train(trainer):
        for each in batches:
            trainer.train(each)

    wait = torch.cuda.synchronize if on_gpu else lambda: None
    times = host_times({name: lambda t=t: train(t) for name, t in trainers.items()}, wait, 8 if on_gpu else 3)
    tokens = batch * config.positions
    names = {
        "ours": "trigemm.tensor",
        "torch": "torch eager",
        "replayed": "trigemm.tensor, replayed",
        "compiled": "torch.compile",
    }
    for name, timing in times.items():
        timing = tuple(ms / steps for ms in timing)
        rate, speedup = tokens / timing[0] * 1e3, times["torch"][0] / steps / timing[0]
        print(f"training, {name}: {timing[0]:.2f} ms a step, {rate:,.0f} tokens/s: {speedup:.2f}x")
        recorder.add(
            "training_step", names[name], {"B": batch, "T": config.positions, "layers": config.layers, "NH": config.heads,
            "C": config.width, "V": config.vocabulary}, timing, baseline_ms=times["torch"][0] / steps, speedup=speedup,
            tokens_per_s=rate, clock="host", cold_l2=False,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", type=Path, help="file of JSON lines to append to")
    parser.add_argument("--only", nargs="+", default=[], help="names of operations, chain, training")
    parser.add_argument("--elements", type=int, nargs="+", help="elements of the large tensors")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    if options.save:
        try:
            records.check_writable(options.save)
        except ValueError as reason:
            parser.error(str(reason))
    sizes = options.elements or ([2**24, 2**26] if options.device == "cuda" else [2**21])
    if any(size < 2**16 or size % 2**16 for size in sizes):
        parser.error("--elements: multiples of 65536")
    recorder = Recorder(options.device, options.save)
    copy_gbps = ceilings(options.device, torch.float32).copy_gbps
    print(f"{recorder.common['device_name']}, torch {torch.__version__}; copy {copy_gbps:.0f} GB/s")
    only = options.only
    if not only or set(only) - {"chain", "training"}:
        measure_operations(recorder, sizes, only, copy_gbps)
    if not only or "chain" in only:
        measure_chain(recorder)
    if not only or "training" in only:
        measure_training(recorder, compiled=options.device == "cuda" and not options.no_compile)


if __name__ == "__main__":
    main()
