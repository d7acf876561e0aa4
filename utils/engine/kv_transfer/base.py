"""What a connector is: the engine's door to keys and values that are somewhere else.

Names as in vLLM's `distributed/kv_transfer/kv_connector/v1/base.py`. There, a connector exists
twice, once beside the scheduler and once in each worker, and metadata travel between them. Here one
object has both sides, and the metadata are handed over all the same. Who calls what: the scheduler
in `core/sched/scheduler.py`, the model runner through `worker/kv_transfers.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.request import Request


class KVConnectorMetadata:
    """What the scheduler's side tells the worker's side about one step. Connectors add fields."""


@dataclass
class KVConnectorStats:
    """Counts since the connector was made."""

    queries: int = 0  # tokens asked for: those that the engine's own cache did not have
    hits: int = 0  # of these, tokens that the connector had
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0  # that the engine waited for, copying included
    saved_blocks: int = 0
    saved_bytes: int = 0
    save_seconds: float = 0.0  # that the engine waited for, copying included
    # Why blocks did not come, or could not be kept: "missing" (gone between the look and the
    # fetch), "damaged", "timeout", "error". The first two count blocks, the others attempts.
    failures: Counter[str] = field(default_factory=Counter)
    recomputed_tokens: int = 0  # promised by the connector, and computed after all

    def record(self, num_tokens: int, num_hits: int) -> None:
        self.queries += num_tokens
        self.hits += num_hits


class KVConnectorBase(ABC):
    """Brings keys and values that somebody else computed, and passes on what is computed here.

    A connector serves one engine. The engine calls, in each step, first the scheduler's side and
    then the worker's. In vLLM: `KVConnectorBase_V1`.
    """

    def __init__(self) -> None:
        self.stats = KVConnectorStats()
        self.block_size = 0  # tokens in a block; set when an engine takes the connector
        self.namespace = b""  # of this engine's keys and values: see `keys.kv_namespace`
        self._metadata: KVConnectorMetadata | None = None

    def bind_engine(self, namespace: bytes, block_size: int) -> None:
        """Called once, by the engine that takes the connector.

        Raises:
            ValueError: it serves an engine already.
        """
        if self.namespace:
            raise ValueError(
                "This connector serves another engine already. Make one for each engine; several "
                "connectors may share a store."
            )
        self.namespace, self.block_size = namespace, block_size

    # --- the scheduler's side ---------------------------------------------------------------------

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens of a request the connector has beyond those that the engine has.

        May be called more than once for a request, and must not change anything.

        Args:
            num_computed_tokens: found in the engine's own cache; whole blocks.

        Returns:
            A number of tokens, whole blocks and less than what is left of the request; None: not
            known yet, ask again in the next step. And whether the loading goes on beside other
            steps, which this engine does not support: always False.
        """

    def num_external_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        """What `get_num_new_matched_tokens` says, if an engine can do as it says.

        A request whose prompt is scored computes all of it, and does not ask.

        Raises:
            ValueError: the answer is not one of those that `get_num_new_matched_tokens` may give.
        """
        if request.skip_reading_prefix_cache:
            return 0
        number, load_async = self.get_num_new_matched_tokens(request, num_computed_tokens)
        left = request.num_tokens - num_computed_tokens
        if load_async or not (number is None or number in range(0, left, self.block_size)):
            raise ValueError(
                f"The connector says that it has {number} tokens of request {request.request_id} "
                f"(load_async={load_async}). Expected a multiple of the block size, "
                f"{self.block_size}, below {left}, and False."
            )
        return number

    @abstractmethod
    def update_state_after_alloc(
        self, request: Request, blocks: Sequence[KVCacheBlock], num_external_tokens: int
    ) -> None:
        """The request has its blocks, and will compute what follows the external tokens.

        Args:
            blocks: its block table. `request.num_computed_tokens`, counted from its beginning,
                includes the external tokens, the last of them.
            num_external_tokens: to be loaded; 0 for none.
        """

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata | None:
        """What the worker's side has to do in this step; None for nothing. Called once a step."""

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends, and its blocks are about to be freed.

        Returns:
            Whether the connector frees them itself, later, which this engine does not support:
            always False. And parameters for whoever continues the request.
        """
        return False, None

    def say_goodbye(self, request: Request, block_ids: list[int]) -> None:
        """Call `request_finished`. Raises a ValueError for an answer that is of no use here."""
        keeps, _ = self.request_finished(request, block_ids)
        if keeps:
            raise ValueError("This engine frees a request's blocks itself: answer (False, None).")

    def forget_requests(self) -> None:
        """The engine begins anew after a step that was broken off: no request has blocks."""
        self._metadata = None

    # --- the worker's side ------------------------------------------------------------------------

    @abstractmethod
    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """Get to know the engine's memory.

        Args:
            kv_caches: for each layer's name, in order, a view of its keys and values:
                [2, num_blocks, block_size, H_kv, D].
        """

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take this step's metadata."""
        self._metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """Forget this step's metadata."""
        self._metadata = None

    @abstractmethod
    def start_load_kv(self) -> None:
        """Begin to fetch. Nothing is written into the engine's memory before the next call."""

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return when the layer's external keys and values lie in their blocks, or cannot."""

    @abstractmethod
    def save_kv_layer(self, layer_name: str, kv_layer: Tensor) -> None:
        """The layer's keys and values of this step are computed. Begin to pass them on.

        Args:
            kv_layer: the layer's memory, as registered.
        """

    @abstractmethod
    def wait_for_save(self) -> None:
        """Return when the blocks may be overwritten."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks of this step that did not get their contents. Each is told once."""
        return set()

    @property
    def works_layer_by_layer(self) -> bool:
        """Whether the current step's transfers shall run beside its layers, rather than before the
        first and after the last. It costs the engine a call per layer."""
        return False

    def shutdown(self) -> None:
        """Close what is open. The engine goes on without the connector's help."""
        self._metadata = None


class NoConnector(KVConnectorBase):
    """What an engine has unless it is given a connector: nothing comes, nothing goes."""

    def bind_engine(self, namespace: bytes, block_size: int) -> None:
        """Any number of engines may have it."""

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def num_external_tokens(self, request: Request, num_computed_tokens: int) -> int:
        return 0

    def update_state_after_alloc(
        self, request: Request, blocks: Sequence[KVCacheBlock], num_external_tokens: int
    ) -> None:
        pass

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> None:
        pass

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        pass

    def start_load_kv(self) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


NO_CONNECTOR = NoConnector()
