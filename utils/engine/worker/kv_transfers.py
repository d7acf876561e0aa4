"""What the model runner does with a connector: load before attention looks, save what it computed.

In vLLM: `v1/worker/kv_connector_model_runner_mixin.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.engine.attention.batch import Batch
from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.ops import AttentionOps
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.core.sched.output import ScheduledRequest
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.kv_transfer.base import NO_CONNECTOR, KVConnectorBase, KVConnectorMetadata
from utils.engine.kv_transfer.keys import kv_namespace
from utils.engine.models.llama import LlamaForCausalLM


class KVTransfers:
    """The connector's calls around a forward pass.

    Args:
        connector: fetches keys and values, and passes on others.
        caches: for each layer's name, in order, the engine's memory (see `register_kv_caches`).
    """

    def __init__(self, connector: KVConnectorBase, caches: dict[str, Tensor]) -> None:
        self.connector, self.caches = connector, caches
        self.invalid_block_ids: set[int] = set()  # of the last step: what did not get its contents

    @classmethod
    def between(
        cls,
        connector: KVConnectorBase | None,
        scheduler: object,
        model: LlamaForCausalLM,
        config: EngineConfig,
        kv_cache: PagedKVCache | Mapping[str, KVCache],
    ) -> KVTransfers:
        """Make a connector known to an engine that has no requests yet.

        Drafts of a draft model (`SpeculativeConfig("draft_model")`) get worse for tokens that came
        from elsewhere, since its own keys and values do not come with them. Answers stay the same.

        Raises:
            ValueError: the engine has no paged KV cache; or its scheduler asks no connector; or
                the connector serves another engine.
        """
        if connector is None:
            return cls(NO_CONNECTOR, {})
        if not isinstance(kv_cache, PagedKVCache):
            raise ValueError(
                "A connector moves blocks, so it needs a paged KV cache: leave out kv_cache_class."
            )
        if not isinstance(scheduler, Scheduler):
            raise ValueError(
                f"{type(scheduler).__name__} asks no connector: derive it from Scheduler, or leave "
                f"out kv_connector."
            )
        connector.bind_engine(kv_namespace(model, config), config.block_size)
        memory = kv_cache.device_memory
        caches = {f"model.layers.{i}.self_attn.attn": memory[:, i] for i in range(memory.shape[1])}
        connector.register_kv_caches(caches)
        scheduler.connector = connector
        return cls(connector, caches)

    @contextmanager
    def of_step(self, metadata: KVConnectorMetadata | None) -> Iterator[None]:
        """The forward pass of a step runs within. None: nothing is to be loaded or saved."""
        self.invalid_block_ids = set()
        if metadata is None:
            yield
            return
        self.connector.bind_connector_metadata(metadata)
        try:
            self.connector.start_load_kv()
            yield
            if not self.connector.works_layer_by_layer:
                for name, cache in self.caches.items():
                    self.connector.save_kv_layer(name, cache)
            self.connector.wait_for_save()
            self.invalid_block_ids = self.connector.get_block_ids_with_load_errors()
        finally:
            self.connector.clear_connector_metadata()

    def load(self, batch: Batch, metadata: KVConnectorMetadata | None) -> Batch:
        """The batch, once it may look at what is loaded. Blocks have been copied before."""
        if metadata is None:
            return batch
        if self.connector.works_layer_by_layer:
            return LayerByLayerBatch(batch, self.connector, list(self.caches.items()))
        for name in self.caches:
            self.connector.wait_for_layer_load(name)
        return batch

    def valid_rows(
        self, requests: list[ScheduledRequest], hidden: Tensor
    ) -> tuple[list[ScheduledRequest], Tensor]:
        """Leave out the requests that looked at a block without its contents: no token of theirs
        may be sampled, lest a random generator move on.

        Args:
            hidden: [rows, hidden], for each request one row and one for each of its guesses.
        """
        if not (invalid := self.invalid_block_ids):
            return requests, hidden
        sizes = [1 + len(request.spec_token_ids) for request in requests]
        valid = [invalid.isdisjoint(r.block_ids) for r in requests]
        rows = torch.tensor([v for v, n in zip(valid, sizes, strict=True) for _ in range(n)])
        return [r for r, v in zip(requests, valid, strict=True) if v], hidden[rows.bool()]


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
