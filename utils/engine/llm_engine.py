"""`LLM`: prompts in, answers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from utils.engine.config import EngineConfig, ModelConfig
from utils.engine.input_processor import Conversations, InputProcessor, Params, Prompt, Prompts
from utils.engine.kv_cache import ContiguousKVCache, KVCache
from utils.engine.llama import DEFAULT_OPS, LlamaOps
from utils.engine.model_runner import ModelRunner
from utils.engine.request import Request, RequestOutput, RequestStatus, SamplingParams
from utils.engine.sampler import Sampler
from utils.engine.weights import load_model
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
        ops: functions to build the model from, in place of ours: `LlamaOps(rms_norm=mine)`.
        kv_cache_class: a class to use in place of `ContiguousKVCache`. It is called with
            `(config, max_num_tokens, dtype, device)` once per request, and needs `append`.
        sampler: a callable in place of `Sampler()`.
        seed: of the random numbers for requests that bring no seed of their own.
        device: "cpu", "cuda", or "auto": CUDA where there is a GPU.
        max_num_seqs: the most requests that run at a time.
        max_num_batched_tokens: the most tokens in one forward pass. Longer prompts go in chunks.

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
        kv_cache_class: Callable[..., KVCache] = ContiguousKVCache,
        sampler: Sampler | None = None,
        seed: int = 0,
        device: str = "auto",
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        path = resolve_model(model)
        self.model_config = ModelConfig.from_pretrained(path)
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        self.config = EngineConfig.create(
            self.model_config, max_model_len, dtype, device, seed=seed, **limits
        )
        self.model = load_model(path, self.model_config, self.config.dtype, self.config.device, ops)
        self.tokenizer = load_tokenizer(path)
        self.kv_cache_class = kv_cache_class
        self._inputs = InputProcessor(self.model_config, self.config, self.tokenizer)
        self._runner = ModelRunner(self.model, sampler or Sampler())

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.tokenizer

    def generate(
        self, prompts: Prompts, sampling_params: Params = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Answer every prompt, many at a time.

        Args:
            prompts: a text, or token ids, or a list of either. A text gets the special tokens that
                the tokenizer puts around texts; token ids are taken as they are.
            sampling_params: for all prompts, or one per prompt. None: `SamplingParams()`.
            use_tqdm: show a progress bar.

        Returns:
            One output per prompt, in the order of the prompts.

        Raises:
            ValueError: a prompt is empty, too long, or not in the vocabulary; or there are not as
                many sampling_params as prompts. Raised before any work is done.
        """
        return self._answer(self._inputs.from_prompts(prompts, sampling_params), use_tqdm)

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
        return self._answer(self._inputs.from_conversations(messages, sampling_params), use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt, and yield the answer so far after each token.

        The text only ever grows: it never ends in half a character, nor in what may turn out to
        be the beginning of a stop string. The last output equals that of `generate`.

        Raises:
            ValueError: see `generate`. Raised by the call, not by the first iteration.
        """
        requests = self._inputs.from_prompts([prompt], sampling_params)
        return (request.output() for updated in self._run(requests) for request in updated)

    def _answer(self, requests: list[Request], use_tqdm: bool) -> list[RequestOutput]:
        num_tokens = 0
        with tqdm(total=len(requests), desc="Processed prompts", disable=not use_tqdm) as bar:
            for updated in self._run(requests):
                num_tokens += len(updated)
                bar.update(sum(request.is_finished for request in updated))
                seconds = bar.format_dict["elapsed"] or 1e-9
                bar.set_postfix_str(f"{num_tokens / seconds:.1f} tokens/s")
        return [request.output() for request in requests]

    def _run(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Run requests to their end; after each step, yield those that got a new token.

        This is static batching: the next batch starts when the last request of this one is done.
        """
        waiting = deque(requests)
        while waiting:
            size = min(len(waiting), self.config.max_num_seqs)
            running = [waiting.popleft() for _ in range(size)]
            for request in running:
                request.status = RequestStatus.RUNNING
                request.kv_cache = self.kv_cache_class(
                    self.model_config, request.max_num_tokens, self.config.dtype, self.config.device
                )
            while running:
                sampled = self._runner.execute(self._schedule(running))
                for request, token_id, logprobs in sampled:
                    request.append_token(token_id, logprobs)
                    if request.is_finished:
                        request.kv_cache = None  # gives its memory back
                running = [request for request in running if not request.is_finished]
                if sampled:
                    yield [request for request, _, _ in sampled]

    def _schedule(self, running: list[Request]) -> list[tuple[Request, int]]:
        """Choose what the next step computes: `(request, number of tokens)` pairs.

        First the prompts, in order, as many tokens as the budget allows; then one token of every
        request.
        """
        prefilling = [r for r in running if r.num_computed_tokens < len(r.prompt_token_ids)]
        budget = self.config.max_num_batched_tokens
        scheduled = []
        for request in prefilling or running:
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if num_new_tokens == 0:
                break
            scheduled.append((request, num_new_tokens))
            budget -= num_new_tokens
        return scheduled
