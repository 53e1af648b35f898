"""The example that trains a GPT: the losses of the same model in PyTorch, and that it goes on where it stopped."""

import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trigemm.tensor import CpuBackend
from trigemm.tensor.cuda import CudaBackend

FOLDER = Path(__file__).parents[2] / "examples"
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


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def gpt():
    yield from example("train_gpt")


@pytest.fixture(scope="module")
def twin():
    """The same model in PyTorch."""
    yield from example("train_gpt_torch")


def assert_20_steps_agree(gpt, twin, backend, capture=False):
    config = gpt.Config(vocabulary=21, positions=33, layers=2, heads=3, width=48)
    start = gpt.initial_weights(config, seed=1)
    ours = gpt.Trainer(config, start, backend, capture=capture)
    theirs = twin.Trainer(config, start, getattr(backend, "device", "cpu"))
    data = np.arange(500) * 5 % config.vocabulary
    losses = []
    for step in range(20):
        batch = gpt.draw_batch(data, 3, config.positions, 0, step)
        losses.append((ours.train(batch).item(), theirs.train(batch).item()))
    ours, wanted = np.array(losses).T
    assert np.abs(ours / wanted - 1).max() <= 1e-4
    assert ours[-1] < ours[0] - 0.1


def test_20_steps_have_the_losses_of_pytorch(gpt, twin):
    assert_20_steps_agree(gpt, twin, CpuBackend())


@pytest.mark.gpu
@pytest.mark.parametrize("capture", [False, True])
def test_20_steps_have_the_losses_of_pytorch_on_a_gpu(gpt, twin, capture):
    assert_20_steps_agree(gpt, twin, CudaBackend(), capture)


@pytest.mark.gpu
def test_a_recorded_run_on_a_gpu_ends_like_one_that_is_not(gpt, tmp_path, capsys):
    results = []
    for name, more in (("recorded", ()), ("launched", ("--no-capture",))):
        (tmp_path / name).mkdir()
        results.append(run(gpt, tmp_path / name, 6, "--backend=cuda", *more))
    assert results[0].keys() == results[1].keys()
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0] if name != "about")


@pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning")
def test_a_step_on_the_tile_kernels_is_that_of_the_cpu(gpt, device):
    config = gpt.Config(vocabulary=11, positions=9, layers=1, heads=2, width=16)
    start = gpt.initial_weights(config, seed=1)
    batch = gpt.draw_batch(np.arange(60) % 11, 2, 9, 0, 0)
    trainers = [gpt.Trainer(config, start, CpuBackend()), gpt.Trainer(config, start, CudaBackend(device))]
    losses = [trainer.train(batch).item() for trainer in trainers]
    assert abs(losses[0] - losses[1]) <= 1e-5 * losses[0]
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


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not a checkpoint",
        lambda data: (
            data[: len(data) // 2] + bytes(byte ^ 1 for byte in data[len(data) // 2 :][:64]) + data[len(data) // 2 + 64 :]
        ),
    ],
    ids=["half", "empty", "text", "flipped"],
)
def test_a_damaged_checkpoint_is_refused_and_kept(gpt, tmp_path, damage):
    run(gpt, tmp_path, 2)
    path = tmp_path / "gpt.npz"
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(SystemExit, match=r"cannot be read.*--checkpoint"):
        run(gpt, tmp_path, 4)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:-1], r"norm\.bias is \(15,\) float32, not \(16,\) float32; delete it"),
        (lambda x: x.astype(np.float16), r"norm\.bias is \(16,\) float16"),
        (lambda x: x * np.nan, r"norm\.bias is infinite or no number in places; delete it"),
        (lambda x: x.astype(str), "cannot be read: it is damaged, or was not written by this program; delete it"),
    ],
)
def test_a_checkpoint_with_another_array_is_refused(gpt, tmp_path, change, words):
    arrays = run(gpt, tmp_path, 2)
    np.savez(tmp_path / "gpt.npz", **arrays | {"m/norm.bias": change(arrays["m/norm.bias"])})
    with pytest.raises(SystemExit, match=words):
        run(gpt, tmp_path, 4)


def test_weights_that_are_no_numbers_overwrite_nothing(gpt, tmp_path, monkeypatch):
    run(gpt, tmp_path, 2)
    good = (tmp_path / "gpt.npz").read_bytes()
    monkeypatch.setattr(gpt, "gradients", lambda loss, weights: [x * float("nan") for x in weights])
    with pytest.raises(SystemExit, match="after step 4 weights are infinite or no numbers; the last checkpoint is left"):
        run(gpt, tmp_path, 4)
    assert (tmp_path / "gpt.npz").read_bytes() == good


def test_an_interrupted_save_leaves_no_part(gpt, tmp_path, monkeypatch, capsys):
    def interrupted(file, **arrays):
        file.write(b"part")
        raise KeyboardInterrupt

    monkeypatch.setattr(gpt.np, "savez", interrupted)
    with pytest.raises(SystemExit):
        run(gpt, tmp_path, 2)
    assert "interrupted" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_checkpoint_with_more_steps_is_told_of_and_kept(gpt, tmp_path, capsys):
    run(gpt, tmp_path, 4)
    kept = (tmp_path / "gpt.npz").read_bytes()
    run(gpt, tmp_path, 3)
    assert "gpt.npz has 4 steps behind it; --steps 3 asks for no more" in capsys.readouterr().out
    assert (tmp_path / "gpt.npz").read_bytes() == kept


def test_a_checkpoint_of_another_model_is_refused(gpt, tmp_path):
    run(gpt, tmp_path, 2)
    with pytest.raises(SystemExit, match="another model"):
        run(gpt, tmp_path, 4, "--layers=1")


@pytest.mark.parametrize("text", ["gpt.npz", "gpt.npz.partial", "gpt.png", "link"])
def test_a_text_that_would_be_overwritten_is_refused(gpt, tmp_path, text, capsys):
    (tmp_path / text).write_text("the quick brown fox " * 20)
    if text == "link":
        (tmp_path / "gpt.png").symlink_to(tmp_path / text)
    with pytest.raises(SystemExit) as stopped:
        gpt.main([f"--text={tmp_path / text}", f"--checkpoint={tmp_path / 'gpt.npz'}", "--steps=1", *SMALL])
    assert stopped.value.code == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert (tmp_path / text).read_text() == "the quick brown fox " * 20


@pytest.mark.parametrize("size", ["--width=2147483646", "--batch=2147483647"])
def test_sizes_beyond_the_memory_are_one_sentence(gpt, tmp_path, size, monkeypatch):
    def full(*arguments):
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr(gpt, "draw_batch" if "batch" in size else "initial_weights", full)
    with pytest.raises(SystemExit, match=r"the memory does not suffice \(Unable to allocate 7 TiB\); smaller"):
        run(gpt, tmp_path, 1, size)


@pytest.mark.parametrize("name", ["gpt.png", "gpt.npz.partial"])
def test_a_folder_where_a_file_goes_is_refused_before_training(gpt, tmp_path, name, capsys):
    (tmp_path / name).mkdir()
    with pytest.raises(SystemExit) as stopped:
        run(gpt, tmp_path, 1)
    assert stopped.value.code == 2
    assert f"{name}, which is written too, is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["-1", "Infinity", "2.7", "true", "1e3", "[" * 100_000])
def test_a_checkpoint_of_no_step_is_refused(gpt, tmp_path, step):
    arrays = run(gpt, tmp_path, 2)
    about = str(arrays["about"]).replace('"step": 2', f'"step": {step}')
    np.savez(tmp_path / "gpt.npz", **arrays | {"about": np.array(about)})
    with pytest.raises(SystemExit, match="the checkpoint cannot be read: it is damaged"):
        run(gpt, tmp_path, 4)


def test_a_sample_that_the_output_cannot_encode_has_replacements(gpt, tmp_path, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    text = tmp_path / "text.txt"
    text.write_text("äöü€" * 50, "utf-8")
    monkeypatch.setattr(gpt, "track", lambda steps, description: steps)
    monkeypatch.setattr(sys, "stdout", output)
    gpt.main([f"--text={text}", f"--checkpoint={tmp_path / 'gpt.npz'}", "--steps=1", *SMALL])
    output.flush()
    assert output.buffer.getvalue().endswith(b"?" * 21 + b"\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--width=10", "--heads=4"], "multiple of --heads"),
        (["--steps=0"], "at least 1"),
        ([f"--steps={10**30}"], "below 2^31"),
        (["--text=absent.txt"], "--text: "),
        (["--lr=nan"], "--lr must be a finite number above 0"),
        (["--lr=-1"], "--lr must be"),
        (["--seed=-1"], "--seed and --sample at least 0"),
        (["--checkpoint=model.png"], "model.png is where the loss curve goes"),
        (["--checkpoint=absent/gpt.npz"], "gpt.npz cannot be written; name a file in a folder that is there"),
        (["--checkpoint=."], "cannot be written"),
    ],
)
def test_bad_arguments(gpt, arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        gpt.main(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_one_sentence(gpt, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        run(gpt, tmp_path, 1, "--backend=cuda")
    assert stopped.value.code == 2
    assert "--backend cuda: CudaBackend: PyTorch finds no CUDA device" in capsys.readouterr().err
