"""The training example against its twin in PyTorch, eager and compiled, for `benchmarks/tensor.py`."""

import importlib.util
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy
import torch
from tensor_cases import Call, make_backend

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CHARACTERS, BATCH = 97, 8
COMPILERS = 12  # processes


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


def waiter(device: str) -> Call:
    return torch.cuda.synchronize if device != "cpu" else lambda: None


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def draw_batches(gpt, config, steps: int) -> list[numpy.ndarray]:
    data = numpy.random.default_rng(0).integers(0, config.vocabulary, 20_000)
    return [gpt.draw_batch(data, BATCH, config.positions, 0, step) for step in range(steps)]


def compile_share(share: int, shares: int, device: str) -> None:
    """Put every `shares`-th kernel of a training step into Triton's cache on disk. The others are not launched at all."""
    from triton.runtime.jit import JITFunction

    launch, turn = JITFunction.run, count()

    def run(kernel, *arguments, **options):
        return launch(kernel, *arguments, **options) if next(turn) % shares == share else None

    JITFunction.run = run
    gpt = load_example("train_gpt")
    config = gpt.Config(CHARACTERS, layers=1)  # all layers take the same kernels
    gpt.Trainer(config, gpt.initial_weights(config, seed=0), make_backend(device)).train(draw_batches(gpt, config, 1)[0])
    torch.cuda.synchronize()


def compile_ahead(device: str) -> None:
    """Compile the kernels of a training step side by side. What fails here is compiled later, or says there what is wrong."""
    shares = min(COMPILERS, os.cpu_count() or 1)
    with ProcessPoolExecutor(shares, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in [pool.submit(compile_share, share, shares, device) for share in range(shares)]:
            if (error := future.exception()) is not None:
                print(f"compiling ahead: {error}", flush=True)


def measure_training(recorder, compiled: bool) -> None:
    """Tokens a second of the training example with its default sizes; ten steps a sample.

    One trainer after the other is compiled, compared with PyTorch's first loss, and timed in turns with PyTorch eager.
    """
    gpt, twin = load_example("train_gpt"), load_example("train_gpt_torch")
    on_gpu = recorder.device != "cpu"
    config, steps = gpt.Config(CHARACTERS), 10 if on_gpu else 2
    start = gpt.initial_weights(config, seed=0)
    backend = make_backend(recorder.device)
    makers = {"torch eager": lambda: twin.Trainer(config, start, recorder.device)}
    makers["trigemm.tensor"] = lambda: gpt.Trainer(config, start, backend)
    if on_gpu:
        makers["trigemm.tensor, replayed"] = lambda: gpt.Trainer(config, start, backend, capture=True)
    if compiled:
        makers["torch.compile"] = lambda: twin.Trainer(config, start, recorder.device, compiled=True)
    batches = draw_batches(gpt, config, steps)
    if on_gpu:
        compile_ahead(recorder.device)
    wait, calls, first = waiter(recorder.device), {}, None
    for name, make in makers.items():
        if recorder.time_is_up(f"training, {name}"):
            continue
        print(f"training, {name}: compiling …", end=" ", flush=True)
        begin, trainer = time.monotonic(), make()
        loss = trainer.train(batches[0]).item()
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
        first = first or loss
        if not abs(loss / first - 1) <= 1e-4:
            raise SystemExit(f"training, {name}: the first loss is {loss}, torch's {first}")
        calls[name] = lambda trainer=trainer: [trainer.train(each) for each in batches]
        times = host_times({each: calls[each] for each in ("torch eager", name)}, wait, 8 if on_gpu else 3)
        timing, theirs = tuple(ms / steps for ms in times[name]), times["torch eager"][0] / steps
        rate, speedup = BATCH * config.positions / timing[0] * 1e3, theirs / timing[0]
        print(f"training, {name}: {timing[0]:.2f} ms a step, {rate:,.0f} tokens/s: {speedup:.2f}x", flush=True)
        recorder.add(
            "training_step", name, {"B": BATCH, "T": config.positions, "layers": config.layers, "NH": config.heads,
            "C": config.width, "V": config.vocabulary}, timing, baseline_ms=theirs, speedup=speedup, tokens_per_s=rate,
            clock="host", cold_l2=False,
        )  # fmt: skip
