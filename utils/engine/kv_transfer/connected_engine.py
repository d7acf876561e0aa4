"""An engine with a connector: what its parts do besides their work.

Neither engine nor scheduler nor model runner knows of connectors: `connect` adds to each of them.
In vLLM these calls stand in `v1/core/sched/scheduler.py` and in
`v1/worker/kv_connector_model_runner_mixin.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack, cast

from torch import Tensor

from utils.engine.attention.batch import Batch
from utils.engine.attention.ops import AttentionOps
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.kv_transfer.connected_scheduler import ConnectedScheduler
from utils.engine.kv_transfer.keys import kv_namespace
from utils.engine.llm_engine import EngineParts, LLMEngine
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.request import Request
from utils.engine.worker.model_runner import ModelRunner, SampledToken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POLL_SECONDS = 0.001  # between looks for keys and values that are on their way


class ConnectedParts(EngineParts, total=False):
    """Parts of an engine, and what connects it to others."""

    kv_connector: KVConnectorBase | None


def make_engine(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    config: EngineConfig,
    kv_cache_manager: KVCacheManager,
    new_kv_cache: Callable[..., PagedKVCache] | None = PagedKVCache,
    **parts: Unpack[ConnectedParts],
) -> LLMEngine:
    """An engine as `LLMEngine` makes it, connected if there is a `kv_connector`."""
    connector = parts.pop("kv_connector", None)
    engine = LLMEngine(
        model, tokenizer, config, kv_cache_manager, new_kv_cache=new_kv_cache,
        **cast(EngineParts, parts),
    )  # fmt: skip
    if connector is not None:
        connect(engine, connector)
    return engine


def connect(engine: LLMEngine, connector: KVConnectorBase) -> None:
    """Let an engine that has no requests yet use a connector.

    Drafts of a draft model (`SpeculativeConfig("draft_model")`) get worse for tokens that came from
    elsewhere, since its own keys and values do not come with them. Answers stay the same.

    Raises:
        ValueError: the engine has no paged KV cache, or not in this process, or the connector
            serves another engine.
    """
    if not isinstance(engine.kv_cache, PagedKVCache):
        raise ValueError(
            "A connector moves blocks, so it needs a paged KV cache in the engine's own process: "
            "leave out kv_cache_class, tensor_parallel_size and pipeline_parallel_size."
        )
    namespace = kv_namespace(engine.runner.model, engine.config)
    connector.bind_engine(namespace, engine.config.block_size)
    memory = engine.kv_cache.device_memory
    caches = {f"model.layers.{i}.self_attn.attn": memory[:, i] for i in range(memory.shape[1])}
    connector.register_kv_caches(caches)
    for part, addition in (
        (engine, ConnectedEngine), (engine.scheduler, ConnectedScheduler),
        (engine.runner, ConnectedModelRunner),
    ):  # fmt: skip
        # Whatever class it has, a learner's for instance, it goes on as a subclass of that.
        part.__class__ = type(addition.__name__, (addition, type(part)), {})
    cast(ConnectedScheduler, engine.scheduler).connector = connector
    runner = cast(ConnectedModelRunner, engine.runner)
    runner.connector, runner.caches, runner.invalid_block_ids = connector, caches, set()


class ConnectedModelRunner(ModelRunner):
    """Lets the connector load before attention looks, and save what was computed."""

    connector: KVConnectorBase
    caches: dict[str, Tensor]
    invalid_block_ids: set[int]  # of the last step

    def _forward(self, output: SchedulerOutput) -> tuple[list[Request], Tensor]:
        self.invalid_block_ids = set()
        if output.kv_connector_metadata is None:  # beam search plans its steps itself
            return super()._forward(output)
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        try:
            self.connector.start_load_kv()
            requests, hidden = super()._forward(output)
            if not self.connector.works_layer_by_layer:
                for name, cache in self.caches.items():
                    self.connector.save_kv_layer(name, cache)
            self.connector.wait_for_save()
            self.invalid_block_ids = self.connector.get_block_ids_with_load_errors()
        finally:
            self.connector.clear_connector_metadata()
        return self._valid(output, requests, hidden)

    def _batch(self, output: SchedulerOutput) -> Batch:
        batch = super()._batch(output)  # swaps and copies blocks, so what is loaded comes after it
        if output.kv_connector_metadata is None:
            return batch
        if self.connector.works_layer_by_layer:
            return LayerByLayerBatch(batch, self.connector, list(self.caches.items()))
        for name in self.caches:
            self.connector.wait_for_layer_load(name)
        return batch

    def _valid(
        self, output: SchedulerOutput, requests: list[Request], hidden: Tensor
    ) -> tuple[list[Request], Tensor]:
        """Leave out the requests that looked at a block without its contents: no token of theirs
        may be sampled, lest a random generator move on."""
        valid: list[Request] = []
        rows: list[int] = []
        row = 0
        for request in requests:
            size = 1 + len(request.spec_token_ids)
            if self.invalid_block_ids.isdisjoint(output.block_ids[request.request_id]):
                valid.append(request)
                rows += range(row, row + size)
            row += size
        return (requests, hidden) if len(valid) == len(requests) else (valid, hidden[rows])


class ConnectedEngine(LLMEngine):
    """Waits where nobody can run, and takes back what was promised and did not come."""

    def advance(self) -> list[Request]:
        scheduler = cast(ConnectedScheduler, self.scheduler)
        if not scheduler.running and all(map(scheduler.is_deferred, scheduler.waiting)):
            time.sleep(POLL_SECONDS)
            return []
        return super().advance()

    def _process(
        self, output: SchedulerOutput, sampled: Sequence[SampledToken]
    ) -> dict[Request, int]:
        gained = super()._process(output, sampled)
        if invalid := cast(ConnectedModelRunner, self.runner).invalid_block_ids:
            cast(ConnectedScheduler, self.scheduler).take_back_invalid_blocks(output, invalid)
        return gained


@dataclass(frozen=True)
class LayerByLayerBatch:
    """A batch whose layers wait for their keys and values, and pass new ones on when they are done.

    `inner` is the batch; `caches` are the layers' names and memory.
    """

    inner: Batch
    connector: KVConnectorBase
    caches: list[tuple[str, Tensor]]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, ops: AttentionOps, scale: float
    ) -> Tensor:
        """See `Batch`."""
        name, cache = self.caches[layer]
        self.connector.wait_for_layer_load(name)
        attended = self.inner.attend(layer, query, key, value, ops, scale)
        self.connector.save_kv_layer(name, cache)
        return attended
