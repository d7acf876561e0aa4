"""Fields that ask for nothing here, and what the published schema says of what is accepted."""

from __future__ import annotations

from typing import Any

# Fields that this server does not implement, with the values that ask for nothing. Clients write
# them out: OpenAI's, vLLM's own, and routers.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "mm_payload": ("tensors",),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "return_mm_kwargs": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    # Routers (vllm-router, sglang-router) write these into each request that they pass on.
    "continue_final_message": (False,),
    "include_reasoning": (True, False),  # this model writes no reasoning
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "separate_reasoning": (True, False),
    "skip_special_tokens": (True,),
    "stream_reasoning": (True, False),
}

# Fields that never change the answer.
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "request_id",
    "safety_identifier",
    "service_tier",
    "session_id",
    "store",
    "user",
)


def as_accepted(schema: dict[str, Any], model: Any) -> None:
    """Let the published schema of a body say what is accepted besides: null for the default, and
    fields that ask for nothing."""
    properties = schema["properties"]
    for name in properties.keys() - set(schema.get("required", ())):
        properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
    for name, values in model.neutral.items():
        properties[name] = {"enum": [*values, None], "description": "Only what asks for nothing."}
    for name in IGNORED:
        properties[name] = {"description": "Accepted, and changes nothing."}


def not_empty(schema: dict[str, Any]) -> None:
    """Let the published schema of a field say that neither a text nor a list may be empty."""
    for kind in schema["anyOf"]:
        kind["minLength" if kind["type"] == "string" else "minItems"] = 1
