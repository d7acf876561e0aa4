"""Greedy answers of two engines are equal, but for a near tie that rounding may decide."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from utils.checks.kit.near_ties import NEAR_TIE, Oracle, Parting, find_parting, hf_oracle
from utils.engine.beam_search import BeamSearchSequence

Answers = Sequence[Sequence[int]]


def assert_same_but_for_ties(
    oracle: PreTrainedModel | Oracle,
    prompts: Answers,
    ours: Answers,
    theirs: Answers,
    at_most: int = 1,
) -> None:
    """Compare greedy float32 answers of two engines, or of one engine in two configurations.

    Answers that are equal cost nothing. Where one differs, the oracle computes its logits.

    Args:
        oracle: a Hugging Face model, or a function as `utils.checks.kit.near_ties.Oracle`.
        prompts: token ids of each prompt.
        ours, theirs: token ids of the answer to each prompt.
        at_most: how many answers may part at a near tie. Each of them must: two tokens whose
            logits differ by less than `NEAR_TIE`, and after them the best token each time.

    Raises:
        AssertionError: with the prompt, the position, both tokens and the gap between their logits.
        ValueError: there are not as many answers as prompts.
    """
    if list(map(list, ours)) == list(map(list, theirs)) and len(prompts) == len(ours):
        return
    oracle = hf_oracle(oracle) if isinstance(oracle, PreTrainedModel) else oracle
    ties: list[str] = []
    for number, (prompt, one, other) in enumerate(zip(prompts, ours, theirs, strict=True)):
        parting = find_parting(oracle, prompt, one, other)
        if parting is None:
            continue
        told = _told(number, prompt, parting)
        assert parting.is_tie(), f"{told}; a near tie is below {NEAR_TIE:.0e}"
        ties.append(told)
    assert len(ties) <= at_most, (
        f"{len(ties)} answers part at near ties, and at most {at_most} may:\n" + "\n".join(ties)
    )


def _told(number: int, prompt: Sequence[int], parting: Parting) -> str:
    shown = [*prompt] if len(prompt) <= 12 else [*prompt[:5], "...", *prompt[-5:]]
    return f"Prompt {number}, {len(prompt)} tokens {shown}: {parting}"


@torch.inference_mode()
def narrowest_choice(
    model: PreTrainedModel, prompt: Sequence[int], beam_width: int, max_tokens: int
) -> float:
    """How close a call a beam search is: the smallest gap, in log probability, between any two
    neighbors among the candidates that it keeps, and the first one that it drops.

    Args:
        model: of Hugging Face; it reads every beam anew for each token. Beams that end are set
            aside, and the rest goes on, so this sees every choice that a real search makes.
    """
    beams, narrowest, eos = [([*prompt], 0.0)], float("inf"), model.config.eos_token_id
    for _ in range(max_tokens):
        ids = torch.tensor([tokens for tokens, _ in beams], device=model.device)
        logits = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1].float()
        scores = logits.log_softmax(-1) + torch.tensor([[score] for _, score in beams])
        best = scores.flatten().topk(min(2 * beam_width + 1, scores.numel()))
        narrowest = min(narrowest, float(-best.values.diff().max()))
        candidates = [
            ([*beams[place // scores.shape[1]][0], place % scores.shape[1]], score)
            for place, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        beams = [beam for beam in candidates if beam[0][-1] != eos][:beam_width]
    return narrowest


def same_beams(got: Sequence[BeamSearchSequence], right: torch.Tensor) -> bool:
    """Whether sequences are the rows of Hugging Face, which are padded with end tokens."""
    rows = right.tolist()
    return len(got) == len(rows) and all(
        beam.tokens == row[: len(beam.tokens)] and set(row[len(beam.tokens) :]) <= {2}
        for beam, row in zip(got, rows, strict=True)
    )
