"""Where two answers to the same prompt part, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def where_they_part(
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Tensor,
    answers: Mapping[str, list[int]],
    shares: Callable[[Tensor], Tensor],
    num_tokens: int = 7,
) -> str:
    """Say after how many tokens two answers part, and how each goes on.

    Args:
        prompt_ids: [T], the prompt.
        answers: name -> token ids; two of them, the first is the one to compare with.
        shares: takes token ids [T], returns the probability of each next token [vocab].
        num_tokens: how many tokens of each continuation are shown after its first.
    """
    one, other = answers.values()
    shorter = min(len(one), len(other))
    same = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    if same == len(one) == len(other):
        return f"all {same} tokens are the same"
    likely = shares(torch.cat([prompt_ids, prompt_ids.new_tensor(one[:same])]))
    lines = [f"the same for {same} of {len(one)} tokens, then"]
    for name, answer in answers.items():
        if same == len(answer):
            lines.append(f"    {name:6} ends")
            continue
        first, rest = answer[same], tokenizer.decode(answer[same + 1 : same + 1 + num_tokens])
        lines.append(f"    {name:6} {likely[first]:4.0%} {tokenizer.decode([first])!r}, {rest!r}")
    return "\n".join(lines)
