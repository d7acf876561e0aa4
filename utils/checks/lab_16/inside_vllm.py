"""The connector that runs inside vLLM with a learner's parts. Only vLLM's process imports this."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from utils.checks.lab_16.learners_parts import Parts
from utils.disaggregation.vllm_connector import ValkeyConnector

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class LearnersConnector(ValkeyConnector):
    """The course's connector with the learner's keys, and the learner's bytes.

    `kv_connector_extra_config["parts"]` names the file in which the notebook has put them.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        parts: Parts = cloudpickle.loads(Path(extra["parts"]).read_bytes())
        self.parts = parts
        self.chain_keys = parts.chunk_keys  # type: ignore[assignment]

    def _extract(self, block: int) -> bytes:
        return self.parts.extract_block(self.caches, block)

    def _inject(self, block: int, payload: bytes) -> bool:
        return self.parts.inject_block(self.caches, block, payload)
