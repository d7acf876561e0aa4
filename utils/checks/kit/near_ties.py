"""Two right engines may part where two tokens score all but the same.

Numbers of float32 that are added in another order round differently: on another processor, in
another batch, by another kernel. Where the two best logits are closer than that, either token is a
right answer, and all that follows differs with it. Here such a near tie is told from a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from utils.engine.llm import LLM

NEAR_TIE = 1e-4  # in logits, float32
NEAR_TIE_ON_A_CARD = 1e-3  # a GPU adds in an order that differs more

Oracle = Callable[[Sequence[int], Sequence[int]], Tensor]
"""From a prompt and an answer of N tokens to the logits behind each token: [N, vocab_size]."""


@dataclass(frozen=True)
class Parting:
    """Where two answers to one prompt part, and what an oracle says about that place.

    Attributes:
        position: of the first token that differs, counted from 0 at the beginning of the answer.
        ours, theirs: the tokens there; None where an answer has ended.
        gap: by how much their logits differ; infinite where an answer has ended.
        below: how far a token of our answer lies below the best one there, in logits, at most,
            from `position` to the end. So an answer that goes wrong later is no near tie either.
    """

    position: int
    ours: int | None
    theirs: int | None
    gap: float
    below: float

    def is_tie(self, near_tie: float = NEAR_TIE) -> bool:
        """Whether rounding may have chosen, here and in the rest of our answer."""
        return self.gap < near_tie and self.below < near_tie

    def __str__(self) -> str:
        return (
            f"at position {self.position} of the answer, ours has token {self.ours}, theirs token "
            f"{self.theirs}; their logits differ by {self.gap:.3g}, and from there on a token of "
            f"ours lies up to {self.below:.3g} below the best one"
        )


def find_parting(
    oracle: Oracle, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> Parting | None:
    """Where two greedy answers part; None if they are equal, and then the oracle isn't asked.

    Args:
        oracle: see `hf_oracle` and `engine_oracle`.
        prompt, ours, theirs: token ids.
    """
    ours, theirs = list(ours), list(theirs)
    if ours == theirs:
        return None
    place = next(i for i in range(len(ours) + 1) if ours[: i + 1] != theirs[: i + 1])
    if place >= min(len(ours), len(theirs)):
        one, other = (a[place] if place < len(a) else None for a in (ours, theirs))
        return Parting(place, one, other, gap=torch.inf, below=torch.inf)
    logits = oracle(prompt, ours)[place:].float()  # [N - place, vocab_size]
    chosen = logits.gather(1, torch.tensor(ours[place:], device=logits.device)[:, None])[:, 0]
    return Parting(
        place,
        ours[place],
        theirs[place],
        gap=float((chosen[0] - logits[0, theirs[place]]).abs()),
        below=float((logits.max(dim=1).values - chosen).max()),
    )


def hf_oracle(model: PreTrainedModel) -> Oracle:
    """The logits of a Hugging Face model: one pass over prompt and answer, without a cache."""

    @torch.inference_mode()
    def logits(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*prompt, *answer]], device=model.device)
        output = model(ids, use_cache=False, logits_to_keep=len(answer) + 1)
        return output.logits[0, :-1]

    return logits


def engine_oracle(llm: LLM) -> Oracle:
    """The logits of the course's model: one pass over prompt and answer, without a cache."""

    @torch.inference_mode()
    def logits(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        ids = torch.tensor([*prompt, *answer], device=llm.config.device)
        hidden = llm.model(ids, torch.arange(len(ids), device=ids.device))
        return llm.model.compute_logits(hidden[len(prompt) - 1 : -1])

    return logits


def same_but_for_a_tie(
    oracle: Oracle, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> bool:
    """Whether two greedy answers are equal, or part at a near tie."""
    parting = find_parting(oracle, prompt, ours, theirs)
    if parting is None:
        return True
    return parting.is_tie(NEAR_TIE_ON_A_CARD if torch.cuda.is_available() else NEAR_TIE)
