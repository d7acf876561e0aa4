"""The course's inference engine: small enough to read, with the names of vLLM."""

from utils.engine.attention import attention, attention_reference
from utils.engine.config import EngineConfig, ModelConfig
from utils.engine.kv_cache import ContiguousKVCache, KVCache
from utils.engine.llama import (
    LlamaForCausalLM,
    LlamaOps,
    apply_rotary,
    rms_norm,
    rotary_cos_sin,
    silu_and_mul,
)
from utils.engine.llm_engine import LLM
from utils.engine.model_runner import ModelRunner
from utils.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from utils.engine.request import Request, RequestStatus
from utils.engine.sampler import Sampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.weights import load_model

# fmt: off
__all__ = [
    "LLM", "CompletionOutput", "ContiguousKVCache", "EngineConfig", "KVCache", "LlamaForCausalLM",
    "LlamaOps", "Logprob", "ModelConfig", "ModelRunner", "Request", "RequestMetrics",
    "RequestOutput", "RequestStatus", "Sampler", "SamplingParams", "apply_rotary", "attention",
    "attention_reference", "load_model", "rms_norm", "rotary_cos_sin", "silu_and_mul",
]
