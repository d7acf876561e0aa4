"""The engine with a learner's functions in it: the last check of lab 01."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps
from utils.hub import load_tokenizer


def run(build_ops: Callable[[], Any]) -> str:
    """Check `build_ops() -> LlamaOps`: with the learner's functions the engine speaks as HF."""
    ops = call(build_ops)
    if not isinstance(ops, LlamaOps):
        raise Mismatch(
            f"`build_ops` returned {describe(ops)}; expected a LlamaOps.",
            look="`return LlamaOps(rms_norm=rms_norm, ...)`.",
        )
    # `paged_attention` is left: unless it is given, the engine calls `attention`.
    names = [field.name for field in fields(LlamaOps) if field.default is not None]
    left = [name for name in names if getattr(ops, name) is getattr(LlamaOps(), name)]
    if left:
        raise Mismatch(
            f"The engine's own code still runs for: {', '.join(left)}.",
            look=f"Pass yours: `{left[0]}={left[0]}`.",
        )
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Tensor]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            calls[name] += 1
            return getattr(ops, name)(*args, **kwargs)

        return run

    prompts = reference_prompts()
    expected = hf_greedy(prompts)
    wrapped: dict[str, Any] = {name: counted(name) for name in names}
    llm = LLM(dtype="float32", ops=LlamaOps(**wrapped))
    outputs = [o.outputs[0] for o in call(greedy, llm, prompts, given=f"the prompt {prompts[0]!r}")]
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        if list(output.token_ids) != tokens:
            guilty = _guilty(ops, names, prompt, tokens)
            raise Mismatch(
                "The engine's text differs from Hugging Face's. "
                + (f"The difference comes from: {', '.join(guilty)}." if guilty else ""),
                input=f"the prompt {prompt!r}",
                expected=repr(load_tokenizer().decode(tokens)), got=repr(output.text),
                look="Put one function at a time into LlamaOps, and look again at its check above.",
            )  # fmt: skip
    unused = [name for name in names if not calls[name]]
    if unused:
        raise Mismatch(f"The engine never called: {', '.join(unused)}.")
    return (
        f"Token for token what Hugging Face generates, on {len(prompts)} prompts. "
        f"The engine says: {outputs[0].text.strip()!r}"
    )


def _guilty(ops: Any, names: list[str], prompt: str, tokens: list[int]) -> list[str]:
    """Which functions, each put into the engine alone, change the text."""
    guilty = []
    for name in names:
        llm = LLM(dtype="float32", ops=replace(LlamaOps(), **{name: getattr(ops, name)}))
        if list(call(greedy, llm, [prompt])[0].outputs[0].token_ids) != tokens:
            guilty.append(name)
    return guilty
