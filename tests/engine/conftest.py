"""Prompts of many kinds, tiny models with random weights, and greedy answers by Hugging Face."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.scale import FULL, SCALE, sized
from utils.engine import LLM

SENTENCES = """\
The capital of France is
Once upon a time, in a small village by the sea,
Water boils at
To be, or not to be,
The three primary colors are
In 1969, the first man
Roses are red,
List five animals:
The opposite of hot is
My favourite recipe for pancakes starts with
Dear Sir or Madam,
The quick brown fox
Q: What is 2 + 2?
A:
The sum of 17 and 25 is
Translate to French: Good morning, how are you?
The mitochondria is the
According to the theory of relativity,
Breaking news: scientists discover
Once you have installed the package,
The meeting is scheduled for Monday at 9:30
If it rains tomorrow, we will
She opened the door and saw""".splitlines()
CODE = [
    "def fibonacci(n: int) -> int:\n",
    "import numpy as np\n\nx = np.arange(10)\nprint(",
    "for (int i = 0; i < n; i++) {\n    ",
    "SELECT name, age FROM users WHERE",
    "class Stack:\n    def __init__(self):\n",
    "<html>\n<head>\n<title>",
    "# Bubble sort in Python\ndef bubble_sort(items):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "fn main() {\n    let x = 5;\n",
    "$ git commit -m",
    "\\begin{equation}\nE = ",
    "\tif x == 0:\n\t\treturn",
]
JSON = [
    '{"name": "Alice", "age": 31, "city": "',
    "[1, 1, 2, 3, 5, 8,",
    '{"items": [{"id": 1, "price": 9.99}, {"id": 2,',
    'Write the invoice as JSON.\n\n{"invoice": {"number": "A-17", "total":',
    "name: build\non:\n  push:\n    branches:",
    "id,name,score\n1,Ann,0.93\n2,Bob,0.87\n3,",
]
UNICODE = [
    "Übermäßig große Straßenfüße sind",
    "今日は天気が",
    "Привет, как",
    "مرحبا بالعالم",
    "Ελληνικά: η Αθήνα είναι",
    "naïve café résumé",
    "नमस्ते दुनिया",
    "한국어 문장은",
    "x² + y² = z², therefore √",
    "“Curly quotes” — and dashes…",
]
EMOJI = ["I love 🍕 and 🍦 because", "🎉🎉🎉", "👩‍👩‍👧‍👦 is a family. 🇫🇷 is", "Weather: ☀️ 🌧️ ⛈️"]
SINGLE = ["The", "a", "\n", "!", "1", "def", "é"]
LONG = [
    " ".join(f"Item {i} costs {i * 7 % 100} coins." for i in range(102)) + " Item 5 costs",
    "\n".join(f"{i}: {'abcdefghij'[i % 10] * (i % 7 + 1)}" for i in range(155)) + "\n155:",
]  # both longer than 1,000 tokens


@pytest.fixture(scope="session")
def prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """At least 64 prompts as token ids, from a single token to over 1,000.

    At the small size every second one of them.
    """
    texts = SENTENCES + CODE + JSON + UNICODE + EMOJI + SINGLE + LONG[:1]
    ids = [tokenizer(text).input_ids for text in texts]
    chats = ["Hello!", "Name a prime number.", "What is the largest planet?", "Write a haiku."]
    for text in chats:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        ids.append(tokenizer(rendered, add_special_tokens=False).input_ids)
    ids += [tokenizer(text).input_ids for text in LONG[1 : sized(1, 2)]]
    assert len(ids) >= 64
    if SCALE != FULL:
        ids = ids[::2]
    assert min(map(len, ids)) == 1
    assert sum(len(prompt) > 1000 for prompt in ids) == sized(1, 2)
    return ids


def alike_in_length(prompts: list[list[int]]) -> list[list[int]]:
    """Places of the prompts in groups of up to 16, none much longer than another: padding costs."""
    groups: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        shortest = len(prompts[groups[-1][0]]) if groups else 0
        if not groups or len(groups[-1]) == 16 or len(prompts[i]) > 2 * shortest + 16:
            groups.append([])
        groups[-1].append(i)
    return groups


EOS = 2


def generate_greedily(
    hf_model: PreTrainedModel, prompts: list[list[int]], max_tokens: int
) -> list[list[int]]:
    """Greedy answers by Hugging Face `generate`, end-of-sequence token included.

    Prompts of similar length go together, padded on the left.
    """
    answers: dict[int, list[int]] = {}
    for group in alike_in_length(prompts):
        longest = max(len(prompts[i]) for i in group)
        pad = [longest - len(prompts[i]) for i in group]
        ids = torch.tensor([[EOS] * p + prompts[i] for i, p in zip(group, pad, strict=True)])
        mask = torch.tensor([[0] * p + [1] * (longest - p) for p in pad])
        with torch.inference_mode():
            out = hf_model.generate(
                ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False
            )
        for i, row in zip(group, out[:, longest:].tolist(), strict=True):
            answers[i] = row[: row.index(EOS) + 1] if EOS in row else row
    return [answers[i] for i in range(len(prompts))]


class SharedAnswers:
    """Greedy answers that are computed once in a run of pytest, for all its worker processes.

    Args:
        file: where the answers are kept. Whoever reads or writes it holds a lock, so a worker that
            asks for what another one computes waits for it.
        generate: computes what is not there yet: `generate(prompts, max_tokens)`.
    """

    def __init__(
        self, file: Path, generate: Callable[[list[list[int]], int], list[list[int]]]
    ) -> None:
        self.file, self.generate = file, generate

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """The answers' first `max_tokens` tokens: a shorter greedy answer begins a longer one."""
        names = [",".join(map(str, prompt)) for prompt in prompts]
        with FileLock(f"{self.file}.lock"):
            known = json.loads(self.file.read_text()) if self.file.exists() else {}
            missing = {
                name: prompt
                for name, prompt in zip(names, prompts, strict=True)
                if len(answer := known.get(name, [])) < max_tokens and EOS not in answer
            }
            if missing:
                answers = self.generate([*missing.values()], max_tokens)
                known |= zip(missing, answers, strict=True)
                whole = self.file.with_suffix(".new")
                whole.write_text(json.dumps(known))
                whole.replace(self.file)
        return [known[name][:max_tokens] for name in names]


@pytest.fixture(scope="session")
def hf_greedy(
    hf_model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[list[int]], int], list[list[int]]]:
    """Greedy answers by Hugging Face, each of them computed once in the whole run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in the run's
        folder = folder.parent
    return SharedAnswers(folder / "hf_greedy.json", partial(generate_greedily, hf_model))


TINY: dict[str, dict[str, Any]] = {
    "llama, multi-head attention, untied": dict(num_attention_heads=4, num_key_value_heads=4),
    "llama, grouped-query attention, tied": dict(
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True
    ),
    "llama, multi-query attention": dict(num_attention_heads=4, num_key_value_heads=1),
    "llama, heads wider than hidden_size": dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32
    ),
    "llama, other theta and epsilon": dict(
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    "mistral": dict(
        model_type="mistral",
        num_attention_heads=8,
        num_key_value_heads=2,
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
}


def tiny_model(seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A Hugging Face model with random weights, large enough to make logits differ clearly."""
    mistral = settings.pop("model_type", "llama") == "mistral"
    common = dict(
        vocab_size=99,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    if mistral:
        return MistralForCausalLM(MistralConfig(**common, **settings)).eval()
    return LlamaForCausalLM(LlamaConfig(**common, **settings)).eval()


@pytest.fixture(params=TINY, ids=TINY.keys())
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """A tiny model of some shape, and the folder it was saved to."""
    model = tiny_model(**TINY[request.param])
    model.save_pretrained(tmp_path)
    return model, tmp_path


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Callable[..., Path]:
    """Save a tiny Llama and change its config.json: `tiny_folder(attention_bias=True)`."""

    def save(**changes: Any) -> Path:
        tiny_model(num_attention_heads=4, num_key_value_heads=2).save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        config = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in config.items() if v != "REMOVE"}))
        return tmp_path

    return save


@pytest.fixture(scope="session")
def small_steps_llm(model_path: Path) -> LLM:
    """Few requests at a time and 48 tokens a step, so that prompts are computed in chunks."""
    return LLM(model_path, max_num_seqs=5, max_num_batched_tokens=48)
