"""What users see of the engine's tokens: text, stop strings, log probabilities, times, n answers.

Names as in vLLM's `v1/engine/output_processor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from utils.engine.detokenizer import IncrementalDetokenizer
from utils.engine.outputs import (
    CompletionOutput,
    EngineCoreOutput,
    Logprob,
    PromptLogprobs,
    RequestMetrics,
    RequestOutput,
)
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RequestState:
    """One answer as its user sees it. The core's side of it is `request`.

    Args:
        request: what the core computes.
        prompt: the prompt's text; None when token ids were given.
        tokenizer: the model's.
        index: which of the prompt's `n` answers this is.
    """

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: PreTrainedTokenizerBase,
        index: int = 0,
    ) -> None:
        self.request, self.prompt, self.index = request, prompt, index
        self.tokenizer = tokenizer
        self.family = [self]  # the states of all the prompt's answers
        self.text = ""
        self.output_token_ids: list[int] = []
        self.num_new_tokens = 0  # that the last step brought
        self.logprobs: list[dict[int, Logprob]] = []
        self.prompt_logprobs: PromptLogprobs | None = None
        self.num_cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.stop_strings = cast(list[str], self.sampling_params.stop)
        self.metrics = RequestMetrics(request.arrival_time)

    @cached_property
    def detokenizer(self) -> IncrementalDetokenizer:
        """Made when the first token comes."""
        return IncrementalDetokenizer(self.tokenizer, self.prompt_token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sampling_params(self) -> SamplingParams:
        return self.request.sampling_params

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.request.prompt_token_ids

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_answered(self) -> bool:
        """Whether all the prompt's answers are finished, not only this one."""
        return all(member.is_finished for member in self.family)

    def name_family(self, request_id: str) -> None:
        """Name this prompt's requests: the first as given, its forks with their index before it."""
        for i, member in enumerate(self.family):
            member.request.request_id = request_id if i == 0 else f"{i}_{request_id}"

    def set_priority(self, priority: int) -> None:
        """Set it for all the prompt's answers."""
        for member in self.family:
            member.request.priority = priority

    def update(self, output: EngineCoreOutput) -> None:
        """Take what a step brought. A stop string ends the answer, whatever comes after it."""
        before = len(self.output_token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.prompt_logprobs = output.prompt_logprobs
        self.metrics.scheduled_ts = output.scheduled_ts
        self.metrics.num_preemptions = output.num_preemptions
        self.logprobs += output.new_logprobs
        for i, token_id in enumerate(output.new_token_ids, start=1):
            is_last = i == len(output.new_token_ids)
            ends = output.finish_reason if is_last else None
            self._append(token_id, is_text=ends not in ("stop", "error"))
            if self.is_finished:  # by a stop string
                break
            self.finish_reason, self.stop_reason = ends, output.stop_reason if ends else None
        self.num_new_tokens = len(self.output_token_ids) - before
        del self.logprobs[len(self.output_token_ids) :]

    def _append(self, token_id: int, is_text: bool) -> None:
        early = len(self.output_token_ids) < self.sampling_params.min_tokens
        self.output_token_ids.append(token_id)
        self.metrics.record_token()
        if not is_text:  # what ends an answer is no part of its text
            return
        gained = self.detokenizer.append(token_id)
        self.text += gained
        if early or not gained:
            return
        # A stop string may have begun in earlier text, but it ends in what was gained.
        searched = len(self.text) - len(gained)
        found = {
            stop: begin
            for stop in self.stop_strings
            if (begin := self.text.find(stop, max(0, searched - len(stop) + 1))) >= 0
        }
        if found:
            first = min(found, key=lambda stop: found[stop] + len(stop))  # the first to end
            self.text = self.text[: found[first]]
            self.finish_reason, self.stop_reason = "stop", first

    def output(self) -> RequestOutput:
        """The prompt's answers so far, all `n` of them."""
        first = self.family[0]
        return RequestOutput(
            request_id=first.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[member.completion() for member in self.family],
            finished=self.is_answered,
            metrics=first.metrics,
            num_cached_tokens=first.num_cached_tokens,
            prompt_logprobs=copy(first.prompt_logprobs),
        )

    def completion(self) -> CompletionOutput:
        """This answer so far."""
        text = self.text
        if self.stop_strings and not self.is_finished:
            # Keep back what may begin a stop string.
            text = text[: max(0, len(text) - max(map(len, self.stop_strings)) + 1)]
        wanted = self.sampling_params.logprobs is not None
        chosen = zip(self.logprobs, self.output_token_ids, strict=wanted)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=list(self.output_token_ids),
            cumulative_logprob=sum(at[t].logprob for at, t in chosen) if wanted else None,
            logprobs=list(self.logprobs) if wanted else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class OutputProcessorOutput(NamedTuple):
    """What came of a step.

    Args:
        updated: the answers that got new tokens.
        reqs_to_abort: those of them that a stop string has ended, which the core cannot know.
    """

    updated: list[RequestState]
    reqs_to_abort: list[str]


class OutputProcessor:
    """Keeps what users see of all requests that are not finished."""

    def __init__(self) -> None:
        self.request_states: dict[str, RequestState] = {}  # one for each answer
        self.parent_requests: dict[str, RequestState] = {}  # by prompt: that of its first answer

    def add_request(self, state: RequestState) -> None:
        """Follow all answers to a prompt."""
        self.parent_requests[state.request_id] = state
        self.request_states |= {member.request_id: member for member in state.family}

    def process_outputs(self, outputs: Sequence[EngineCoreOutput]) -> OutputProcessorOutput:
        """Take what a step brought, and let go what is finished. Unknown requests are ignored."""
        updated, to_abort = [], []
        for output in outputs:
            if (state := self.request_states.get(output.request_id)) is None:
                continue  # aborted meanwhile
            state.update(output)
            updated.append(state)
            if state.is_finished:
                del self.request_states[output.request_id]
                if output.finish_reason is None:
                    to_abort.append(output.request_id)
                if state.is_answered:
                    self.parent_requests.pop(state.family[0].request_id, None)
        return OutputProcessorOutput(updated, to_abort)

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """Drop prompts with all their answers: the names of those that the core has to drop.

        Unknown and finished ones are ignored.
        """
        dropped = []
        for name in request_ids:
            for state in getattr(self.parent_requests.pop(name, None), "family", ()):
                if self.request_states.pop(state.request_id, None) is not None:
                    state.finish_reason = "abort"
                    dropped.append(state.request_id)
        return dropped

    def forget_everything(self) -> None:
        """Drop all that is not finished, whatever state an interrupt left it in."""
        for state in self.request_states.values():
            state.finish_reason = state.finish_reason or "abort"
        self.request_states, self.parent_requests = {}, {}
