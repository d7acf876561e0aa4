"""From the engine's outputs to the bodies of OpenAI's API: whole answers, and pieces of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from utils.engine import CompletionOutput, Logprob, RequestOutput
from utils.serving.http.tools import DONE, error_body, event
from utils.serving.mailbox import Answers, EngineDeadError, EngineGenerateError, FormError
from utils.serving.protocol import ChatCompletionRequest, GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Formatter:
    """Writes the answers to one request of a client.

    Args:
        body: what the client asked for.
        model: the name that the server's model goes by.
        tokenizer: to write tokens of log probabilities as text.
    """

    def __init__(
        self, body: GenerationRequest, model: str, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.body, self.tokenizer = body, tokenizer
        self._echoes: dict[str, str] = {}  # prompts as text, by request id
        self.is_chat = isinstance(body, ChatCompletionRequest)
        prefix, kind = (
            ("chatcmpl", "chat.completion") if self.is_chat else ("cmpl", "text_completion")
        )
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self, answers: Answers) -> dict[str, Any]:
        """The response, once all answers are complete."""
        outputs: dict[int, RequestOutput] = {}
        async for news in answers:
            outputs |= news
        ordered = [outputs[i] for i in sorted(outputs)]
        choices = [
            self._choice(self._index(i, answer), answer, output)
            for i, output in enumerate(ordered)
            for answer in output.outputs
        ]
        return self._head | {"choices": choices, "usage": usage(ordered)}

    async def pieces(self, answers: Answers) -> AsyncIterator[str]:
        """The response as events, one per step of the engine in which an answer grew."""
        head = self._head | ({"object": "chat.completion.chunk"} if self.is_chat else {})
        outputs: dict[int, RequestOutput] = {}
        sent: dict[int, CompletionOutput] = {}  # by the index of the choice
        try:
            async for news in answers:
                outputs |= news
                for i, output in news.items():
                    for answer in output.outputs:
                        index = self._index(i, answer)
                        before = sent.get(index)
                        if _has_grown(answer, before):
                            piece = head | {"choices": [self._piece(index, answer, before, output)]}
                            if self.body.continuous_usage:
                                piece |= {"usage": counts(output.prompt_token_ids, answer)}
                            yield event(piece)
                            sent[index] = answer
            if self.body.include_usage:
                ordered = [outputs[i] for i in sorted(outputs)]
                yield event(head | {"choices": [], "usage": usage(ordered)})
        except (EngineGenerateError, EngineDeadError, FormError) as error:
            # The status was sent long ago, so the error travels as an event.
            yield event(error_body(400 if isinstance(error, FormError) else 500, str(error)))
        yield DONE

    def _index(self, i: int, answer: CompletionOutput) -> int:
        """Number of a choice: all answers to the first prompt, then those to the next."""
        return i * self.body.n + answer.index

    def _choice(
        self, index: int, answer: CompletionOutput, output: RequestOutput
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": self._echoed(output) + answer.text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": answer.text}}
        return {"index": index, **content, **self._ending(answer, None, output)}

    def _piece(
        self,
        index: int,
        answer: CompletionOutput,
        before: CompletionOutput | None,
        output: RequestOutput,
    ) -> dict[str, Any]:
        text = answer.text[len(before.text) if before else 0 :]
        content: dict[str, Any] = {"text": text if before else self._echoed(output) + text}
        if self.is_chat:
            role = {} if before else {"role": "assistant"}
            content = {"delta": role | {"content": text}}
        return {"index": index, **content, **self._ending(answer, before, output)}

    def _echoed(self, output: RequestOutput) -> str:
        """The prompt's text, where the answer shall begin with it."""
        if not self.body.echoes_prompt:
            return ""
        if output.prompt is not None:
            return output.prompt
        if output.request_id not in self._echoes:
            self._echoes[output.request_id] = self.tokenizer.decode(output.prompt_token_ids)
        return self._echoes[output.request_id]

    def _ending(
        self, answer: CompletionOutput, before: CompletionOutput | None, output: RequestOutput
    ) -> dict[str, Any]:
        if answer.finish_reason == "error":
            raise FormError(
                "The answer broke off: what was left of its schema or grammar became too complex. "
                "Ask for a simpler one, or for fewer choices."
            )
        return {
            "logprobs": self._logprobs(answer, before, output),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,  # vLLM's: which stop string or token it was
        }

    def _logprobs(
        self, answer: CompletionOutput, before: CompletionOutput | None, output: RequestOutput
    ) -> dict[str, Any] | None:
        """Log probabilities of the tokens since `before`, if they were asked for; of the prompt's
        tokens first, if it is echoed."""
        if answer.logprobs is None:
            return None
        num_tokens = len(before.token_ids) if before else 0
        steps = zip(answer.token_ids[num_tokens:], answer.logprobs[num_tokens:], strict=True)
        if self.is_chat:
            return {"content": [self._chat_logprob(*step) for step in steps]}
        parts = [(len(self._echoed(output)) + (len(before.text) if before else 0), list(steps))]
        if before is None and output.prompt_logprobs is not None:
            # Nothing precedes the prompt's first token, so nothing says how probable it is.
            scored = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
            parts.insert(0, (0, [(token_id, candidates or {}) for token_id, candidates in scored]))
        tokens: list[str] = []
        chosen: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for num_chars, part in parts:
            for token_id, candidates in part:
                tokens.append(self._text(token_id))
                offsets.append(num_chars)
                num_chars += len(tokens[-1])
                texts = {self._text(i): _finite(c.logprob) for i, c in candidates.items()}
                top.append(texts or None)
                chosen.append(_finite(candidates[token_id].logprob) if candidates else None)
        return {
            "tokens": tokens,
            "token_logprobs": chosen,
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _chat_logprob(self, token_id: int, candidates: dict[int, Logprob]) -> dict[str, Any]:
        count = self.body.num_logprobs() or 0
        ranked = sorted(candidates.items(), key=lambda item: item[1].rank or 0)
        top = [self._one(i, candidate) for i, candidate in ranked[:count]]
        return self._one(token_id, candidates[token_id]) | {"top_logprobs": top}

    def _one(self, token_id: int, candidate: Logprob) -> dict[str, Any]:
        text = self._text(token_id)
        logprob = _finite(candidate.logprob)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id])


def counts(prompt_token_ids: Sequence[int], answer: CompletionOutput) -> dict[str, int]:
    """How many tokens were read and written for one answer so far."""
    prompt, completion = len(prompt_token_ids), len(answer.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """How many tokens were read and written, and how many were found in the prefix cache."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    cached = sum(output.num_cached_tokens or 0 for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _finite(logprob: float) -> float:
    """JSON knows no -inf, which a grammar's forbidden tokens have. The number is vLLM's."""
    return max(logprob, -9999.0)


def _has_grown(answer: CompletionOutput, before: CompletionOutput | None) -> bool:
    if before is None:
        return bool(answer.token_ids)
    return len(answer.token_ids) > len(before.token_ids) or (
        answer.finish_reason is not None and before.finish_reason is None
    )
