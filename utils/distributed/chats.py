"""Conversations that begin alike, for engines that share requests out."""

from __future__ import annotations

INSTRUCTIONS = (
    "You are a patient teacher. Answer briefly, in one sentence, and name your source. " * 4
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colors.",
    "What is 17 plus 25?",
    "Write a haiku about rain.",
    "Who wrote Hamlet?",
    "What does a cache do?",
)


def chats_with_same_instructions() -> list[list[dict[str, str]]]:
    """One conversation for each of `QUESTIONS`, all with the same system prompt."""
    return [
        [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
        for question in QUESTIONS
    ]
