"""The engine with a learner's prefix cache in it: the last two checks of lab 05."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from utils.checks.kit import prefix_pictures
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    BlockHasher,
    HashFunction,
    KVCacheBlock,
    get_hash_fn_by_name,
)
from utils.engine.llm import LLM
from utils.engine.llm_engine import make_kv_cache_manager
from utils.engine.models.llama import LlamaOps, silu_and_mul
from utils.engine.request import Request, SamplingParams
from utils.sim.prompt_cache import bare_request

BLOCK_SIZE = 16
MAX_TOKENS = 8
SYSTEM_PROMPT = (
    "You are the assistant of a small public library. Answer in one short sentence. The library "
    "is open from ten to six, except on Mondays. Books may be kept for four weeks."
)
QUESTIONS = ("When do you open?", "How long may I keep a book about trains?")

ManagerFactory = Callable[[EngineConfig, HashFunction], KVCacheManager]


class PluggedKVCacheManager(KVCacheManager):
    """The engine's manager, with a learner's parts in it.

    Args:
        config: the engine's.
        block_pool: keeps the blocks.
        block_hasher: hashes the new full blocks of a request.
        get_computed_blocks: `(request, block_size, block_pool)` -> blocks, number of tokens.
        free_request: `(block_pool, block_table)`, gives all blocks of a request back.
    """

    def __init__(
        self,
        config: EngineConfig,
        block_pool: BlockPool,
        block_hasher: BlockHasher,
        get_computed_blocks: Callable[..., tuple[list[KVCacheBlock], int]],
        free_request: Callable[..., None],
    ) -> None:
        super().__init__(
            config.num_gpu_blocks, config.block_size, True, block_hasher, block_pool=block_pool
        )
        self._get_computed_blocks, self._free_request = get_computed_blocks, free_request

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        self._update_block_hashes(request)
        return self._get_computed_blocks(request, self.block_size, self.block_pool)

    def free(self, request: Request) -> None:
        if table := self.req_to_blocks.pop(request.request_id, []):
            self._free_request(self.block_pool, table)
        super().free(request)  # and all that is not blocks


# --- without the model: requests that only take and free blocks ----------------------------------


def _config(num_gpu_blocks: int) -> EngineConfig:
    return EngineConfig(
        max_model_len=16, dtype=torch.float32, device=torch.device("cpu"), block_size=4,
        num_gpu_blocks=num_gpu_blocks,
    )  # fmt: skip


def start(manager: KVCacheManager, request: Request, given: str) -> int | None:
    """Give a request its blocks; how many of its tokens are computed, or None for no room."""
    blocks, num_computed = call(manager.get_computed_blocks, request, given=given)
    arguments = (request, request.num_tokens - num_computed, blocks)
    if call(manager.allocate_slots, *arguments, given=given) is None:
        return None
    return num_computed


def rehearse(make_manager: ManagerFactory) -> None:
    """Run every part once on a tiny pool, so that one that is not written yet says so."""
    given = "one prompt of 9 tokens, twice, in blocks of 4"
    manager = call(make_manager, _config(4), get_hash_fn_by_name("sha256"), given=given)
    if not isinstance(manager, KVCacheManager):
        raise Mismatch("`my_manager` must return a KVCacheManager, as the cell above does.")
    if type(manager.block_pool) is BlockPool or not isinstance(manager, PluggedKVCacheManager):
        raise Mismatch(
            "The engine's own parts would do the work.",
            look="Let `my_manager` return a PluggedKVCacheManager with your five parts in it.",
        )
    for number in range(2):
        request = bare_request(number, list(range(9)))
        start(manager, request, given)
        call(manager.free, request, given=given)


def compare_with_the_engines_own(make_manager: ManagerFactory) -> None:
    """Random requests in a small pool, once with a hash so weak that it collides all the time."""

    def weak(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()[:1]

    for name, hash_function in (("SHA-256", get_hash_fn_by_name("sha256")),
                                ("a hash of one byte", weak)):  # fmt: skip
        config = _config(num_gpu_blocks=12)
        mine = call(make_manager, config, hash_function)
        reference = make_kv_cache_manager(config)
        dice = random.Random(11)
        prompts = [[dice.randrange(50) for _ in range(16)] for _ in range(4)]
        running: list[tuple[Request, Request]] = []
        for number in range(300):
            prompt = dice.choice(prompts)[: dice.randint(1, 12)]
            prompt = prompt + [dice.randrange(50) for _ in range(dice.randint(0, 4))]
            salt = dice.choice([None, "ada", "bob"])
            given = (
                f"request {number} of 300 in a pool of 12 blocks of 4 tokens, hashed with {name}: "
                f"tokens {prompt}, salt {salt!r}"
            )
            pair = bare_request(number, prompt, salt), bare_request(number, prompt, salt)
            got, expected = start(mine, pair[0], given), start(reference, pair[1], given)
            if got != expected:
                raise _other_hits(got, expected, hash_function is weak, given)
            if got is not None:
                running.append(pair)
            while running and (got is None or dice.random() < 0.4):
                first, second = running.pop(dice.randrange(len(running)))
                call(mine.free, first, given=given)
                reference.free(second)
                got = 0


def _other_hits(got: int | None, expected: int | None, weak: bool, given: str) -> Mismatch:
    if weak and (got or 0) > (expected or 0):
        return Mismatch(
            "With a weak hash, a prompt is given another prompt's keys and values.",
            input=given, expected=f"{expected} tokens found", got=f"{got}",
            look="The check of exercise 6. The key in the pool must be your `BlockHash`, not its "
            "digest.",
        )  # fmt: skip
    return Mismatch(
        "Your manager finds other blocks than the engine's own.", input=given,
        expected="no room" if expected is None else f"{expected} tokens found",
        got="no room" if got is None else f"{got} tokens found",
        look="The checks of exercises 1 to 5: one of them has more to say.",
    )  # fmt: skip


# --- with the model ------------------------------------------------------------------------------


@functools.cache
def model() -> tuple[LLM, list[int]]:
    """The model, loaded once, and a counter of the rows that went through its layers."""
    rows = [0]

    def counted_silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
        rows[0] += gate_up.shape[0]
        return silu_and_mul(gate_up)

    llm = LLM(
        dtype="float32", max_model_len=256, num_gpu_blocks_override=64, block_size=BLOCK_SIZE,
        ops=LlamaOps(silu_and_mul=counted_silu_and_mul),
    )  # fmt: skip
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


def run(
    make_manager: ManagerFactory, found_tokens: Callable[[Sequence[Sequence[int]], int], list[int]]
) -> Passed:
    """Generate for two tenants with the learner's parts, and without any cache."""
    prompts = example_prompts()
    tenants: list[str | None] = [None] * len(prompts) + ["ada", "ada", "bob"]
    sent = [*prompts, prompts[0], prompts[1], prompts[0]]
    names = [f"prompt {i}" + (f", {name}" if name else "") for i, name in enumerate(tenants)]
    expected_hits = [0] * len(sent)
    for tenant in set(tenants):
        own = [i for i, name in enumerate(tenants) if name == tenant]
        for i, found in zip(own, found_tokens([sent[i] for i in own], BLOCK_SIZE), strict=True):
            expected_hits[i] = found

    plain, _ = _generate(
        lambda c: make_kv_cache_manager(replace(c, enable_prefix_caching=False)), prompts
    )
    answers = {tuple(o.prompt_token_ids): list(o.outputs[0].token_ids) for o in plain}
    sha256 = get_hash_fn_by_name("sha256")
    dicts = [
        {"prompt_token_ids": prompt} | ({"cache_salt": tenant} if tenant else {})
        for prompt, tenant in zip(sent, tenants, strict=True)
    ]
    given = f"{len(sent)} prompts; the last three with the salts 'ada', 'ada' and 'bob'"
    outputs, through = call(_generate, lambda c: make_manager(c, sha256), dicts, given=given)
    for number, (prompt, output) in enumerate(zip(sent, outputs, strict=True)):
        if list(output.outputs[0].token_ids) != answers[tuple(prompt)]:
            llm, _ = model()
            raise Mismatch(
                "The engine says something else than without a cache.",
                input=f"{given}; prompt {number}",
                expected=repr(llm.get_tokenizer().decode(answers[tuple(prompt)])),
                got=repr(output.outputs[0].text),
                look="A block was found that holds something else, or it was overwritten in use.",
            )  # fmt: skip
    hits = [output.num_cached_tokens for output in outputs]
    if hits != expected_hits:
        raise Mismatch(
            "The text is right, but the cache finds other tokens than predicted.", input=given,
            expected=f"`{expected_hits}`", got=f"`{hits}`",
            figure=prefix_pictures.prompts(sent, BLOCK_SIZE, expected_hits, hits, names),
            alt="Each prompt in blocks, and which of them are found.",
        )  # fmt: skip
    total = sum(map(len, sent))
    needed = total - sum(hits) + sum(len(o.outputs[0].token_ids) - 1 for o in outputs)
    assert through == needed  # the engine's own duty
    return Passed(
        f"Token for token the text of a run without cache. Of {total} prompt tokens, {sum(hits)} "
        f"were found, exactly those predicted; {through} tokens went through the model in place of "
        f"{through + sum(hits)}. The salts kept the tenants apart. The engine says: "
        f"{outputs[0].outputs[0].text.strip()!r}",
        prefix_pictures.prompts(sent, BLOCK_SIZE, hits, names=names),
        "The prompts in blocks, and which of them were found.",
    )
