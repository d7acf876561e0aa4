"""The engine with a learner's prefix cache in it: the last two checks of lab 05."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from utils.checks.kit import prefix_pictures
from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_05.learners_parts import ManagerFactory, PluggedKVCacheManager, check_parts
from utils.checks.lab_05.manager_stories import MANAGER
from utils.checks.lab_05.predictions import ALT, PREDICT, found_tokens
from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul
from utils.engine.request import SamplingParams

__all__ = ["PluggedKVCacheManager", "judge_engine", "judge_prediction"]

BLOCK_SIZE = 16
MAX_TOKENS = 8
SYSTEM_PROMPT = (
    "You are the assistant of a small public library. Answer in one short sentence. The library "
    "is open from ten to six, except on Mondays. Books may be kept for four weeks."
)
Sent = tuple[list[int], str | None]  # a prompt, and a tenant's salt
QUESTIONS = ("When do you open?", "How long may I keep a book about trains?")


@functools.cache
def model() -> tuple[LLM, list[int]]:
    """The model, loaded once, and a counter of the rows that went through its layers."""
    rows = [0]

    def counted_silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        rows[0] += gate_up.shape[0]
        return silu_and_mul(gate_up)

    llm = LLM(
        dtype="float32",
        max_model_len=256,
        num_gpu_blocks_override=64,
        block_size=BLOCK_SIZE,
        ops=LlamaOps(silu_and_mul=counted_silu_and_mul),
    )
    return llm, rows


def example_prompts() -> list[list[int]]:
    """Token ids: two questions under one system prompt, the first again, and a short prompt."""
    llm, _ = model()
    tokenizer = llm.get_tokenizer()
    conversations = [
        [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
        for question in (*QUESTIONS, QUESTIONS[0])
    ]
    texts = [
        cast(str, tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True))
        for c in conversations
    ]
    return [tokenizer.encode(text, add_special_tokens=False) for text in (*texts, "The sea is")]


def count_hits(prompts: Sequence[list[int]]) -> list[int]:
    """What the engine's own counters say when the prompts run one after another."""
    llm, _ = model()
    llm.llm_engine = llm.new_engine()
    params = SamplingParams(temperature=0.0, max_tokens=1)
    outputs = [llm.generate(list(prompt), params, use_tqdm=False)[0] for prompt in prompts]
    counted = [cast(int, output.num_cached_tokens) for output in outputs]
    assert llm.prefix_cache_stats.hits == sum(counted)
    return counted


def _generate(
    factory: Callable[[EngineConfig], KVCacheManager], prompts: Sequence[Any]
) -> tuple[list[Any], int]:
    """The outputs, and how many tokens went through the model."""
    llm, rows = model()
    rows[0] = 0
    llm.llm_engine = llm.new_engine(kv_cache_manager=factory)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return outputs, rows[0] // llm.model_config.num_hidden_layers


def judge_prediction(function: Callable[..., list[int]]) -> Passed:
    """Brute force on small lists, then the engine's own counters on real prompts."""
    PREDICT.check(function)
    prompts = example_prompts()
    given = [list(prompt) for prompt in prompts]
    predicted = attempt(function, given, BLOCK_SIZE)
    counted = count_hits(prompts)
    if predicted != counted:
        raise Mismatch(
            "The engine counted something else.",
            expected=f"`{counted}`",
            got=predicted.says if isinstance(predicted, Raised) else describe(predicted),
        )
    return Passed(
        f"Right on 200 lists of prompts. Then the engine ran {len(prompts)} prompts of "
        f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens, in blocks of {BLOCK_SIZE}. "
        f"You predicted {predicted}; its own counters say {counted}.",
        prefix_pictures.prompts(prompts, BLOCK_SIZE, counted),
        "The engine's prompts in blocks, and which of them were found.",
    )


def judge_engine(make_manager: ManagerFactory) -> Passed:
    """Each part alone, then random requests in small pools, then the model."""
    check_parts(make_manager)
    MANAGER.check(make_manager)
    return _Trial(make_manager).run()


class _Trial:
    """Generates for three tenants with the learner's parts, and without any cache."""

    def __init__(self, make_manager: ManagerFactory) -> None:
        self.make_manager = make_manager
        prompts = example_prompts()
        tenants: list[str | None] = [None] * len(prompts) + ["ada", "ada", "bob"]
        self.sent = [*zip([*prompts, prompts[0], prompts[1], prompts[0]], tenants, strict=True)]
        plain, _ = _generate(
            lambda c: make_kv_cache_manager(replace(c, enable_prefix_caching=False)), prompts
        )
        self.answers = {tuple(o.prompt_token_ids): list(o.outputs[0].token_ids) for o in plain}

    def outputs(self, sent: Sequence[Sent]) -> tuple[list[Any], int]:
        dicts = [
            {"prompt_token_ids": prompt} | ({"cache_salt": tenant} if tenant else {})
            for prompt, tenant in sent
        ]
        sha256 = get_hash_fn_by_name("sha256")
        return call(
            _generate,
            lambda c: self.make_manager(c, sha256),
            dicts,
            given=f"{len(sent)} prompts of the model",
        )

    def differs(self, sent: Sequence[Sent], outputs: Sequence[Any]) -> int | None:
        """The first prompt that gets another answer than without a cache.

        Prompts are computed in other pieces then, so an answer may part at a near tie.
        """
        oracle = engine_oracle(model()[0])
        for number, ((prompt, _), output) in enumerate(zip(sent, outputs, strict=True)):
            got, right = output.outputs[0].token_ids, self.answers[tuple(prompt)]
            if not same_but_for_a_tie(oracle, prompt, got, right):
                return number
        return None

    def fewest(self, sent: list[Sent]) -> list[Sent]:
        """Leave out prompts as long as some text stays wrong."""
        for place in reversed(range(len(sent))):
            fewer = [*sent[:place], *sent[place + 1 :]]
            if fewer and self.differs(fewer, self.outputs(fewer)[0]) is not None:
                sent = fewer
        return sent

    def run(self) -> Passed:
        outputs, through = self.outputs(self.sent)
        if self.differs(self.sent, outputs) is not None:
            raise self._other_text(self.fewest(self.sent))
        sent = [prompt for prompt, _ in self.sent]
        names = [f"prompt {i}" + (f", {t}" if t else "") for i, (_, t) in enumerate(self.sent)]
        expected = [0] * len(sent)
        for tenant in {t for _, t in self.sent}:
            own = [i for i, (_, t) in enumerate(self.sent) if t == tenant]
            for i, found in zip(own, found_tokens([sent[i] for i in own], BLOCK_SIZE), strict=True):
                expected[i] = found
        hits = [output.num_cached_tokens for output in outputs]
        if hits != expected:
            raise Mismatch(
                "The text is right, but the cache finds other tokens than predicted.",
                input=f"{len(sent)} prompts; the last three with the salts 'ada', 'ada' and 'bob'",
                expected=f"`{expected}`",
                got=f"`{hits}`",
                figure=prefix_pictures.prompts(sent, BLOCK_SIZE, expected, hits, names),
                alt=ALT,
            )
        total = sum(map(len, sent))
        needed = total - sum(hits) + sum(len(o.outputs[0].token_ids) - 1 for o in outputs)
        assert through == needed  # the engine's own duty
        return Passed(
            f"Each part passed its own check. Token for token the text of a run without cache. Of "
            f"{total} prompt tokens, {sum(hits)} were found, exactly those predicted; {through} "
            f"tokens went through the model in place of {through + sum(hits)}. The salts kept the "
            f"tenants apart. The engine says: {outputs[0].outputs[0].text.strip()!r}",
            prefix_pictures.prompts(sent, BLOCK_SIZE, hits, names=names),
            "The prompts in blocks, and which of them were found.",
        )

    def _other_text(self, sent: list[Sent]) -> Mismatch:
        outputs, _ = self.outputs(sent)
        number = self.differs(sent, outputs) or 0
        prompt, output = sent[number][0], outputs[number]
        got = list(output.outputs[0].token_ids)
        decode = model()[0].get_tokenizer().decode
        right = self.answers[tuple(prompt)]
        pairs = zip(right, got, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(right), len(got)))
        told = "; ".join(f"{decode(p)[-60:]!r}" + (f", salt {t!r}" if t else "") for p, t in sent)
        return Mismatch(
            "The engine says something else than without a cache.",
            input=f"prompts of {[len(p) for p, _ in sent]} tokens that end with {told}; the answer "
            f"to number {number + 1} differs from its token {first} on",
            expected=repr(decode(right)),
            got=repr(output.outputs[0].text),
            look="Each part alone passes its check. A block was found that holds something else, "
            "or it was overwritten in use: what is here that was not there? Block size "
            f"{BLOCK_SIZE}, {model()[0].config.num_gpu_blocks} blocks, requests that run together.",
        )
