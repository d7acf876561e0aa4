"""What the last exercise of most labs does: the engine speaks with the learner's part in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.checks.kit.lab.lab import Check
from utils.checks.kit.reference import greedy, hf_greedy, is_hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call
from utils.engine.llm import LLM


def not_the_engines(answer: Any, engines: Any, name: str) -> None:
    """Refuse the engine's own class in the place of the learner's, which is called `name`."""
    if answer is engines:
        raise Mismatch(
            f"That is the engine's own `{engines.__name__}`.",
            look=f"Pass the class that you wrote: `{name}`.",
        )


def speaks_first(check: Check, answer: Any) -> None:
    """What an engine exercise uses must be right by itself; else its own check speaks."""
    try:
        check.contract.check(answer)
    except Mismatch as wrong:
        exercise = check.title.partition(":")[0]
        wrong.headline = f"{exercise} is not right yet. {wrong.headline}"
        raise


def as_hugging_face(llm: LLM, look: str) -> Sequence[Any]:
    """Generate, and compare with Hugging Face token for token, near ties excepted.

    Returns:
        The engine's outputs.
    """
    prompts = reference_prompts()
    outputs = call(greedy, llm, prompts, given=f"the prompts {prompts[0]!r} and two more")
    for prompt, output, tokens in zip(prompts, outputs, hf_greedy(prompts), strict=True):
        if not is_hf_greedy(prompt, output.outputs[0].token_ids, tokens):
            raise Mismatch(
                "The engine's text differs from Hugging Face's.",
                input=f"the prompt {prompt!r}",
                expected=repr(llm.get_tokenizer().decode(tokens)),
                got=repr(output.outputs[0].text),
                look=look,
            )
    return outputs
