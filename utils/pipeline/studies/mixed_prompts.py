"""Twelve prompts of three kinds, which lessons 08, 08c and 08d give to their engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from utils.pipeline.drafts.chat_questions import chat_questions
from utils.pipeline.task.messages import generate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGINNINGS = ("The capital of France is", "def fibonacci(n):\n", '{"name": "Ada", "age":')


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    """The token ids of a chat, up to where the model's answer begins."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(str(text))


def chats(tokenizer: PreTrainedTokenizerBase, count: int = 4) -> list[list[int]]:
    """The token ids of questions to a chat model."""
    questions = chat_questions("held_out", count)
    return [chat_ids(tokenizer, [{"role": "user", "content": text}]) for text in questions]


def mixed_prompts(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The token ids of five extraction tasks, four questions and three beginnings, mixed.

    The five begin with the same long instructions.
    """
    customers = [chat_ids(tokenizer, task.messages()) for task in generate("held_out", 5)]
    prompts = customers + chats(tokenizer) + [tokenizer.encode(text) for text in BEGINNINGS]
    return prompts[::3] + prompts[1::3] + prompts[2::3]
