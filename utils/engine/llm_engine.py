"""`LLMEngine`: requests come and go, and each step moves all of them forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.core.scheduler import Scheduler
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.core.step_record import StepRecord, record_step
from utils.engine.core.whole_steps import WholeSteps
from utils.engine.input_processor import InputProcessor, Prompt
from utils.engine.metrics import SpecDecodingStats
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.outputs import RequestOutput
from utils.engine.request import Request
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sample.sampler import Sampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.drafter import Drafter, make_drafter
from utils.engine.worker.model_runner import ModelRunner, SampledToken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ManagerFactory = Callable[[EngineConfig], KVCacheManager]


def make_kv_cache_manager(config: EngineConfig) -> KVCacheManager:
    """The manager an engine has unless it is given another one."""
    hash_fn = get_hash_fn_by_name(config.prefix_caching_hash_algo)
    hasher = get_request_block_hasher(config.block_size, hash_fn)
    return KVCacheManager(
        config.num_gpu_blocks, config.block_size, config.enable_prefix_caching, hasher,
        config.num_cpu_blocks,
    )  # fmt: skip


class EngineParts(TypedDict, total=False):
    """Parts of the engine that can be another one's, a learner's for instance."""

    sampler: Sampler | None
    rejection_sampler: RejectionSampler | None
    scheduler_cls: Callable[[EngineConfig, KVCacheManager], Scheduler]


class LLMEngine:
    """Runs requests step by step: schedule, execute, process, draft.

    Args:
        model: with its weights.
        tokenizer: the model's.
        config: how to run it.
        kv_cache_manager: gives the blocks. None: `make_kv_cache_manager(config)`.
        sampler: a callable in place of `Sampler()`.
        new_kv_cache: makes the memory behind the blocks, from what `PagedKVCache` takes. None: the
            manager's requests each have a cache of their own.
        rejection_sampler: verifies guesses in place of `RejectionSampler()`.
        scheduler_cls: makes the scheduler, from a config and a KV cache manager.

    Raises:
        ValueError: tokens are to be guessed ahead, and the guesses' keys and values cannot be
            discarded, for they are not paged; or what is to guess them does not fit the model.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        config: EngineConfig,
        kv_cache_manager: KVCacheManager | None = None,
        sampler: Sampler | None = None,
        new_kv_cache: Callable[..., PagedKVCache] | None = PagedKVCache,
        rejection_sampler: RejectionSampler | None = None,
        scheduler_cls: Callable[[EngineConfig, KVCacheManager], Scheduler] = Scheduler,
    ) -> None:
        self.config = config
        self.inputs = InputProcessor(model.config, config, tokenizer)
        self.kv_cache_manager = kv_cache_manager or make_kv_cache_manager(config)
        self.kv_cache = None
        if new_kv_cache is not None:
            self.kv_cache = new_kv_cache(
                model.config, config.num_gpu_blocks, config.block_size, config.dtype,
                config.device, config.num_cpu_blocks,
            )  # fmt: skip
        self.scheduler = scheduler_cls(config, self.kv_cache_manager)
        self.runner = ModelRunner(model, sampler or Sampler(), self.kv_cache, rejection_sampler)
        self.drafter: Drafter | None = None
        if config.speculative_config is not None:
            if self.kv_cache is None:
                raise ValueError("Speculative decoding needs a paged KV cache.")
            self.drafter = make_drafter(config, model)
            self.scheduler.num_lookahead_tokens = self.drafter.num_lookahead_tokens
        self.step_trace: list[StepRecord] | None = None  # set it to [] to record each step
        self._requests: dict[str, Request] = {}
        self.whole_steps = WholeSteps(self.forget_everything)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a prompt. Under the policy "priority", lower numbers go first.

        Raises:
            ValueError: the id is in use, or the prompt or its parameters are bad (see
                `LLM.generate`). Nothing has been queued then.
        """
        if request_id in self._requests:
            raise ValueError(f"Request id {request_id!r} is in use. Ids must be unique.")
        [request] = self.inputs.from_prompts([prompt], params)
        request.name_family(request_id)
        request.set_priority(priority)
        self.add(request)

    def add(self, request: Request) -> None:
        """Queue a request that `inputs` made."""
        with self.whole_steps:
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
        begin = perf_counter()
        with self.whole_steps:  # also when a cell is interrupted
            output = self.scheduler.schedule()
            if not output.scheduled_requests:
                if not self.has_unfinished_requests():
                    return []
                raise RuntimeError(
                    "No request can run: the blocks of the KV cache are held outside the scheduler."
                )
            usage = self.kv_cache_manager.usage
            scheduled = perf_counter()
            sampled = self.runner.execute_model(output)
            executed = perf_counter()
            gained = self._process(output, sampled)
            processed = perf_counter()
            if self.drafter:
                self.drafter.propose(output, self.runner.last_hidden)
        if self.step_trace is not None:
            times = (begin, scheduled, executed, processed, perf_counter())
            self.step_trace.append(
                record_step(times, output, gained, len(self.scheduler.waiting), usage)
            )
        return list(gained)

    def _process(
        self, output: SchedulerOutput, sampled: Sequence[SampledToken]
    ) -> dict[Request, int]:
        """Book a step's new tokens: which requests got how many."""
        gained: dict[Request, int] = {}
        for request, token_id, logprobs in sampled:
            gained.setdefault(request, 0)
            if not request.is_finished:  # else an accepted guess beyond the answer's end
                request.append_token(token_id, logprobs)
                gained[request] += 1
        if self.drafter:
            num_sampled = Counter(token.request.request_id for token in sampled)
            for request in output.scheduled_requests:
                if draft := output.scheduled_spec_decode_tokens.get(request.request_id):
                    self.drafter.observe(request, len(draft), num_sampled[request.request_id] - 1)
        self.scheduler.update_from_output(output, list(gained))
        for request in gained:
            if request.is_answered:
                self._requests.pop(request.family[0].request_id, None)
        return gained

    @property
    def spec_decoding_stats(self) -> SpecDecodingStats | None:
        """Counts of guessed tokens since the engine was made. None: it does not guess."""
        return None if self.drafter is None else self.drafter.stats

    def abort_request(self, request_id: str) -> None:
        """Drop a request with all its answers. Unknown and finished ones are ignored."""
        self.abort_requests([request_id])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop requests with all their answers. Unknown and finished ones are ignored.

        In the midst of a step (see `WholeSteps.soon`), they are dropped at its end.
        """
        self.whole_steps.soon(lambda: self._drop(request_ids))

    def _drop(self, request_ids: Sequence[str]) -> None:
        dropped = [self._requests.pop(i) for i in request_ids if i in self._requests]
        self.scheduler.abort_requests([member for r in dropped for member in r.family])

    def forget_everything(self) -> None:
        """Drop all requests and all cached contents, whatever state an interrupt left them in."""
        self.scheduler.forget_requests([m for r in self._requests.values() for m in r.family])
        self._requests.clear()
        self.kv_cache_manager.forget_everything()
