"""The comparison that all token tests share: a mistake fails, a near tie passes, two do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.engine.tiny_engines import tiny_llama
from tests.near_ties import assert_same_but_for_ties, narrowest_choice
from utils.checks.kit import near_ties, reference
from utils.checks.kit.near_ties import NEAR_TIE, engine_oracle, find_parting, hf_oracle
from utils.engine import LLM

PROMPTS = [[1], [2, 3], [4]]
RIGHT = [[5, 6, 7], [5, 6, 7], [5, 6, 7]]


def planted(gap: float, position: int = 1) -> near_ties.Oracle:
    """Chooses 5, 6, 7; at one position, token 9 is `gap` below the best one. Afterwards, too, if 9
    was taken, the best tokens are those of RIGHT."""

    def logits(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        rows = torch.zeros(len(answer), 10)
        rows[range(len(answer)), RIGHT[0][: len(answer)]] = 3.0
        rows[position, 9] = 3.0 - gap
        return rows

    return logits


def never(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    raise AssertionError("the oracle was asked")


def test_equal_answers_cost_nothing() -> None:
    assert_same_but_for_ties(never, PROMPTS, RIGHT, [tuple(answer) for answer in RIGHT])


def test_a_real_difference_fails_and_is_named() -> None:
    ours = [RIGHT[0], [5, 9, 7], RIGHT[2]]
    with pytest.raises(AssertionError) as error:
        assert_same_but_for_ties(planted(0.01), PROMPTS, ours, RIGHT)
    told = str(error.value)
    assert "Prompt 1, 2 tokens [2, 3]: at position 1" in told
    assert "ours has token 9, theirs token 6; their logits differ by 0.01" in told


def test_a_near_tie_passes_whichever_took_which_token() -> None:
    other = [RIGHT[0], [5, 9, 7], RIGHT[2]]
    assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS, other, RIGHT)
    assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS, RIGHT, other)
    with pytest.raises(AssertionError, match="1 answers part at near ties, and at most 0 may"):
        assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS, other, RIGHT, at_most=0)


def test_two_near_ties_are_one_too_many() -> None:
    other = [RIGHT[0], [5, 9, 7], [5, 9, 7]]
    with pytest.raises(AssertionError, match=r"2 answers part.*\nPrompt 1.*\nPrompt 2"):
        assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS, other, RIGHT)
    assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS, other, RIGHT, at_most=2)


@pytest.mark.parametrize(
    "wrong",
    [[5, 8, 7], [5, 9, 8], [5], [5, 6, 7, 8], []],
    ids=["a third token", "wrong after the tie", "ends early", "ends late", "says nothing"],
)
def test_beside_a_near_tie_mistakes_are_still_mistakes(wrong: list[int]) -> None:
    with pytest.raises(AssertionError, match="Prompt 0"):
        assert_same_but_for_ties(planted(NEAR_TIE / 2), PROMPTS[:1], [wrong], RIGHT[:1])


def test_a_missing_answer_is_refused() -> None:
    with pytest.raises(ValueError):
        assert_same_but_for_ties(never, PROMPTS, RIGHT[:2], RIGHT[:2])


def test_both_oracles_give_the_logits_behind_each_token(tmp_path) -> None:
    hf = tiny_llama(tmp_path, seed=0)
    prompt, answer = [3, 4, 5], [6, 7, 8, 9]
    with torch.inference_mode():
        want = torch.stack(
            [hf(torch.tensor([prompt + answer[:i]])).logits[0, -1] for i in range(len(answer))]
        )
    for oracle in (hf_oracle(hf), engine_oracle(LLM(tmp_path, max_model_len=32))):
        torch.testing.assert_close(oracle(prompt, answer), want, atol=1e-4, rtol=0)
    best = int(want[0].argmax())
    parting = find_parting(hf_oracle(hf), prompt, [best], [(best + 1) % 13])
    assert parting is not None and parting.below == 0 and not parting.is_tie()
    assert parting.gap == pytest.approx(float(want[0].max() - want[0, (best + 1) % 13]), abs=1e-4)


def test_how_close_a_call_a_beam_search_is(tmp_path) -> None:
    hf = tiny_llama(tmp_path, seed=0)
    usual = narrowest_choice(hf, [3, 4, 5], beam_width=2, max_tokens=3)
    assert usual > NEAR_TIE
    with torch.no_grad():  # two tokens that score the same, wherever they stand
        best = int(hf(torch.tensor([[3, 4, 5]])).logits[0, -1].argmax())
        hf.lm_head.weight[(best + 1) % 13] = hf.lm_head.weight[best]
    assert narrowest_choice(hf, [3, 4, 5], beam_width=2, max_tokens=3) < NEAR_TIE


def test_a_learners_answer_may_part_at_a_near_tie_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The labs' last exercises compare with Hugging Face by the same rule."""
    monkeypatch.setattr(reference, "load_hf_model", lambda **_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for gap, accepted in ((NEAR_TIE / 2, True), (NEAR_TIE * 2, False)):
        monkeypatch.setattr(reference, "hf_oracle", lambda _, gap=gap: planted(gap))
        assert reference.is_hf_greedy("a prompt", [5, 9, 7], [5, 6, 7]) == accepted
    monkeypatch.setattr(reference, "hf_oracle", lambda _: never)
    assert reference.is_hf_greedy("a prompt", (5, 6, 7), [5, 6, 7])
