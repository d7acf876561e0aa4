"""From what users pass in to checked requests. Everything is checked before any work is done."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.output_processor import RequestState
from utils.engine.request import Request, SamplingParams
from utils.engine.structured_output.grammar import StructuredOutputGrammar, StructuredOutputManager

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptDict(TypedDict, total=False):
    """A prompt with more than its text. Either `prompt` or `prompt_token_ids` must be there."""

    prompt: str
    prompt_token_ids: list[int]
    cache_salt: str  # share cached blocks only with requests that have the same salt


Prompt = str | list[int] | PromptDict
Prompts = Prompt | Sequence[Prompt]
Conversation = list[dict[str, Any]]  # [{"role": "user", "content": "..."}, ...]
Conversations = Conversation | Sequence[Conversation]
Params = SamplingParams | Sequence[SamplingParams] | None  # for all, one each, or the defaults


class InputProcessor:
    """Turns prompts or conversations, with their sampling parameters, into requests.

    What it returns is the users' side of them; each has its `request`, which is the core's.
    """

    def __init__(
        self, model_config: ModelConfig, config: EngineConfig, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.model_config, self.config, self.tokenizer = model_config, config, tokenizer
        self.structured_output_manager = StructuredOutputManager(
            tokenizer, model_config.vocab_size, model_config.eos_token_ids
        )
        self._request_ids = itertools.count()

    def from_prompts(self, prompts: Prompts, sampling_params: Params) -> list[RequestState]:
        """Make requests of texts or of token ids. Raises a ValueError when one of them is bad."""
        single = isinstance(prompts, str | dict) or (
            bool(prompts) and isinstance(cast(Any, prompts)[0], int)
        )
        many = cast(list[Prompt], [prompts] if single else list(prompts))
        split = [self._split(i, prompt) for i, prompt in enumerate(many)]
        texts, ids, salts = zip(*split, strict=True) if split else ((), (), ())
        return self._requests(texts, ids, salts, sampling_params)

    def from_conversations(
        self, messages: Conversations, sampling_params: Params
    ) -> list[RequestState]:
        """Make requests of conversations. Raises a ValueError when one of them is bad."""
        single = bool(messages) and isinstance(messages[0], dict)
        many = cast(list[Conversation], [messages] if single else list(messages))
        texts = [self._render(conversation) for conversation in many]
        # The template has written the special tokens already.
        ids = [self._encode("A message", text, add_special_tokens=False) for text in texts]
        return self._requests(texts, ids, [None] * len(texts), sampling_params)

    def next_request_id(self) -> str:
        """An id that no other request has."""
        return str(next(self._request_ids))

    def _split(self, index: int, prompt: Prompt) -> tuple[str | None, list[int], str | None]:
        """Text (None if there are only token ids), token ids and salt of a prompt."""
        if isinstance(prompt, str):
            return prompt, self._encode(f"Prompt {index}", prompt), None
        if not isinstance(prompt, dict):
            return None, prompt, None
        expected = {"prompt", "prompt_token_ids", "cache_salt"}
        if len({"prompt", "prompt_token_ids"} & set(prompt)) != 1 or set(prompt) - expected:
            raise ValueError(
                f"Prompt {index} is a dict with {sorted(prompt)}. Expected either 'prompt' or "
                f"'prompt_token_ids', and perhaps 'cache_salt'."
            )
        salt = prompt.get("cache_salt")
        check_salt(f"Prompt {index}: ", salt)
        if "prompt_token_ids" in prompt:
            return None, prompt["prompt_token_ids"], salt
        text = prompt["prompt"]
        return text, self._encode(f"Prompt {index}", text), salt

    def _encode(self, what: str, text: str, add_special_tokens: bool = True) -> list[int]:
        if not isinstance(text, str):
            raise ValueError(f"{what} must be a text, got {type(text).__name__}: {str(text)[:60]}.")
        if not _is_text(text):
            raise ValueError(f"{what} is no valid text: it holds half of a surrogate pair.")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _render(self, conversation: Conversation) -> str:
        if not self.tokenizer.chat_template:
            raise ValueError("This model has no chat template. Use generate() with a plain prompt.")
        for message in conversation:
            if not (isinstance(message, dict) and {"role", "content"} <= message.keys()):
                raise ValueError(
                    f"A message must be a dict with 'role' and 'content', got {message!r}."
                )
        if not conversation:
            raise ValueError("The conversation is empty. Expected at least one message.")
        template = self.tokenizer.apply_chat_template
        return cast(str, template(conversation, tokenize=False, add_generation_prompt=True))

    def _requests(
        self,
        texts: Sequence[str | None],
        prompts: Sequence[list[int]],
        salts: Sequence[str | None],
        sampling_params: Params,
    ) -> list[RequestState]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(
                f"Got {len(prompts)} prompts but {len(sampling_params)} sampling_params. "
                "Pass one for all prompts, or exactly one per prompt."
            )
        for i, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True)):
            self._check_prompt(i, prompt)
            self._check_params(params)
        return [
            self._family(text, list(prompt), salt, params)
            for text, prompt, salt, params in zip(
                texts, prompts, salts, sampling_params, strict=True
            )
        ]

    def _check_prompt(self, index: int, prompt: list[int]) -> None:
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise ValueError(
                f"Prompt {index} must be a string or a list of token ids (ints), "
                f"got {type(prompt).__name__}: {str(prompt)[:60]}."
            )
        if not prompt:
            raise ValueError(f"Prompt {index} is empty. Expected at least one token.")
        if len(prompt) >= (limit := self.config.max_model_len):
            raise ValueError(
                f"Prompt {index} has {len(prompt)} tokens, which leaves no room for an answer: "
                f"max_model_len is {limit}. "
                # Clients know this error by vLLM's words.
                f"This model's maximum context length is {limit} tokens, so shorten the prompt, or "
                f"create the LLM with a larger max_model_len."
            )
        self._check_vocabulary(f"Prompt {index}", prompt)

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"Expected SamplingParams, got {type(params).__name__}.")
        if params.n > self.config.max_num_seqs:
            raise ValueError(
                f"n={params.n} answers cannot run together: max_num_seqs is "
                f"{self.config.max_num_seqs}. Ask for fewer, or create the LLM with a larger one."
            )
        self._check_vocabulary("stop_token_ids", cast(list[int], params.stop_token_ids))
        self._grammar(params)

    def _grammar(self, params: SamplingParams) -> StructuredOutputGrammar | None:
        form = params.structured_outputs
        return None if form is None else self.structured_output_manager.grammar_init(form)

    def _check_vocabulary(self, what: str, token_ids: list[int]) -> None:
        vocab_size = self.model_config.vocab_size
        if unknown := [token for token in token_ids if not 0 <= token < vocab_size]:
            raise ValueError(
                f"{what}: token id {unknown[0]} is not in the vocabulary. "
                f"Expected 0 to {vocab_size - 1}."
            )

    def _family(
        self, text: str | None, prompt: list[int], salt: str | None, params: SamplingParams
    ) -> RequestState:
        """The state of a prompt's first answer, with its forks for the `n - 1` others."""
        requests = [self._request(prompt, salt, params, i) for i in range(params.n)]
        requests[0].forks = requests[1:]
        states = [RequestState(r, text, self.tokenizer, i) for i, r in enumerate(requests)]
        for state in states:
            state.family = states
        states[0].name_family(self.next_request_id())
        return states[0]

    def _request(
        self, prompt: list[int], salt: str | None, params: SamplingParams, index: int
    ) -> Request:
        max_num_tokens = self.config.max_model_len
        if params.max_tokens is not None:
            max_num_tokens = min(max_num_tokens, len(prompt) + params.max_tokens)
        return Request(
            request_id="",  # `name_family` sets it
            prompt_token_ids=prompt,
            sampling_params=params,
            max_num_tokens=max_num_tokens,
            eos_token_ids=self.model_config.eos_token_ids,
            seed=None if params.seed is None else params.seed + index,
            grammar=self._grammar(params),
            cache_salt=salt,
        )


def check_salt(where: str, salt: Any) -> None:
    """Raise a ValueError unless `salt` is None, or text that can be hashed and published."""
    if salt is not None and not (isinstance(salt, str) and salt and _is_text(salt)):
        raise ValueError(f"{where}cache_salt must be a non-empty string, got {salt!r}.")


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
