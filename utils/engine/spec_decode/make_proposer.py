"""Which proposer an engine has: what its `SpeculativeConfig` describes."""

from __future__ import annotations

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.distributed.executor import ModelWorkers
from utils.engine.kernels.fused_layers import FusedLayers, fused_layers
from utils.engine.kernels.packed_linear import pack_linears
from utils.engine.models.llama import DEFAULT_OPS, LlamaForCausalLM
from utils.engine.models.llama_eagle import load_eagle
from utils.engine.models.weights import load_model
from utils.engine.spec_decode.draft_model import DraftModelProposer
from utils.engine.spec_decode.draft_vocabulary import read_draft_vocabulary
from utils.engine.spec_decode.drafter import Proposer, TextProposer
from utils.engine.spec_decode.eagle import EagleProposer
from utils.engine.spec_decode.medusa import MedusaHeads, MedusaProposer
from utils.engine.spec_decode.ngram_proposer import NgramProposer


def make_proposer(config: EngineConfig, target: LlamaForCausalLM | ModelWorkers) -> Proposer:
    """The proposer that `config.speculative_config` describes.

    Raises:
        ValueError: draft model, heads or layer cannot be read, or do not go with the target.
    """
    spec = config.speculative_config
    assert spec is not None
    if spec.method == "draft_model":
        return _draft_model(spec, config, target)
    if spec.method in ("medusa", "eagle"):
        if not isinstance(target, LlamaForCausalLM):
            what = "Medusa heads use" if spec.method == "medusa" else "An EAGLE layer uses"
            raise ValueError(
                f"{what} the model's hidden states and its output embedding, and these are on "
                f"other ranks: leave out tensor_parallel_size and pipeline_parallel_size, or guess "
                f"by another method."
            )
        if spec.method == "medusa":
            return _medusa(spec, config, target)
        return make_eagle(config, target)
    ngram = NgramProposer(spec.prompt_lookup_min, spec.prompt_lookup_max)
    return TextProposer(spec.proposer or ngram)


def _draft_model(
    spec: SpeculativeConfig, config: EngineConfig, target: LlamaForCausalLM | ModelWorkers
) -> DraftModelProposer:
    assert spec.model is not None
    shape = ModelConfig.from_pretrained(spec.model)
    if shape.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"The draft model {spec.model} has a vocabulary of {shape.vocab_size} tokens, the "
            f"target one of {target.config.vocab_size}. They must share their tokenizer."
        )
    # Where the target takes the fast path, so does the draft model.
    here = target if isinstance(target, LlamaForCausalLM) else None  # not in other processes
    packed = here is not None and bool(here.model.packed_weights)
    ops = here.ops if here is not None and packed else DEFAULT_OPS
    model = load_model(spec.model, shape, config.dtype, config.device, ops)
    token_ids = read_draft_vocabulary(spec.model, shape.vocab_size)
    if packed:
        pack_linears(model)
    if here is not None and isinstance(here.all_layers, FusedLayers):
        model.all_layers = fused_layers(model)
    memory = PagedKVCache.for_engine(model.config, config)
    return DraftModelProposer(model, memory, token_ids, config.seed)


def _medusa(
    spec: SpeculativeConfig, config: EngineConfig, target: LlamaForCausalLM
) -> MedusaProposer:
    assert spec.model is not None
    heads = MedusaHeads.from_pretrained(spec.model, target.config.hidden_size)
    in_a_row = len(spec.tree_widths or ()) or spec.num_speculative_tokens
    if in_a_row > heads.num_heads:
        raise ValueError(
            f"{in_a_row} guesses in a row need as many Medusa heads, and {spec.model} holds "
            f"{heads.num_heads}. Ask for fewer."
        )
    token_ids = read_draft_vocabulary(spec.model, target.config.vocab_size)
    return MedusaProposer(heads, target.lm_head, token_ids, spec.tree_widths)


def make_eagle(
    config: EngineConfig,
    target: LlamaForCausalLM,
    proposer_class: type[EagleProposer] = EagleProposer,
) -> EagleProposer:
    """The EAGLE proposer that `config.speculative_config` describes, of this class.

    Raises:
        ValueError: the layer can't be read, or was trained for another model.
    """
    spec = config.speculative_config
    assert spec is not None and spec.model is not None
    model = load_eagle(spec.model, target.config, config.dtype, config.device, target.ops)
    if target.model.packed_weights:
        pack_linears(model)
    token_ids = read_draft_vocabulary(spec.model, target.config.vocab_size)
    return proposer_class(model, target, config, token_ids, spec.tree_widths)
