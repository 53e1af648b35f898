"""The example that trains a GPT: the losses of the same model in PyTorch, and that it goes on where it stopped."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trigemm.tensor import CpuBackend
from trigemm.tensor.cuda import CudaBackend

SOURCE = Path(__file__).parents[2] / "examples/train_gpt.py"
SMALL = [
    "--batch=2",
    "--positions=16",
    "--layers=2",
    "--heads=2",
    "--width=16",
    "--report-every=2",
    "--save-every=5",
    "--sample=20",
]


@pytest.fixture(scope="module")
def gpt():
    spec = importlib.util.spec_from_file_location("train_gpt", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_gpt"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_gpt"]


def torch_loss(weights, config, batch):
    """The same model on torch tensors."""
    tokens, targets = batch[:, :-1], batch[:, 1:]
    size, length = tokens.shape

    def linear(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["token"][tokens] + weights["position"][:length]
    for i in range(config.layers):
        qkv = linear(norm(x, f"{i}.norm1"), f"{i}.qkv").view(size, length, 3, config.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(attended.transpose(1, 2).reshape(size, length, -1), f"{i}.out")
        x = x + linear(F.gelu(linear(norm(x, f"{i}.norm2"), f"{i}.up"), approximate="tanh"), f"{i}.down")
    scores = norm(x, "norm") @ weights["token"].T
    return F.cross_entropy(scores.reshape(-1, config.vocabulary), targets.reshape(-1))


def assert_20_steps_agree(gpt, backend, config):
    start = gpt.initial_weights(config, seed=1)
    theirs = {name: torch.tensor(x, device=getattr(backend, "device", "cpu"), requires_grad=True) for name, x in start.items()}
    optimizer = torch.optim.AdamW(theirs.values(), lr=1e-3, betas=(0.9, 0.95))
    trainer = gpt.Trainer(config, start, backend)
    data = np.arange(500) * 5 % config.vocabulary
    losses = []
    for step in range(20):
        batch = gpt.draw_batch(data, 3, config.positions, 0, step)
        loss = torch_loss(theirs, config, torch.tensor(batch, device=theirs["token"].device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((trainer.train(batch).item(), loss.item()))
    ours, wanted = np.array(losses).T
    assert np.abs(ours / wanted - 1).max() <= 1e-4
    assert ours[-1] < ours[0] - 0.1


def test_20_steps_have_the_losses_of_pytorch(gpt):
    assert_20_steps_agree(gpt, CpuBackend(), gpt.Config(vocabulary=21, positions=33, layers=2, heads=3, width=48))


@pytest.mark.gpu
def test_20_steps_have_the_losses_of_pytorch_on_a_gpu(gpt):
    assert_20_steps_agree(gpt, CudaBackend(), gpt.Config(vocabulary=21, positions=33, layers=2, heads=3, width=48))


@pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")
def test_a_step_on_the_tile_kernels_is_that_of_the_cpu(gpt, device):
    config = gpt.Config(vocabulary=11, positions=9, layers=1, heads=2, width=16)
    start = gpt.initial_weights(config, seed=1)
    batch = gpt.draw_batch(np.arange(60) % 11, 2, 9, 0, 0)
    trainers = [gpt.Trainer(config, start, backend) for backend in (CpuBackend(), CudaBackend(device))]
    first = [trainer.train(batch).item() for trainer in trainers]
    assert abs(first[0] - first[1]) <= 1e-5 * first[0]
    steps = [trainer.weights["0.up.weight"].numpy() - start["0.up.weight"] for trainer in trainers]
    assert np.abs(steps[0]).max() > 1e-4
    assert np.abs(steps[0] - steps[1]).max() <= 1e-5


def run(gpt, folder, steps, *more):
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 20)
    gpt.main([f"--text={text}", f"--checkpoint={folder / 'gpt.npz'}", f"--steps={steps}", *SMALL, *more])
    with np.load(folder / "gpt.npz") as file:
        return dict(file)


def test_an_interrupted_run_ends_like_one_that_was_not(gpt, tmp_path, capsys, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    expected = run(gpt, whole, 12)
    assert "loss " in capsys.readouterr().out

    train = gpt.Trainer.train

    def interrupted(self, batch):
        if self.step == 8:
            raise KeyboardInterrupt
        return train(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(gpt.Trainer, "train", interrupted)
        with pytest.raises(SystemExit):
            run(gpt, parts, 12)
    assert "interrupted" in capsys.readouterr().out
    result = run(gpt, parts, 12)
    assert "from step 5" in capsys.readouterr().out
    assert result.keys() == expected.keys()
    assert all(np.array_equal(result[name], expected[name]) for name in expected)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"not a checkpoint"])
def test_a_damaged_checkpoint_is_refused_and_kept(gpt, tmp_path, damage):
    run(gpt, tmp_path, 2)
    path = tmp_path / "gpt.npz"
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(SystemExit, match=r"cannot be read.*--checkpoint"):
        run(gpt, tmp_path, 4)
    assert path.read_bytes() == damaged


def test_a_checkpoint_of_another_model_is_refused(gpt, tmp_path):
    run(gpt, tmp_path, 2)
    with pytest.raises(SystemExit, match="another model"):
        run(gpt, tmp_path, 4, "--layers=1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--width=10", "--heads=4"], "multiple of --heads"),
        (["--steps=0"], "at least 1"),
        (["--text=absent.txt"], "--text: "),
    ],
)
def test_bad_arguments(gpt, arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        gpt.main(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
