"""Everything that only a GPU can tell, in steps: what must pass there, and what is recorded.

    python benchmarks/gpu.py --list
    python benchmarks/gpu.py check --out DIR [--only STEP …]                  # side by side, on all cores
    python benchmarks/gpu.py measure --out DIR [--only STEP …] [--seconds S]  # one after the other, alone on the machine
    python benchmarks/gpu.py several --out DIR                                # on two GPUs

A step is a command with a time limit. What it prints goes to DIR/STEP.log, its records to DIR/STEP.jsonl, as soon as they are
made; a step that is out of time is interrupted, and keeps them. The table at the end says how each ended, and the exit code is 1
where one did not pass. With --seconds no step begins that might not end in time. --list names the file of the project that each
step's records belong to.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.table import Table

from trigemm.cli import terminal

PYTEST = (sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", "-p", "no:benchmark")
TRIGEMM = (sys.executable, "-c", "from trigemm.cli.main import app; app()")
SANITIZER = ("compute-sanitizer", "--error-exitcode", "1")
GRACE = 20
"""Seconds that an interrupted step has to write what it knows."""


@dataclass(frozen=True)
class Step:
    """command, where OUT stands for the file of its records and JOBS for a number of processes; and its limit in seconds."""

    name: str
    kind: str
    limit: int
    command: Sequence[str]
    records: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, f"benchmarks/{name}.py", *arguments)


STEPS = (
    Step("kernels", "check", 300, (*PYTEST, "-n", "JOBS", "tests/kernels", "tests/ops")),
    Step("tensor", "check", 300, (*PYTEST, "-n", "JOBS", "tests/tensor", "tests/examples/test_train_gpt.py")),
    Step("models", "check", 200, (*PYTEST, "-n", "4", "-m", "gpu", "tests/integrations", "tests/test_nn.py", "tests/benchmarks")),
    Step(
        "verify", "check", 400, (*TRIGEMM, "verify", "--device", "cuda", "--cases", "10000", "--jobs", "JOBS", "--save", "OUT"),
        "benchmarks/verification.jsonl",
    ),
    Step("memcheck", "check", 200, (*SANITIZER, "--tool", "memcheck", "--report-api-errors", "no", *_script("sanitize")),
         environment=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)),
    Step("racecheck", "check", 200, (*SANITIZER, "--tool", "racecheck", *_script("sanitize"))),
    Step("bench", "measure", 300, _script("gpu", "bench", "--out", "OUT", "--jobs", "JOBS"), "benchmarks/results/h200.jsonl"),
    Step("tiles", "measure", 150, _script("tiles", "--save", "OUT"), "benchmarks/tiles/h200.jsonl"),
    Step("attention", "measure", 200, _script("attention", "--save", "OUT"), "benchmarks/attention/h200.jsonl"),
    Step("reductions", "measure", 80, _script("tensor", "--sweep", "--seconds", "60")),
    Step(
        "training", "measure", 200, _script("tensor", "--save", "OUT", "--only", "chain", "training"),
        "benchmarks/tensor/h200.jsonl",
    ),
    Step("primitives", "measure", 200, _script("tensor", "--save", "OUT", "--seconds", "150"), "benchmarks/tensor/h200.jsonl"),
    Step("stages", "measure", 60, _script("stages", "--save", "OUT"), "benchmarks/stages/h200.jsonl"),
    Step("peers", "measure", 120, _script("peers", "--save", "OUT"), "benchmarks/peers/h200.jsonl"),
    *(
        Step(f"sweep-{kernel}", "measure", 120, _script("attention", "--sweep", kernel, "--only", case, "--jobs", "JOBS"))
        for kernel, case in (
            ("weights", "reference-weights"), ("output", "reference-output"), ("keys", "training"), ("queries", "training"),
        )
    ),
    Step(
        "ranks", "several", 450,
        (*PYTEST, "--durations", "3", "tests/distributed", "-k", "nccl"),
        environment=(("NCCL_NVLS_ENABLE", "0"),),
    ),
    Step(
        "distributed", "several", 300,
        ("torchrun", "--standalone", "--nproc-per-node", "2", "benchmarks/distributed.py", "--save", "OUT"),
        "benchmarks/distributed/h200x2.jsonl", (("NCCL_NVLS_ENABLE", "0"), ("TORCH_NCCL_HIGH_PRIORITY", "1")),
    ),
)  # fmt: skip

SCORES = "--operation causal_scores_qkvpacked"
BENCHES = (
    "",
    f"{SCORES} --kernel tiles --precision high",
    *(f"{SCORES} --kernel tiles --dtype {dtype}" for dtype in ("bfloat16", "float16")),
    *(f"{SCORES} --kernel tiles --dtype {dtype} --fill {fill}" for dtype in ("float32", "bfloat16") for fill in ("0", "-inf")),
    *(f"{SCORES} --kernel tiles --dtype {dtype} --seq 1023" for dtype in ("float32", "bfloat16")),
    f"{SCORES} --kernel tiles --dtype bfloat16 --seq 1023 --fill 0",
    *(
        f"{SCORES} --kernel tiles --dtype {dtype} --batch 1 --seq {length} --heads {heads} --head-dim 128"
        for dtype in ("float32", "bfloat16")
        for length, heads in ((1000, 96), (2048, 48), (4096, 32), (8192, 8))
    ),
    *(f"--operation gemmt --dtype bfloat16 --seq {n} --head-dim {n}" for n in (512, 1024, 2048, 4096, 8192)),
    *(f"--operation syrk --dtype bfloat16 --seq {n} --head-dim {n}" for n in (1024, 2048, 4096, 8192)),
    *(
        f"--operation trmm {form} --seq {length} --heads {heads}"
        for form in ("--dtype bfloat16", "--precision high")
        for length, heads in ((1024, 96), (4096, 32))
    ),
    *(f"--operation {operation} --dtype float64" for operation in ("gemmt", "syrk")),
    "--operation trmm --dtype float64 --heads 1 --head-dim 4096",
)
"""Arguments of `trigemm bench`: the cases of the performance goals."""


def run(step: Step, out: Path, jobs: int) -> tuple[str, float]:
    """How a step ended ("passed", "failed", "out of time", "not installed"), and its seconds."""
    names = {"OUT": str(out / f"{step.name}.jsonl"), "JOBS": str(jobs)}
    begin = time.monotonic()
    with open(out / f"{step.name}.log", "wb") as log:
        try:
            process = subprocess.Popen(
                [names.get(word, word) for word in step.command],
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | dict(step.environment), start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as missing:
            log.write(f"{missing}\n".encode())
            return "not installed", 0.0
        ended = "passed"
        for patience, stop in ((step.limit, signal.SIGINT), (GRACE, signal.SIGKILL)):
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                ended = "out of time"
                os.killpg(process.pid, stop)
        process.wait()
    if ended == "passed" and process.returncode:
        ended = f"failed ({process.returncode})"
    return ended, time.monotonic() - begin


def bench(out: Path, jobs: int) -> int:
    """Every case of BENCHES in one process, so that PyTorch starts once; the kernels are compiled in several before."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_case, BENCHES))
    codes = [run_case(case, "--save", str(out)) for case in BENCHES]
    return max(codes)


def run_case(case: str, *options: str) -> int:
    from trigemm.cli.main import app

    return app([*("bench", *options), *case.split()], standalone_mode=False) or 0


def compile_case(case: str) -> None:
    """Run a case once, for what it leaves in Triton's cache; whether it passes is seen when it is measured."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(Exception, SystemExit):
        run_case(case, "--repeats", "1")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("check", "measure", "several", "bench"), help="which steps")
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    parser.add_argument("--out", type=Path, help="where logs and records go; for `bench`, the file of the records")
    parser.add_argument("--only", nargs="+", metavar="STEP", choices=[step.name for step in STEPS], help="these steps alone")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes of a step")
    parser.add_argument("--seconds", type=float, help="begin no step whose limit ends later")
    given = parser.parse_args(arguments)
    console = terminal.console()
    if given.list:
        table = Table("step", "kind", "limit, s", "records", "command")
        for step in STEPS:
            command = " ".join(Path(word).name if word == sys.executable else word for word in step.command)
            table.add_row(step.name, step.kind, str(step.limit), step.records, command)
        console.print(table)
        return 0
    if given.kind is None:
        parser.error("say which steps: check, measure or several; or --list")
    if given.out is None:
        parser.error("say where logs and records go: --out DIR")
    if given.kind == "bench":
        return bench(given.out, given.jobs)
    given.out.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if step.kind == given.kind and (not given.only or step.name in given.only)]
    begin = time.monotonic()

    def in_time(step: Step) -> tuple[str, float]:
        if given.seconds is not None and time.monotonic() - begin + step.limit > given.seconds:
            return "not begun", 0.0
        ended = run(step, given.out, given.jobs)
        console.print(f"{step.name}: {ended[0]} after {ended[1]:.0f} s")
        return ended

    with ThreadPoolExecutor(len(steps) if given.kind == "check" else 1) as pool:
        ends = list(pool.map(in_time, steps))
    table = Table("step", "ended", "s", "log")
    for step, (ended, seconds) in zip(steps, ends, strict=True):
        table.add_row(step.name, ended, f"{seconds:.0f}", str(given.out / f"{step.name}.log"))
    console.print(table)
    return int(any(ended != "passed" for ended, _ in ends))


if __name__ == "__main__":
    sys.exit(main())
