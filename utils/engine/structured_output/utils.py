"""Grammars at work: logits of tokens that may not come next become -inf."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.engine.core.sched.output import ScheduledRequest
from utils.engine.structured_output.grammar import unpack_bitmask


def apply_grammar_bitmask(logits: Tensor, requests: Sequence[ScheduledRequest]) -> None:
    """Rule out, in place, what the requests' grammars do not allow. Others' rows stay as they are.

    `min_tokens` rules out the end as well, but only where a grammar leaves something else.

    Args:
        logits: [N, vocab_size]: of each request a row after its last token, and one after each of
            its guesses.
    """
    if all(request.grammar_bitmasks is None for request in requests):
        return
    rows, bitmasks, ends = [], [], []
    first_row = 0
    for request in requests:
        depths = request.draft.depths()
        for i, bitmask in enumerate(request.grammar_bitmasks or ()):
            if bitmask is not None:
                rows.append(first_row + i)
                bitmasks.append(bitmask)
                early = request.too_early_to_stop(depths[i])
                ends.append(sorted({*request.stopping_token_ids}) if early else [])
        first_row += 1 + len(request.spec_token_ids)
    allowed = unpack_bitmask(torch.stack(bitmasks).to(logits.device), logits.shape[1])
    for one, stopping in zip(allowed, ends, strict=True):
        if one.sum() > one[stopping].sum():
            one[stopping] = False
    where = torch.tensor(rows, device=logits.device)
    logits[where] = logits[where].masked_fill(~allowed, -torch.inf)
