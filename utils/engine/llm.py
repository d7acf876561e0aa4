"""`LLM`: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig, ParallelOptions
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.contiguous_manager import ContiguousKVCacheManager
from utils.engine.distributed.data_parallel import DataParallelEngine
from utils.engine.input_processor import Conversations, Params, Prompt, Prompts
from utils.engine.kv_transfer.connected_engine import ConnectedParts, make_engine
from utils.engine.llm_engine import LLMEngine, ManagerFactory, make_kv_cache_manager
from utils.engine.metrics import PrefixCacheStats
from utils.engine.model_loader import load_engine_model
from utils.engine.models.llama import DEFAULT_OPS, LlamaOps
from utils.engine.request import RequestOutput, SamplingParams
from utils.engine.run_requests import answer, run_to_end
from utils.hub import load_tokenizer, resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LLMOptions(ConnectedParts, ParallelOptions, total=False):
    """What `LLM` takes beside its own arguments."""


class LLM:
    """A language model that answers many prompts at a time.

    Args:
        model: "bundled", a folder in Hugging Face format, or a hub id.
        dtype: "float32", "bfloat16", "float16", or "auto" for that of the weights on disk.
        max_model_len: the most tokens of one request, prompt plus answer. None: what the model
            was made for.
        ops: functions to build the model from, in place of ours: `LlamaOps(rms_norm=mine)`.
        kernels: "torch", or faster and the same: "cpp", our C++ kernels, on a CPU (see `kernels`);
            "cuda_graph", decode steps as recordings, on a card (see `worker/cuda_graph.py`).
        kv_cache_class: give each request a cache of its own, of this class, in place of paging. It
            is called with `(config, max_num_tokens, dtype, device)`, and needs `append`.
        kv_cache_manager: makes a manager in place of ours, from an `EngineConfig`.
        seed: of the random numbers for requests that bring no seed of their own.
        device: "cpu", "cuda", or "auto": CUDA where there is a GPU.
        max_num_seqs: the most requests that run at a time.
        max_num_batched_tokens: the most tokens in one forward pass. Longer prompts go in chunks.
        block_size: tokens in a block of KV cache.
        enable_prefix_caching: compute the keys and values of equal prefixes once only.
        prefix_caching_hash_algo: "sha256", or "xxhash", which is faster.
        kv_cache_memory_bytes: memory for the KV cache. None: 1 GiB, or more where one request may
            need more. A GPU takes it at once, a CPU only what is used of it.
        num_gpu_blocks_override: blocks of KV cache, in place of what fits into the memory.
        swap_space: GiB of host memory for blocks that were given up, else they are recomputed.
        scheduling_policy: "fcfs", first come, first served; or "priority" (see `generate`).
        speculative_config: guess tokens ahead: a `SpeculativeConfig`, or a dict of its arguments.
        parts: parts of the engine in place of ours, see `LLMEngine`; and how many processes run
            the model, see `ParallelConfig`: `tensor_parallel_size=3`.

    Raises:
        ValueError: an argument is wrong, or the engine does not support the model.
        ModelError: the model cannot be found or fetched.
    """

    def __init__(
        self,
        model: str | Path = "bundled",
        dtype: str = "float32",
        max_model_len: int | None = None,
        ops: LlamaOps = DEFAULT_OPS,
        kernels: str = "torch",
        kv_cache_class: Callable[..., KVCache] | None = None,
        kv_cache_manager: ManagerFactory = make_kv_cache_manager,
        seed: int = 0,
        device: str = "auto",
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        prefix_caching_hash_algo: str = "sha256",
        kv_cache_memory_bytes: int | None = None,
        num_gpu_blocks_override: int | None = None,
        swap_space: float = 0,
        scheduling_policy: str = "fcfs",
        speculative_config: SpeculativeConfig | dict[str, Any] | None = None,
        **parts: Unpack[LLMOptions],
    ) -> None:
        arguments = locals() | parts  # for replicas, which make an LLM of their own
        if isinstance(speculative_config, dict):
            speculative_config = SpeculativeConfig(**speculative_config)
        path = resolve_model(model)
        self.model_config = ModelConfig.from_pretrained(path)
        self.config = EngineConfig.create(
            self.model_config, max_model_len, dtype, device,
            block_size=block_size, kv_cache_memory_bytes=kv_cache_memory_bytes,
            num_gpu_blocks_override=num_gpu_blocks_override, swap_space=swap_space, seed=seed,
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            prefix_caching_hash_algo=prefix_caching_hash_algo,
            scheduling_policy=scheduling_policy, speculative_config=speculative_config,
        )  # fmt: skip
        self.tokenizer = load_tokenizer(path)
        parallel, engine_parts = ParallelConfig.split(parts)
        self.llm_engine: Any  # an `LLMEngine`, or what stands for several
        if parallel.data_parallel_size > 1:
            self.llm_engine = DataParallelEngine(self, arguments, parallel)
            return
        self.model = load_engine_model(path, self.model_config, self.config, parallel, ops, kernels)
        self.llm_engine = self.new_engine(kv_cache_class, kv_cache_manager, **engine_parts)

    def new_engine(
        self,
        kv_cache_class: Callable[..., KVCache] | None = None,
        kv_cache_manager: ManagerFactory = make_kv_cache_manager,
        changes: dict[str, Any] | None = None,
        **parts: Unpack[ConnectedParts],
    ) -> LLMEngine:
        """An engine with an empty KV cache for the same model. See the class for the arguments.

        Args:
            changes: fields of `EngineConfig` that are to differ from this LLM's.
        """
        config = replace(self.config, **(changes or {}))
        if kv_cache_class is None:
            manager = kv_cache_manager(config)
        else:
            new_cache = partial(kv_cache_class, self.model_config)
            manager = ContiguousKVCacheManager(
                lambda max_num_tokens: new_cache(max_num_tokens, config.dtype, config.device)
            )
        new_kv_cache = getattr(self.model, "new_kv_cache", PagedKVCache)
        if kv_cache_class is not None:
            new_kv_cache = None
        return make_engine(
            self.model, self.tokenizer, config, manager, new_kv_cache=new_kv_cache, **parts
        )

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.tokenizer

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt, many at a time.

        Args:
            prompts: a text, or token ids, or a dict with `prompt` or `prompt_token_ids`, and
                perhaps `cache_salt`; or a list of these. A text gets the special tokens that the
                tokenizer puts around texts; token ids are taken as they are.
            sampling_params: for all prompts, or one per prompt. None: `SamplingParams()`.
            use_tqdm: show a progress bar.
            priority: one per prompt, the lowest first, under scheduling_policy="priority".

        Returns:
            One output per prompt, in the order of the prompts.

        Raises:
            ValueError: a prompt is empty, too long, or not in the vocabulary; or there are not as
                many sampling_params or priorities as prompts. Raised before any work is done.
        """
        requests = self.llm_engine.inputs.from_prompts(prompts, sampling_params)
        if priority is not None and len(priority) != len(requests):
            raise ValueError(f"Got {len(requests)} prompts but {len(priority)} priorities.")
        for request, number in zip(requests, priority or [], strict=False):
            request.set_priority(number)
        return answer(self.llm_engine, requests, use_tqdm)

    def chat(
        self, messages: Conversations, sampling_params: Params = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, written out by the model's chat template.

        Args:
            messages: `[{"role": "user", "content": "..."}]`, or a list of such lists.
            sampling_params: see `generate`.
            use_tqdm: show a progress bar.

        Raises:
            ValueError: as `generate`; or the model has no chat template; or a message lacks its
                role or content.
        """
        requests = self.llm_engine.inputs.from_conversations(messages, sampling_params)
        return answer(self.llm_engine, requests, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt, and yield the answer so far after each token.

        The text only ever grows: it never ends in half a character, nor in what may turn out to
        be the beginning of a stop string. The last output equals that of `generate`.

        Raises:
            ValueError: see `generate`. Raised by the call, not by the first iteration.
        """
        requests = self.llm_engine.inputs.from_prompts([prompt], sampling_params)
        return (requests[0].output() for _ in run_to_end(self.llm_engine, requests))

    def beam_search(self, prompts: Prompts, params: BeamSearchParams) -> list[BeamSearchOutput]:
        """Find the most probable answers to each prompt, `params.beam_width` of them.

        Raises:
            ValueError: a prompt is bad (see `generate`), or the KV cache has no room for the beams.
        """
        sampling_params = SamplingParams(max_tokens=params.max_tokens, temperature=0)
        requests = self.llm_engine.inputs.from_prompts(prompts, sampling_params)
        return [beam_search(self.llm_engine, request, params) for request in requests]

    def shutdown(self) -> None:
        """End the processes that run the model, where there are several. May be called twice."""
        for part in (self.llm_engine, getattr(self, "model", None)):
            if executor := getattr(part, "executor", None):
                executor.shutdown()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False if requests are in progress; then nothing changes."""
        return self.llm_engine.kv_cache_manager.reset_prefix_cache()

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """Tokens looked up in the prefix cache, and tokens found, since the LLM was made."""
        return self.llm_engine.kv_cache_manager.prefix_cache_stats
