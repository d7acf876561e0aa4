"""What Hugging Face generates with the real model: the oracle of each lab's last exercise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from utils.checks.kit.near_ties import hf_oracle, same_but_for_a_tie
from utils.engine.llm import LLM
from utils.engine.request import SamplingParams
from utils.hub import load_hf_model, load_tokenizer

MAX_TOKENS = 12


def reference_prompts() -> list[str]:
    """Prompts in the model's chat format: one short, one longer, one with code."""
    questions = (
        "What is the capital of France?",
        "Write one sentence about the sea, the wind and an old lighthouse keeper.",
        "Complete this Python line: for i in range(",
    )
    tokenizer = load_tokenizer()
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        for question in questions
    ]


def chat_token_ids(questions: Sequence[str]) -> list[list[int]]:
    """Questions in the model's chat format, as token ids."""
    tokenizer = load_tokenizer()
    chats = [[{"role": "user", "content": question}] for question in questions]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def hf_greedy(prompts: list[str]) -> list[list[int]]:
    """The new tokens of Hugging Face `generate`, greedy, float32, one prompt at a time."""
    return [list(tokens) for tokens in _hf_greedy(tuple(prompts))]


@functools.lru_cache(maxsize=4)
def _hf_greedy(prompts: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    tokenizer, model = load_tokenizer(), load_hf_model(dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
        with torch.no_grad():
            out = model.generate(**ids, max_new_tokens=MAX_TOKENS, do_sample=False)
        answers.append(tuple(out[0, ids["input_ids"].shape[1] :].tolist()))
    return tuple(answers)


def is_hf_greedy(prompt: str, answer: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether an answer is Hugging Face's, or parts from it where two tokens all but tie.

    Args:
        answer: token ids of the answer to be judged.
        expected: those of `hf_greedy` to the same prompt.
    """
    if list(answer) == list(expected):
        return True  # without loading the model
    oracle = hf_oracle(load_hf_model(dtype=torch.float32))
    ids = load_tokenizer().encode(prompt, add_special_tokens=False)
    return same_but_for_a_tie(oracle, ids, answer, expected)


def greedy(llm: LLM, prompts: list[str]) -> list[Any]:
    """The engine's `RequestOutput`s for the same prompts, greedy."""
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    return llm.generate(prompts, params, use_tqdm=False)
