"""Prompts with notes, whose order may change: what `cacheblend.py` studies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = "<|im_start|>system\nAnswer from the notes.<|im_end|>\n<|im_start|>user\n"
PEOPLE = (
    ("Anna", "a red boat", "Lisbon"),
    ("Ben", "a white horse", "Oslo"),
    ("Clara", "an old piano", "Vienna"),
    ("David", "a green tent", "Nairobi"),
    ("Eva", "a silver watch", "Geneva"),
    ("Farid", "a blue kite", "Cairo"),
)


@dataclass(frozen=True)
class Prompt:
    """Token ids, tensors [T]: the system prompt, a first note, further notes, and the question.

    System prompt and first note are a prefix, and right as they are. The further notes are not.
    """

    system: Tensor
    first_note: Tensor
    notes: list[Tensor]
    question: Tensor

    @property
    def head(self) -> Tensor:
        """What is a prefix."""
        return torch.cat([self.system, self.first_note])

    @property
    def ids(self) -> Tensor:
        return torch.cat([self.head, *self.notes, self.question])

    @property
    def num_reused(self) -> int:
        """Tokens before the question."""
        return len(self.ids) - len(self.question)

    @property
    def starts(self) -> list[int]:
        """Where each of the further notes begins."""
        ends = torch.tensor([len(self.head), *map(len, self.notes)]).cumsum(0)
        return ends[:-1].tolist()


def prompts(tokenizer: PreTrainedTokenizerBase) -> Iterator[Prompt]:
    """Six prompts of four notes each, about different people, with a question about one of them."""

    def ids(text: str) -> Tensor:
        return torch.tensor(tokenizer.encode(text, add_special_tokens=False))

    for number in range(len(PEOPLE)):
        four = [PEOPLE[(number + i) % len(PEOPLE)] for i in range(4)]
        notes = [
            f"Note: {name} lives in {town} and owns {thing}. The neighbours like it very much, as "
            "the town's paper wrote in the spring.\n"
            for name, thing, town in four
        ]
        who = four[(2, 3, 1)[number % 3]][0]
        question = f"Where does {who} live?<|im_end|>\n<|im_start|>assistant\n{who} lives in"
        first, *others = map(ids, notes)
        yield Prompt(ids(SYSTEM), first, others, ids(question))
