"""The engine with a learner's functions in it: the last check of lab 01."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from utils.checks.kit.contracts import Contract, Raised
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import copied, held_output, same
from utils.checks.kit.patience import watching
from utils.checks.kit.reference import greedy, hf_greedy, is_hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call, describe
from utils.checks.lab_01.causal_attention import ATTENTION
from utils.checks.lab_01.gate import SILU_AND_MUL
from utils.checks.lab_01.norm import RMS_NORM
from utils.checks.lab_01.rotary import APPLY_ROTARY
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps

EXERCISES: dict[str, tuple[int, Contract]] = {
    "rms_norm": (1, RMS_NORM),
    "apply_rotary": (2, APPLY_ROTARY),
    "attention": (3, ATTENTION),
    "silu_and_mul": (4, SILU_AND_MUL),
}
CLOSE = 1e-3  # of the largest number: rounding aside, a right function is nearer


def run(build_ops: Callable[[], Any]) -> str:
    """Check `build_ops() -> LlamaOps`: with the learner's functions the engine speaks as HF."""
    ops = call(build_ops)
    if not isinstance(ops, LlamaOps):
        raise Mismatch(
            f"`build_ops` returned {describe(ops)}; expected a LlamaOps.",
            look="`return LlamaOps(rms_norm=rms_norm, ...)`.",
        )
    left = [name for name in EXERCISES if getattr(ops, name) is getattr(LlamaOps(), name)]
    if left:
        raise Mismatch(
            f"The engine's own code still runs for: {', '.join(left)}.",
            look=f"Pass yours: `{left[0]}={left[0]}`.",
        )
    more = [f.name for f in fields(LlamaOps) if f.name not in EXERCISES and getattr(ops, f.name)]
    if more:
        raise Mismatch(f"Pass the four functions only, not `{more[0]}`.")
    for name, (number, contract) in EXERCISES.items():
        try:
            contract.check(getattr(ops, name))
        except Mismatch as wrong:
            wrong.headline = (
                f"What you pass as `{name}` is not right yet: exercise {number}. {wrong.headline}"
            )
            raise
    return _speaks(ops)


def _speaks(ops: LlamaOps) -> str:
    """Generate with functions that are right by their own checks."""
    watched = {name: _Watched(name, getattr(ops, name)) for name in EXERCISES}
    prompts = reference_prompts()
    expected = hf_greedy(prompts)
    llm = LLM(dtype="float32", ops=LlamaOps(**watched))  # type: ignore[arg-type]
    first = ""
    for prompt, tokens in zip(prompts, expected, strict=True):
        for function in watched.values():
            function.prompt = prompt
        with held_output(), watching():
            output = call(greedy, llm, [prompt], given=f"the prompt {prompt!r}")[0].outputs[0]
        got = list(output.token_ids)
        if not is_hf_greedy(prompt, got, tokens):
            same_tokens = next(
                n for n, pair in enumerate(zip(tokens, got, strict=False)) if pair[0] != pair[1]
            )
            raise Mismatch(
                "The engine's text differs from Hugging Face's, although each of your four "
                "functions gives in every call what the engine's own gives, but for rounding.",
                input=f"the prompt {prompt!r}; {same_tokens} new tokens are the same",
                expected=repr(llm.get_tokenizer().decode(tokens)),
                got=repr(output.text),
                look="Does one of them round more than it must? Compute in float32.",
            )
        first = first or output.text.strip()
    unused = [name for name, function in watched.items() if not function.calls]
    if unused:
        raise Mismatch(f"The engine never called: {', '.join(unused)}.")
    return (
        f"Token for token what Hugging Face generates, on {len(prompts)} prompts. "
        f"The engine says: {first!r}"
    )


class _Watched:
    """A learner's function in the engine, with the engine's own beside it.

    So a difference is shown in the call where it begins, not by the text that comes of it.
    """

    def __init__(self, name: str, yours: Callable[..., Any]) -> None:
        self.name, self.yours, self.prompt = name, yours, ""
        self.right: Callable[..., Tensor] = getattr(LlamaOps(), name)
        self.calls: Counter[str] = Counter()

    def __call__(self, *args: Any) -> Tensor:
        self.calls[self.prompt] += 1
        before = copied(args)
        expected = self.right(*copied(args))
        got = attempt(self.yours, *args)
        says = (
            got.says
            if isinstance(got, Raised)
            else difference(expected, got, CLOSE, CLOSE * float(expected.abs().max()))
        )
        if not says and not all(map(same, before, args)):
            says = "It changes what it was given."
        if says:
            shapes = [tuple(a.shape) if isinstance(a, Tensor) else a for a in args]
            raise Mismatch(
                f"In the engine, your `{self.name}` is wrong (exercise {EXERCISES[self.name][0]}). "
                f"{says}",
                input=f"call number {self.calls[self.prompt]} of `{self.name}` for the prompt "
                f"{self.prompt!r}; arguments {shapes}",
                expected=shown(expected, got),
                got=shown(got, expected),
                look="What is different here from the inputs of its own check: sizes, an earlier "
                "call, memory that is shared?",
            )
        return got
