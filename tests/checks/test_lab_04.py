"""What the checks of lab 04 rest on: a switchboard of mistakes, and a watch on memory."""

from __future__ import annotations

import pytest
import torch

from utils.checks.kit.runner import Mismatch
from utils.checks.lab_04 import paged_attention_mistakes
from utils.checks.lab_04.paged_attention_cases import (
    BUGS,
    LargestTensor,
    compare_with_torch,
    largest_tensor,
)
from utils.engine.attention.paged_attention import paged_attention_reference


def test_without_a_switch_nothing_is_wrong() -> None:
    """So whatever a switch changes is that mistake and no other."""
    assert compare_with_torch(paged_attention_mistakes.paged_attention) > 10


def test_the_engines_own_attention_passes() -> None:
    assert compare_with_torch(paged_attention_reference) > 10
    largest, everything = largest_tensor(paged_attention_reference)
    assert largest < everything / 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.says[:40])
def test_each_known_mistake_is_told_apart_from_all_others(bug) -> None:
    with pytest.raises(Mismatch) as raised:
        compare_with_torch(bug.wrong)
    assert raised.value.headline == bug.says


def test_the_watch_sees_new_tensors_and_no_views() -> None:
    cache = torch.zeros(64, 4, 2, 8)
    with LargestTensor(cache) as watch:
        cache.flatten(0, 1)[:100].transpose(0, 1)
        cache[3] + 1
    assert watch.numel == 4 * 2 * 8
    with LargestTensor(cache) as watch:
        cache[[1, 2, 3]]
    assert watch.shape == (3, 4, 2, 8)
