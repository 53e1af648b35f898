"""Train a small GPT on the characters of a text file, with trigemm.tensor alone.

    python examples/train_gpt.py                          # on the text of Python's own manual, on the CPU
    python examples/train_gpt.py --text FILE --backend cuda    # each step a replay of a CUDA graph

The model is a pre-norm Transformer (Radford et al. 2019) whose attention computes only the triangle. It goes on from its
checkpoint after an interruption. At the end it draws the loss curve (where matplotlib is installed) and prints a sample.
"""

import argparse
import json
import os
import pydoc_data.topics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

try:
    import numpy as np
    from rich.progress import track

    from trigemm.tensor import (
        Backend,
        CpuBackend,
        Tensor,
        adamw,
        causal_attention,
        cross_entropy,
        gather,
        gradients,
        layer_norm,
        matmul,
    )
except KeyboardInterrupt:  # importing takes seconds
    raise SystemExit(130) from None

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Config:
    """Sizes of the model: V characters, T positions, layers, NH heads, C = NH * HS."""

    vocabulary: int
    positions: int = 128
    layers: int = 5
    heads: int = 4
    width: int = 128


def initial_weights(config: Config, seed: int) -> Arrays:
    """Normal with deviation 0.02, the projections back into the stream smaller by √(2 layers); norms at 1, biases at 0."""
    random = np.random.default_rng(seed)
    c = config.width

    def normal(*shape: int, scale: float = 0.02) -> np.ndarray:
        return random.normal(0.0, scale, shape).astype(np.float32)

    zeros, ones = (lambda n: np.zeros(n, np.float32)), (lambda n: np.ones(n, np.float32))
    back = 0.02 / (2 * config.layers) ** 0.5
    weights = {"token": normal(config.vocabulary, c), "position": normal(config.positions, c)}
    for i in range(config.layers):
        weights |= {
            f"{i}.norm1.weight": ones(c), f"{i}.norm1.bias": zeros(c),
            f"{i}.qkv.weight": normal(c, 3 * c), f"{i}.qkv.bias": zeros(3 * c),
            f"{i}.out.weight": normal(c, c, scale=back), f"{i}.out.bias": zeros(c),
            f"{i}.norm2.weight": ones(c), f"{i}.norm2.bias": zeros(c),
            f"{i}.up.weight": normal(c, 4 * c), f"{i}.up.bias": zeros(4 * c),
            f"{i}.down.weight": normal(4 * c, c, scale=back), f"{i}.down.bias": zeros(c),
        }  # fmt: skip
    return weights | {"norm.weight": ones(c), "norm.bias": zeros(c)}


def logits(weights: dict[str, Tensor], config: Config, tokens: Tensor) -> Tensor:
    """Scores of the next character at every position: (B,T) -> (B,T,V)."""
    batch, length = tokens.shape
    heads = config.heads

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = gather(weights["token"], tokens) + weights["position"][:length]
    for i in range(config.layers):
        qkv = linear(norm(x, f"{i}.norm1"), f"{i}.qkv").reshape(batch, length, 3 * heads, -1).permute(2, 0, 1, 3)
        attended = causal_attention(qkv[:heads], qkv[heads : 2 * heads], qkv[2 * heads :])  # (NH,B,T,HS)
        x = x + linear(attended.permute(1, 2, 0, 3).reshape(batch, length, -1), f"{i}.out")
        x = x + linear(linear(norm(x, f"{i}.norm2"), f"{i}.up").gelu(), f"{i}.down")
    return matmul(norm(x, "norm"), weights["token"], transpose_b=True)


class Trainer:
    """Weights, AdamW's moments, and the number of steps done.

    With `capture`, which needs a CudaBackend, the first step is recorded as a CUDA graph and the others replay it.
    """

    def __init__(self, config: Config, weights: Arrays, backend: Backend, lr: float = 1e-3, *, capture: bool = False):
        self.config, self.backend, self.lr, self.step = config, backend, lr, 0
        self.weights = {name: Tensor(x, backend, requires_grad=True) for name, x in weights.items()}
        self.m = {name: Tensor(np.zeros_like(x), backend) for name, x in weights.items()}
        self.v = dict(self.m)
        self.capture, self.recorded = capture, None

    def update(self, tokens: Tensor, targets: Tensor, step: Tensor, *state: Tensor) -> list[Tensor]:
        """The loss, and new weights and moments, one after the other as in `state`."""
        names, count = list(self.weights), len(self.weights)
        weights, m, v = (state[i : i + count] for i in (0, count, 2 * count))
        scores = logits(dict(zip(names, weights, strict=True)), self.config, tokens)
        loss = cross_entropy(scores.reshape(-1, self.config.vocabulary), targets)
        steps = [
            adamw(*old, step=step, lr=self.lr, betas=(0.9, 0.95))
            for old in zip(weights, gradients(loss, weights), m, v, strict=True)
        ]
        return [loss.detach(), *(x for group in zip(*steps, strict=True) for x in group)]

    def train(self, batch: np.ndarray) -> Tensor:
        """One step on (B,T+1) characters. Returns the loss before it, which nothing has read back yet."""
        self.step += 1
        inputs = [Tensor(x, self.backend) for x in (batch[:, :-1], batch[:, 1:].reshape(-1), self.step)]
        inputs += [x for group in (self.weights, self.m, self.v) for x in group.values()]
        if self.capture and self.recorded is None:
            self.recorded = self.backend.capture(self.update, *inputs)
        loss, *state = (self.recorded or self.update)(*inputs)
        count = len(self.weights)
        self.weights, self.m, self.v = (dict(zip(self.weights, state[i : i + count], strict=True)) for i in (0, count, 2 * count))
        return loss

    def save(self, path: Path, characters: str, losses: list[tuple[int, float]]) -> None:
        """Write a checkpoint; an interruption leaves the old one whole. FloatingPointError where a weight is not finite."""
        about = {"step": self.step, "config": asdict(self.config), "characters": characters, "losses": losses}
        groups = {"weights": self.weights, "m": self.m, "v": self.v}
        arrays = {f"{group}/{name}": x.numpy() for group, tensors in groups.items() for name, x in tensors.items()}
        if not all(np.isfinite(x).all() for x in arrays.values()):
            raise FloatingPointError(f"after step {self.step} weights are infinite or no numbers")
        partial, _ = beside(path)
        try:
            with partial.open("wb") as file:
                np.savez(file, about=np.array(json.dumps(about)), **arrays)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self, path: Path, characters: str) -> list[tuple[int, float]]:
        """Go on from a checkpoint. Returns the losses until then; SystemExit where it is damaged or of another model."""
        remedy = "delete it, or name another with --checkpoint"
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                arrays = dict(file)
            about = json.loads(str(arrays.pop("about")))
            same = about["config"] == asdict(self.config) and about["characters"] == characters
            step, losses = about["step"], [(int(number), float(loss)) for number, loss in about["losses"]]
            if type(step) is not int or step < 0:
                raise ValueError(step)
            read = {
                group: {
                    name: Tensor(arrays[f"{group}/{name}"], self.backend, requires_grad=group == "weights") for name in self.m
                }
                for group in ("weights", "m", "v")
                if same
            }
        except (
            BadZipFile, EOFError, KeyError, MemoryError, NotImplementedError, OSError, OverflowError, RecursionError, TypeError,
            ValueError,
        ) as error:  # fmt: skip
            reason = getattr(error, "strerror", None) or "it is damaged, or was not written by this program"
            raise SystemExit(f"{path}: the checkpoint cannot be read: {reason}; {remedy}") from None
        if not same:
            raise SystemExit(f"{path}: the checkpoint is of another model or text; {remedy}")
        for tensors in read.values():
            for name, x in tensors.items():
                if x.shape != self.m[name].shape or x.dtype != "float32":
                    wanted = f"{self.m[name].shape} float32"
                    raise SystemExit(f"{path}: in the checkpoint {name} is {x.shape} {x.dtype}, not {wanted}; {remedy}")
                if not np.isfinite(x.numpy()).all():
                    raise SystemExit(f"{path}: in the checkpoint {name} is infinite or no number in places; {remedy}")
        self.weights, self.m, self.v, self.step = read["weights"], read["m"], read["v"], step
        return losses

    def sample(self, start: list[int], count: int, seed: int) -> list[int]:
        """Characters drawn one by one, each from the softmax of its scores."""
        random, tokens = np.random.default_rng(seed), list(start)
        weights = {name: x.detach() for name, x in self.weights.items()}
        for _ in range(count):
            window = tokens[-self.config.positions :]
            chances = logits(weights, self.config, Tensor([window], self.backend))[0, -1].softmax().numpy().astype(np.float64)
            tokens.append(int(random.choice(len(chances), p=chances / chances.sum())))
        return tokens


def beside(checkpoint: Path) -> tuple[Path, Path]:
    """What else is written: the unfinished checkpoint and the loss curve."""
    return checkpoint.with_name(checkpoint.name + ".partial"), checkpoint.with_suffix(".png")


def draw_batch(data: np.ndarray, batch: int, positions: int, seed: int, step: int) -> np.ndarray:
    """(B,T+1) characters from random places; the same for the same seed and step, so that a run can go on."""
    places = np.random.default_rng((seed, step)).integers(0, len(data) - positions, batch)
    return data[places[:, None] + np.arange(positions + 1)]


def plot(losses: list[tuple[int, float]], path: Path) -> None:
    """The loss curve as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss, nats a character")
    axes.plot(*zip(*losses, strict=True))
    figure.savefig(path)
    print(f"loss curve: {path}")


def beyond_memory(error: Exception) -> BaseException:
    """How a run ends whose sizes are beyond the memory; PyTorch's errors about something else stay what they are."""
    reason = str(error).partition("\n")[0]
    if isinstance(error, RuntimeError) and "memory" not in reason:
        return error
    return SystemExit(f"the memory does not suffice ({reason}); smaller --width, --layers, --positions or --batch may help")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path(pydoc_data.topics.__file__), help="text file in UTF-8")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-capture", action="store_true", help="on cuda, launch each operation, in place of recorded steps")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of --heads")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--report-every", type=int, default=10, help="steps between readings of the loss")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("gpt.npz"))
    parser.add_argument("--sample", type=int, default=200, help="characters to print at the end")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    counts = ("steps", "batch", "positions", "layers", "heads", "width", "report_every", "save_every")
    if any(not 1 <= getattr(options, name) < 2**31 for name in counts) or options.width % options.heads:
        parser.error("counts must be at least 1 and below 2^31, and --width a multiple of --heads")
    if not 0 < options.lr < float("inf") or options.seed < 0 or options.sample < 0:
        parser.error("--lr must be a finite number above 0, and --seed and --sample at least 0")
    if options.checkpoint.suffix == ".png":
        parser.error(f"--checkpoint: {options.checkpoint} is where the loss curve goes; name a file that does not end in .png")
    if options.checkpoint.is_dir() or not os.access(options.checkpoint.parent, os.W_OK):
        parser.error(f"--checkpoint: {options.checkpoint} cannot be written; name a file in a folder that is there")
    for path in beside(options.checkpoint):
        if path.is_dir():
            parser.error(f"--checkpoint: {path}, which is written too, is a folder; name another checkpoint")
    for path in (options.checkpoint, *beside(options.checkpoint)):
        if path.exists() and options.text.exists() and path.samefile(options.text):
            parser.error(f"--text: {options.text} would be overwritten, as {path} is written; name another --checkpoint")
    try:
        text = options.text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--text: {error}")
    if len(text) <= options.positions:
        parser.error(f"--text: {len(text)} characters are too few for --positions {options.positions}")

    characters = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(characters)}
    data = np.array([number[character] for character in text])
    config = Config(len(characters), options.positions, options.layers, options.heads, options.width)
    if options.backend == "cuda":
        try:
            from trigemm.tensor.cuda import CudaBackend

            backend: Backend = CudaBackend()
        except (ImportError, ValueError) as error:
            parser.error(f"--backend cuda: {error}")
    else:
        backend = CpuBackend()
    capture = options.backend == "cuda" and not options.no_capture
    try:
        trainer = Trainer(config, initial_weights(config, options.seed), backend, options.lr, capture=capture)
    except (MemoryError, RuntimeError, ValueError) as error:  # the last of an array beyond what NumPy numbers
        raise beyond_memory(error) from None
    losses = trainer.load(options.checkpoint, characters) if options.checkpoint.exists() else []
    print(f"{sum(x.size for x in trainer.weights.values()):,} parameters, {len(data):,} characters, from step {trainer.step}")

    if trainer.step >= options.steps:
        print(f"{options.checkpoint} has {trainer.step} steps behind it; --steps {options.steps} asks for no more")
    try:
        for step in track(range(trainer.step, options.steps), description="training"):
            loss = trainer.train(draw_batch(data, options.batch, options.positions, options.seed, step))
            if step % options.report_every == 0 or step == options.steps - 1:
                losses.append((step, loss.item()))
            if trainer.step % options.save_every == 0 or trainer.step == options.steps:
                trainer.save(options.checkpoint, characters, losses)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from the last checkpoint, {options.checkpoint}")
        raise SystemExit(130) from None
    except (MemoryError, RuntimeError) as error:
        raise beyond_memory(error) from None
    except FloatingPointError as error:
        raise SystemExit(f"{error}; the last checkpoint is left as it was; a smaller --lr may help") from None
    except OSError as error:
        raise SystemExit(
            f"{options.checkpoint}: the checkpoint cannot be written ({error.strerror}); an older one stays"
        ) from None
    if losses:
        print(f"loss {losses[0][1]:.4f} at step {losses[0][0]}, {losses[-1][1]:.4f} at step {losses[-1][0]}")
        plot(losses, beside(options.checkpoint)[1])
    sample = "".join(characters[i] for i in trainer.sample([int(data[0])], options.sample, options.seed))
    encoding = sys.stdout.encoding or "utf-8"
    print(sample.encode(encoding, "replace").decode(encoding))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
