"""The examples of attention weights, run small: what they print is right, and models from a folder work."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ("attention_maps", "cache_eviction", "recall")
pytestmark = pytest.mark.xdist_group("attention_examples")  # one training serves them all


@pytest.fixture(scope="module")
def examples():
    sys.path.insert(0, str(FOLDER))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.remove(str(FOLDER))
    for name in NAMES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def trained(examples):
    """The small model, trained once."""
    with torch.random.fork_rng():
        return examples["recall"].train(110, seed=0, device="cpu", length=48)


@pytest.fixture
def small(examples, trained, monkeypatch):
    monkeypatch.setattr(examples["recall"], "train", lambda *_: trained)
    trained.set_attn_implementation("sdpa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder with random weights, with no tokenizer."""
    from transformers import GPT2Config

    path = tmp_path_factory.mktemp("model")
    GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0).save_pretrained(
        path
    )
    return path


def test_the_task_has_an_answer_to_each_question(examples):
    recall = examples["recall"]
    data = recall.draw(20, 48, torch.Generator().manual_seed(1))
    assert data.is_question.sum() > 20
    for row, place in data.is_question.nonzero().tolist():
        key, value = data.tokens[row, place] - recall.FIRST_KEY, data.tokens[row, place + 1] - recall.FIRST_VALUE
        fact = recall.FIRST_FACT + recall.VALUES * key + value
        assert (data.tokens[row, :16] == fact).sum() == 1
    wrong = (data.tokens >= recall.FIRST_KEY) & (data.tokens < recall.FIRST_VALUE) & ~data.is_question
    assert not wrong.any()


def test_attention_finds_the_facts(examples, trained):
    """At a question some head looks at the fact that answers it, and at little else."""
    recall = examples["recall"]
    data = recall.draw(8, 48, torch.Generator().manual_seed(2))
    maps = torch.stack(list(examples["attention_maps"].collect(trained, data.tokens, None, None).values()))
    found = []
    for row, place in data.is_question.nonzero().tolist():
        key, value = data.tokens[row, place] - recall.FIRST_KEY, data.tokens[row, place + 1] - recall.FIRST_VALUE
        fact = (data.tokens[row, :16] == recall.FIRST_FACT + recall.VALUES * key + value).nonzero().item()
        found.append(maps[:, row, :, place, fact].max().item())
    assert sum(found) / len(found) > 0.5


def test_attention_maps(examples, small, tmp_path, capsys):
    picture = tmp_path / "maps.png"
    arguments = ["--length=40", "--repeats=1", f"--output={picture}", "--layers", "1", "0", "--heads", "2", "1", "--json"]
    examples["attention_maps"].main(arguments)
    printed = json.loads(capsys.readouterr().out)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert printed["difference"] < 1e-5
    for name in ("no maps", "trigemm", "eager"):
        assert printed[name]["ms"] > 0
        assert printed[name]["mb"] > 0


def test_the_heaviest_keys_answer_better_than_the_most_recent(examples, small, capsys):
    examples["cache_eviction"].main(["--prompt=48", "--budgets", "12", "24", "--sequences=16", "--json"])
    rows = {(row["rule"], row["keys"]): row for row in json.loads(capsys.readouterr().out)}
    assert rows["all", 48]["right"] > 0.9
    for budget in (12, 24):
        heaviest, recent = rows["heaviest", budget], rows["most recent", budget]
        assert heaviest["error"] < recent["error"]
        assert heaviest["divergence"] < recent["divergence"]
        assert heaviest["right"] > recent["right"] + 0.3


def test_all_keys_kept_change_nothing(examples, trained):
    eviction = examples["cache_eviction"]
    data = examples["recall"].draw(2, 48, torch.Generator().manual_seed(3))
    rows = eviction.compare(trained, data.tokens, data.questions(), [48], None)
    assert [row["error"] < 1e-5 for row in rows] == [True] * 3


def test_a_model_from_a_folder(examples, folder, tmp_path, capsys):
    output = f"--output={tmp_path / 'maps.png'}"
    examples["attention_maps"].main([f"--model={folder}", "--tokens=24", "--length=30", "--repeats=1", output])
    assert "2 layers; largest difference from eager attention" in capsys.readouterr().out
    examples["cache_eviction"].main([f"--model={folder}", "--prompt=24", "--further=8", "--budgets", "12"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["24", "12", "12"]


@pytest.mark.parametrize(
    ("example", "arguments", "words"),
    [
        ("attention_maps", ["--tokens=4"], "--tokens at least 24"),
        ("cache_eviction", ["--budgets", "0"], "at least 1"),
        ("cache_eviction", ["--prompt=30", "--budgets", "31"], "no more keys can be kept"),
    ],
)
def test_bad_arguments(examples, example, arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        examples[example].main(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_what_cannot_serve_is_said(examples, small, folder, tmp_path, capsys):
    broken, weightless = tmp_path / "broken", tmp_path / "weightless"
    for path in (broken, weightless):
        path.mkdir()
    (broken / "config.json").write_text("{")
    (weightless / "config.json").write_bytes((folder / "config.json").read_bytes())
    (weightless / "model.safetensors").write_bytes(b"no weights")
    short, picture = tmp_path / "short.txt", f"--output={tmp_path / 'maps.png'}"
    short.write_bytes(b"\xff")
    sizes = {"attention_maps": ["--tokens=24", "--length=30", picture], "cache_eviction": ["--prompt=24", "--budgets=8"]}
    both = [
        ([f"--model={tmp_path / 'nowhere'}"], "nowhere holds no config.json"),
        ([f"--model={broken}"], "cannot be loaded (It looks like the config file"),
        ([f"--model={weightless}"], "cannot be loaded (Error while deserializing header"),
        ([f"--model={folder}", f"--text={tmp_path / 'absent.txt'}"], "absent.txt cannot be read ([Errno 2]"),
        ([f"--model={folder}", f"--text={short}"], "cannot be read ('utf-8' codec"),
        ([f"--text={short}"], "--text needs --model"),
        (["--device=abacus"], "torch cannot use a device 'abacus' here"),
    ]
    wrong = [(name, arguments, words) for name in sizes for arguments, words in both]
    wrong += [
        ("attention_maps", ["--layers", "7"], "no attention layer 7; its layers are 0 to 1"),
        ("attention_maps", ["--heads", "9"], "has heads 0 to 3"),
        ("attention_maps", [f"--model={folder}", "--length=99"], "has 64 positions, and 99 tokens are asked for"),
        ("attention_maps", [f"--output={tmp_path / 'nowhere' / 'maps.png'}"], "give a file in an existing folder"),
        ("attention_maps", [f"--output={tmp_path / 'maps.abc'}"], "its name must end in one of"),
        ("cache_eviction", [f"--model={folder}", "--further=41"], "has 64 positions, and 65 tokens are asked for"),
    ]
    for name, arguments, words in wrong:
        with pytest.raises(SystemExit) as stopped:
            examples[name].main([*sizes[name], *arguments])
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err
