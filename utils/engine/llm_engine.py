"""`LLMEngine`: requests come and go, and each step moves all of them forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from utils.engine.config import EngineConfig
from utils.engine.input_processor import InputProcessor, Prompt
from utils.engine.kv_cache_manager import KVCacheManager
from utils.engine.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.llama import LlamaForCausalLM
from utils.engine.model_runner import ModelRunner
from utils.engine.outputs import RequestOutput
from utils.engine.paged_kv_cache import PagedKVCache
from utils.engine.request import Request
from utils.engine.sampler import Sampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ManagerFactory = Callable[[EngineConfig], KVCacheManager]


def make_kv_cache_manager(config: EngineConfig) -> KVCacheManager:
    """The manager an engine has unless it is given another one."""
    hasher = get_request_block_hasher(
        config.block_size, get_hash_fn_by_name(config.prefix_caching_hash_algo)
    )
    return KVCacheManager(
        config.num_gpu_blocks, config.block_size, config.enable_prefix_caching, hasher,
        config.num_cpu_blocks,
    )  # fmt: skip


class LLMEngine:
    """Runs requests step by step: schedule, execute, process.

    Args:
        model: with its weights.
        tokenizer: the model's.
        config: how to run it.
        kv_cache_manager: gives the blocks. None: `make_kv_cache_manager(config)`.
        sampler: a callable in place of `Sampler()`.
        paged: False for a manager whose requests each have a cache of their own.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        kv_cache_manager: KVCacheManager | None = None,
        sampler: Sampler | None = None,
        paged: bool = True,
    ) -> None:
        self.config = config
        self.inputs = InputProcessor(model.config, config, tokenizer)
        self.kv_cache_manager = kv_cache_manager or make_kv_cache_manager(config)
        self.kv_cache = None
        if paged:
            self.kv_cache = PagedKVCache(
                model.config, config.num_gpu_blocks, config.block_size, config.dtype,
                config.device, config.num_cpu_blocks,
            )  # fmt: skip
        self.scheduler = Scheduler(config, self.kv_cache_manager)
        self.runner = ModelRunner(model, sampler or Sampler(), self.kv_cache)
        self._requests: dict[str, Request] = {}

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None
    ) -> None:
        """Queue a prompt.

        Raises:
            ValueError: the id is in use, or the prompt or its parameters are bad (see
                `LLM.generate`). Nothing has been queued then.
        """
        if request_id in self._requests:
            raise ValueError(f"Request id {request_id!r} is in use. Ids must be unique.")
        [request] = self.inputs.from_prompts([prompt], params)
        request.name_family(request_id)
        self.add(request)

    def add(self, request: Request) -> None:
        """Queue a request that `inputs` made."""
        self._requests[request.request_id] = request
        self.scheduler.add_request(request)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def step(self) -> list[RequestOutput]:
        """Run one step. Returns the answers so far of all requests that got a new token."""
        first = {request.family[0].request_id: request for request in self.advance()}
        return [request.output() for request in first.values()]

    def advance(self) -> list[Request]:
        """Run one step, and return the requests that got a new token.

        Raises:
            RuntimeError: no request can run, because something else holds the blocks.
        """
        output = self.scheduler.schedule()
        if not output.scheduled_requests:
            if not self.has_unfinished_requests():
                return []
            raise RuntimeError(
                "No request can run: the blocks of the KV cache are held outside the scheduler."
            )
        try:
            sampled = self.runner.execute_model(output)
        except BaseException:
            self.forget_everything()  # also when a cell is interrupted
            raise
        for request, token_id, logprobs in sampled:
            request.append_token(token_id, logprobs)
        updated = [request for request, _, _ in sampled]
        self.scheduler.update_from_output(output, updated)
        for request in updated:
            if request.is_answered:
                self._requests.pop(request.family[0].request_id, None)
        return updated

    def abort_request(self, request_id: str) -> None:
        """Drop a request with all its answers. Unknown and finished ones are ignored."""
        self.abort_requests([request_id])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop requests with all their answers. Unknown and finished ones are ignored."""
        dropped = [self._requests.pop(i) for i in request_ids if i in self._requests]
        self.scheduler.abort_requests([member for r in dropped for member in r.family])

    def forget_everything(self) -> None:
        """After a forward pass that was broken off: drop all requests and all cached contents.

        Some blocks were promised contents that were never computed, and nobody may find those.
        """
        self.abort_requests(list(self._requests))
        self.kv_cache_manager.block_pool.forget_contents()
