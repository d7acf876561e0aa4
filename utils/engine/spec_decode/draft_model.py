"""A smaller model that guesses what the large one will say."""

from __future__ import annotations

from torch import Tensor

from utils.engine.attention.batch import Batch
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from utils.engine.worker.forward_pass import forward_pass


class DraftModelProposer(SpecDecodeBaseProposer):
    """Guesses by running a draft model, with a head and an embedding of its own.

    Args:
        model: with the vocabulary of the target.

    For the others see `SpecDecodeBaseProposer`.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_cache: PagedKVCache,
        token_ids: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(kv_cache, model.lm_head, token_ids, seed)
        self.model = model

    def run(self, ids: Tensor, positions: Tensor, batch: Batch, before: Tensor | None) -> Tensor:
        """See `SpecDecodeBaseProposer`."""
        hidden = forward_pass(self.model, ids, positions, batch)
        assert hidden is not None
        return hidden
