"""The course's inference engine: small enough to read, with the names of vLLM."""

from utils.engine.attention.attention import attention, attention_reference
from utils.engine.attention.batch import ContiguousBatch, PagedBatch
from utils.engine.attention.kv_cache import ContiguousKVCache, KVCache
from utils.engine.attention.paged_attention import (
    AttentionMetadata,
    paged_attention,
    paged_attention_reference,
)
from utils.engine.attention.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from utils.engine.config.engine import EngineConfig
from utils.engine.config.engine_args import EngineArgs
from utils.engine.config.model import ModelConfig
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
)
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.core.step_record import ScheduledTokens, StepRecord
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.metrics import PrefixCacheStats, SpecDecodingStats
from utils.engine.models.llama import (
    LlamaForCausalLM,
    LlamaOps,
    apply_rotary,
    rms_norm,
    rotary_cos_sin,
    silu_and_mul,
)
from utils.engine.models.weights import load_model
from utils.engine.output_processor import OutputProcessor, RequestState
from utils.engine.outputs import (
    CompletionOutput,
    EngineCoreOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from utils.engine.request import Request, RequestStatus
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sample.sampler import Sampler
from utils.engine.sampling_params import SamplingParams, StructuredOutputsParams
from utils.engine.spec_decode.draft import Draft
from utils.engine.spec_decode.drafter import choose_num_speculative_tokens, expected_tokens
from utils.engine.spec_decode.medusa import MedusaHeads
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.engine.spec_decode.tree import follow_tree, tree_depths
from utils.engine.worker.model_runner import ModelRunner

__all__ = [
    "LLM",
    "AttentionMetadata",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "BlockHash",
    "BlockPool",
    "CompletionOutput",
    "ContiguousBatch",
    "ContiguousKVCache",
    "Draft",
    "EngineArgs",
    "EngineConfig",
    "EngineCoreOutput",
    "FreeKVCacheBlockQueue",
    "KVCache",
    "KVCacheBlock",
    "KVCacheManager",
    "LLMEngine",
    "LlamaForCausalLM",
    "LlamaOps",
    "Logprob",
    "MedusaHeads",
    "ModelConfig",
    "ModelRunner",
    "NgramProposer",
    "OutputProcessor",
    "PagedBatch",
    "PagedKVCache",
    "PrefixCacheStats",
    "RejectionSampler",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RequestState",
    "RequestStatus",
    "Sampler",
    "SamplingParams",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerOutput",
    "SpecDecodingStats",
    "SpeculativeConfig",
    "StepRecord",
    "StructuredOutputsParams",
    "apply_rotary",
    "attention",
    "attention_reference",
    "choose_num_speculative_tokens",
    "expected_tokens",
    "follow_tree",
    "get_hash_fn_by_name",
    "get_request_block_hasher",
    "hash_block_tokens",
    "load_model",
    "paged_attention",
    "paged_attention_reference",
    "rms_norm",
    "rotary_cos_sin",
    "silu_and_mul",
    "slot_mapping",
    "tree_attention_mask",
    "tree_depths",
]
