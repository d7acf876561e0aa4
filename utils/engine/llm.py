"""`LLM`: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from utils.engine.config.engine_args import EngineArgs
from utils.engine.config.model import ModelConfig
from utils.engine.config.parts import EngineParts
from utils.engine.distributed.data_parallel import DataParallelEngine
from utils.engine.distributed.executor import ModelWorkers, Workers
from utils.engine.input_processor import Conversations, Params, Prompt, Prompts
from utils.engine.llm_engine import LLMEngine
from utils.engine.metrics import PrefixCacheStats
from utils.engine.model_loader import load_engine_model
from utils.engine.outputs import RequestOutput
from utils.engine.run_requests import answer, run_to_end
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_tokenizer, resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LLM:
    """A language model that answers many prompts at a time.

    Args:
        model: "bundled", a folder in Hugging Face format, or a hub id.
        dtype: "float32", "bfloat16", "float16", or "auto" for that of the weights on disk.
        max_model_len: the most tokens of one request, prompt plus answer. None: what the model
            was made for.
        options: all else that `EngineArgs` lists, and parts of the engine in place of ours (see
            `EngineParts`): `LLM(max_num_seqs=8, scheduler_cls=MyScheduler)`.

    Raises:
        ValueError: an argument is wrong, or the engine does not support the model.
        TypeError: there is no such option.
        ModelError: the model cannot be found or fetched.
    """

    def __init__(
        self,
        model: str | Path = "bundled",
        dtype: str = "float32",
        max_model_len: int | None = None,
        **options: Any,
    ) -> None:
        args = EngineArgs(model, dtype, max_model_len, **options)
        path = resolve_model(args.model)
        self.model_config = ModelConfig.from_pretrained(path)
        self.config = args.create_engine_config(self.model_config)
        self.tokenizer = load_tokenizer(path)
        parallel = args.create_parallel_config()
        self.llm_engine: Any  # an `LLMEngine`, or what stands for several
        self.workers: Workers | None = None  # in other processes
        if parallel.data_parallel_size > 1:
            self.llm_engine = DataParallelEngine(self, args, parallel)
            self.workers = self.llm_engine.workers
            return
        self.model: Any = load_engine_model(
            path, self.model_config, self.config, parallel, args.ops, args.kernels
        )
        if isinstance(self.model, ModelWorkers):
            self.workers = self.model
        self.llm_engine = LLMEngine(self.model, self.tokenizer, self.config, args)

    def new_engine(self, changes: dict[str, Any] | None = None, **parts: Any) -> LLMEngine:
        """An engine with an empty KV cache for the same model.

        Args:
            changes: fields of `EngineConfig` that are to differ from this LLM's.
            parts: see `EngineParts`. Those of this LLM's own engine are not taken over.
        """
        config = replace(self.config, **(changes or {}))
        return LLMEngine(self.model, self.tokenizer, config, EngineParts(**parts))

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
            ValueError: a prompt is bad (see `generate`), or the KV cache has no room for the beams,
                or there are several engines.
        """
        if isinstance(self.llm_engine, DataParallelEngine):
            raise ValueError("Beam search runs in one engine: use data_parallel_size=1.")
        sampling_params = SamplingParams(max_tokens=params.max_tokens, temperature=0)
        requests = self.llm_engine.inputs.from_prompts(prompts, sampling_params)
        return [beam_search(self.llm_engine, request, params) for request in requests]

    def collective_rpc(self, method: str, *, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of each worker: of the ranks that share the model, or of the replicas.

        Returns:
            What it returned on each of them, in their order.

        Raises:
            ValueError: there are none: the model is in this process.
            RankError: one of them failed.
        """
        if self.workers is None:
            raise ValueError("This model is in this very process, in `LLM.model`. Ask it directly.")
        return self.workers.collective_rpc(method, *args)

    def shutdown(self) -> None:
        """End the processes that run the model, where there are several. May be called twice."""
        if self.workers is not None:
            self.workers.shutdown()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False if requests are in progress; then nothing changes."""
        return self.llm_engine.kv_cache_manager.reset_prefix_cache()

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats:
        """Tokens looked up in the prefix cache, and tokens found, since the LLM was made."""
        return self.llm_engine.kv_cache_manager.prefix_cache_stats
