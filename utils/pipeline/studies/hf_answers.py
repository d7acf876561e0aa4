"""What Hugging Face answers to prompts, with its best tokens' log probabilities: a reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from utils.hub import load_hf_model


@torch.inference_mode()
def hf_answers(
    prompts: Sequence[list[int]],
    dtype: str,
    num_tokens: int,
    num_logprobs: int,
    device: str | torch.device = "cpu",
) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Let the bundled model answer greedily in Hugging Face, one prompt at a time.

    Args:
        prompts: token ids of each prompt.
        dtype: the number format to run the model in, such as "bfloat16".
        num_tokens: the longest answer, in tokens.
        num_logprobs: of how many tokens the log probability comes back, at each place.
        device: where the model runs.

    Returns:
        Of each answer its token ids, and at each place the most likely tokens' log probabilities.
    """
    model = load_hf_model("bundled", dtype=getattr(torch, dtype), device=str(device))
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits[0].float().log_softmax(-1).topk(num_logprobs) for logits in out.logits]
        scores = [dict(zip(b.indices.tolist(), b.values.tolist(), strict=True)) for b in best]
        answers.append((out.sequences[0, len(prompt) :].tolist(), scores))
    return answers
