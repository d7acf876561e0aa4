"""The course's inference engine: small enough to read, with the names of vLLM."""

from utils.engine.attention import attention, attention_reference
from utils.engine.batch import ContiguousBatch, PagedBatch
from utils.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from utils.engine.block_pool import BlockPool
from utils.engine.config import EngineConfig, ModelConfig
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
from utils.engine.metrics import PrefixCacheStats
from utils.engine.model_runner import ModelRunner
from utils.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from utils.engine.paged_attention import (
    AttentionMetadata,
    paged_attention,
    paged_attention_reference,
)
from utils.engine.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.request import Request, RequestStatus
from utils.engine.sampler import Sampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.scheduler import Scheduler, SchedulerOutput
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
    "EngineConfig",
    "FreeKVCacheBlockQueue",
    "KVCache",
    "KVCacheBlock",
    "KVCacheManager",
    "LLMEngine",
    "LlamaForCausalLM",
    "LlamaOps",
    "Logprob",
    "ModelConfig",
    "ModelRunner",
    "PagedBatch",
    "PagedKVCache",
    "PrefixCacheStats",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RequestStatus",
    "Sampler",
    "SamplingParams",
    "Scheduler",
    "SchedulerOutput",
    "apply_rotary",
    "attention",
    "attention_reference",
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
]
