"""The parts of an engine that can be others: a learner's class, a connector, a listener.

This is the one place where an engine is extended. Each part has a type that says what is asked of
it, and a default that does the usual thing, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.contiguous_manager import ContiguousKVCacheManager
from utils.engine.core.interfaces import KVCacheManagerInterface
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.engine.core.kv_events import NO_EVENTS, KVEvents
from utils.engine.core.sched.async_scheduler import AsyncScheduler
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.distributed.executor import ModelWorkers, MultiprocExecutor
from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.sample.rejection_sampler import BlockRejectionSampler, RejectionSampler
from utils.engine.sample.sampler import Sampler
from utils.engine.spec_decode.drafter import Drafter, Proposer
from utils.engine.spec_decode.make_proposer import make_proposer
from utils.engine.worker.executor import Executor
from utils.engine.worker.kv_transfers import KVTransfers
from utils.engine.worker.model_runner import ModelRunner


def make_kv_cache_manager(config: EngineConfig) -> KVCacheManager:
    """The manager that an engine has unless it is given another one."""
    hash_fn = get_hash_fn_by_name(config.prefix_caching_hash_algo)
    hasher = get_request_block_hasher(config.block_size, hash_fn)
    return KVCacheManager(
        config.num_gpu_blocks,
        config.block_size,
        config.enable_prefix_caching,
        hasher,
        config.num_cpu_blocks,
    )


@dataclass(frozen=True, kw_only=True)
class EngineParts:
    """What an engine is put together from.

    Policy and attention are parts as well, of scheduler and model: see `scheduling_policy` and
    `ops` of `EngineArgs`.

    Args:
        kv_cache_manager: makes who gives the blocks, from an `EngineConfig`.
        kv_cache_class: gives each request a cache of its own, of this class, in place of paging. It
            is called with `(config, max_num_tokens, dtype, device)`, and needs `append`.
        scheduler_cls: makes who chooses each step's tokens, from a config and a manager.
        sampler: turns logits into tokens.
        rejection_sampler: decides which guessed tokens stay.
        proposer: makes who guesses tokens, from a config with `speculative_config` and the model,
            or its workers on several ranks.
        kv_connector: brings keys and values from elsewhere, and passes on those computed here.
            None: nothing comes, nothing goes.
        kv_events: is told what the prefix cache gains and loses.
    """

    kv_cache_manager: Callable[[EngineConfig], KVCacheManagerInterface] = make_kv_cache_manager
    kv_cache_class: Callable[..., KVCache] | None = None
    scheduler_cls: Callable[[EngineConfig, KVCacheManagerInterface], Scheduler] = Scheduler
    sampler: Sampler = field(default_factory=Sampler)
    rejection_sampler: RejectionSampler = field(default_factory=RejectionSampler)
    proposer: Callable[[EngineConfig, LlamaForCausalLM | ModelWorkers], Proposer] = make_proposer
    kv_connector: KVConnectorBase | None = None
    kv_events: KVEvents = NO_EVENTS

    def make_kv_cache_manager(
        self, model: ModelConfig, config: EngineConfig
    ) -> KVCacheManagerInterface:
        """Who gives places in the KV cache.

        Raises:
            ValueError: KV events are wanted, and there are none.
        """
        listens = type(self.kv_events) is not KVEvents
        if listens and not config.enable_prefix_caching:
            raise ValueError("KV events tell what the prefix cache holds: enable prefix caching.")
        if self.kv_cache_class is not None:
            new_cache = partial(self.kv_cache_class, model)
            return ContiguousKVCacheManager(
                lambda max_num_tokens: new_cache(max_num_tokens, config.dtype, config.device)
            )
        manager = self.kv_cache_manager(config)
        if listens:
            pool = getattr(manager, "block_pool", None)
            if type(pool) is not BlockPool:
                raise ValueError(
                    f"KV events come from the engine's own block pool, and this KV cache manager "
                    f"has a {type(pool).__name__}. Leave out kv_events or kv_cache_manager."
                )
            pool.events = self.kv_events
        return manager

    def is_async(self, model: LlamaForCausalLM | ModelWorkers, config: EngineConfig) -> bool:
        """Whether the next step is scheduled while one runs.

        Raises:
            ValueError: that is asked for, and something else doesn't go together with it.
        """
        if not config.async_scheduling:
            return False
        refused = [
            (config.speculative_config, "speculative_config", "guesses need the newest token"),
            (self.kv_connector, "kv_connector", "whether a load has failed is known too late"),
            (self.kv_cache_class, "kv_cache_class", "it frees memory that a step still writes to"),
            (
                self.kv_cache_manager is not make_kv_cache_manager,
                "kv_cache_manager",
                "only the engine's own caches blocks whose tokens come late",
            ),
            (
                isinstance(model, ModelWorkers),
                "tensor_parallel_size and pipeline_parallel_size",
                "ranks take one step at a time",
            ),
        ]
        for is_there, name, why in refused:
            if is_there:
                raise ValueError(
                    f"async_scheduling schedules a step while the one before it runs, and does not "
                    f"go with {name}: {why}. Leave one of them out."
                )
        return True

    def make_scheduler(
        self, config: EngineConfig, kv_cache_manager: KVCacheManagerInterface, is_async: bool
    ) -> Scheduler:
        """Who chooses each step's tokens.

        Raises:
            ValueError: the scheduler is to be an `AsyncScheduler`, and is none.
        """
        usual = self.scheduler_cls is Scheduler
        scheduler_cls = AsyncScheduler if is_async and usual else self.scheduler_cls
        scheduler = scheduler_cls(config, kv_cache_manager)
        if is_async != isinstance(scheduler, AsyncScheduler):
            raise ValueError(
                f"{type(scheduler).__name__} "
                + (
                    "cannot schedule a step while another one runs: derive it from AsyncScheduler."
                    if is_async
                    else "is an AsyncScheduler: create the LLM with async_scheduling=True."
                )
            )
        return scheduler

    def make_drafter(
        self, model: LlamaForCausalLM | ModelWorkers, config: EngineConfig
    ) -> Drafter | None:
        """Who guesses tokens ahead. None: nobody.

        Raises:
            ValueError: guesses need a paged KV cache; or see `make_proposer`.
        """
        if config.speculative_config is None:
            return None
        if self.kv_cache_class is not None:
            raise ValueError("Speculative decoding needs a paged KV cache.")
        return Drafter(config.speculative_config, self.proposer(config, model))

    def make_rejection_sampler(self, config: EngineConfig) -> RejectionSampler:
        """Who verifies chains of guesses.

        Raises:
            ValueError: a method is asked for, and the sampler is somebody's own.
        """
        spec = config.speculative_config
        if spec is None or spec.rejection_sample_method == "standard":
            return self.rejection_sampler
        if type(self.rejection_sampler) is not RejectionSampler:
            raise ValueError(
                f"rejection_sample_method={spec.rejection_sample_method!r} asks for one of the "
                f"engine's own samplers, and it was given a {type(self.rejection_sampler).__name__}"
                f". Leave one of the two out."
            )
        return BlockRejectionSampler()

    def make_executor(
        self,
        model: LlamaForCausalLM | ModelWorkers,
        config: EngineConfig,
        kv_cache_manager: KVCacheManagerInterface,
        scheduler: Scheduler,
    ) -> Executor:
        """Where the steps are computed: a model runner in this process, or one on each rank.

        Raises:
            ValueError: parts need the model in this process (see also `KVTransfers.between`).
        """
        rejection_sampler = self.make_rejection_sampler(config)
        if isinstance(model, ModelWorkers):
            if self.kv_connector is not None or self.kv_cache_class is not None:
                raise ValueError(
                    "kv_connector and kv_cache_class need the model in the engine's own process: "
                    "leave out tensor_parallel_size and pipeline_parallel_size."
                )
            return MultiprocExecutor(model, config, self.sampler, rejection_sampler)
        memory: PagedKVCache | Mapping[str, KVCache]
        if isinstance(kv_cache_manager, ContiguousKVCacheManager):
            memory = kv_cache_manager.kv_caches
        else:
            memory = PagedKVCache.for_engine(model.config, config)
        transfers = KVTransfers.between(self.kv_connector, scheduler, model, config, memory)
        return ModelRunner(model, self.sampler, memory, rejection_sampler, transfers, config.seed)
