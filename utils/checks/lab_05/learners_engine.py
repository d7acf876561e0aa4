"""The engine with a learner's prefix cache in it: the last check; and the first one's prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.pictures import prefixes as prefix_pictures
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import HashFunction, KVCacheBlock, get_hash_fn_by_name
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul
from utils.engine.request import Request, SamplingParams
from utils.sim.prompt_cache import find_cached_tokens

BLOCK_SIZE = 16
MAX_TOKENS = 6
SYSTEM_PROMPT = (
    "You are the assistant of a small public library. Answer in one short sentence. The library "
    "is open from ten to six, except on Mondays. Books may be kept for four weeks."
)
QUESTIONS = ("When do you open?", "How long may I keep a book about trains?")
ALT = "Each prompt in blocks, and which of them are found."
ManagerFactory = Callable[[EngineConfig, HashFunction], KVCacheManager]


class PluggedKVCacheManager(KVCacheManager):
    """The engine's manager, with a learner's parts in it.

    Args:
        config: the engine's.
        hash_function: of bytes, such as SHA-256.
        block_pool: keeps the blocks.
        hash_block_tokens: `(hash_function, parent, token_ids, extra_keys)` -> hash of a block.
        request_block_hasher: `(request, block_size, hash_block)` -> hashes of new full blocks.
        get_computed_blocks: `(request, block_size, block_pool)` -> blocks, number of tokens.
        free_request: `(block_pool, block_table)`, gives all blocks of a request back.
    """

    def __init__(
        self,
        config: EngineConfig,
        hash_function: HashFunction,
        block_pool: BlockPool,
        hash_block_tokens: Callable[..., bytes],
        request_block_hasher: Callable[..., list[Any]],
        get_computed_blocks: Callable[..., tuple[list[KVCacheBlock], int]],
        free_request: Callable[..., None],
    ) -> None:
        super().__init__(
            config.num_gpu_blocks, config.block_size, True, self._hash, block_pool=block_pool
        )
        self.hash_function = hash_function
        self.part_hash_block_tokens = hash_block_tokens
        self.part_request_block_hasher = request_block_hasher
        self.part_get_computed_blocks, self.part_free_request = get_computed_blocks, free_request

    def _hash(self, request: Any) -> list[Any]:
        hash_block = partial(self.part_hash_block_tokens, self.hash_function)
        return self.part_request_block_hasher(request, self.block_size, hash_block)

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        self._update_block_hashes(request)
        return self.part_get_computed_blocks(request, self.block_size, self.block_pool)

    def free(self, request: Request) -> None:
        if table := self.req_to_blocks.pop(request.request_id, []):
            self.part_free_request(self.block_pool, table)
        super().free(request)  # and all that is not blocks

    def parts(self) -> dict[str, Any]:
        """The learner's parts, by the name of their exercise."""
        return {
            "hash_block_tokens": self.part_hash_block_tokens,
            "request_block_hasher": self.part_request_block_hasher,
            "get_computed_blocks": self.part_get_computed_blocks,
            "block_pool": type(self.block_pool),
            "free_request": self.part_free_request,
        }


def plugged(make_manager: ManagerFactory) -> PluggedKVCacheManager:
    """What the learner's `my_manager` makes; no engine's own part may be in it."""
    config = EngineConfig(
        max_model_len=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
        block_size=4,
        num_gpu_blocks=4,
    )
    manager = call(make_manager, config, get_hash_fn_by_name("sha256"))
    if not isinstance(manager, KVCacheManager):
        raise Mismatch("`my_manager` must return a KVCacheManager, as the cell above does.")
    if type(manager.block_pool) is BlockPool or not isinstance(manager, PluggedKVCacheManager):
        raise Mismatch(
            "The engine's own parts would do the work.",
            look="Let `my_manager` return a PluggedKVCacheManager with your parts in it.",
        )
    return manager


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


@functools.cache
def counted_hits() -> list[int]:
    """What the engine's own counters say when the prompts run one after another."""
    llm, _ = model()
    llm.llm_engine = llm.new_engine()
    params = SamplingParams(temperature=0.0, max_tokens=1)
    outputs = [llm.generate(p, params, use_tqdm=False)[0] for p in example_prompts()]
    return [cast(int, output.num_cached_tokens) for output in outputs]


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


@functools.cache
def plain_answers() -> dict[tuple[int, ...], list[int]]:
    """Without any cache: the answer to each prompt."""
    outputs, _ = _generate(
        lambda c: make_kv_cache_manager(replace(c, enable_prefix_caching=False)), example_prompts()
    )
    return {tuple(o.prompt_token_ids): list(o.outputs[0].token_ids) for o in outputs}


class Trial:
    """Generates for three tenants with the learner's parts."""

    def __init__(self, make_manager: ManagerFactory) -> None:
        self.make_manager = make_manager
        prompts = example_prompts()
        tenants: list[str | None] = [None] * len(prompts) + ["ada", "ada", "bob"]
        self.sent = [*zip([*prompts, prompts[0], prompts[1], prompts[0]], tenants, strict=True)]
        self.answers = plain_answers()

    def outputs(self) -> tuple[list[Any], int]:
        dicts = [
            {"prompt_token_ids": prompt} | ({"cache_salt": tenant} if tenant else {})
            for prompt, tenant in self.sent
        ]
        sha256 = get_hash_fn_by_name("sha256")
        given = f"{len(self.sent)} prompts of the model"
        return call(_generate, lambda c: self.make_manager(c, sha256), dicts, given=given)

    def differs(self, outputs: Sequence[Any]) -> int | None:
        """The first prompt that gets another answer than without a cache.

        Prompts are computed in other pieces then, so an answer may part at a near tie.
        """
        oracle = engine_oracle(model()[0])
        for number, ((prompt, _), output) in enumerate(zip(self.sent, outputs, strict=True)):
            got, right = output.outputs[0].token_ids, self.answers[tuple(prompt)]
            if not same_but_for_a_tie(oracle, prompt, got, right):
                return number
        return None

    def run(self) -> Passed:
        outputs, through = self.outputs()
        number = self.differs(outputs)
        if number is not None:
            raise self._other_text(number, outputs[number])
        sent, tenants = [prompt for prompt, _ in self.sent], [tenant for _, tenant in self.sent]
        names = [f"prompt {i}" + (f", {t}" if t else "") for i, t in enumerate(tenants)]
        expected = find_cached_tokens(sent, BLOCK_SIZE, salts=tenants)
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

    def _other_text(self, number: int, output: Any) -> Mismatch:
        prompt, tenant = self.sent[number]
        decode = model()[0].get_tokenizer().decode
        salt = f", with the salt {tenant!r}" if tenant else ""
        return Mismatch(
            "The engine says something else than without a cache.",
            input=f"prompt {number + 1} of {len(self.sent)}, of {len(prompt)} tokens{salt}, which "
            f"ends with {decode(prompt)[-60:]!r}",
            expected=repr(decode(self.answers[tuple(prompt)])),
            got=repr(output.outputs[0].text),
            look="Each part alone passes its check. A block was found that holds something else, "
            "or it was overwritten in use: what is here that was not there? Block size "
            f"{BLOCK_SIZE}, {model()[0].config.num_gpu_blocks} blocks, requests that run together.",
        )
