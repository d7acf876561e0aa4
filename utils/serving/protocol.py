"""What clients may ask for: the bodies of OpenAI's API, with vLLM's extra fields.

Names and defaults are those of vLLM's `entrypoints/openai/*/protocol.py`. What the engine cannot do
is refused, not ignored: an answer without the penalty that was asked for would be a wrong answer.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from utils.engine import SamplingParams, StructuredOutputsParams
from utils.serving.http.neutral_fields import IGNORED, NEUTRAL, as_accepted, not_empty


class StreamOptions(BaseModel):
    """When a stream says how many tokens it has.

    `include_usage`: in one more event at the end; with `continuous_usage_stats` also in each other
    event, the tokens of its choice so far.
    """

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchemaResponseFormat(BaseModel):
    """A schema with a name. It is always followed to the letter, so `strict` changes nothing."""

    model_config = ConfigDict(extra="forbid")
    name: str
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form of an answer, in the words of OpenAI's API."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be there if the type is json_schema, and only then.")
        return self

    def form(self) -> dict[str, Any]:
        """The same as arguments of `StructuredOutputsParams`."""
        if self.json_schema is not None:
            return {"json": self.json_schema.json_schema}
        return {"json_object": True} if self.type == "json_object" else {}


class GenerationRequest(BaseModel):
    """The fields that both kinds of completion share."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=as_accepted)
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL
    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None  # vLLM's: also regex, choice, grammar
    priority: int = 0
    cache_salt: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name, neutral in cls.neutral.items():
            value = body.get(name)
            if value is not None and value not in neutral:
                raise ValueError(f"{name}={value!r} is not supported by this server. Leave it out.")
        # null stands for the default, as in OpenAI's API.
        known = {k: v for k, v in body.items() if v is not None and k not in cls.neutral}
        return {name: value for name, value in known.items() if name not in IGNORED}

    @model_validator(mode="after")
    def _options_only_for_streams(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream=true.")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def echoes_prompt(self) -> bool:
        """Whether the answer, and its log probabilities, begin with the prompt's."""
        return False

    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens to report at each step; None: none at all."""
        raise NotImplementedError

    def to_sampling_params(self) -> SamplingParams:
        """The engine's parameters. Raises a ValueError if one is out of its range."""
        same = (
            "max_tokens",
            "min_tokens",
            "n",
            "seed",
            "stop",
            "stop_token_ids",
            "ignore_eos",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
        )
        fields = {name: getattr(self, name) for name in same}
        count = self.num_logprobs()
        fields |= {
            "logprobs": count,
            "prompt_logprobs": count if self.echoes_prompt else None,
            "structured_outputs": self._form(),
        }
        return SamplingParams(**fields)

    def _form(self) -> StructuredOutputsParams | None:
        given = (self.structured_outputs or {}) | (
            self.response_format.form() if self.response_format else {}
        )
        given = {name: value for name, value in given.items() if value is not None}
        known = {field.name for field in dataclasses.fields(StructuredOutputsParams)}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"structured_outputs.{unknown[0]}: this server knows no such field")
        return StructuredOutputsParams(**given) if given else None


class CompletionRequest(GenerationRequest):
    """Continue a text, or several.

    `logprobs`: how many of the most likely tokens to report. `echo`: begin the answer with the
    prompt; with `logprobs`, report its tokens, too. Evaluation by likelihood needs that.
    """

    neutral: ClassVar = NEUTRAL | {"add_special_tokens": (True,)}
    prompt: str | list[str] | list[int] | list[list[int]] = Field(json_schema_extra=not_empty)
    max_tokens: int | None = 16
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False

    @property
    def echoes_prompt(self) -> bool:
        return self.echo

    def prompts(self) -> list[dict[str, Any]]:
        """The prompts, as the engine wants them. Raises a ValueError if there is none."""
        if not (prompt := self.prompt):
            raise ValueError("prompt is empty. Expected a text, token ids, or a list of these.")
        single = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [
            {"prompt": one} if isinstance(one, str) else {"prompt_token_ids": one}
            for one in ([prompt] if single else prompt)
        ]

    def num_logprobs(self) -> int | None:
        return self.logprobs


class ChatMessage(BaseModel):
    """One turn of a conversation. Only text: this model has no eyes and no ears."""

    model_config = ConfigDict(extra="forbid")
    role: str
    content: str
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_nothing(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        if message.get("tool_calls") or message.get("role") == "tool":
            raise ValueError(
                "tool calls are not supported by this server. Write what a tool was asked, and "
                "what it answered, as text."
            )
        return {k: v for k, v in message.items() if v is not None and k != "tool_calls"}

    @field_validator("content", mode="before")
    @classmethod
    def _join_text_parts(cls, content: Any) -> Any:
        if not isinstance(content, list):
            return content
        if any(
            not (isinstance(part, dict) and part.get("type") == "text")
            or not isinstance(part.get("text"), str)
            for part in content
        ):
            raise ValueError("only parts of type text are supported, each with its text")
        return "\n".join(part["text"] for part in content)


class ChatCompletionRequest(GenerationRequest):
    """Answer a conversation, written out by the model's chat template."""

    # The template writes the special tokens, and ends where the answer begins.
    neutral: ClassVar = NEUTRAL | {
        "add_special_tokens": (False,),
        "add_generation_prompt": (True,),
        "echo": (False,),
    }
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="after")
    def _one_limit(self) -> ChatCompletionRequest:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens  # the new name of the same
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is only for logprobs=true.")
        return self

    def conversations(self) -> list[list[dict[str, Any]]]:
        """The one conversation to answer, as the engine wants it."""
        return [[message.model_dump(exclude_none=True) for message in self.messages]]

    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None
