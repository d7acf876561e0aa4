"""A connector of our own that runs inside vLLM: it keeps blocks of keys and values in Valkey.

vLLM makes two of it. The one in the scheduler decides: what is in the store, what is to be loaded
into which block, and what is to be saved. The one in the worker moves bytes. Between them goes,
once per step, the metadata that `build_connector_meta` returns.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "ValkeyConnector",
        "kv_connector_module_path": "utils.disaggregation.vllm_connector", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"port": 6379}}'

Loading is asynchronous: a request whose blocks are fetched waits, and the others go on. What cannot
be loaded is reported, and vLLM computes it. Saving is not: when a server has answered, the blocks
of the prompt are in the store, and another server can be asked.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from utils.disaggregation.block_keys import chain_keys, computed_by, model_fingerprint, namespace
from utils.disaggregation.block_store import BlockStore

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

Pair = tuple[bytes, int]  # a block's key, and its number in this server's memory


@dataclass
class Transfers(KVConnectorMetadata):
    """What the worker has to do in a step.

    Attributes:
        loads: for each request that waits for it, the blocks to fetch.
        stores: blocks that the step fills.
    """

    loads: dict[str, list[Pair]] = field(default_factory=dict)
    stores: list[Pair] = field(default_factory=list)


class ValkeyConnector(KVConnectorBase_V1):
    """Whole blocks, all layers in one value, under their chain key.

    Args of `kv_connector_extra_config`:
        port: of the Valkey server.
        timeout: seconds after which an answer of the store counts as a miss; 0.5 if not given.
    """

    chain_keys = staticmethod(chain_keys)

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.store = BlockStore(int(extra["port"]), float(extra.get("timeout", 0.5)))
        self.block_size = vllm_config.cache_config.block_size
        self.computed_by = computed_by(vllm_config, vllm.__version__)
        # The scheduler's side, by request.
        self.keys: dict[str, list[bytes]] = {}  # of the prompt's full blocks
        self.blocks: dict[str, list[int]] = {}  # numbers of its blocks, in order
        self.first: dict[str, int] = {}  # where, in blocks, the store was asked from
        self.tried: set[str] = set()  # there was a load already
        self.loads: dict[str, list[Pair]] = {}  # to be started in this step
        # The worker's side.
        self.rank = vllm_config.parallel_config.rank if role == KVConnectorRole.WORKER else 0
        self.caches: list[torch.Tensor] = []  # of each layer: [num_blocks, ...]
        self.fetching = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kv-load")
        self.fetched: queue.SimpleQueue[tuple[str, set[int]]] = queue.SimpleQueue()
        self.failed: set[int] = set()

    # --- In the scheduler ---

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens behind the first `num_computed_tokens` the store has, in whole blocks.

        The search stops at the first miss, and one token of a prompt is always left to compute.
        True: they are loaded while other requests go on.
        """
        keys = self._keys(request)
        if request.request_id in self.tried or not self._kv_transfer_config.is_kv_consumer:
            return 0, False  # one load per request: what failed is computed
        first = self.first[request.request_id] = num_computed_tokens // self.block_size
        last = (request.num_tokens - 1) // self.block_size
        found = self.store.count_leading([self._name(key) for key in keys[first:last]])
        return found * self.block_size, found > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """The request has blocks now: note which of them are to be filled from the store."""
        if not num_external_tokens:
            return
        req_id, ids = request.request_id, blocks.get_block_ids()[0]
        first, count = self.first[req_id], num_external_tokens // self.block_size
        self.loads[req_id] = list(zip(self.keys[req_id], ids, strict=False))[first : first + count]
        self.tried.add(req_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """What the worker has to load and to save in this step."""
        step = Transfers(loads=self.loads)
        self.loads = {}
        tokens = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
            self._save(step, new.req_id, new.num_computed_tokens, tokens[new.req_id])
        cached = scheduler_output.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            if req_id in cached.resumed_req_ids:
                self.blocks[req_id] = []  # it was preempted, and gets all its blocks anew
            if (ids := cached.new_block_ids[i]) is not None:
                self.blocks.setdefault(req_id, []).extend(ids[0])
            self._save(step, req_id, cached.num_computed_tokens[i], tokens[req_id])
        return step

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget the request. False: its blocks can be freed, what was to be saved is saved."""
        books: tuple[dict[str, Any], ...] = (self.keys, self.blocks, self.first, self.loads)
        for book in books:
            book.pop(request.request_id, None)
        self.tried.discard(request.request_id)
        return False, None

    def _keys(self, request: Request) -> list[bytes]:
        """The keys of the prompt's full blocks; none for prompts that are more than tokens."""
        if request.request_id not in self.keys:
            tokens = request.prompt_token_ids or []
            if request.mm_features or getattr(request, "prompt_embeds", None) is not None:
                tokens = []
            lora = request.lora_request
            adapter = [lora.lora_name, *model_fingerprint(lora.lora_path)] if lora else None
            root = namespace(self.computed_by, adapter, request.cache_salt)
            self.keys[request.request_id] = self.chain_keys(root, tokens, self.block_size)
        return self.keys[request.request_id]

    def _save(self, step: Transfers, req_id: str, computed: int, scheduled: int) -> None:
        """Add the blocks of a prompt that a step fills to what is saved after it."""
        if self._kv_transfer_config.is_kv_producer:
            first, last = computed // self.block_size, (computed + scheduled) // self.block_size
            pairs = zip(self.keys.get(req_id, []), self.blocks[req_id], strict=False)
            step.stores += list(pairs)[first:last]

    # --- In the worker ---

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """vLLM's memory: for each layer a tensor whose first axis counts blocks."""
        self.caches = list(kv_caches.values())
        for name, cache in kv_caches.items():
            if cache.shape[0] != self._kv_cache_config.num_blocks:
                raise ValueError(
                    f"The memory of {name} has the shape {tuple(cache.shape)}; this connector "
                    f"expects {self._kv_cache_config.num_blocks} blocks along the first axis."
                )

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Fetch blocks in a thread of its own. Nobody else uses them meanwhile."""
        for req_id, pairs in self._step().loads.items():
            self.fetching.submit(self._fetch, req_id, pairs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request is scheduled when all its layers are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing to do per layer: blocks are saved whole, by `wait_for_save`."""

    def wait_for_save(self) -> None:
        """Save the blocks that this step has filled."""
        self.store.save(
            (self._name(key), self._extract(block)) for key, block in self._step().stores
        )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The requests whose loads have ended since the last call, well or not."""
        ended = set()
        while not self.fetched.empty():
            req_id, failed = self.fetched.get()
            ended.add(req_id)
            self.failed |= failed
        return None, ended

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be filled. vLLM computes from the first of them on."""
        failed, self.failed = self.failed, set()
        return failed

    def shutdown(self) -> None:
        """Let loads in flight come to their end; each has the store's timeout at most."""
        self.fetching.shutdown()

    def _step(self) -> Transfers:
        step = self._get_connector_metadata()
        assert isinstance(step, Transfers)
        return step

    def _name(self, key: bytes) -> bytes:
        return b"kv:%s:%d" % (key, self.rank)

    def _fetch(self, req_id: str, pairs: Sequence[Pair]) -> None:
        """Fill blocks until one cannot be had; whatever happens, say that the load has ended."""
        left = [block for _, block in pairs]
        try:
            with torch.inference_mode():
                for key, block in pairs:
                    payload = self.store.load(self._name(key))
                    if payload is None or not self._inject(block, payload):
                        break
                    left.remove(block)
        finally:
            self.fetched.put((req_id, set(left)))

    def _extract(self, block: int) -> bytes:
        """A block's keys and values of all layers, as bytes."""
        layers = torch.stack([cache[block] for cache in self.caches])
        return layers.cpu().view(torch.uint8).numpy().tobytes()

    def _inject(self, block: int, payload: bytes) -> bool:
        """Put bytes from `_extract` into a block; False if they are of another shape."""
        shape, dtype = (len(self.caches), *self.caches[0].shape[1:]), self.caches[0].dtype
        if len(payload) != dtype.itemsize * torch.Size(shape).numel():
            return False
        layers = torch.frombuffer(bytearray(payload), dtype=dtype).view(shape)
        for cache, layer in zip(self.caches, layers, strict=True):
            cache[block] = layer.to(cache.device)
        return True
