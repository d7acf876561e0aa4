"""Several engines that share the requests between them. In vLLM: `data_parallel_size`.

Each is a process of its own, with all of the model, a KV cache and a scheduler. Where they share
experts, all must take each step together, and one that has nothing to do runs a dummy batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from utils.engine.config.engine import EngineConfig
from utils.engine.config.engine_args import EngineArgs
from utils.engine.config.parallel import ParallelConfig
from utils.engine.distributed.executor import Workers
from utils.engine.distributed.moe import upcycle
from utils.engine.distributed.parallel_state import initialize_model_parallel
from utils.engine.input_processor import InputProcessor
from utils.engine.metrics import PrefixCacheStats
from utils.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestState
from utils.engine.outputs import EngineCoreOutput
from utils.engine.sampling_params import SamplingParams


class Passing(OutputProcessor):
    """The output processor of a replica: what users see is made where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[EngineCoreOutput] = []

    def add_request(self, state: RequestState) -> None:
        """Nobody here wants to see its answers."""

    def process_outputs(self, outputs: Sequence[EngineCoreOutput]) -> OutputProcessorOutput:
        self.outputs += outputs
        return OutputProcessorOutput([], [])

    def take(self) -> list[EngineCoreOutput]:
        """What came since this was called last."""
        taken, self.outputs = self.outputs, []
        return taken


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
            args,
            data_parallel_size=1,
            enable_expert_parallel=False,
            upcycle=None if self.shares_experts else args.upcycle,
        )
        self.llm = llm_class(**vars(alone))
        if self.shares_experts and args.upcycle is not None:
            upcycle(self.llm.model, args.upcycle, self.state.ep)
        self.engine = self.llm.llm_engine
        self.engine.output_processor = self.passing = Passing()
        self.num_dummy_batches = 0

    def add_request(
        self, request_id: str, prompt: dict[str, Any], params: SamplingParams, priority: int
    ) -> None:
        self.engine.add_request(request_id, prompt, params, priority)

    def abort_in_core(self, request_ids: list[str]) -> None:
        self.engine.abort_in_core(request_ids)

    def advance(self) -> list[EngineCoreOutput]:
        """Take a step, and say what is new."""
        if not self.engine.has_unfinished_requests():
            if self.shares_experts:
                self._run_dummy_batch()
            return []
        self.engine.advance()
        return self.passing.take()

    @torch.inference_mode()
    def _run_dummy_batch(self) -> None:
        """Let the others have our experts: one token, whose result nobody looks at."""
        self.num_dummy_batches += 1
        self.llm.model(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

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

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """All of them together."""
        total = PrefixCacheStats()
        for stats in self._workers.collective_rpc("prefix_cache_stats"):
            for name, value in vars(stats).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    def reset_prefix_cache(self) -> bool:
        return all(self._workers.collective_rpc("reset_prefix_cache"))


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
        self.workers = Workers(
            parallel, parallel.data_parallel_size, EngineReplica, type(llm), args
        )
        self.kv_cache_manager = ReplicaCaches(self.workers)
        self.output_processor = OutputProcessor()
        self._replica_of: dict[str, int] = {}  # of each unfinished prompt
        self.num_requests = [0] * parallel.data_parallel_size  # that each replica got so far

    @property
    def config(self) -> EngineConfig:
        return self.inputs.config

    def add(self, state: RequestState) -> None:
        """Send a request to the replica with the fewest unfinished ones."""
        load = Counter(self._replica_of.values())
        replica = min(range(len(self.num_requests)), key=lambda i: load[i])
        request, name = state.request, state.request_id
        prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        self._ask(replica, "add_request", name, prompt, request.sampling_params, request.priority)
        self.output_processor.add_request(state)
        self._replica_of[name] = replica
        self.num_requests[replica] += 1

    def has_unfinished_requests(self) -> bool:
        return bool(self._replica_of)

    def advance(self) -> list[RequestState]:
        """Let every replica take a step; the answers that got new tokens."""
        try:
            answers: list[list[EngineCoreOutput]] = self.workers.collective_rpc("advance")
        except BaseException:
            self.abort_requests(list(self._replica_of))
            raise
        updated: list[RequestState] = []
        for replica, outputs in enumerate(answers):
            new, to_abort = self.output_processor.process_outputs(outputs)
            if to_abort:
                self._ask(replica, "abort_in_core", to_abort)
            updated += new
        self._forget_finished()
        return updated

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop requests. Unknown and finished ones are ignored."""
        for name in request_ids:
            dropped = self.output_processor.abort_requests([name])
            if dropped and self.workers.ranks.alive:
                self._ask(self._replica_of[name], "abort_in_core", dropped)
        self._forget_finished()

    def _forget_finished(self) -> None:
        alive = self.output_processor.parent_requests.keys()
        self._replica_of = {n: replica for n, replica in self._replica_of.items() if n in alive}

    def _ask(self, replica: int, method: str, *args: Any) -> None:
        self.workers.collective_rpc(method, *args, only_on=replica)
