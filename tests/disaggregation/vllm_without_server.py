"""vLLM's real scheduler and our connector, around memory that shows what is in it.

In place of keys and values, each token's slot holds a number that stands for the token and all
tokens before it. Whoever reads a slot can tell whether it is right. So every step checks all that a
model would attend to.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from utils.disaggregation.vllm_connector import ValkeyConnector

BLOCK = 16


def meaning(tokens: list[int], salt: str | None = None) -> float:
    """A number for a token and all before it; float32 holds it exactly."""
    value = sum(map(ord, salt or ""))
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return float(value)


class Engine:
    """A vLLM engine with everything but a model: `run` a prompt, and see what was computed."""

    def __init__(
        self,
        model: Path,
        port: int,
        *,
        num_blocks: int = 64,
        max_batched: int = 64,
        role: str = "kv_both",
        dtype: str = "float32",
        policy: str = "recompute",
        connector: type[ValkeyConnector] = ValkeyConnector,
        parts: str = "",
        timeout: float = 60.0,
    ) -> None:
        transfer = KVTransferConfig(
            kv_connector=connector.__name__,
            kv_connector_module_path=connector.__module__,
            kv_role=role,  # type: ignore[arg-type]
            kv_load_failure_policy=policy,  # type: ignore[arg-type]
            kv_connector_extra_config={"port": port, "timeout": timeout, "parts": parts},
        )
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks
        config = VllmConfig(
            model_config=ModelConfig(model=str(model), dtype=dtype, seed=0),  # type: ignore[arg-type]
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=max_batched,
                max_model_len=512,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
            ),
            kv_transfer_config=transfer,
        )
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.layers = ["layer 0", "layer 1"]
        kv = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(self.layers, spec)])
        self.scheduler = Scheduler(
            config, kv, StructuredOutputManager(config), block_size=BLOCK, log_stats=True
        )
        self.worker = connector(config, KVConnectorRole.WORKER, kv)
        self.memory = {name: torch.full((num_blocks, 1, BLOCK, 1), -1.0) for name in self.layers}
        self.worker.register_kv_caches(self.memory)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.blocks: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}  # by request: tokens that went through the "model"
        self.count, self.asked, self.found = 0, 0, 0

    def add(self, prompt: list[int], max_tokens: int = 2, salt: str | None = None) -> Request:
        self.count += 1
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
        params.update_from_generation_config({}, eos_token_id=2)
        request = Request(
            f"request {self.count}", prompt, params, None, cache_salt=salt, block_hasher=self.hasher
        )
        self.scheduler.add_request(request)
        return request

    def run(self, *requests: Request, patience: float = 60.0) -> list[list[int]]:
        """Step until all requests are answered; their answers."""
        deadline = time.monotonic() + patience
        while not all(request.is_finished() for request in requests):
            assert time.monotonic() < deadline, "the requests never end"
            self.step()
        return [list(request.output_token_ids) for request in requests]

    def step(self) -> None:
        out = self.scheduler.schedule()
        assert out.kv_connector_metadata is not None
        self.worker.bind_connector_metadata(out.kv_connector_metadata)
        self.worker.start_load_kv(None)
        sampled = self._forward(out)
        self.worker.wait_for_save()
        moved = self.worker.get_transfer_results(out.finished_req_ids)
        connector = KVConnectorOutput(
            finished_sending=moved.finished_sending,
            finished_recving=moved.finished_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
        )
        self.worker.clear_connector_metadata()
        ids = list(sampled)
        result = ModelRunnerOutput(
            ids,
            {req_id: i for i, req_id in enumerate(ids)},
            list(sampled.values()),
            kv_connector_output=connector,
        )
        counts = self.scheduler.connector_prefix_cache_stats
        assert counts is not None
        self.asked, self.found = self.asked + counts.queries, self.found + counts.hits
        self.scheduler.update_from_output(out, result)  # sets the counts back

    def _forward(self, out: SchedulerOutput) -> dict[str, list[int]]:
        """Fill the slots of the scheduled tokens; read all slots before them; sample."""
        starts: dict[str, int] = {}
        for new in out.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = out.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            if req_id in cached.resumed_req_ids:
                self.blocks[req_id] = []
            if (ids := cached.new_block_ids[i]) is not None:
                self.blocks[req_id] += ids[0]
            starts[req_id] = cached.num_computed_tokens[i]
        for req_id, start in starts.items():  # a model writes all, before it reads any
            request = self.scheduler.requests[req_id]
            count = out.num_scheduled_tokens[req_id]
            self.computed[req_id] = self.computed.get(req_id, 0) + count
            for at in range(start, start + count):
                number = meaning(list(request.all_token_ids[: at + 1]), request.cache_salt)
                for layer, name in enumerate(self.layers):
                    self.memory[name][self.blocks[req_id][at // BLOCK], 0, at % BLOCK] = (
                        number + layer
                    )
        sampled = {}
        for req_id, start in starts.items():
            request = self.scheduler.requests[req_id]
            end = start + out.num_scheduled_tokens[req_id]
            tokens = list(request.all_token_ids)
            self._check(req_id, tokens[:end], request.cache_salt)
            done = end >= len(tokens)
            sampled[req_id] = [int(meaning(tokens)) % 1000] if done else []
        return sampled

    def _check(self, req_id: str, tokens: list[int], salt: str | None) -> None:
        for at in range(len(tokens)):
            want = meaning(tokens[: at + 1], salt)
            for layer, name in enumerate(self.layers):
                got = float(self.memory[name][self.blocks[req_id][at // BLOCK], 0, at % BLOCK])
                assert got == want + layer, f"{req_id}: slot of token {at} in {name} is wrong"

    def stats(self) -> tuple[int, int]:
        """Tokens that the store was asked for, and found in it, since the last call."""
        counts, self.asked, self.found = (self.asked, self.found), 0, 0
        return counts
