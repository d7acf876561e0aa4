"""Fields of a request that ask for nothing here: what may stand in them, and is no error."""

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
IGNORED = ("metadata", "prompt_cache_key", "request_id", "safety_identifier", "service_tier",
           "session_id", "store", "user")  # fmt: skip
