"""The course's inference engine: small enough to read, with the names of vLLM."""

from utils.engine.attention import attention, attention_reference
from utils.engine.batch import ContiguousBatch, PagedBatch
from utils.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from utils.engine.block_pool import BlockPool
from utils.engine.config import EngineConfig, ModelConfig
from utils.engine.draft import Draft
from utils.engine.kv_cache import ContiguousKVCache, KVCache
from utils.engine.kv_cache_manager import KVCacheManager
from utils.engine.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
)
from utils.engine.llama import (
    LlamaForCausalLM,
    LlamaOps,
    apply_rotary,
    rms_norm,
    rotary_cos_sin,
    silu_and_mul,
)
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.medusa import MedusaHeads
from utils.engine.metrics import PrefixCacheStats, ScheduledTokens, SpecDecodingStats, StepRecord
from utils.engine.model_runner import ModelRunner
from utils.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from utils.engine.paged_attention import (
    AttentionMetadata,
    paged_attention,
    paged_attention_reference,
)
from utils.engine.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.rejection_sampler import RejectionSampler
from utils.engine.request import Request, RequestStatus
from utils.engine.sampler import Sampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.scheduler import Scheduler
from utils.engine.scheduler_output import SchedulerOutput
from utils.engine.spec_decode import (
    NgramProposer,
    choose_num_speculative_tokens,
    expected_tokens,
)
from utils.engine.speculative_config import SpeculativeConfig
from utils.engine.tree import follow_tree, tree_attention_mask, tree_depths
from utils.engine.weights import load_model

# fmt: off
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
    "EngineConfig",
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
    "PagedBatch",
    "PagedKVCache",
    "PrefixCacheStats",
    "RejectionSampler",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RequestStatus",
    "Sampler",
    "SamplingParams",
    "ScheduledTokens",
    "Scheduler",
    "SchedulerOutput",
    "SpecDecodingStats",
    "SpeculativeConfig",
    "StepRecord",
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
