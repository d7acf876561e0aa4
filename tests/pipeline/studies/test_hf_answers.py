"""Hugging Face's answers are those of one pass over prompt and answer, log probabilities too."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from utils.checks.kit.near_ties import hf_oracle
from utils.pipeline.studies.hf_answers import hf_answers
from utils.pipeline.studies.mixed_prompts import chats


def test_best_tokens_and_their_log_probabilities(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = chats(tokenizer, 1)
    [(ids, scores)] = hf_answers(prompts, "float32", num_tokens=3, num_logprobs=2)
    expected = hf_oracle(hf_model)(prompts[0], ids).float().log_softmax(-1).topk(2)
    assert ids == expected.indices[:, 0].tolist() and len(ids) == 3
    for place, values in zip(scores, expected.values, strict=True):
        assert list(place.values()) == pytest.approx(values.tolist(), abs=1e-4)
    assert torch.equal(torch.tensor([list(s) for s in scores]), expected.indices)
