"""The two steps that are timed against each other compute the same thing, each as often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from utils.engine import ContiguousBatch, PagedBatch
from utils.pipeline.studies import decode_steps

if TYPE_CHECKING:
    from utils.engine import LLM


@pytest.mark.parametrize("num_tokens", [1, 16, 40])
def test_both_steps_have_the_same_hidden_states(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    hidden: dict[type, list[torch.Tensor]] = {PagedBatch: [], ContiguousBatch: []}
    model = llm.model

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(model, name)

        def __call__(self, token, position, batch):  # type: ignore[no-untyped-def]
            assert position.tolist() == [num_tokens]
            hidden[type(batch)].append(model(token, position, batch))

    monkeypatch.setattr(llm, "model", Watched())
    paged, contiguous = decode_steps.paged_and_contiguous_seconds(llm, num_tokens, rounds=2)
    assert paged > 0 and contiguous > 0
    assert len(hidden[PagedBatch]) == len(hidden[ContiguousBatch]) == 2
    for states in zip(*hidden.values(), strict=True):
        torch.testing.assert_close(*states, atol=1e-4, rtol=1e-4)
