"""How probable the model finds a prompt: evaluation by likelihood, and `echo` with `logprobs`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.sample.sampler import top_logprobs

ROWS = 256  # that are scored at once: of 49,152 tokens, 50 MB in float32


def score_prompts(
    output: SchedulerOutput, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]
) -> None:
    """Add to `Request.prompt_logprobs` what this step says of the prompts that ask for it.

    Such a request computes its whole prompt, without hits in the prefix cache. A part that a
    preempted request computes once more adds nothing.

    Args:
        output: the step.
        hidden: [T, hidden], of all its tokens.
        compute_logits: from hidden states to scores [N, vocab_size].
    """
    row = 0  # of the request's first token in this step
    for request in output.scheduled_requests:
        start = request.num_computed_tokens
        size = output.num_scheduled_tokens[request.request_id]
        count = request.sampling_params.prompt_logprobs or 0
        prompt, known = request.prompt_token_ids, request.prompt_logprobs
        while known is not None and start < len(known) < min(len(prompt), start + size + 1):
            # The token before one says how probable that is.
            first = row + len(known) - 1 - start
            last = min(first + ROWS, row + size, row + len(prompt) - 1 - start)
            for logits in compute_logits(hidden[first:last]):
                known.append(top_logprobs(logits, prompt[len(known)], count))
        row += size
