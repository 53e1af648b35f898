"""The model and the tokens of the other examples: a small model that learns to recall facts in seconds, or any from a path.

A sequence of the task holds facts, among noise, and then questions: a fact is one token that names a key and a value, a question
is a key, and its answer is the value. To answer, attention must find the fact that has the key.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FACTS, KEYS, VALUES, NOISE = 6, 8, 8, 16
START, FIRST_KEY, FIRST_VALUE = 0, 1, 1 + KEYS
FIRST_FACT = FIRST_VALUE + VALUES
FIRST_NOISE = FIRST_FACT + KEYS * VALUES
VOCABULARY = FIRST_NOISE + NOISE


@dataclass(frozen=True)
class Sequences:
    """Sequences of the task: tokens (B,T), is_question (B,T), and the facts' keys and values (B,FACTS)."""

    tokens: Tensor
    is_question: Tensor
    keys: Tensor
    values: Tensor

    def questions(self) -> Tensor:
        """Every fact's key and its value, as further tokens: (B, 2 FACTS)."""
        return torch.stack([FIRST_KEY + self.keys, FIRST_VALUE + self.values], 2).flatten(1)


def draw(batch: int, length: int, generator: torch.Generator) -> Sequences:
    """Facts lie in the first third of a sequence; half of the places behind it are questions and their answers."""

    def random(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    def some_of(count: int, total: int) -> Tensor:
        return torch.rand(batch, total, generator=generator).argsort(1)[:, :count]

    facts_end = length // 3
    places = torch.arange(facts_end, length - 1, 2).expand(batch, -1)
    keys, values = some_of(FACTS, KEYS), random(VALUES, batch, FACTS)
    tokens = FIRST_NOISE + random(NOISE, batch, length)
    tokens[:, 0] = START
    tokens.scatter_(1, 1 + some_of(FACTS, facts_end - 1), FIRST_FACT + VALUES * keys + values)
    asked, is_asked = random(FACTS, *places.shape), random(2, *places.shape).bool()
    for first, which, place in ((FIRST_KEY, keys, places), (FIRST_VALUE, values, places + 1)):
        tokens.scatter_(1, place, torch.where(is_asked, first + which.gather(1, asked), tokens.gather(1, place)))
    return Sequences(tokens, torch.zeros_like(tokens, dtype=torch.bool).scatter_(1, places, is_asked), keys, values)


def train(steps: int, seed: int, device: str, length: int = 64) -> Any:
    """A Llama of two layers, grouped heads and 100,000 parameters, trained on the answers."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.06,
        bos_token_id=START,
        eos_token_id=START,
    )
    model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps + 1, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small are multiplied fastest by one
    for _ in track(range(steps), description="training", transient=True):
        data = draw(32, length, generator)
        tokens, answers = data.tokens.to(device), data.is_question[:, :-1].to(device)
        logits = model.lm_head(model.model(tokens).last_hidden_state[:, :-1][answers])
        loss = F.cross_entropy(logits, tokens[:, 1:][answers])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    return model.eval()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that the examples share."""
    parser.add_argument("--model", type=Path, help="folder of a decoder of transformers; by default a small one is trained")
    parser.add_argument("--text", type=Path, help="text file in UTF-8 for --model; by default its tokens are random")
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=150, help="training steps of the small model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def device(name: str) -> str:
    """The name of a device that torch can use here, for argparse."""
    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError):
        raise argparse.ArgumentTypeError(f"torch cannot use a device {name!r} here; cpu would work") from None
    return name


def load(path: Path, device: str, length: int) -> Any:
    """A decoder from a folder that takes so many tokens; one that holds a config alone gets random weights.

    Raises:
        ValueError: there is none, it cannot be loaded, or it has fewer positions.
    """
    if not (path / "config.json").is_file():
        raise ValueError(f"--model: {path} holds no config.json")
    weights = [*path.glob("*.safetensors"), *path.glob("*.bin")]
    try:
        if weights:
            model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path, local_files_only=True))
    except Exception as error:  # what a broken file makes transformers raise may be of any kind
        raise ValueError(f"--model: {path} cannot be loaded ({error})") from None
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", length)
    if positions < length:
        raise ValueError(f"--model: {path} has {positions} positions, and {length} tokens are asked for")
    return model.to(device).eval()


def read_tokens(model: Any, path: Path, text: Path | None, length: int, seed: int) -> Tensor:
    """(1,length) tokens of a text, by the tokenizer in the model's folder; or random ones. ValueError for too short a text."""
    if text is None:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(model.config.get_text_config().vocab_size, (1, length), generator=generator)
    try:
        content = text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--text: {text} cannot be read ({error})") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # as above
        raise ValueError(f"--text: {path} has no tokenizer that can be loaded ({error})") from None
    tokens = tokenizer(content, return_tensors="pt").input_ids[:, :length]
    if tokens.shape[1] < length:
        raise ValueError(f"--text: {text} has {tokens.shape[1]} tokens, {length} are needed")
    return tokens
