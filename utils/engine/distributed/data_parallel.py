"""Several engines that share the requests between them. In vLLM: `data_parallel_size`.

Each is a process of its own, with all of the model, a KV cache and a scheduler. Where they share
experts, all must take each step together, and one that has nothing to do runs a dummy batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.engine.config.engine import EngineConfig
from utils.engine.config.engine_args import EngineArgs
from utils.engine.config.parallel import ParallelConfig
from utils.engine.distributed.executor import MultiprocExecutor
from utils.engine.distributed.moe import upcycle
from utils.engine.distributed.parallel_state import initialize_model_parallel
from utils.engine.input_processor import InputProcessor
from utils.engine.metrics import PrefixCacheStats
from utils.engine.outputs import Logprob, PromptLogprobs
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams


class News(NamedTuple):
    """What a step gave one answer."""

    request_id: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    num_cached_tokens: int | None
    prompt_logprobs: PromptLogprobs | None  # with the first token


class EngineReplica:
    """One of the engines, in its process.

    Args:
        llm_class: `LLM`.
        args: what all of them together are made with.
    """

    def __init__(self, llm_class: type, args: EngineArgs) -> None:
        self.state = initialize_model_parallel()
        self.shares_experts = args.enable_expert_parallel
        alone = replace(
            args, data_parallel_size=1, enable_expert_parallel=False,
            upcycle=None if self.shares_experts else args.upcycle,
        )  # fmt: skip
        self.llm = llm_class(**vars(alone))
        if self.shares_experts and args.upcycle is not None:
            upcycle(self.llm.model, args.upcycle, self.state.ep)
        self.engine = self.llm.llm_engine
        self.num_dummy_batches = 0
        self._reported: dict[str, int] = {}

    def add_request(
        self, request_id: str, prompt: dict[str, Any], params: SamplingParams, priority: int
    ) -> None:
        self.engine.add_request(request_id, prompt, params, priority)

    def abort_requests(self, request_ids: list[str]) -> None:
        self.engine.abort_requests(request_ids)

    def advance(self) -> list[News]:
        """Take a step, and say what is new."""
        if not self.engine.has_unfinished_requests():
            if self.shares_experts:
                self._run_dummy_batch()
            return []
        return [self._news(request) for request in self.engine.advance()]

    @torch.inference_mode()
    def _run_dummy_batch(self) -> None:
        """Let the others have our experts: one token, whose result nobody looks at."""
        self.num_dummy_batches += 1
        self.llm.model(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def _news(self, request: Request) -> News:
        name = request.request_id
        begin = self._reported.get(name, 0)
        self._reported[name] = len(request.output_token_ids)
        if request.is_finished:
            del self._reported[name]
        return News(
            name, request.output_token_ids[begin:], request.logprobs[begin:],
            request.num_cached_tokens, request.prompt_logprobs if begin == 0 else None,
        )  # fmt: skip

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """Scores [T, vocab_size] after each token of a text. All replicas must call it together."""
        ids = torch.tensor(token_ids)
        return self.llm.model.compute_logits(self.llm.model(ids, torch.arange(len(ids))))

    def prefix_cache_stats(self) -> PrefixCacheStats:
        return self.llm.prefix_cache_stats

    def reset_prefix_cache(self) -> bool:
        return self.llm.reset_prefix_cache()

    def sent_bytes(self) -> Counter[str]:
        """Bytes that this replica has sent to others, by operation."""
        return self.state.ep.sent_bytes

    def num_routed(self) -> Tensor:
        """Tokens that this replica has sent to each expert: [layers, experts]."""
        return torch.stack([layer.mlp.num_routed for layer in self.llm.model.model.layers])

    def dummy_batches(self) -> int:
        return self.num_dummy_batches


class ReplicaCaches:
    """All replicas' prefix caches. Each has its own, and finds nothing in those of the others."""

    def __init__(self, executor: MultiprocExecutor) -> None:
        self._executor = executor

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """All of them together."""
        total = PrefixCacheStats()
        for stats in self._executor.collective_rpc("prefix_cache_stats"):
            for name, value in vars(stats).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    def reset_prefix_cache(self) -> bool:
        return all(self._executor.collective_rpc("reset_prefix_cache"))


class DataParallelEngine:
    """Stands for all replicas, with the methods of an `LLMEngine` that `LLM` uses.

    Args:
        llm: whose requests these are. They are checked here, before they are sent.
        args: what it was made with. Each replica makes one with the same.
        parallel: how many replicas.
    """

    def __init__(self, llm: Any, args: EngineArgs, parallel: ParallelConfig) -> None:
        parallel.check(llm.model_config, llm.config.device)
        self.inputs = InputProcessor(llm.model_config, llm.config, llm.tokenizer)
        self.executor = MultiprocExecutor(
            parallel, parallel.data_parallel_size, EngineReplica, type(llm), args
        )
        self.kv_cache_manager = ReplicaCaches(self.executor)
        self._unfinished: list[dict[str, Request]] = [
            {} for _ in range(parallel.data_parallel_size)
        ]
        self.num_requests = [0] * parallel.data_parallel_size  # that each replica got so far

    @property
    def config(self) -> EngineConfig:
        return self.inputs.config

    @property
    def kv_cache(self) -> None:
        """Raises a ValueError: each replica has its own. Beam search asks for it."""
        raise ValueError("Beam search runs in one engine: use data_parallel_size=1.")

    def add(self, request: Request) -> None:
        """Send a request to the replica with the fewest unfinished ones."""
        replica = min(range(len(self._unfinished)), key=lambda i: len(self._unfinished[i]))
        prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        self._ask(replica, "add_request", request.request_id, prompt, request.sampling_params,
                  request.priority)  # fmt: skip
        self._unfinished[replica][request.request_id] = request
        self.num_requests[replica] += 1

    def has_unfinished_requests(self) -> bool:
        return any(self._unfinished)

    def advance(self) -> list[Request]:
        """Let every replica take a step; the requests that got new tokens."""
        try:
            answers: list[list[News]] = self.executor.collective_rpc("advance")
        except BaseException:
            self.abort_requests([name for part in self._unfinished for name in part])
            raise
        gained = []
        for requests, news in zip(self._unfinished, answers, strict=True):
            members = {m.request_id: m for first in requests.values() for m in first.family}
            for name, token_ids, logprobs, num_cached_tokens, prompt_logprobs in news:
                if (member := members.get(name)) is None:
                    continue  # aborted meanwhile
                member.num_cached_tokens = num_cached_tokens
                member.prompt_logprobs = prompt_logprobs or member.prompt_logprobs
                for i, token_id in enumerate(token_ids):
                    member.append_token(token_id, logprobs[i] if logprobs else None)
                gained.append(member)
            for name in [name for name, request in requests.items() if request.is_answered]:
                del requests[name]
        return gained

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop requests. Unknown and finished ones are ignored."""
        for replica, requests in enumerate(self._unfinished):
            dropped = [name for name in request_ids if requests.pop(name, None)]
            if dropped and self.executor.ranks.alive:
                self._ask(replica, "abort_requests", dropped)

    def _ask(self, replica: int, method: str, *args: Any) -> None:
        self.executor.collective_rpc(method, *args, only_on=replica)
