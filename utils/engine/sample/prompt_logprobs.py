"""How probable the model finds a prompt: evaluation by likelihood, and `echo` with `logprobs`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.outputs import Logprob
from utils.engine.sample.sampler import top_logprobs

ROWS = 256  # that are scored at once: of 49,152 tokens, 50 MB in float32


def score_prompts(
    output: SchedulerOutput, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]
) -> dict[str, list[dict[int, Logprob]]]:
    """What this step says of the prompts that ask for it: further tokens' scores, by request id.

    Such a request computes its whole prompt, without hits in the prefix cache. A part that a
    preempted request computes once more adds nothing.

    Args:
        output: the step.
        hidden: [T, hidden], of all its tokens.
        compute_logits: from hidden states to scores [N, vocab_size].
    """
    scored: dict[str, list[dict[int, Logprob]]] = {}
    row = 0  # of the request's first token in this step
    for request in output.scheduled_requests:
        start, size = request.num_computed_tokens, request.num_scheduled_tokens
        count = request.sampling_params.prompt_logprobs or 0
        num_prompt, num_known = request.num_prompt_tokens, request.num_prompt_logprobs
        while num_known is not None and start < num_known < min(num_prompt, start + size + 1):
            # The token before one says how probable that is.
            first = row + num_known - 1 - start
            last = min(first + ROWS, row + size, row + num_prompt - 1 - start)
            logits = compute_logits(hidden[first:last])
            if logits.numel():  # else they are on another rank
                scored.setdefault(request.request_id, []).extend(
                    top_logprobs(row_of_scores, request.all_token_ids[i], count)
                    for i, row_of_scores in enumerate(logits, start=num_known)
                )
            num_known += last - first
        row += size
    return scored
