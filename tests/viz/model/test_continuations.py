"""Where two answers part: counted, and with each continuation's own probability."""

from __future__ import annotations

import pytest
import torch

from utils.viz.model.continuations import where_they_part


class Letters:
    """A tokenizer whose token i is the i-th letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join("abcdefgh"[i] for i in ids)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2], [1, 2], ["all 2 tokens are the same"]),
        ([1, 2, 3], [1, 4, 5], ["for 1 of 3", "one     20% 'c', 'd'", "other   40% 'e', 'f'"]),
        ([2, 3], [4, 5], ["for 0 of 2", "20% 'c'", "40% 'e'"]),
        ([1, 2], [1, 2, 4], ["for 2 of 2", "one    ends", "40% 'e', ''"]),
    ],
)
def test_the_first_difference_is_told(
    one: list[int], other: list[int], expected: list[str]
) -> None:
    seen = []

    def shares(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids.tolist())
        return torch.arange(8) / 10

    said = where_they_part(Letters(), torch.tensor([7, 6]), {"one": one, "other": other}, shares)
    assert all(text in said for text in expected), said
    # Asked once, and only about what both answers share.
    assert seen == ([] if one == other else [[7, 6, *one[: int(said.split()[3])]]])
