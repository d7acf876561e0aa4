"""One right answer to each exercise of lab 08, as in the solution notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
from torch import Tensor

from utils.checks.lab_08.given_parts import Difference, EngineBase, Latencies
from utils.engine import Request, RequestOutput, RequestStatus, SamplingParams


def check_sampling_params(params: SamplingParams) -> None:
    def require(condition: bool, name: str, expected: str) -> None:
        if not condition:
            raise ValueError(f"{name} must be {expected}, got {getattr(params, name)!r}.")

    def is_count(value: object, least: int) -> bool:
        return isinstance(value, int) and value >= least

    strings = params.stop if isinstance(params.stop, list) else [params.stop]
    valid = params.stop is None or all(isinstance(s, str) and s for s in strings)
    require(valid, "stop", "None, or strings that are not empty")
    require(is_count(params.n, 1), "n", "an integer, at least 1")
    require(params.n == 1 or params.temperature != 0, "n", "1 when temperature is 0")
    require(0 <= params.temperature <= 2, "temperature", "from 0 to 2")
    require(0 < params.top_p <= 1, "top_p", "above 0, at most 1")
    require(is_count(params.top_k, -1), "top_k", "an integer, at least -1")
    require(0 <= params.min_p <= 1, "min_p", "from 0 to 1")
    limit = params.max_tokens
    require(limit is None or is_count(limit, 1), "max_tokens", "None or at least 1")
    require(is_count(params.min_tokens, 0), "min_tokens", "an integer, at least 0")
    require(limit is None or params.min_tokens <= limit, "min_tokens", "at most max_tokens")


def prepare_inputs(
    requests: Sequence[Request], num_scheduled_tokens: dict[str, int]
) -> tuple[list[int], list[int], list[int]]:
    input_ids: list[int] = []
    positions: list[int] = []
    logits_indices: list[int] = []
    for request in requests:
        start = request.num_computed_tokens
        end = start + num_scheduled_tokens[request.request_id]
        input_ids += request.all_token_ids[start:end]
        positions += range(start, end)
        if end == request.num_tokens:
            logits_indices.append(len(input_ids) - 1)
    return input_ids, positions, logits_indices


def update_request(request: Request, num_scheduled_tokens: int, token_id: int | None) -> None:
    request.num_computed_tokens += num_scheduled_tokens
    if token_id is None:
        return
    params = request.sampling_params
    may_stop = len(request.output_token_ids) >= params.min_tokens
    request.output_token_ids.append(token_id)
    request.all_token_ids.append(token_id)
    if may_stop and token_id in request.eos_token_ids and not params.ignore_eos:
        request.status = RequestStatus.FINISHED_STOPPED
    elif may_stop and token_id in params.stop_token_ids:  # type: ignore[operator]
        request.status, request.stop_reason = RequestStatus.FINISHED_STOPPED, token_id
    elif request.num_tokens >= request.max_num_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED


class Detokenizer:
    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: list[int]) -> None:
        self.decode = decode
        count = 6
        self.token_ids = prompt_token_ids[-count:]
        while decode(self.token_ids).startswith("\ufffd") and count < len(prompt_token_ids):
            count += 6  # they begin inside a character
            self.token_ids = prompt_token_ids[-count:]
        self.num_known = len(self.token_ids)  # of these, how many have their text returned

    def append(self, token_id: int) -> str:
        self.token_ids.append(token_id)
        known = self.decode(self.token_ids[: self.num_known])
        text = self.decode(self.token_ids)
        if text == known or text.endswith("\ufffd"):
            return ""  # nothing new, or half a character
        self.token_ids = self.token_ids[self.num_known :]
        self.num_known = len(self.token_ids)
        return text[len(known) :]


def text_to_show(text: str, num_gained: int, stop: list[str]) -> tuple[int, str | None]:
    found = []  # (where it is complete, its place in the list, where it begins, the string)
    for i, string in enumerate(stop):
        begin = text.find(string, max(0, len(text) - num_gained - len(string) + 1))
        if begin >= 0:
            found.append((begin + len(string), i, begin, string))
    if found:
        *_, begin, string = min(found)
        return begin, string
    longest = max(map(len, stop), default=1)
    return max(0, len(text) - (longest - 1)), None


def latencies(arrival_time: float, scheduled_ts: float, token_ts: list[float]) -> Latencies:
    itl = [token_ts[i + 1] - token_ts[i] for i in range(len(token_ts) - 1)]
    return Latencies(
        queue_time=scheduled_ts - arrival_time,
        ttft=token_ts[0] - arrival_time,
        tpot=sum(itl) / len(itl) if itl else None,
        itl=itl,
        e2e_latency=token_ts[-1] - arrival_time,
    )


def serving_report(
    requests: list[Latencies], duration: float, ttft_slo: float, tpot_slo: float
) -> dict[str, float]:
    ttfts = [request.ttft for request in requests]
    gaps = [gap for request in requests for gap in request.itl]
    good = [
        request
        for request in requests
        if request.ttft <= ttft_slo and (request.tpot is None or request.tpot <= tpot_slo)
    ]
    return {
        "median_ttft": float(numpy.percentile(ttfts, 50)),
        "p99_ttft": float(numpy.percentile(ttfts, 99)),
        "p99_itl": float(numpy.percentile(gaps, 99)),
        "output_throughput": (len(requests) + len(gaps)) / duration,
        "request_goodput": len(good) / duration,
    }


def first_difference(
    tokens_a: list[int], tokens_b: list[int], logits: Tensor, noise: float
) -> Difference | None:
    for index, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            gap = float(logits[index, a]) - float(logits[index, b])
            return Difference(index, gap, gap <= 2 * noise)
    if len(tokens_a) != len(tokens_b):
        return Difference(min(len(tokens_a), len(tokens_b)), None, False)
    return None


class MyLLMEngine(EngineBase):
    def step(self) -> list[RequestOutput]:
        try:
            scheduler_output = self.scheduler.schedule()
            if not scheduler_output.num_scheduled_tokens:
                return []
            sampled = self.execute_model(scheduler_output)
            outputs = []
            for request_id, num_scheduled in scheduler_output.num_scheduled_tokens.items():
                request, token_id = self.requests[request_id], sampled.get(request_id)
                self.update(request, num_scheduled, token_id)
                if token_id is not None:
                    outputs.append(self.output(request))
                if request.is_finished:
                    self.free(request)
                    del self.requests[request_id]
            return outputs
        except BaseException:
            self.abort_requests(list(self.requests))
            self.forget_contents()
            raise

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                request.status = RequestStatus.FINISHED_ABORTED
                self.free(request)
                del self.requests[request_id]


class MyAsyncScheduler:
    def num_uncomputed(self, request: Request) -> int:
        num_tokens = request.num_tokens + request.num_output_placeholders
        if num_tokens == request.max_num_tokens:
            return 0
        return num_tokens - request.num_computed_tokens

    def update_after_schedule(self, request: Request, num_scheduled_tokens: int) -> None:
        request.num_computed_tokens += num_scheduled_tokens
        if request.num_computed_tokens == request.num_tokens + request.num_output_placeholders:
            request.num_output_placeholders += 1

    def update_with_output(self, request: Request) -> None:
        request.num_output_placeholders -= 1
